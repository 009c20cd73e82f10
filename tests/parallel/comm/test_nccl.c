/* test_nccl.c -- the NCCL transport with a fake library in place of NCCL: which functions it calls,
 * in which order, and that the operations move the right data. Failures are in test_nccl_ends.c,
 * test_nccl_errors.c and test_nccl_waits.c, opening the library in test_nccl_library.c. */
#include "model/core/check.h"
#include "model/core/log.h"
#include "parallel/comm/nccl/nccl.h"
#include "parallel/grid/grid.h"
#include "tests/support/grid/fake_nccl.h"
#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Opens a rank's device. Returns false if that fails and reports the reason with rank_wrong. */
static bool open_device(Comm *world, Device *dev)
{
    char err[512];
    DeviceOptions options = {.threads = 1, .local_ranks = world->size, .blas = BLAS_BUILTIN};
    if (!nccl_open(err, sizeof err)) rank_wrong(world, "%s", err);
    if (device_open(dev, "cpu", &options, err, sizeof err)) return true;
    rank_wrong(world, "%s", err);
    return false;
}

static void expect_log(const Comm *world, const char *expected)
{
    if (strcmp(fake_nccl_log(world->rank), expected) != 0)
        rank_wrong(world, "asked NCCL for\n%snot for\n%s", fake_nccl_log(world->rank), expected);
    fake_nccl_forget(world->rank);
}

/* ---- connecting and closing ------------------------------------------------------------------ */

static const char *const opened[] = {
    "GetUniqueId\nCommInitRankConfig 0 of 2, blocking, all\n"
    "AllReduce 2 type 7 op 0 in place\nAllReduce 2 type 7 op 2 in place\n"
    "ReduceScatter 1 type 7 op 0\nAllGather 1 type 7\nBroadcast 2 type 7 from 0 in place\n",
    "CommInitRankConfig 1 of 2, blocking, all\n"
    "AllReduce 2 type 7 op 0 in place\nAllReduce 2 type 7 op 2 in place\n"
    "ReduceScatter 1 type 7 op 0\nAllGather 1 type 7\nBroadcast 2 type 7 from 0 in place\n"};

/* Each operation must be used once when the group connects; messages only if they are requested. */
static void run_life(Comm *world, void *context)
{
    static const char *const messages[][2] = {
        [NCCL_NO_MESSAGES] = {"", ""},
        [NCCL_IN_LINE] = {"GroupStart\nSend 1 type 7 to 1\nGroupEnd\n"
                          "GroupStart\nRecv 1 type 7 from 1\nGroupEnd\n",
                          "GroupStart\nRecv 1 type 7 from 0\nGroupEnd\n"
                          "GroupStart\nSend 1 type 7 to 0\nGroupEnd\n"},
        [NCCL_IN_RING] = {"GroupStart\nSend 1 type 7 to 1\nRecv 1 type 7 from 1\n"
                          "GroupEnd\nGroupStart\nSend 1 type 7 to 1\n"
                          "Recv 1 type 7 from 1\nGroupEnd\n",
                          "GroupStart\nSend 1 type 7 to 0\nRecv 1 type 7 from 0\n"
                          "GroupEnd\nGroupStart\nSend 1 type 7 to 0\n"
                          "Recv 1 type 7 from 0\nGroupEnd\n"}};
    Device dev;
    (void)context;
    if (!open_device(world, &dev)) return;
    for (int with = NCCL_NO_MESSAGES; with <= NCCL_IN_RING; with++) {
        char expected[1024];
        Comm all = comm_split(world, "all", 0, world->rank);
        nccl_connect(&all, &dev, (NcclUse){(NcclMessages)with, 0}, 60);
        snprintf(expected, sizeof expected, "%s%s", opened[world->rank],
                 messages[with][world->rank]);
        expect_log(world, expected);
        /* The memory of the first uses stays: releasing it could wait for other GPUs. */
        if (strcmp(all.ops->name, "nccl") != 0 || dev.held != 4 * sizeof(float))
            rank_wrong(world, "%s, %zu bytes", all.ops->name, dev.held);
        for (int verb = 0; verb < COMM_VERBS; verb++)
            if (comm_counts(&all)->of[verb][F32].calls > 0)
                rank_wrong(world, "a %s is counted", comm_verb_name[verb]);
        comm_close(&all);
        expect_log(world, "CommDestroy\n");
        if (dev.held > 0) rank_wrong(world, "%s, %zu bytes", all.name, dev.held);
    }
    Comm own = comm_split(world, "own", world->rank, 0);
    nccl_connect(&own, &dev, (NcclUse){NCCL_IN_RING, 0}, 60);
    nccl_share(&own, &own);
    expect_log(world, "");
    nccl_connect(&own, &dev, (NcclUse){NCCL_ALONE, 0}, 60);
    expect_log(world, "GetUniqueId\nCommInitRankConfig 0 of 1, blocking, own\n"
                      "AllReduce 1 type 7 op 0 in place\nAllReduce 1 type 7 op 2 in place\n"
                      "ReduceScatter 1 type 7 op 0\nAllGather 1 type 7\n"
                      "Broadcast 1 type 7 from 0 in place\n");
    comm_close(&own);
    expect_log(world, "CommDestroy\n");
    device_close(&dev);
}

static void test_connecting_uses_each_operation_once(void **state)
{
    (void)state;
    fake_nccl_use();
    thread_ranks(2, 60, run_life, NULL);
    assert_int_equal(fake_nccl_open(), 0);
}

/* Only the thread of rank 0 receives signals here, as in a run. */
static void run_signals(Comm *world, void *context)
{
    Device dev;
    float x[2] = {0};
    (void)context;
    if (!open_device(world, &dev)) return;
    Comm all = comm_split(world, "all", 0, world->rank);
    nccl_connect(&all, &dev, (NcclUse){NCCL_IN_RING, 0}, 60);
    comm_barrier(world);
    if (fake_nccl.unheld != 0)
        rank_wrong(world, "%d calls of NCCL with signals let through", fake_nccl.unheld);
    comm_barrier(world);
    comm_all_reduce(&all, &dev, tensor_1d(x, F32, 2), REDUCE_SUM);
    comm_barrier(world);
    if (fake_nccl.unheld != 1)
        rank_wrong(world, "%d ranks receive signals afterwards", fake_nccl.unheld);
    comm_barrier(world);
    comm_close(&all);
    device_close(&dev);
}

static void test_threads_that_nccl_starts_while_it_connects_receive_no_signals(void **state)
{
    (void)state;
    fake_nccl_use();
    thread_ranks(2, 60, run_signals, NULL);
}

static const Backend *quick; /* the backend whose allocations alloc_late delays */
static atomic_int too_soon;  /* number of allocations that ended after rank 0 had called NCCL */

static void *alloc_late(Device *dev, size_t bytes)
{
    usleep(100000);
    too_soon += *fake_nccl_log(0) != '\0';
    return quick->alloc(dev, bytes);
}

/* Rank 1 allocates its memory slowly, and its CommInitRankConfig returns late. */
static void run_meetings(Comm *world, void *context)
{
    Device dev;
    (void)context;
    if (!open_device(world, &dev)) return;
    Backend slow = *dev.backend;
    slow.alloc = alloc_late;
    if (world->rank == 1) {
        quick = dev.backend;
        dev.backend = &slow;
    }
    Comm all = comm_split(world, "all", 0, world->rank);
    nccl_connect(&all, &dev, (NcclUse){NCCL_NO_MESSAGES, 0}, 60);
    comm_close(&all);
    device_close(&dev);
}

/* NCCL allocates memory while it connects, which may wait for the work of other devices. So no rank
 * calls NCCL before all ranks have allocated what they need, and no rank uses NCCL before all are
 * connected. */
static void test_ranks_pass_a_barrier_before_and_after_they_connect(void **state)
{
    (void)state;
    fake_nccl_use();
    fake_nccl.late = 1 << 1;
    fake_nccl.meeting = 1 << 0 | 1 << 1;
    too_soon = 0;
    thread_ranks(2, 60, run_meetings, NULL);
    assert_int_equal(too_soon, 0);
    assert_int_equal(atomic_load(&fake_nccl.early), 0);
}

/* In a line the first and the last rank open no connection to each other. */
static void run_line(Comm *world, void *context)
{
    Device dev;
    (void)context;
    if (!open_device(world, &dev)) return;
    for (int with = NCCL_IN_LINE; with <= NCCL_IN_RING; with++) {
        Comm all = comm_split(world, "all", 0, world->rank);
        nccl_connect(&all, &dev, (NcclUse){(NcclMessages)with, 0}, 60);
        for (int peer = 0; peer < world->size; peer++) {
            char sent[32], received[32];
            bool opens =
                peer != world->rank && (with == NCCL_IN_RING || abs(peer - world->rank) == 1);
            snprintf(sent, sizeof sent, "Send 1 type 7 to %d\n", peer);
            snprintf(received, sizeof received, "Recv 1 type 7 from %d\n", peer);
            if ((strstr(fake_nccl_log(world->rank), sent) != NULL) != opens ||
                (strstr(fake_nccl_log(world->rank), received) != NULL) != opens)
                rank_wrong(world, "messages with rank %d:\n%s", peer, fake_nccl_log(world->rank));
        }
        fake_nccl_forget(world->rank);
        comm_close(&all);
    }
    device_close(&dev);
}

static void test_messages_in_a_line_do_not_connect_the_first_and_last_rank(void **state)
{
    (void)state;
    fake_nccl_use();
    thread_ranks(3, 60, run_line, NULL);
    assert_int_equal(fake_nccl_open(), 0);
}

/* ---- collectives and messages ---------------------------------------------------------------- */

static void expect(Comm *comm, const char *what, double got, double wanted)
{
    if (got != wanted) rank_wrong(comm, "%s: %g, not %g", what, got, wanted);
}

static void run_verbs(Comm *world, void *context)
{
    enum { RANKS = 3 };
    Device dev;
    double x[RANKS], whole[RANKS], part = 0;
    uint8_t bytes[2] = {(uint8_t)world->rank, 7};
    (void)context;
    if (!open_device(world, &dev)) return;
    Comm all = comm_split(world, "all", 0, world->rank);
    nccl_connect(&all, &dev, (NcclUse){NCCL_IN_RING, 0}, 60);
    fake_nccl_forget(world->rank);
    for (int i = 0; i < RANKS; i++)
        x[i] = whole[i] = world->rank + 10 * i;
    comm_all_reduce(&all, &dev, tensor_1d(x, F64, RANKS), REDUCE_SUM);
    expect(&all, "sum", x[2], 63);
    x[0] = world->rank;
    comm_all_reduce(&all, &dev, tensor_1d(x, F64, 1), REDUCE_MAX);
    expect(&all, "maximum", x[0], 2);
    comm_reduce_scatter(&all, &dev, tensor_1d(&part, F64, 1), tensor_1d(whole, F64, RANKS));
    expect(&all, "part", part, 3 + 30 * world->rank);
    comm_all_gather(&all, &dev, tensor_1d(whole, F64, RANKS), tensor_1d(&part, F64, 1));
    expect(&all, "whole", whole[2], 63);
    comm_broadcast(&all, &dev, tensor_1d(bytes, U8, 2), 2);
    expect(&all, "broadcast", bytes[0], 2);
    expect_log(world, "AllReduce 3 type 8 op 0 in place\nAllReduce 1 type 8 op 2 in place\n"
                      "ReduceScatter 1 type 8 op 0\nAllGather 1 type 8\n"
                      "Broadcast 2 type 1 from 2 in place\n");
    comm_all_reduce(&all, &dev, tensor_1d(x, F64, 0), REDUCE_SUM);
    comm_reduce_scatter(&all, &dev, tensor_1d(x, F64, 0), tensor_1d(x, F64, 0));
    comm_all_gather(&all, &dev, tensor_1d(x, F64, 0), tensor_1d(x, F64, 0));
    comm_broadcast(&all, &dev, tensor_1d(x, F64, 0), 0);
    if (world->rank == 0) comm_send(&all, &dev, tensor_1d(x, F64, 0), 1);
    if (world->rank == 1) comm_receive(&all, &dev, tensor_1d(x, F64, 0), 0);
    expect_log(world, "");
    comm_close(&all);
    device_close(&dev);
}

static void test_each_collective_of_a_device_calls_its_nccl_function(void **state)
{
    (void)state;
    fake_nccl_use();
    thread_ranks(3, 60, run_verbs, NULL);
}

/* Host calls must stay with the host's communicator, inside groups and outside. A group with calls
 * of both kinds is started in both transports. */
static void run_hosts(Comm *world, void *context)
{
    Device dev;
    int64_t n[2] = {world->rank, 5}, from = -1;
    float x = (float)world->rank, y = -1;
    int next = (world->rank + 1) % world->size,
        before = (world->rank + world->size - 1) % world->size;
    (void)context;
    if (!open_device(world, &dev)) return;
    Comm all = comm_split(world, "all", 0, world->rank);
    nccl_connect(&all, &dev, (NcclUse){NCCL_IN_RING, 0}, 60);
    fake_nccl_forget(world->rank);
    comm_all_reduce(&all, NULL, tensor_1d(n, I64, 1), REDUCE_MAX);
    expect(&all, "the host's maximum", (double)n[0], 2);
    comm_broadcast(&all, NULL, tensor_1d(n, I64, 2), 1);
    comm_barrier(&all);
    Comm pair = comm_split(&all, "pair", world->rank == 2, world->rank);
    expect(&all, "a group of", pair.size, world->rank == 2 ? 1 : 2);
    expect(&all, "is the host's", strcmp(pair.ops->name, "nccl") != 0, 1);
    comm_close(&pair);
    comm_group_begin(&all);
    comm_group_end(&all);
    n[0] = world->rank;
    comm_group_begin(&all);
    comm_send(&all, NULL, tensor_1d(n, I64, 1), next);
    comm_receive(&all, NULL, tensor_1d(&from, I64, 1), before);
    comm_group_end(&all);
    expect(&all, "the host's message", (double)from, before);
    expect_log(world, "");
    from = -1;
    comm_group_begin(&all);
    comm_send(&all, NULL, tensor_1d(n, I64, 1), next);
    comm_send(&all, &dev, tensor_1d(&x, F32, 1), next);
    comm_receive(&all, NULL, tensor_1d(&from, I64, 1), before);
    comm_receive(&all, &dev, tensor_1d(&y, F32, 1), before);
    comm_group_end(&all);
    expect(&all, "the host's message", (double)from, before);
    expect(&all, "the device's message", y, before);
    char expected[128];
    snprintf(expected, sizeof expected,
             "GroupStart\nSend 1 type 7 to %d\nRecv 1 type 7 from %d\nGroupEnd\n", next, before);
    expect_log(world, expected);
    comm_close(&all);
    device_close(&dev);
}

static void test_host_calls_do_not_go_through_nccl(void **state)
{
    (void)state;
    fake_nccl_use();
    thread_ranks(3, 60, run_hosts, NULL);
}

/* ---- a grid ---------------------------------------------------------------------------------- */

static void count_inits(const Comm *world, const char *name, const char *limit, int *inits,
                        int *places)
{
    char line[64];
    const char *at = fake_nccl_log(world->rank);
    snprintf(line, sizeof line, "blocking, %s%s\n", name, limit);
    *inits = 0;
    for (*places = -1; (at = strstr(at, line)) != NULL; at++) {
        (*inits)++;
        *places = (int)(at - fake_nccl_log(world->rank));
    }
}

/* There must be one communicator for each axis and group with several ranks, created in the same
 * order everywhere, each with its own limit of CTAs. Only pp exchanges messages. `shard` uses the
 * communicator of dp. */
static void run_grid(Comm *world, void *context)
{
    static const char *const names[][2] = {{"pp", ", at most 8 CTAs"},
                                           {"dp", ", at most 16 CTAs"},
                                           {"tp", ""},
                                           {"kv", ", at most 5 CTAs"},
                                           {"tie", ", at most 4 CTAs"}};
    const GridNccl nccl = {.pp = 8, .dp = 16, .kv = 5, .tie = 4, .timeout = 60};
    Device dev;
    int last = -1;
    (void)context;
    if (!open_device(world, &dev)) return;
    GridGroups groups = {.kv = 1, .tied = true};
    Grid grid = grid_open(world, (GridPlace){2, 2, 1, 2}, &groups);
    grid_prepare(&grid, &dev, &nccl);
    grid_connect(&grid, world);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int inits, place;
        count_inits(world, names[i][0], names[i][1], &inits, &place);
        if (inits != 1 || place <= last)
            rank_wrong(world, "%s: %d communicators, at %d after %d", names[i][0], inits, place,
                       last);
        last = place;
    }
    for (const char *at = fake_nccl_log(world->rank); (at = strstr(at, "Send")) != NULL; at++)
        if (at > strstr(fake_nccl_log(world->rank), "blocking, dp"))
            rank_wrong(world, "messages after those of pp");
    comm_barrier(world);
    expect(world, "communicators", fake_nccl_open(), 8 * 5);
    fake_nccl_forget(world->rank);
    double x = 1;
    comm_all_reduce(&grid.shard, &dev, tensor_1d(&x, F64, 1), REDUCE_SUM);
    expect(world, "shard", x, 2);
    expect_log(world, "AllReduce 1 type 8 op 0 in place\n");
    expect(world, "calls of shard",
           (double)comm_counts(&grid.shard)->of[COMM_ALL_REDUCE][F64].calls, 1);
    expect(world, "calls of dp", (double)comm_counts(&grid.dp)->of[COMM_ALL_REDUCE][F64].calls, 0);
    comm_barrier(world);
    grid_close(&grid);
    expect_log(world, "CommDestroy\nCommDestroy\nCommDestroy\nCommDestroy\nCommDestroy\n");
    device_close(&dev);
}

static void test_a_grid_has_one_nccl_communicator_per_axis(void **state)
{
    (void)state;
    fake_nccl_use();
    thread_ranks(8, 60, run_grid, NULL);
    assert_int_equal(fake_nccl_open(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_connecting_uses_each_operation_once),
        cmocka_unit_test(test_ranks_pass_a_barrier_before_and_after_they_connect),
        cmocka_unit_test(test_threads_that_nccl_starts_while_it_connects_receive_no_signals),
        cmocka_unit_test(test_messages_in_a_line_do_not_connect_the_first_and_last_rank),
        cmocka_unit_test(test_each_collective_of_a_device_calls_its_nccl_function),
        cmocka_unit_test(test_host_calls_do_not_go_through_nccl),
        cmocka_unit_test(test_a_grid_has_one_nccl_communicator_per_axis),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
