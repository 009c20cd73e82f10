/* best.h -- tracks the validation loss of a run, and keeps the checkpoint of the step with the
 * lowest one. */
#ifndef PARALLEL_RUN_BEST_H
#define PARALLEL_RUN_BEST_H

#include "parallel/run/run.h"

/* Returns whether the run keeps its best checkpoint: the config asks for it, and there is
 * validation data. */
bool best_is_kept(const Config *config, const DataSet *data);
/* Returns whether the best checkpoint may differ from the newest and so take additional disk space:
 * it does if the best one is kept and there are evaluations before the end of the run. */
bool best_takes_disk(const Config *config, const DataSet *data);
/* Returns the largest number of checkpoints that a run with evaluations before its end saves only
 * because they are the best so far: at most one for each evaluation at a step that
 * checkpoint.save_interval does not save. */
int64_t best_most_saves(const Config *config);

/* Returns the exit code for a best checkpoint that could not be opened; `err` ends with the reason.
 * EXIT_DAMAGED means that the checkpoint is damaged or missing; the run then continues without it.
 * Any other code means that it may be intact; the start then fails. */
ExitCode best_failure(const char *err);

/* Restores run->best when the run is opened, from best.json and from the metrics of the steps up to
 * the checkpoint from which the run resumes (NULL: it starts at step 0 or from another run). All
 * ranks call it. */
void best_open(Run *run, const Checkpoint *resumed);
/* Removes best.json if it names a checkpoint after `step`. To be called before the run goes back to
 * `step`, which removes the later checkpoints. Any rank may call it; rank 0 does the work. */
void best_forget_after(const Run *run, int64_t step);
/* Restores run->best after the run and its metrics have gone back to the checkpoint `to`:
 * evaluations after its step are forgotten. All ranks call it. */
void best_go_back(Run *run, const Checkpoint *to);
/* Compares the newest evaluation with the lowest one so far. All ranks call it once after each
 * evaluation. */
void best_compare(Run *run);
/* If the newest evaluation has a lower loss than the best checkpoint, saves this step, unless it is
 * saved already, and records it as the best checkpoint. Does neither in the first tenth of the run,
 * nor if this step is not saved and too few steps have passed since the best checkpoint. All ranks
 * call it after best_compare. */
void best_keep(Run *run);
/* Returns whether the last eval.patience evaluations brought no lower loss. */
bool best_has_stalled(const Run *run);
/* Returns whether the newest validation loss is higher than the lowest one of all earlier steps, by
 * enough that the four printed decimals show it. */
bool best_has_risen(const Run *run);

#endif
