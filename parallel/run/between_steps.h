/* between_steps.h -- the work of a run between two training steps: evaluations, samples and saves.
 */
#ifndef PARALLEL_RUN_BETWEEN_STEPS_H
#define PARALLEL_RUN_BETWEEN_STEPS_H

#include "parallel/run/run.h"

/* Evaluate the model on the validation data, or draw a sample of text. Each does nothing if the run
 * has no validation data, or no tokenizer. Return false if a stop was requested meanwhile: the work
 * is then abandoned and leaves no result. All ranks call these. */
bool run_evaluate(Run *run, bool final);
bool run_sample(Run *run);
/* Saves and commits a checkpoint. If that fails, prints a warning, stores the exit code in
 * saving.error, and lets the run continue. All ranks call it. */
void run_save(Run *run);
/* Returns true if the newest update was applied and its loss is finite and not far above that of
 * uniform guessing. Otherwise returns false and writes the reason to why[0..n). */
bool run_is_healthy(const Run *run, char *why, size_t n);
/* FeedWatch callback of a run; `context` is the Run. Prints progress, and returns false to end an
 * evaluation or a sample if a stop was requested. */
bool run_watch(void *context, const Work *work);

#endif
