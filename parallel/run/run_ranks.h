/* run_ranks.h -- helpers for a run on several ranks: agreeing on errors, sharing rank 0's folder,
 * opening each rank's log, and marking messages with the rank's place in the grid. run_on_ranks,
 * which starts the ranks, is in run.h. */
#ifndef PARALLEL_RUN_RUN_RANKS_H
#define PARALLEL_RUN_RUN_RANKS_H

#include "parallel/run/run.h"

/* Ends the program with `code` on all ranks unless `good` is true on all of them. The error message
 * is err[0..n) of the lowest rank on which it is false. All ranks call it. */
void run_require(const Run *run, bool good, ExitCode code, char *err, size_t n);
/* Sends the path, the state and the attempt of the folder that rank 0 has chosen to the other
 * ranks. All ranks call it. */
void run_share_folder(Run *run);
/* With --log-ranks, opens RUN/logs/rank_NNN.log, to which this rank's messages go from then on.
 * Ends the program (EXIT_CANNOT_CREATE) if a rank cannot open its file. All ranks call it. */
void run_open_log(Run *run);
void run_close_log(Run *run);
/* Marks rank 0's error messages with its place in the grid from now on. To be called before work
 * that every rank does for itself. */
void run_take_place(const Run *run);
/* Removes that mark, as at the start of the program. To be called before work that rank 0 does on
 * behalf of all ranks. */
void run_speak_for_all(const Run *run);

#endif
