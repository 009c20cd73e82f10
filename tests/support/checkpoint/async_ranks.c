/* async_ranks.c -- saves a run asynchronously in several worlds. See async_ranks.h. */
#include "tests/support/checkpoint/async_ranks.h"

const struct AsyncWorld async_worlds[ASYNC_WORLDS] = {
    {1, 1, 1}, {2, 2, 1}, {3, 1, 3}, {4, 2, 2}, {6, 3, 4}};

TestRanks async_world(int w, const TestRun *r, int64_t step)
{
    return (TestRanks){.ranks = async_worlds[w].ranks,
                       .tp = async_worlds[w].tp,
                       .writers = async_worlds[w].writers,
                       .run = r->run,
                       .step = step,
                       .async = true};
}
