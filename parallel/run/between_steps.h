/* between_steps.h -- what a run does between two steps: evaluations, samples, saves. */
#ifndef PARALLEL_RUN_BETWEEN_STEPS_H
#define PARALLEL_RUN_BETWEEN_STEPS_H

#include "parallel/run/run.h"

/* An evaluation or a sample; nothing without validation data or tokenizer. False when a stop is
 * asked for meanwhile: it ends there and leaves no result. All ranks call them. */
bool run_evaluate(Run *run, bool final);
bool run_sample(Run *run);
/* Commits a checkpoint. One that fails is warned of and noted in saving.error, and the run goes on.
 * All ranks call it. */
void run_save(Run *run);
/* Whether the run trains as it should: the newest update was applied, and its loss is finite and
 * not far above that of uniform guessing. False, and `why` says what is wrong. */
bool run_is_healthy(const Run *run, char *why, size_t n);
/* The FeedWatch of a run, which is the context: prints progress, and ends an evaluation or a sample
 * when a stop is asked for. */
bool run_watch(void *context, const Work *work);

#endif
