/* imported.h -- creates a run folder from weights that another program has written. */
#ifndef PARALLEL_RUN_IMPORTED_H
#define PARALLEL_RUN_IMPORTED_H

#include "configs/config.h"
#include "model/core/exit_codes.h"
#include "model/weights/source.h"

/* A file of the run folder in addition to its config and checkpoint, such as tokenizer.json or a
 * licence. */
typedef struct {
    char *name, *text;
    size_t bytes;
} ImportedFile;

/* What an imported run folder is made of. */
typedef struct {
    WeightSource *source;
    const Config *config; /* its model is that of the weights; vocab_size is set */
    const char *origin;   /* where the weights come from, for messages */
    const char *data; /* identity of the data for the manifest (data/identity.h): the tokenizer */
    const ImportedFile *file;
    int n_files;
} ImportedRun;

typedef struct {
    int64_t bytes;      /* of the checkpoint */
    int64_t not_finite; /* number of weights that are NaN or infinite in the source */
    int64_t rounded;    /* number of tensors that the source has in another dtype */
} ImportedResult;

/* Creates the folder `out`: config.json, the other files, and checkpoints/step_00000000 with the
 * weights in the config's dtype and no optimizer states. Weights are read and written in parts of
 * limited size, so large tensors are never in memory as a whole. First checks that the source has
 * exactly the model's tensors, and that the disk has room. Finite weights that become infinite in
 * the config's dtype are an error. Everything is written to a temporary folder next to `out`, which
 * is renamed to `out` at the end, so an import that fails or is killed leaves no `out`.
 *
 * `out` must not exist, or be an empty folder. Returns false and sets err and *code on failure;
 * tensors that do not fit are printed to stderr, one per line. */
bool imported_run_write(const char *out, const ImportedRun *run, ImportedResult *result, char *err,
                        size_t n, ExitCode *code);

#endif
