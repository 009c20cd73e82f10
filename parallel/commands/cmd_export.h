/* cmd_export.h -- what the formats of `./train export` have in common. The code of a format only
 * writes a run that is open; everything else is common to all formats (cmd_export.c). */
#ifndef PARALLEL_COMMANDS_CMD_EXPORT_H
#define PARALLEL_COMMANDS_CMD_EXPORT_H

#include "parallel/run/exported.h"

typedef struct {
    OpenedArguments opened; /* must come first, for OPENED_CHOICES */
    const char *out, *dtype;
    int64_t shard_bytes; /* hf only */
} ExportArguments;

typedef struct {
    int files;         /* files of weights */
    int64_t bytes;     /* of weights */
    int64_t overflows; /* finite weights that became infinite */
    char what[64];     /* what was written: "a llama" */
    char *note;        /* a line about how to use the output; the caller frees it */
} ExportResult;

/* Writes the run to a->out in `dtype`. Returns false and sets err and *code on failure, after
 * removing what it has written. */
typedef bool (*ExportWrite)(const ExportArguments *a, const ExportedRun *run, DType dtype,
                            ExportResult *result, char *err, size_t n, ExitCode *code);

/* Creates the folder of the file `out`. The file must not exist, so that another model is not
 * overwritten. Returns false and sets err on failure. */
bool export_file_begin(const char *out, char *err, size_t n);
/* Returns the exit code after a failure to write the source's weights. It depends on whether the
 * weights did not match their checksum (the run is damaged) or could not be written. */
ExitCode export_failure(const WeightSource *source);
/* Warns if the run has no tokenizer, so that the output has none. `what`: the kind of output,
 * "file" or "folder". */
void export_check_tokenizer(const ExportedRun *run, const char *what);
/* Returns a note: the command followed by the path, quoted for a shell; the caller frees it. */
char *export_note(const char *command, const char *path);
/* Returns the id of the token that begins a text. It is the first of these that exists: the token
 * that the tokenizer puts before a text; a special token with a usual name of such a token; the
 * token that ends a text, because with GPT-2 and this program's tokenizers a text begins after the
 * end token of the previous text. */
int32_t export_first_token(const Tokenizer *t);

bool export_hf(const ExportArguments *a, const ExportedRun *run, DType dtype, ExportResult *result,
               char *err, size_t n, ExitCode *code);
bool export_llmc(const ExportArguments *a, const ExportedRun *run, DType dtype,
                 ExportResult *result, char *err, size_t n, ExitCode *code);
bool export_gguf(const ExportArguments *a, const ExportedRun *run, DType dtype,
                 ExportResult *result, char *err, size_t n, ExitCode *code);

#endif
