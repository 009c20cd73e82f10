/* failing_ranks.h -- bodies of ranks that are processes, in which one or all of them fail. */
#ifndef TESTS_SUPPORT_GRID_FAILING_RANKS_H
#define TESTS_SUPPORT_GRID_FAILING_RANKS_H

#include "parallel/comm/comm.h"

/* After a barrier of all, rank 0 is stopped or killed, and the others wait for it in another one.
 */
void rank_0_is_stopped(Comm *world, void *context);
void rank_0_is_killed(Comm *world, void *context);
/* Rank 1 is killed: while the others but rank 2 wait for it, or in the middle of an all-reduce. */
void one_is_killed(Comm *world, void *context);
void one_is_killed_in_a_transfer(Comm *world, void *context);
/* One rank, or every rank, ends the program with an error message. */
void one_fails(Comm *world, void *context);
void all_fail(Comm *world, void *context);

#endif
