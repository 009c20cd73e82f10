/* thread_ranks.h -- runs code on ranks that are threads of this process. With TEST_RANKS=processes
 * they are processes instead (process_ranks.h). */
#ifndef TESTS_SUPPORT_GRID_THREAD_RANKS_H
#define TESTS_SUPPORT_GRID_THREAD_RANKS_H

#include "parallel/comm/local/local.h"
#include "tests/support/grid/process_ranks.h"

/* Runs body(world, context) on `ranks` ranks at the same time; no wait of a rank is longer than
 * `timeout` seconds. Rank 0 is the calling thread. The body must not use assertions of cmocka; it
 * reports errors with rank_wrong. Processes share only shared_memory; if one of them ends with an
 * error, this process ends with the same exit code. */
void thread_ranks(int ranks, double timeout, RankBody body, void *context);
/* Reports an error of a rank. The first one fails the test when all ranks have ended. */
void rank_wrong(const Comm *comm, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
