/* process_ranks.h -- runs code on ranks that are processes, forked by the test, with the transport
 * over sockets. */
#ifndef TESTS_SUPPORT_GRID_PROCESS_RANKS_H
#define TESTS_SUPPORT_GRID_PROCESS_RANKS_H

#include "parallel/comm/comm.h"

#include <stddef.h>
#include <sys/types.h>

typedef void (*RankBody)(Comm *world, void *context);

/* Runs body(world, context) on `ranks` processes; no wait of a rank is longer than `timeout`
 * seconds. Returns when all have ended: 0 if all have ended with 0, else the exit code of the first
 * that has not (or minus its signal's number); the others are killed some seconds later. If `pid` is
 * not NULL, it is shared memory, and pid[r] is set to the process of rank r before any starts its
 * body. An error reported with rank_wrong is copied to wrong[0..n). */
int process_ranks(int ranks, double timeout, RankBody body, void *context, pid_t *pid, char *wrong,
                  size_t n);
/* In a rank's process: reports an error. The first one counts. Returns false in other processes. */
bool process_rank_wrong(const char *text);
/* Returns whether the tests' ranks shall be processes (TEST_RANKS=processes). */
bool ranks_are_processes(void);
/* Returns zeroed memory that all processes share which are forked later; never freed. */
void *shared_memory(size_t bytes);

#endif
