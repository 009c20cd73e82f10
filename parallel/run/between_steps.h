/* between_steps.h -- the work of a run between two training steps: evaluations and
 * samples. */
#ifndef PARALLEL_RUN_BETWEEN_STEPS_H
#define PARALLEL_RUN_BETWEEN_STEPS_H

#include "parallel/run/run.h"

/* Evaluates the model on the validation data; does nothing if the run has none. `final`: this is
 * the evaluation at the end of the run. Returns false if a stop was requested meanwhile: the
 * evaluation is then abandoned and has no result. All ranks call it. */
bool run_evaluate(Run *run, bool final);
/* Generates a sample of text; does nothing if the run has no tokenizer. Returns false if a stop was
 * requested meanwhile: the sample is then abandoned and has no result. All ranks call it. */
bool run_sample(Run *run);
/* Begins the progress line of work between steps. `doing` is the reply to a stop request during
 * this work: "ending this evaluation". run_end_work ends the line. */
void run_begin_work(Run *run, const char *doing);
void run_end_work(Run *run);
/* FeedWatch callback of a run; `context` is the Run. Prints progress, and returns false to end an
 * evaluation or a sample if a stop was requested. */
bool run_watch(void *context, const Work *work);

#endif
