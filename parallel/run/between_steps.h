/* between_steps.h -- the work of a run between two training steps: evaluations and
 * samples. */
#ifndef PARALLEL_RUN_BETWEEN_STEPS_H
#define PARALLEL_RUN_BETWEEN_STEPS_H

#include "parallel/run/run.h"

/* Evaluate the model on the validation data; generate a sample of text. Do nothing if the run has
 * no validation data, or no tokenizer. Return false if a stop was requested meanwhile: the work is
 * then abandoned and has no result. All ranks call these. */
bool run_evaluate(Run *run, bool final);
bool run_sample(Run *run);
/* Begin and end the progress line of work between steps. `doing` is the reply to a stop request
 * during this work: "ending this evaluation". */
void run_begin_work(Run *run, const char *doing);
void run_end_work(Run *run);
/* FeedWatch callback of a run; `context` is the Run. Prints progress, and returns false to end an
 * evaluation or a sample if a stop was requested. */
bool run_watch(void *context, const Work *work);

#endif
