/* test_nccl_waits.c -- how the program ends when an NCCL call takes too long on the host or on the
 * device: which rank has not arrived, and in which call that rank is. Time in which the process was
 * stopped does not count. Errors are in test_nccl_ends.c and test_nccl_errors.c. */
#include "model/core/check.h"
#include "model/core/log.h"
#include "parallel/comm/nccl/group.h"
#include "tests/support/device/standing_device.h"
#include "tests/support/files/child.h"
#include "tests/support/grid/fake_nccl.h"
#include "tests/support/grid/rank_ends.h"

#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Seconds; a deadline that must not be reached, and one that must. */
static const double LONG = 60, SHORT = 0.4;

/* Makes all kinds of calls that a training step may make. */
static void use_all(Comm *world, void *context)
{
    Device dev;
    const double *timeout = context;
    log_set_rank(world->rank, world->rank == 1 ? "dp 1" : "dp 0");
    standing_device_open(world, &dev);
    Comm all = comm_split(world, "dp", 0, world->rank);
    nccl_connect(&all, &dev, (NcclUse){NCCL_IN_RING, 0}, timeout ? *timeout : LONG);
    comm_all_reduce(&all, &dev, standing_device_numbers(5), REDUCE_SUM);
    comm_close(&all);
    device_close(&dev);
}

/* ---- calls that take too long ---------------------------------------------------------------- */

static Comm connected(Comm *world, Device *dev, double timeout)
{
    standing_device_open(world, dev);
    Comm all = comm_split(world, "dp", 0, world->rank);
    nccl_connect(&all, dev, (NcclUse){0}, timeout);
    return all;
}

/* The call blocks the host until the peer has made it too. */
static void host_waits(Comm *world, void *context)
{
    Device dev;
    (void)context;
    Comm all = connected(world, &dev, SHORT);
    if (world->rank == 1) standing_device_hang();
    comm_all_reduce(&all, &dev, standing_device_numbers(5), REDUCE_MAX);
}

/* The calls return, but the device of rank 0 is stuck in one that rank 2 never makes. */
static void device_waits(Comm *world, void *context)
{
    Device dev;
    (void)context;
    Comm all = connected(world, &dev, SHORT);
    standing_device_stand(world, 7);
    if (world->rank != 2)
        comm_all_gather(&all, &dev, standing_device_numbers(6),
                        tensor_slice_rows(standing_device_numbers(6), 2 * world->rank, 2));
    standing_device_hang();
}

/* All hosts have made the call, but rank 1's device does not complete it. */
static void device_is_late(Comm *world, void *context)
{
    Device dev;
    (void)context;
    Comm all = connected(world, &dev, SHORT);
    standing_device_stand(world, 2);
    for (int i = 0; i < 2; i++)
        comm_broadcast(&all, &dev, standing_device_numbers(7), 1);
    standing_device_hang();
}

/* Rank 0 is in a call that rank 1's device does not reach. */
static void device_does_not_come(Comm *world, void *context)
{
    Device dev;
    (void)context;
    Comm all = connected(world, &dev, world->rank == 0 ? SHORT : LONG);
    standing_device_stand(world, 2);
    comm_broadcast(&all, &dev, standing_device_numbers(7), 1);
    standing_device_stand(world, 3);
    comm_broadcast(&all, &dev, standing_device_numbers(3), 0);
    standing_device_hang();
}

/* Rank 0's device is in a call of dp. Next on its stream is a call of tp, in which rank 1's device
 * waits. `comes`: whether rank 2 arrives at the call of dp. */
static void chain_of_devices(Comm *world, bool comes)
{
    Device dev;
    standing_device_open(world, &dev);
    Comm dp = comm_split(world, "dp", world->rank == 1, world->rank);
    Comm tp = comm_split(world, "tp", world->rank == 2, world->rank);
    nccl_connect(&dp, &dev, (NcclUse){0}, LONG);
    nccl_connect(&tp, &dev, (NcclUse){0}, world->rank == 1 ? SHORT : LONG);
    standing_device_stand(world, 7);
    if (world->rank == 0 || (world->rank == 2 && comes))
        comm_broadcast(&dp, &dev, standing_device_numbers(7), 0);
    comm_barrier(world);
    if (world->rank != 2) comm_all_reduce(&tp, &dev, standing_device_numbers(8), REDUCE_SUM);
    standing_device_hang();
}

static void devices_in_a_chain(Comm *world, void *context)
{
    (void)context;
    chain_of_devices(world, true);
}

static void devices_wait_for_a_host(Comm *world, void *context)
{
    (void)context;
    chain_of_devices(world, false);
}

/* The hosts make this many calls. All devices complete the first few and hang in the next. The
 * watchdog cannot see any of it before the last call, so it does not matter how long the hosts
 * take. */
static void hosts_run_ahead(Comm *world, int calls, int ended)
{
    Device dev;
    Comm all = connected(world, &dev, world->rank == 0 ? SHORT : LONG);
    standing_device_stand_after(world, 3, ended);
    standing_device_silence(true);
    for (int i = 0; i < calls; i++)
        comm_broadcast(&all, &dev, standing_device_numbers(7), 1);
    comm_barrier(world);
    standing_device_silence(false);
    standing_device_hang();
}

/* As many calls as in a step, fewer than the watchdog remembers. */
static void hosts_are_ahead(Comm *world, void *context)
{
    (void)context;
    hosts_run_ahead(world, 1000, 3);
}

/* More calls than the watchdog remembers. */
static void all_devices_hang(Comm *world, void *context)
{
    (void)context;
    hosts_run_ahead(world, NCCL_RING + 86, 0);
}

/* Rank 0 waits for rank 1, which waits for rank 2, which never arrives. */
static void chain(Comm *world, void *context)
{
    Device dev;
    (void)context;
    standing_device_open(world, &dev);
    Comm low = comm_split(world, "low", world->rank == 2, world->rank);
    Comm high = comm_split(world, "high", world->rank == 0, world->rank);
    nccl_connect(&low, &dev, (NcclUse){0}, world->rank == 0 ? SHORT : LONG);
    nccl_connect(&high, &dev, (NcclUse){0}, LONG);
    comm_barrier(world);
    if (world->rank == 1) comm_all_reduce(&high, &dev, standing_device_numbers(9), REDUCE_SUM);
    if (world->rank == 0) comm_all_reduce(&low, &dev, standing_device_numbers(8), REDUCE_SUM);
    standing_device_hang();
}

/* Rank 0 waits for ranks 1 and 2. Rank 1, the first of them, waits for rank 3. Only rank 1's wait
 * is followed. */
static void one_of_two_waits(Comm *world, void *context)
{
    Device dev;
    (void)context;
    standing_device_open(world, &dev);
    Comm three = comm_split(world, "three", world->rank == 3, world->rank);
    Comm pair = comm_split(world, "pair", world->rank % 2, world->rank);
    nccl_connect(&three, &dev, (NcclUse){0}, world->rank == 0 ? SHORT : LONG);
    nccl_connect(&pair, &dev, (NcclUse){0}, LONG);
    comm_barrier(world);
    if (world->rank == 1) comm_all_reduce(&pair, &dev, standing_device_numbers(9), REDUCE_SUM);
    if (world->rank == 0) comm_all_reduce(&three, &dev, standing_device_numbers(8), REDUCE_SUM);
    standing_device_hang();
}

/* Rank 1 closes a group in which rank 0 waits on the host. */
static void a_host_leaves(Comm *world, void *context)
{
    Device dev;
    (void)context;
    Comm all = connected(world, &dev, LONG), shard = comm_split(world, "shard", 0, world->rank);
    nccl_share(&shard, &all);
    if (world->rank == 0) comm_barrier(&shard);
    comm_close(&shard);
    standing_device_hang();
}

static void init_waits(Comm *world, void *context)
{
    double timeout = SHORT;
    (void)context;
    use_all(world, &timeout);
}

static const RankEnd waits[] = {
    {"a host",
     host_waits,
     2,
     EXIT_HANG,
     {"error[86] ", "group dp, call 6, all-reduce (max) of 5 f32: rank 0 has waited 0.4 s "
                    "(parallel.timeout) for rank 1, which has not arrived"}},
    {"a device",
     device_waits,
     3,
     EXIT_HANG,
     {"group dp, call 6, all-gather of 6 f32: rank ", "for rank 2, which has not arrived"}},
    {"a late device",
     device_is_late,
     3,
     EXIT_HANG,
     {"error[86] rank 1: group dp, call 6, broadcast of 7 f32 from rank 1: rank 1 has waited",
      "ranks 0-2 and their GPUs have all come to it, and it does not end; run with "
      "NCCL_DEBUG=INFO for details"}},
    {"a device before",
     device_does_not_come,
     2,
     EXIT_HANG,
     {"error[86] group dp, call 7, broadcast of 3 f32 from rank 0: rank 0 has waited 0.4 s",
      "all its ranks have called it, but the GPU of rank 1 has not come to it; rank 1 stands in "
      "group dp, call 6, broadcast of 7 f32 from rank 1, to which all have come; run with "
      "NCCL_DEBUG=INFO"}},
    {"a chain of devices",
     devices_in_a_chain,
     3,
     EXIT_HANG,
     {"error[86] rank 1: group tp, call 6, all-reduce of 8 f32: rank 1 has waited 0.4 s",
      "but the GPU of rank 0 has not come to it; rank 0 stands in group dp, call 6, broadcast of 7 "
      "f32 from rank 0, to which all have come"}},
    {"a chain to a host",
     devices_wait_for_a_host,
     3,
     EXIT_HANG,
     {"error[86] rank 1: group tp, call 6, all-reduce of 8 f32: rank 1 has waited 0.4 s",
      "but the GPU of rank 0 has not come to it; rank 0 waits for rank 2 (group dp, call 6, "
      "broadcast "
      "of 7 f32 from rank 0)"}},
    {"hosts ahead",
     hosts_are_ahead,
     2,
     EXIT_HANG,
     {"group dp, call 9, broadcast of 7 f32 from rank 1: rank ",
      "ranks 0, 1 and their GPUs have all come to it, and it does not end; run with "
      "NCCL_DEBUG=INFO for details"}},
    {"all devices",
     all_devices_hang,
     2,
     EXIT_HANG,
     /* the oldest call that the watchdog remembers */
     {"group dp, call 93, broadcast of 7 f32 from rank 1: rank ",
      "the GPUs of ranks 0, 1 have not come to it\n"}},
    {"a chain",
     chain,
     3,
     EXIT_HANG,
     {"group low, call 6, all-reduce of 8 f32: rank 0 has waited 0.4 s (parallel.timeout) for rank "
      "1, which has not arrived; rank 1 waits for rank 2 (group high, call 6, all-reduce of 9 "
      "f32)"}},
    {"one of two",
     one_of_two_waits,
     4,
     EXIT_HANG,
     {"group three, call 6, all-reduce of 8 f32: rank 0 has waited 0.4 s (parallel.timeout) for "
      "ranks 1, 2, which have not arrived; rank 1 waits for rank 3 (group pair, call 6, all-reduce "
      "of 9 f32)"}},
    {"a host that leaves",
     a_host_leaves,
     2,
     EXIT_PEER_LOST,
     {"group shard, call 1, barrier: rank 0 waits for rank 1, which has left the group"}},
};

static void test_a_call_that_takes_too_long_ends_all_ranks_and_names_the_cause(void **state)
{
    enum { N = sizeof waits / sizeof *waits };
    pid_t child[N];
    int said[N];
    (void)state;
    fake_nccl_use();
    for (int i = 0; i < N; i++)
        child[i] = rank_end_start(&waits[i], LONG, NULL, &said[i]);
    for (int i = 0; i < N; i++)
        rank_end_check(&waits[i], child[i], said[i]);
    fake_nccl.blocks = "CommInitRankConfig";
    fake_nccl.blocks_on = 2;
    rank_end_expect(&(RankEnd){"init",
                               init_waits,
                               3,
                               EXIT_HANG,
                               {"group dp, call 0, connect: rank ",
                                "has waited 0.4 s (parallel.timeout); ranks 0-2 and their GPUs"}},
                    LONG, NULL);
    fake_nccl.blocks = "CommDestroy";
    rank_end_expect(
        &(RankEnd){
            "destroy",
            init_waits,
            3,
            EXIT_HANG,
            {"error[86] rank 2 dp 0: group dp, call 9, disconnect: rank 2 has waited 0.4 s"}},
        LONG, NULL);
}

/* ---- no time limit, and a stopped process ---------------------------------------------------- */

#define WAIT 300 /* milliseconds */

typedef struct {
    int ready[2], go[2];
    double timeout;
} Stop;

static void wait_for_a_word(Comm *world, void *context)
{
    Stop *stop = context;
    Device dev;
    char byte = 0;
    Comm all = connected(world, &dev, stop->timeout);
    if (world->rank == 1 &&
        (write(stop->ready[1], &byte, 1) != 1 || read(stop->go[0], &byte, 1) != 1))
        rank_wrong(world, "no word to or from the parent");
    comm_all_reduce(&all, &dev, standing_device_numbers(5), REDUCE_SUM);
    comm_close(&all);
    device_close(&dev);
}

static void wait_with(double timeout, bool stopped)
{
    const RankEnd end = {stopped ? "stopped" : "no limit", wait_for_a_word, 2, 0, {NULL}};
    Stop stop = {.timeout = timeout};
    int said, status;
    char byte = 0;
    assert_true(pipe(stop.ready) == 0 && pipe(stop.go) == 0);
    fake_nccl_use();
    pid_t child = rank_end_start(&end, LONG, &stop, &said);
    assert_int_equal(read(stop.ready[0], &byte, 1), 1);
    poll(NULL, 0, 100); /* by now the watchdog has seen that rank 0 is waiting */
    if (stopped) {
        kill(child, SIGSTOP);
        assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    }
    poll(NULL, 0, 3 * WAIT);
    if (stopped) kill(child, SIGCONT);
    poll(NULL, 0, 50); /* time for the watchdog to check how long rank 0 has waited */
    assert_int_equal(write(stop.go[1], &byte, 1), 1);
    rank_end_check(&end, child, said);
    for (int k = 0; k < 2; k++) {
        close(stop.ready[k]);
        close(stop.go[k]);
    }
}

static void test_with_timeout_0_a_rank_waits_without_limit(void **state)
{
    (void)state;
    wait_with(0, false);
}

static void test_time_while_the_process_is_stopped_does_not_count_as_waiting(void **state)
{
    (void)state;
    wait_with(2 * WAIT / 1e3, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_call_that_takes_too_long_ends_all_ranks_and_names_the_cause),
        cmocka_unit_test(test_with_timeout_0_a_rank_waits_without_limit),
        cmocka_unit_test(test_time_while_the_process_is_stopped_does_not_count_as_waiting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
