/* cmd_import.h -- what the formats of `./train import` have in common. The code of a format only
 * opens its files as an ImportInput; everything else is common to all formats (cmd_import.c). */
#ifndef PARALLEL_COMMANDS_CMD_IMPORT_H
#define PARALLEL_COMMANDS_CMD_IMPORT_H

#include "data/tokenizer/tokenizer.h"
#include "model/core/exit_codes.h"
#include "model/weights/architecture.h"
#include "model/weights/source.h"
#include "parallel/run/imported.h"

enum { IMPORT_MOST_FILES = 24 };

/* A model of another program, opened. */
typedef struct {
    Architecture architecture;
    WeightSource *source;
    Tokenizer *tokenizer; /* NULL: there is none */
    /* tokenizer.json and the files that belong to it, if there is a tokenizer, and licences; the
     * texts are owned. */
    ImportedFile file[IMPORT_MOST_FILES];
    int n_files;
    char *described; /* the file that describes the model, for messages about its config */
    char *opened;    /* the file that was chosen in the folder that the user named, or NULL */
} ImportInput;

/* Opens `path`, and its tokenizer, too, if `tokenizer` is true. Returns false and sets err and
 * *code on failure; the caller then releases what is already in *out. */
typedef bool (*ImportOpen)(const char *path, bool tokenizer, ImportInput *out, char *err, size_t n,
                           ExitCode *code);

/* Adds a file for the run's folder. Takes ownership of `text`. */
void import_add_file(ImportInput *input, const char *name, char *text, size_t bytes);

bool import_open_hf(const char *path, bool tokenizer, ImportInput *out, char *err, size_t n,
                    ExitCode *code);
bool import_open_llmc(const char *path, bool tokenizer, ImportInput *out, char *err, size_t n,
                      ExitCode *code);

#endif
