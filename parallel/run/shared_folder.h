/* shared_folder.h -- finds out, before anything else is done, whether all machines of a run share
 * the file system of its folder. */
#ifndef PARALLEL_RUN_SHARED_FOLDER_H
#define PARALLEL_RUN_SHARED_FOLDER_H

#include "parallel/comm/comm.h"

/* Rank 0 writes a file where the run folder will be, one rank of each other machine looks for it,
 * and rank 0 removes it. Ends the program (EXIT_CANNOT_CREATE) if a machine does not see it within
 * five seconds, or if it cannot be written. `out` is the argument of --out, or NULL. All ranks of
 * the world call it. Does nothing if there is only one machine. */
void shared_folder_require(Comm *world, const char *out);

#endif
