/* test_flight_calls.c -- what a flight recorder (Flight) notes about every call of a communicator,
 * about device calls and about ops: if ranks are threads, if they are processes (TEST_RANKS), and
 * with a fake NCCL. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/kernels/ops.h"
#include "parallel/comm/nccl/nccl.h"
#include "tests/support/grid/fake_nccl.h"
#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const GraphNames names = {op_name, comm_call_name};

/* Writes one line per entry: kind, name, dtype and elements, stream, group, call, peer; and
 * "unfinished" if the entry has not ended. */
static void text_of(const Flight *f, int64_t from, char *text, size_t n)
{
    static _Thread_local FlightEntry entry[FLIGHT_SNAPSHOT];
    GraphGroup group[FLIGHT_GROUPS];
    int entries = flight_snapshot(f, entry), groups = flight_groups(f, group);
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < entries; i++) {
        const FlightEntry *e = &entry[i];
        if (e->n < from) continue;
        at += (size_t)snprintf(
            text + at, n - at, "%s %s %s %lld on %s, %s call %lld peer %d%s\n",
            flight_kind_name[e->kind], flight_entry_name(e, names), flight_dtype_name(e),
            (long long)e->elements, flight_stream_name[e->stream],
            e->group >= 0 && e->group < groups ? group[e->group].name : "-", (long long)e->call,
            e->peer, e->finished >= e->issued ? "" : " unfinished");
    }
}

static void expect_text(const Comm *comm, const Flight *f, int64_t from, const char *expected)
{
    char text[4096];
    text_of(f, from, text, sizeof text);
    if (strcmp(text, expected) != 0) rank_wrong(comm, "noted\n%snot\n%s", text, expected);
}

/* A rank's device, with a flight recorder. */
typedef struct {
    Device dev, comm;
    Flight *flight;
    float x[8];
    Tensor two, eight;
} Noted;

static void open_noted(Noted *t, Comm *world)
{
    char err[512];
    DeviceOptions options = {.threads = 1, .local_ranks = world->size, .blas = BLAS_BUILTIN};
    *t = (Noted){.flight = flight_create()};
    if (!device_open(&t->dev, "cpu", &options, err, sizeof err)) rank_wrong(world, "%s", err);
    flight_attach(t->flight, &t->dev);
    comm_flight(world, t->flight);
    t->comm = device_on(&t->dev, t->dev.comm);
    t->two = tensor_1d(t->x, F32, 2);
    t->eight = tensor_1d(t->x, F32, 8);
}

static void close_noted(Noted *t, Comm *world)
{
    comm_flight(world, NULL);
    flight_detach(t->flight, &t->dev);
    device_close(&t->dev);
    flight_free(t->flight);
}

/* ---- all calls --------------------------------------------------------------------------------
 */

static void run_collectives(Comm *world, void *context)
{
    Noted t;
    (void)context;
    open_noted(&t, world);
    Tensor part = tensor_slice_rows(t.eight, 4 * world->rank, 4);
    comm_all_reduce(world, &t.comm, t.eight, REDUCE_SUM);
    comm_reduce_scatter(world, &t.comm, part, t.eight);
    comm_all_gather(world, &t.comm, t.eight, part);
    comm_broadcast(world, &t.comm, t.two, 1);
    comm_all_reduce(world, NULL, t.two, REDUCE_MAX);
    comm_broadcast(world, NULL, t.two, 0);
    comm_barrier(world);
    Comm pair = comm_line(world, "pair", (CommLine){0, 1, 2});
    comm_all_reduce(&pair, &t.comm, t.two, REDUCE_SUM);
    Comm parts = comm_split(world, "parts", 0, world->rank);
    comm_barrier(&parts);
    Comm alone = comm_line(world, "alone", (CommLine){world->rank, 1, 1});
    comm_all_reduce(&alone, &t.comm, t.two, REDUCE_SUM); /* of one rank, so it is not recorded */
    comm_barrier(&alone);
    expect_text(world, t.flight, 0,
                "collective all-reduce f32 8 on compute, world call 1 peer -1\n"
                "collective reduce-scatter f32 8 on compute, world call 2 peer -1\n"
                "collective all-gather f32 8 on compute, world call 3 peer -1\n"
                "collective broadcast f32 2 on compute, world call 4 peer 1\n"
                "collective all-reduce f32 2 on host, world call 5 peer -1\n"
                "collective broadcast f32 2 on host, world call 6 peer 0\n"
                "collective barrier  0 on host, world call 7 peer -1\n"
                "collective split  0 on host, world call 8 peer -1\n"
                "collective all-reduce f32 2 on compute, pair call 1 peer -1\n"
                "collective split  0 on host, world call 9 peer -1\n"
                "collective barrier  0 on host, parts call 1 peer -1\n"
                "collective split  0 on host, world call 10 peer -1\n");
    GraphGroup group[FLIGHT_GROUPS];
    int n = flight_groups(t.flight, group);
    if (n != 3 || group[1].first != 0 || group[1].stride != 1 || group[1].size != 2 ||
        group[1].rank != world->rank || group[2].stride != 0)
        rank_wrong(world, "%d groups, %s of %d", n, group[1].name, group[1].size);
    comm_close(&alone);
    comm_close(&parts);
    comm_close(&pair);
    close_noted(&t, world);
}

static void test_every_collective_is_recorded(void **state)
{
    (void)state;
    thread_ranks(2, 60, run_collectives, NULL);
}

static void run_messages(Comm *world, void *context)
{
    Noted t;
    char expected[512];
    int peer = 1 - world->rank;
    (void)context;
    open_noted(&t, world);
    for (int i = 0; i < 2; i++) {
        if (world->rank == 0) comm_send(world, NULL, t.two, peer);
        if (world->rank == 1) comm_receive(world, NULL, t.two, peer);
    }
    comm_group_begin(world);
    comm_send(world, &t.comm, t.two, peer);
    comm_receive(world, &t.comm, tensor_slice_rows(t.eight, 4, 2), peer);
    char text[512];
    text_of(t.flight, 3, text, sizeof text);
    int open = strstr(text, "unfinished\n") != NULL;
    comm_group_end(world);
    if (!open) rank_wrong(world, "messages of an open group have finished: %s", text);
    const char *first = world->rank == 0 ? "send" : "receive";
    snprintf(expected, sizeof expected,
             "exchange %s f32 2 on host, world call 1 peer %d\n"
             "exchange %s f32 2 on host, world call 2 peer %d\n"
             "exchange send f32 2 on compute, world call %d peer %d\n"
             "exchange receive f32 2 on compute, world call %d peer %d\n",
             first, peer, first, peer, world->rank == 0 ? 3 : 1, peer, world->rank == 0 ? 1 : 3,
             peer);
    expect_text(world, t.flight, 0, expected);
    close_noted(&t, world);
}

static void test_messages_are_numbered_per_pair_of_ranks(void **state)
{
    (void)state;
    thread_ranks(2, 60, run_messages, NULL);
}

/* ---- while a rank waits -----------------------------------------------------------------------
 */

enum { WAITS = 9 };
static const char *const waits[WAITS] = {"all-reduce", "reduce-scatter", "all-gather",
                                         "broadcast",  "send",           "receive",
                                         "receive",    "barrier",        "split"};
static Flight *_Atomic watched; /* of rank 0 */

static void call(Comm *world, Noted *t, int i)
{
    Tensor part = tensor_slice_rows(t->eight, 4 * world->rank, 4);
    Comm made;
    switch (i) {
    case 0: comm_all_reduce(world, &t->comm, t->eight, REDUCE_SUM); break;
    case 1: comm_reduce_scatter(world, &t->comm, part, t->eight); break;
    case 2: comm_all_gather(world, &t->comm, t->eight, part); break;
    case 3: comm_broadcast(world, &t->comm, t->eight, 1); break;
    case 4:
        if (world->rank == 0) comm_send(world, &t->comm, t->eight, 1);
        if (world->rank == 1) comm_receive(world, &t->comm, t->eight, 0);
        break;
    case 5:
        if (world->rank == 1) comm_send(world, &t->comm, t->eight, 0);
        if (world->rank == 0) comm_receive(world, &t->comm, t->eight, 1);
        break;
    case 6:
        comm_group_begin(world);
        if (world->rank == 1) comm_send(world, &t->comm, t->eight, 0);
        if (world->rank == 0) comm_receive(world, &t->comm, t->eight, 1);
        comm_group_end(world);
        break;
    case 7: comm_barrier(world); break;
    default: made = comm_split(world, "made", 0, world->rank); comm_close(&made);
    }
}

/* Waits until rank 0's flight recorder shows that rank 0 is in the i-th call. */
static void await(const Comm *world, int i)
{
    static FlightEntry entry[FLIGHT_SNAPSHOT];
    for (double start = seconds_now(); seconds_now() < start + 20; usleep(200)) {
        const Flight *f = watched;
        int n = f ? flight_snapshot(f, entry) : 0;
        if (n == 0 || entry[n - 1].finished > 0) continue;
        if (strcmp(flight_entry_name(&entry[n - 1], names), waits[i]) == 0) return;
    }
    rank_wrong(world, "rank 0 never waits in %s", waits[i]);
}

static void run_waits(Comm *world, void *context)
{
    Noted t;
    (void)context;
    open_noted(&t, world);
    if (world->rank == 0) watched = t.flight;
    for (int i = 0; i < WAITS; i++) {
        /* Not for a send (4): it may be complete before the message is received. */
        if (world->rank == 1 && i != 4) await(world, i);
        call(world, &t, i);
    }
    comm_barrier(world);
    if (world->rank == 0) watched = NULL;
    comm_barrier(world);
    close_noted(&t, world);
}

/* A rank that waits has an unfinished entry, and another thread reads it. */
static void test_another_thread_can_read_in_which_call_a_rank_waits(void **state)
{
    (void)state;
    if (getenv("TEST_RANKS")) return; /* processes cannot read each other's flight recorders */
    thread_ranks(2, 60, run_waits, NULL);
}

/* ---- ops and copies ---------------------------------------------------------------------------
 */

static void test_every_op_and_copy_is_recorded(void **state)
{
    (void)state;
    Noted t;
    Comm world = comm_self("world");
    float y[8] = {0};
    char text[1024];
    Event event = {0};
    open_noted(&t, &world);
    Tensor to = tensor_1d(y, F32, 8);
    op_fill(&t.dev, t.eight, 2);
    op_copy(&t.comm, to, t.eight);
    op_add(&t.dev, to, to, t.eight);
    op_sum(&t.dev, t.two, &t.two, 1);
    device_copy(&t.dev, to, t.eight);
    device_copy_words(&t.dev, y, t.x, 16);
    device_event_record(&t.comm, &event);
    device_event_wait(&t.dev, &event); /* all work is complete, so this wait is not recorded */
    device_event_synchronize(&t.dev, &event);
    device_synchronize(&t.dev);
    comm_all_gather(&world, &t.dev, to, t.eight); /* in a group of one rank: only the copy of its
                                                   * data is recorded */
    text_of(t.flight, 0, text, sizeof text);
    assert_string_equal(text, "op fill f32 8 on compute, - call -1 peer -1\n"
                              "op copy f32 8 on compute, - call -1 peer -1\n"
                              "op add f32 8 on compute, - call -1 peer -1\n"
                              "op sum f32 2 on compute, - call -1 peer -1\n"
                              "copy copy f32 8 on compute, - call -1 peer -1\n"
                              "copy copy i64 2 on compute, - call -1 peer -1\n"
                              "copy copy f32 8 on compute, - call -1 peer -1\n");
    device_event_destroy(&t.dev, &event);
    close_noted(&t, &world);
    comm_close(&world);
}

/* ---- NCCL -------------------------------------------------------------------------------------
 */

/* Device calls through NCCL and host calls through threads have one numbering. Connecting takes two
 * barriers of the group. */
static void run_nccl(Comm *world, void *context)
{
    Noted t;
    char err[512];
    (void)context;
    if (!nccl_open(err, sizeof err)) rank_wrong(world, "%s", err);
    open_noted(&t, world);
    Comm all = comm_line(world, "all", (CommLine){0, 1, world->size});
    nccl_connect(&all, &t.dev, (NcclUse){NCCL_IN_LINE, 0}, 60);
    int64_t from = flight_issued(t.flight) + 1;
    Tensor part = tensor_slice_rows(t.eight, 4 * world->rank, 4);
    comm_all_reduce(&all, &t.comm, t.eight, REDUCE_SUM);
    comm_all_reduce(&all, NULL, t.two, REDUCE_SUM);
    comm_all_gather(&all, &t.comm, t.eight, part);
    comm_group_begin(&all);
    if (world->rank == 0) comm_send(&all, &t.comm, t.two, 1);
    if (world->rank == 1) comm_receive(&all, &t.comm, t.two, 0);
    comm_group_end(&all);
    comm_reduce_scatter(&all, &t.comm, part, t.eight);
    comm_broadcast(&all, &t.comm, t.two, 1);
    char expected[1024];
    snprintf(expected, sizeof expected,
             "collective all-reduce f32 8 on compute, all call 3 peer -1\n"
             "collective all-reduce f32 2 on host, all call 4 peer -1\n"
             "collective all-gather f32 8 on compute, all call 5 peer -1\n"
             "exchange %s f32 2 on compute, all call 1 peer %d\n"
             "collective reduce-scatter f32 8 on compute, all call 6 peer -1\n"
             "collective broadcast f32 2 on compute, all call 7 peer 1\n",
             world->rank == 0 ? "send" : "receive", 1 - world->rank);
    expect_text(world, t.flight, from, expected);
    comm_close(&all);
    close_noted(&t, world);
}

static void test_calls_through_nccl_are_recorded(void **state)
{
    (void)state;
    if (getenv("TEST_RANKS")) return; /* the fake library connects threads */
    fake_nccl_use();
    thread_ranks(2, 60, run_nccl, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_collective_is_recorded),
        cmocka_unit_test(test_messages_are_numbered_per_pair_of_ranks),
        cmocka_unit_test(test_another_thread_can_read_in_which_call_a_rank_waits),
        cmocka_unit_test(test_every_op_and_copy_is_recorded),
        cmocka_unit_test(test_calls_through_nccl_are_recorded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
