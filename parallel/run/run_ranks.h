/* run_ranks.h -- a run on several ranks: how they start, what they agree on and share, and who of
 * them speaks (run_on_ranks is in run.h). */
#ifndef PARALLEL_RUN_RUN_RANKS_H
#define PARALLEL_RUN_RUN_RANKS_H

#include "parallel/run/run.h"

/* Ends the program with `code` on all ranks unless all are `good`, with the sentence err[0..n) of
 * the lowest that is not. All ranks call it. */
void run_require(const Run *run, bool good, ExitCode code, char *err, size_t n);
/* Sends the other ranks what rank 0 has chosen: the folder's path, state and attempt. All ranks
 * call it. */
void run_share_folder(Run *run);
/* --log-ranks: opens RUN/logs/rank_NNN.log, which gets this rank's messages from here on. All ranks
 * call it; where a file cannot be opened the program ends (EXIT_CANNOT_CREATE). */
void run_open_log(Run *run);
void run_close_log(Run *run);
/* From here on rank 0's errors carry its place, or none, as at the start: what it does there it
 * does for all, except for what each rank allocates. */
void run_take_place(const Run *run);
void run_speak_for_all(const Run *run);

#endif
