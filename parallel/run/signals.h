/* signals.h -- detects a request to stop the run (a signal or the file RUN/STOP), and prints a
 * reply to each signal. */
#ifndef PARALLEL_RUN_SIGNALS_H
#define PARALLEL_RUN_SIGNALS_H

#include "parallel/run/run.h"

/* Installs a handler for SIGINT, SIGTERM, SIGUSR1 and SIGHUP, except for those that were ignored
 * before, as with nohup. The first signal requests a stop and prints a reply to stderr. A second
 * one ends the program at once, unless it is SIGHUP. */
void run_watch_signals(void);
/* Formats the replies that the signal handler prints. The reply to a first signal says what the run
 * still finishes before it ends: `doing`, or the current step and a save if NULL. The reply to a
 * second one says which steps since the newest checkpoint are lost. */
void run_prepare_answers(const Run *run, const char *doing);
/* Returns true if a signal has arrived or, on rank 0, RUN/STOP exists or max_time is over. Does not
 * communicate. */
bool run_stop_seen(const Run *run);
/* Returns true on all ranks if run_stop_seen is true on any of them. All ranks call it together,
 * once per step, so they stop at the same step. */
bool run_stop_asked(const Run *run);
/* Returns true on rank 0 if max_time is over and this attempt has made a step. Without a step, a
 * run that is started again and again would never get on. */
bool run_time_is_over(const Run *run);
/* Like run_stop_seen, for the frequent calls during an evaluation or a sample: looks for RUN/STOP
 * at most ten times a second. */
bool run_stop_asked_within(Run *run);

#endif
