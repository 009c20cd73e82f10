/* rollback.h -- a run goes back to a checkpoint and goes on from there with other data
 * (health.policy "rollback"); and what a run does after it has loaded a checkpoint.
 *
 * A rollback depends only on the training: on the step whose record asks for it, and on the newest
 * checkpoint before it whose step checkpoint.save_interval names. Nothing is written to that
 * checkpoint. So a run that is killed at any time afterwards resumes from it, or from a later one
 * of its new way, and goes the same way again. */
#ifndef PARALLEL_RUN_ROLLBACK_H
#define PARALLEL_RUN_ROLLBACK_H

#include "parallel/run/run.h"

/* Sets run->records after a checkpoint was loaded: the totals from its state and, if the metrics
 * are those of the same run, the last loss from them, which rank 0 shares. All ranks call it. */
void run_take_up(Run *run, bool same_run);
/* Begins to measure speed and to agree on stops from this step on. */
void run_begin_here(Run *run);

#endif
