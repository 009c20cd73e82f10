/* test_comm_leaves.c -- checks the error message and exit code of the whole process when a thread
 * rank leaves a group while others wait for it. */
#include "model/core/check.h"
#include "tests/support/grid/rank_ends.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static int64_t x[8], y[8];

static Tensor i64(int64_t n)
{
    return tensor_1d(x, I64, n);
}

static void leaves_the_world(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 2) return;
    comm_all_reduce(world, NULL, i64(5), REDUCE_SUM);
}

/* Rank 1 leaves when rank 0 has been asleep in its call for a while. */
static void leaves_while_a_rank_sleeps(Comm *world, void *context)
{
    (void)context;
    if (world->rank == 0) comm_barrier(world);
    usleep(200000);
}

/* Leaves the world without closing the group that it has split off. */
static void leaves_all(Comm *world, void *context)
{
    (void)context;
    Comm part = comm_split(world, "part", 0, 0);
    if (world->rank == 1) {
        free(part.counts);
        return;
    }
    comm_barrier(&part);
}

static void leaves_a_group(Comm *world, void *context)
{
    (void)context;
    Comm part = comm_split(world, "part", 0, 0);
    if (world->rank == 1) {
        comm_close(&part);
        for (;;) /* the rank never leaves the world */
            pause();
    }
    comm_barrier(&part);
}

static void leaves_a_sender(Comm *world, void *context)
{
    (void)context;
    if (world->rank == 0) comm_send(world, NULL, i64(2), 1);
}

static void leaves_a_receiver(Comm *world, void *context)
{
    (void)context;
    if (world->rank == 0) comm_receive(world, NULL, i64(2), 1);
}

/* Rank 1 has done its part of the call and leaves. Rank 0 still waits for rank 2 in that call. */
static void leaves_in_a_call_of_others(Comm *world, void *context)
{
    (void)context;
    if (world->rank == 1) comm_receive(world, NULL, i64(2), 0);
    if (world->rank == 2) comm_receive(world, NULL, i64(3), 1);
    if (world->rank > 0) return;
    comm_group_begin(world);
    comm_send(world, NULL, i64(2), 1);
    comm_receive(world, NULL, tensor_1d(y, I64, 2), 2);
    comm_group_end(world);
}

static const RankEnd losses[] = {
    {"the world",
     leaves_the_world,
     3,
     EXIT_PEER_LOST,
     {"error[87] ", "group world, call 2, all-reduce of 5 i64 in host memory: ",
      "waits for rank 2, which has left the group"}},
    {"a sleeper",
     leaves_while_a_rank_sleeps,
     2,
     EXIT_PEER_LOST,
     {"group world, call 1, barrier: rank 0 waits for rank 1, which has left the group"}},
    {"all groups",
     leaves_all,
     2,
     EXIT_PEER_LOST,
     {"group part, call 1, barrier: rank 0 waits for rank 1, which has left the group"}},
    {"one group",
     leaves_a_group,
     2,
     EXIT_PEER_LOST,
     {"group part, call 1, barrier: rank 0 waits for rank 1, which has left the group"}},
    {"a sender",
     leaves_a_sender,
     2,
     EXIT_PEER_LOST,
     {"send of 2 i64 in host memory to rank 1: rank 0 waits for rank 1, which has left the group"}},
    {"a receiver",
     leaves_a_receiver,
     2,
     EXIT_PEER_LOST,
     {"receive of 2 i64 in host memory from rank 1: rank 0 waits for rank 1, which has left"}},
    {"in a call of others",
     leaves_in_a_call_of_others,
     3,
     EXIT_PEER_LOST,
     {"receive of 3 i64 in host memory from rank 1: rank 2 waits for rank 1, which has left"}},
};

/* There is no timeout here: waiting for a rank that has left must end at once. */
static void test_waiting_for_a_rank_that_has_left_ends_the_program_at_once(void **state)
{
    (void)state;
    for (int i = 0; i < (int)(sizeof losses / sizeof *losses); i++)
        rank_end_expect(&losses[i], 0, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waiting_for_a_rank_that_has_left_ends_the_program_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
