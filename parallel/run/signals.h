/* signals.h -- detects a request to stop the run (a signal or the file RUN/STOP), and prints a
 * reply to each signal. */
#ifndef PARALLEL_RUN_SIGNALS_H
#define PARALLEL_RUN_SIGNALS_H

#include "parallel/run/run.h"

/* Installs a handler for SIGINT, SIGTERM, SIGUSR1 and SIGHUP, except for those that were ignored
 * before, as with nohup. The first signal requests a stop and prints a reply to stderr. A second
 * one ends the program at once, unless it is SIGHUP. On ranks other than 0 it does nothing, unless
 * a launcher has started them. Such a rank handles signals, too, but prints no replies, because a
 * launcher passes a signal on to all ranks. */
void run_watch_signals(const Run *run);
/* Formats the replies that the signal handler prints. The reply to a first signal states what the
 * run still does before it ends: `doing`, or if that is NULL, the current step and a save. The
 * reply to a second one states which steps since the newest checkpoint are lost. */
void run_prepare_answers(const Run *run, const char *doing);
/* Returns true if a signal has arrived or, on rank 0, RUN/STOP exists or run_time_is_over. Does not
 * communicate. */
bool run_stop_seen(const Run *run);
/* Returns whether this is a step after which the ranks decide together whether to stop. All ranks
 * get the same result. With parallel.stop_interval 0 they decide after every step; but if a
 * launcher has started them, rank 0 chooses the number of steps from their duration, so that about
 * five seconds pass between two decisions. They always decide after an evaluation, a sample or a
 * save. */
bool run_agrees_now(const Run *run);
/* If run_agrees_now, the ranks decide: it returns true on all of them if run_stop_seen is true on
 * at least one. Otherwise it returns false. All ranks call it together, once per step, so they stop
 * at the same step. */
bool run_stop_asked(Run *run);
/* Returns true on rank 0 if max_time is over or the batch job is about to end, and this attempt has
 * made a step. Without the last condition, a run that is started again and again might never
 * progress. */
bool run_time_is_over(const Run *run);
/* Returns true on rank 0 if the batch job is about to end: after another step of average length (or
 * parallel.stop_interval steps) and a save, no more time than the job's slack would be left. Until
 * this attempt has saved, a save is assumed to take saved_seconds. */
bool run_job_is_ending(const Run *run);
/* Like run_stop_seen, for the frequent calls during an evaluation or a sample: looks for RUN/STOP
 * at most ten times a second. */
bool run_stop_asked_within(Run *run);

#endif
