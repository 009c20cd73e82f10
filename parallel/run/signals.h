/* signals.h -- how a run is asked to stop, and what it answers. */
#ifndef PARALLEL_RUN_SIGNALS_H
#define PARALLEL_RUN_SIGNALS_H

#include "parallel/run/run.h"

/* From here on SIGINT, SIGTERM, SIGUSR1 and, unless it was ignored before, SIGHUP ask for a stop.
 * The first is answered on stderr; a second one but SIGHUP ends the program at once. */
void run_watch_signals(void);
/* Writes down what the answers will be. To a first signal: what is finished before the run leaves,
 * `doing` (NULL: the step, then a save, as most of the time). To a second one: which steps are lost
 * since the newest checkpoint. */
void run_prepare_answers(const Run *run, const char *doing);
/* Whether a signal came or rank 0 finds RUN/STOP: what this rank knows of it. */
bool run_stop_seen(const Run *run);
/* Whether any rank has seen that: all ranks ask together, once a step, and leave together. */
bool run_stop_asked(const Run *run);
/* What this rank has seen within an evaluation or a sample, whose pieces may be short: looks for
 * RUN/STOP ten times a second at most. */
bool run_stop_asked_within(Run *run);

#endif
