/* loop.h -- the pieces of a run's loop that its beginning and its ends use, too. */
#ifndef PARALLEL_RUN_LOOP_H
#define PARALLEL_RUN_LOOP_H

#include "parallel/run/run.h"

/* Waits for the device and reads the records of all steps. */
void run_read_records(Run *run);
/* An evaluation or a sample; nothing without validation data or tokenizer. False when a stop is
 * asked for meanwhile: it ends there and leaves no result. */
bool run_evaluate(Run *run, bool final);
bool run_sample(Run *run);
/* Commits a checkpoint. One that fails is warned of and noted in save_error, and the run goes on.
 */
void run_save(Run *run);
/* Whether the run trains as it should: the newest update was applied, and its loss is finite and
 * not far above that of uniform guessing. False, and `why` says what is wrong. */
bool run_is_healthy(const Run *run, char *why, size_t n);
/* With comms_logger.enabled: what has gone between ranks so far. */
void run_print_comms(const Run *run);
/* The FeedWatch of a run, which is the context: prints progress, and ends an evaluation or a sample
 * when a stop is asked for. */
bool run_watch(void *context, const Work *work);

#endif
