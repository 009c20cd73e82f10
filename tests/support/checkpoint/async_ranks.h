/* async_ranks.h -- the worlds whose asynchronous saves are tested. */
#ifndef TESTS_SUPPORT_CHECKPOINT_ASYNC_RANKS_H
#define TESTS_SUPPORT_CHECKPOINT_ASYNC_RANKS_H

#include "tests/support/checkpoint/checkpoint_ranks.h"

enum { ASYNC_WORLDS = 5 };
extern const struct AsyncWorld {
    int ranks, tp, writers;
} async_worlds[ASYNC_WORLDS];

/* Returns what saves a step of the run in world `w`. */
TestRanks async_world(int w, const TestRun *r, int64_t step);

#endif
