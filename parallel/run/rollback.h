/* rollback.h -- lets a run go back to a checkpoint and continue from there with later data
 * (health.policy "rollback"). Also does what a run needs after it has loaded any checkpoint.
 *
 * Only the training determines which step causes a rollback. The run goes back to the newest
 * checkpoint before that step; if the step ends a series of skipped updates, to the newest one
 * before the series. Checkpoints at multiples of checkpoint.save_interval are preferred to all
 * others, because the others may have been saved at any step, such as at a stop. So, if there is a
 * checkpoint at such a multiple, stops do not change where the run goes back to.
 *
 * A rollback does not change the checkpoint to which it goes back. So a run that is killed at any
 * time afterwards resumes from it, or from a checkpoint saved after the rollback, and makes the
 * same steps again. */
#ifndef PARALLEL_RUN_ROLLBACK_H
#define PARALLEL_RUN_ROLLBACK_H

#include "parallel/run/run.h"

/* Sets run->records after a checkpoint was loaded. The totals come from the checkpoint's state. If
 * the metrics are those of the same run (`same_run`), rank 0 takes the last loss from them and
 * sends it to the other ranks. All ranks call it. */
void run_take_up(Run *run, bool same_run);
/* Makes this step the beginning of the attempt: the average duration of a step is measured from
 * here on, and the ranks decide on a stop at the next opportunity. */
void run_begin_here(Run *run);

#endif
