/* failing_ranks.c -- see failing_ranks.h. */
#include "tests/support/grid/failing_ranks.h"

#include "model/core/check.h"

#include <signal.h>
#include <unistd.h>

void rank_0_is_stopped(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 0) raise(SIGSTOP);
    comm_barrier(world);
}

void rank_0_is_killed(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 0) raise(SIGKILL);
    comm_barrier(world);
}

void one_is_killed(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 1) raise(SIGKILL);
    if (world->rank == 2) pause(); /* it is not waiting for anybody */
    comm_barrier(world);
}

void one_is_killed_in_a_transfer(Comm *world, void *context)
{
    (void)context;
    enum { N = 1 << 20 };
    float *all = must_calloc(N, sizeof *all);
    if (world->rank == 1) ualarm(50000, 0);
    for (;;)
        comm_all_reduce(world, NULL, tensor_1d(all, F32, N), REDUCE_SUM);
}

void one_fails(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 3) fail(EXIT_INPUT_OUTPUT, "the disk is full");
    if (world->rank != 1) pause();
    comm_barrier(world);
}

void all_fail(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    fail(EXIT_DIVERGED, "a failure of every rank");
}
