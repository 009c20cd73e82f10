/* cmd_export.h -- what the formats of `./train export` have in common. A format writes an opened
 * run; the rest is the same for all (cmd_export.c). */
#ifndef PARALLEL_COMMANDS_CMD_EXPORT_H
#define PARALLEL_COMMANDS_CMD_EXPORT_H

#include "parallel/run/exported.h"

typedef struct {
    OpenedArguments opened; /* the first field: OPENED_CHOICES */
    const char *out, *dtype;
    int64_t shard_bytes; /* hf only */
} ExportArguments;

typedef struct {
    int files;         /* files of weights */
    int64_t bytes;     /* of weights */
    int64_t overflows; /* finite weights that became infinite */
    char what[64];     /* what was written: "a llama" */
    char *note;        /* a line about how to use it; whoever called the format frees it */
} ExportResult;

/* Writes the run to a->out in `dtype`. Returns false and sets err and *code on failure, after
 * removing what it has written. */
typedef bool (*ExportWrite)(const ExportArguments *a, const ExportedRun *run, DType dtype,
                            ExportResult *result, char *err, size_t n, ExitCode *code);

/* Makes the folder of the file `out`, which must not exist: a file of another model is not
 * replaced. Returns false and sets err on failure. */
bool export_file_begin(const char *out, char *err, size_t n);
/* Returns the exit code for a failure to write the source's weights: weights that do not match
 * their checksum are the run's fault, not the disk's. */
ExitCode export_failure(const WeightSource *source);
/* Warns if the run has no tokenizer, so that what is written, a "file" or a "folder", has none. */
void export_check_tokenizer(const ExportedRun *run, const char *what);
/* Returns the command before a path that a shell reads back, as a note; the caller frees. */
char *export_note(const char *command, const char *path);
/* Returns the id of the token that the tokenizer puts before a text, or else of a special token
 * with the name of one, or else of the one that ends a text: GPT-2 and this program's tokenizers
 * begin a text with the token that ends the one before. */
int32_t export_first_token(const Tokenizer *t);

bool export_hf(const ExportArguments *a, const ExportedRun *run, DType dtype, ExportResult *result,
               char *err, size_t n, ExitCode *code);
bool export_llmc(const ExportArguments *a, const ExportedRun *run, DType dtype,
                 ExportResult *result, char *err, size_t n, ExitCode *code);
bool export_gguf(const ExportArguments *a, const ExportedRun *run, DType dtype,
                 ExportResult *result, char *err, size_t n, ExitCode *code);

#endif
