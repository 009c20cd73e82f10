/* async_ranks.c -- saves a run asynchronously in several worlds. See async_ranks.h. */
#include "tests/support/checkpoint/async_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

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

void async_disks(FaultyFs *fs, int ranks)
{
    for (int rank = 0; rank < ranks; rank++)
        faulty_fs_init(&fs[rank], FAULT_NONE, 0, 0);
}

void async_must_save(TestRanks *saving)
{
    ranks_save(saving);
    if (!ranks_agree(saving)) fail_msg("%s", saving->err[0]);
}

int64_t async_newest(const TestRun *r)
{
    TestRanks reading = {.ranks = 2, .tp = 2, .run = r->run};
    ranks_newest(&reading);
    return reading.found[0];
}
