/* rollback.h -- lets a run go back to a checkpoint and continue from there with later data
 * (health.policy "rollback"); also what a run does after it has loaded any checkpoint.
 *
 * A rollback depends on the training alone: on the step whose record causes it, and on the newest
 * checkpoint before that step among those that were saved because of checkpoint.save_interval. That
 * checkpoint is not changed. So a run that is killed at any time afterwards resumes from it, or
 * from a checkpoint saved after the rollback, and makes the same steps again. */
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
