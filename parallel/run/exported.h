/* exported.h -- opens a run's checkpoint to write its weights for another program, without a device
 * and without the data. */
#ifndef PARALLEL_RUN_EXPORTED_H
#define PARALLEL_RUN_EXPORTED_H

#include "model/weights/source.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/run/opened_run.h"

typedef struct {
    char *folder;         /* of the run */
    const Config *config; /* that of the checkpoint; model.vocab_size is set */
    Checkpoint *checkpoint;
    WeightSource *source; /* its weights: exactly the tensors of the config's model */
    Tokenizer *tokenizer; /* the copy in the run folder; NULL if it has none */
    bool masters;         /* true: the source presents master copies of 16-bit weights */
    char chosen[64];      /* which checkpoint: "best: step 25, val 5.0624", "newest: step 40" */
} ExportedRun;

/* Opens the run folder or checkpoint that the arguments name. In a run folder it opens the best
 * checkpoint, or the newest if no best one is kept; --best and --newest select one. If the best
 * checkpoint cannot be opened, it warns and opens the newest, unless --best is given. `masters`:
 * the source presents the master copies of 16-bit weights, if there are any, instead of the
 * weights. The source reads the data when they are needed, and compares them with their checksums.
 * Returns false and sets err and *code on failure. */
bool exported_run_open(ExportedRun *run, const OpenedArguments *arguments, bool masters, char *err,
                       size_t n, ExitCode *code);
void exported_run_close(ExportedRun *run);

#endif
