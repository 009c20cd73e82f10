/* init_from.h -- checkpoint.init_from: a new run begins with weights from elsewhere. Nothing else
 * is taken: steps, data, schedule and optimizer states are those of any new run. Once the run has
 * saved, it resumes from its own checkpoints, and the source is no longer needed. */
#ifndef PARALLEL_RUN_INIT_FROM_H
#define PARALLEL_RUN_INIT_FROM_H

#include "parallel/run/run.h"

/* If the config has checkpoint.init_from and the run will begin at step 0, finds the weights that
 * it names. Checks that they fit the model of the run's session and were trained with its
 * tokenizer. Reads only headers, and writes nothing. Ends the program if they cannot be used.
 * Called on rank 0, before the run's folder is chosen; a dry run calls it, too. */
void init_from_find(Run *run);
/* Chooses the run's own checkpoint of step 0 as the source of its weights. An import has written
 * it, so it has weights but no optimizer states (checkpoint_weights_only). All ranks call it before
 * init_from_take. */
void init_from_own(Run *run, const Checkpoint *beginning);
/* Reads the weights that init_from_find has found on rank 0, or that init_from_own has chosen, into
 * the allocated trainer, and prints where they came from. Returns false if there is nothing to
 * read. Ends the program on failure. All ranks call it. */
bool init_from_take(Run *run);
/* Writes RUN/init_from.json, unless the weights are the run's own, and a line to the metrics, which
 * must be open. Returns false and sets err if the file cannot be written. Called on rank 0 after
 * init_from_take has returned true. */
bool init_from_record(const Run *run, char *err, size_t n);

#endif
