/* thread_ranks.h -- a body on the ranks of a local world, each a thread of its own. */
#ifndef TESTS_SUPPORT_GRID_THREAD_RANKS_H
#define TESTS_SUPPORT_GRID_THREAD_RANKS_H

#include "parallel/comm/local/local.h"

typedef void (*RankBody)(Comm *world, void *context);

/* Runs body(world, context) on `ranks` ranks at once; no wait is longer than `timeout` seconds.
 * Rank 0 is the calling thread. In bodies no assertion of cmocka's may fail: they report with
 * rank_wrong. */
void thread_ranks(int ranks, double timeout, RankBody body, void *context);
/* Notes what a rank found wrong; the first is kept, and fails the test when all ranks have ended.
 */
void rank_wrong(const Comm *comm, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
