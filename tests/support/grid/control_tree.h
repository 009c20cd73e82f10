/* control_tree.h -- for tests of ranks that are processes of many machines. */
#ifndef TESTS_SUPPORT_GRID_CONTROL_TREE_H
#define TESTS_SUPPORT_GRID_CONTROL_TREE_H

#include "parallel/comm/comm.h"

/* The tests' worlds have seven machines: 1 and 2 are below 0, 3 and 4 below 1, 5 and 6 below 2. Of
 * 14 ranks, rank 7 + m is on machine m, too, and below its leader m. */
enum { MACHINES = 7, RANKS = 7, MORE = 14, FAN_OUT = 2 };

/* What is said of the leader of a machine that has ended, or is silent, and what it says itself if
 * rank 0 is silent while it waits in the second call of the world. */
#define SAYS_LOST(rank)                                                                            \
    "error[87] rank " #rank " dp " #rank ": the process of this rank on host" #rank                \
    " has ended, or the network to it is broken\n"
#define SAYS_SILENT(rank)                                                                          \
    "error[86] rank " #rank " dp " #rank ": the process of this rank on host" #rank                \
    " has been silent for "
#define SAYS_WAITED(rank)                                                                          \
    "error[86] rank " #rank " dp " #rank ": group world, call 2, barrier: rank " #rank             \
    " has waited 1 s (parallel.timeout) for rank 0 (on host0), which has not arrived\n"

/* If the world has a tree of control: waits until this rank sends on it, and in rank 0's process
 * until all others do. Reports an error (rank_wrong) if that takes long. */
void control_tree_wait(Comm *world);

#endif
