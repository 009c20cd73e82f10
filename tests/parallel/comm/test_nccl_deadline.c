/* test_nccl_deadline.c -- which deadline ends the program when some ranks wait in NCCL and others
 * wait for those ranks on the host. Other calls that take too long are in test_nccl_waits.c. */
#include "model/core/check.h"
#include "parallel/comm/local/group.h"
#include "parallel/comm/nccl/nccl.h"
#include "tests/support/device/standing_device.h"
#include "tests/support/grid/fake_nccl.h"
#include "tests/support/grid/rank_ends.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>

#include <cmocka.h>

/* Seconds; a deadline that must not be reached. */
static const double LONG = 60;

/* Returns a communicator of the same ranks whose host deadline ends long before NCCL's. */
static Comm hasty(Comm *world)
{
    static LocalWorld *made;
    if (world->rank == 0) made = local_world_create(world->size, 0.05);
    comm_barrier(world);
    return local_world_join(made, world->rank);
}

/* Returns when the next rank is waiting itself, on its host or in NCCL. */
static void wait_for_next(Comm *all)
{
    int next = all->rank + 1;
    while (!(atomic_load(&fake_nccl.connect) >> next & 1) &&
           !atomic_load(&local_group(all)->member[next].asleep))
        sched_yield();
}

/* Rank 0's host waits for rank 1's, which waits for rank 2's. Rank 2 connects to rank 3, whose
 * connect never returns. */
static void hosts_wait_for_a_connect(Comm *world, void *context)
{
    Device dev;
    float x = 0;
    const double *timeout = context;
    standing_device_open(world, &dev);
    Comm all = hasty(world), high = comm_split(world, "high", world->rank < 2, world->rank);
    if (world->rank > 1) nccl_connect(&high, &dev, (NcclUse){0}, *timeout);
    if (*timeout > 0) wait_for_next(&all);
    comm_receive(&all, NULL, tensor_1d(&x, F32, 1), world->rank + 1);
}

/* Rank 0's host waits for rank 1's, which is in no call: all its calls have ended. The other ranks
 * are connecting. */
static void a_host_after_its_calls(Comm *world, void *context)
{
    Device dev;
    float x = 0;
    (void)context;
    standing_device_open(world, &dev);
    Comm all = hasty(world), dp = comm_split(world, "dp", world->rank > 1, world->rank);
    nccl_connect(&dp, &dev, (NcclUse){0}, LONG);
    if (world->rank == 0) comm_receive(&all, NULL, tensor_1d(&x, F32, 1), 1);
    standing_device_hang();
}

/* Rank 0's host waits for rank 1's, whose device does not reply to any query, so the watchdog is
 * stuck. */
static void a_watchdog_is_stuck(Comm *world, void *context)
{
    Device dev;
    float x = 0;
    (void)context;
    standing_device_open(world, &dev);
    Comm all = hasty(world), dp = comm_split(world, "dp", world->rank > 0, world->rank);
    nccl_connect(&dp, &dev, (NcclUse){0}, LONG);
    standing_device_stand(world, 6);
    standing_device_silence(true);
    if (world->rank > 0) comm_all_reduce(&dp, &dev, standing_device_numbers(8), REDUCE_SUM);
    comm_barrier(world);
    if (world->rank == 0) comm_receive(&all, NULL, tensor_1d(&x, F32, 1), 1);
    standing_device_hang();
}

/* Rank 0 waits on the host for a rank that is in an NCCL call. The watchdog, which knows the cause,
 * must end the program at that call's deadline. */
static void test_nccls_deadline_ends_a_program_whose_host_waits_for_a_rank_in_nccl(void **state)
{
    double limit = 0.4, none = 0;
    (void)state;
    fake_nccl_use();
    fake_nccl.blocks = "CommInitRankConfig";
    fake_nccl.blocks_on = 3;
    rank_end_expect(&(RankEnd){"connect",
                               hosts_wait_for_a_connect,
                               4,
                               EXIT_HANG,
                               {"group high, call 0, connect: rank ",
                                "has waited 0.4 s (parallel.timeout); ranks 2, 3 and their GPUs"}},
                    LONG, &limit);
    rank_end_expect(&(RankEnd){"connect without a limit",
                               hosts_wait_for_a_connect,
                               4,
                               EXIT_HANG,
                               {"group world, call 1, receive of 1 f32 in host memory from rank ",
                                "has waited 0.05 s (parallel.timeout) for rank "}},
                    LONG, &none);
    rank_end_expect(&(RankEnd){"no call",
                               a_host_after_its_calls,
                               4,
                               EXIT_HANG,
                               {"group world, call 1, receive of 1 f32 in host memory from rank 1: "
                                "rank 0 has waited 0.05 s (parallel.timeout) for rank 1"}},
                    LONG, NULL);
    fake_nccl.blocks = NULL;
    rank_end_expect(&(RankEnd){"a call of which nobody hears",
                               a_watchdog_is_stuck,
                               3,
                               EXIT_HANG,
                               {"group world, call 1, receive of 1 f32 in host memory from rank 1: "
                                "rank 0 has waited 0.05 s (parallel.timeout) for rank 1"}},
                    LONG, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nccls_deadline_ends_a_program_whose_host_waits_for_a_rank_in_nccl),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
