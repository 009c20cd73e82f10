/* test_late_device.c -- finds missing waits between streams. On a device that delays its work as
 * long as possible (tests/support/device/late_device.h) a missing wait changes the result. First,
 * hand-written programs show that the device notices a missing wait. Then each wait in the
 * collectives of thread ranks is left out in turn. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "tests/support/device/late_device.h"
#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 300 };

static void open_late(Device *dev, int rank, int ranks)
{
    char err[256];
    DeviceOptions options = {.threads = 1,
                             .local_ranks = ranks,
                             .index = rank,
                             .level = CPU_LEVEL_BASELINE,
                             .blas = BLAS_BUILTIN};
    CHECK(late_device_open(dev, &options, err, sizeof err), "%s", err);
}

static Tensor numbers(float *memory, int i)
{
    Tensor t = tensor_1d(memory + (size_t)i * N, F32, N);
    t.place = PLACE_DEVICE;
    return t;
}

/* ---- the device ----------------------------------------------------------------------------- */

/* Prints the waits whose removal changed nothing, so that a reader of a failed test can find
 * them. */
static void print_verdict(void *context, const LateWait *wait)
{
    (void)context;
    if (strcmp(wait->verdict, "red") != 0) printf("  %s: %s\n", wait->verdict, wait->where);
}

static const LateJury printer = {.tell = print_verdict};

/* Results appear when the host has waited for them, and not before. Arguments have the values that
 * they had at the call. */
static void test_work_is_done_only_when_the_host_waits_for_it(void **state)
{
    Device dev;
    Event event = {0};
    float *memory, *host;
    (void)state;
    open_late(&dev, 0, 1);
    memory = device_alloc(&dev, 4 * N * sizeof *memory, "numbers");
    host = device_host_alloc(&dev, N * sizeof *host, "numbers");
    memset(host, 0, N * sizeof *host);
    Tensor src[2] = {numbers(memory, 0), numbers(memory, 1)};
    op_fill(&dev, src[0], 2);
    op_fill(&dev, src[1], 3);
    op_sum(&dev, numbers(memory, 2), src, 2);
    src[1] = numbers(memory, 3); /* the sum has copied its list of sources */
    device_event_record(&dev, &event);
    device_copy(&dev, tensor_1d(host, F32, N), numbers(memory, 2));
    op_fill(&dev, numbers(memory, 2), 7);
    assert_true(memory[0] == 0 && memory[2 * N] == 0);
    assert_false(device_event_reached(&dev, &event));
    device_event_synchronize(&dev, &event);
    assert_true(memory[2 * N] == 5 && host[5] == 0);
    device_synchronize(&dev);
    assert_true(memory[2 * N] == 7 && host[5] == 5);
    device_event_destroy(&dev, &event);
    device_host_release(&dev, host, N * sizeof *host);
    device_release(&dev, memory, 4 * N * sizeof *memory);
    device_close(&dev);
}

/* Imitates how a parameter store prefetches weights: one stream fetches weights into one of two
 * buffers, the other stream uses them. A fetch waits for the buffer's last use, and a use waits for
 * the fetch. `forgets` selects a wait that is left out. */
enum { FORGETS_NOTHING, FORGETS_FETCHED, FORGETS_USED };

static LateVerdict fetch_and_use(int forgets)
{
    enum { ROUNDS = 6, BUFFERS = 2 };
    Device dev;
    Event fetched[BUFFERS] = {0}, used[BUFFERS] = {0};
    open_late(&dev, 0, 1);
    float *memory = device_alloc(&dev, (ROUNDS + BUFFERS + 1) * N * sizeof *memory, "numbers");
    Tensor sum = numbers(memory, ROUNDS + BUFFERS);
    Device comm = device_on(&dev, dev.comm);
    for (int i = 0; i < ROUNDS; i++)
        op_fill(&dev, numbers(memory, i), 1 << i);
    device_synchronize(&dev);
    late_burst_begin();
    for (int i = 0; i < ROUNDS; i++) {
        Tensor buffer = numbers(memory, ROUNDS + i % BUFFERS);
        if (i == BUFFERS)
            late_mark(&dev); /* the first fetches use fresh buffers and need no
                              * wait */
        if (i == ROUNDS - 1) late_mark(&dev);
        if (forgets != FORGETS_USED) device_event_wait(&comm, &used[i % BUFFERS]);
        op_copy(&comm, buffer, numbers(memory, i));
        device_event_record(&comm, &fetched[i % BUFFERS]);
        if (forgets != FORGETS_FETCHED) device_event_wait(&dev, &fetched[i % BUFFERS]);
        op_add(&dev, sum, sum, buffer);
        device_event_record(&dev, &used[i % BUFFERS]);
    }
    LateVerdict v = late_burst_end(&printer);
    if (forgets == FORGETS_NOTHING)
        assert_true(memory[(ROUNDS + BUFFERS) * N] == (1 << ROUNDS) - 1);
    for (int i = 0; i < BUFFERS; i++) {
        device_event_destroy(&dev, &fetched[i]);
        device_event_destroy(&dev, &used[i]);
    }
    device_release(&dev, memory, (ROUNDS + BUFFERS + 1) * N * sizeof *memory);
    device_close(&dev);
    return v;
}

static void test_a_missing_wait_between_streams_changes_the_result(void **state)
{
    (void)state;
    LateVerdict v = fetch_and_use(FORGETS_NOTHING);
    assert_string_equal(v.wrong, "");
    assert_int_equal(v.streams, 2);
    assert_int_equal(v.works, 12);
    assert_int_equal(v.waits, 6);
    assert_int_equal(v.red, 6);
    assert_int_equal(v.overlapping, 0);
    v = fetch_and_use(FORGETS_FETCHED);
    assert_string_not_equal(v.wrong, "");
    assert_int_equal(v.overlapping, 6);
    assert_string_not_equal(fetch_and_use(FORGETS_USED).wrong, "");
}

/* Ops on two streams write and read page-locked memory at its own address. Without their waits,
 * different orders of the two streams' work leave different numbers in that memory or read
 * different numbers from it. */
static LateVerdict update_on_the_host(bool waits)
{
    Device dev;
    Event updated = {0};
    open_late(&dev, 0, 1);
    float *host = device_host_alloc(&dev, 2 * N * sizeof *host, "numbers");
    Tensor state = tensor_1d(host, F32, N), ones = tensor_1d(host + N, F32, N);
    Device copy = device_on(&dev, dev.copy);
    op_fill(&dev, state, 2);
    op_fill(&dev, ones, 1);
    device_synchronize(&dev);
    late_burst_begin();
    op_add(&copy, state, state, ones);
    device_event_record(&copy, &updated);
    if (waits) device_event_wait(&dev, &updated);
    op_add(&dev, ones, ones, state);
    LateVerdict v = late_burst_end(&printer);
    if (waits) assert_true(host[0] == 3 && host[N] == 4);
    device_event_destroy(&dev, &updated);
    device_host_release(&dev, host, 2 * N * sizeof *host);
    device_close(&dev);
    return v;
}

static void test_a_missing_wait_for_page_locked_memory_changes_the_result(void **state)
{
    (void)state;
    LateVerdict v = update_on_the_host(true);
    assert_string_equal(v.wrong, "");
    assert_int_equal(v.waits, 1);
    assert_int_equal(v.red, 1);
    assert_string_not_equal(update_on_the_host(false).wrong, "");
}

/* ---- collectives ----------------------------------------------------------------------------- */

enum { ROUNDS = 5 };

/* Patterns of messages: around the ring; two each way between every pair of ranks, as pipeline
 * stages exchange activations for gradients; and along the chain, where the two end ranks only send
 * or only receive. */
typedef enum { RING, ALL_PEERS, CHAIN } Way;

typedef struct {
    const char *name;
    CommVerb verb;
    ReduceOp op;
    bool in_place; /* reduce-scatter and all-gather: the part is inside the whole */
    Way way;
} Call;

static const Call calls[] = {
    {.name = "all-reduce", COMM_ALL_REDUCE, REDUCE_SUM},
    {.name = "all-reduce (max)", COMM_ALL_REDUCE, REDUCE_MAX},
    {.name = "reduce-scatter", COMM_REDUCE_SCATTER},
    {.name = "reduce-scatter, in place", COMM_REDUCE_SCATTER, .in_place = true},
    {.name = "all-gather", COMM_ALL_GATHER},
    {.name = "all-gather, in place", COMM_ALL_GATHER, .in_place = true},
    {.name = "broadcast", COMM_BROADCAST},
    {.name = "messages around the ring", COMM_SEND, .way = RING},
    {.name = "messages of all pairs", COMM_SEND, .way = ALL_PEERS},
    {.name = "messages along the chain", COMM_SEND, .way = CHAIN},
};

typedef struct {
    const Call *call;
    bool own_stream; /* on a separate stream, as in a parameter store; else on the compute stream,
                      * as in a step */
    LateVerdict verdict;
} Collective;

/* A rank's tensors: the whole with `size` parts of N numbers, what is added to it in each round,
 * the sum of the results, one part, and the received messages, which have the size of the whole. */
typedef struct {
    Tensor whole, step, sum, part, brought;
} Numbers;

static Tensor nth(Tensor t, int i)
{
    return tensor_slice_rows(t, (int64_t)i * N, N);
}

/* Sends two messages to each peer. The halves of the peers' parts with this rank's index are
 * received into `brought`. */
static void exchange(Comm *comm, Device *on, const Numbers *x)
{
    for (int half = 0; half < 2; half++)
        for (int peer = 0; peer < comm->size; peer++) {
            Tensor out = nth(x->whole, peer), in = nth(x->brought, peer);
            if (peer == comm->rank) continue;
            comm_receive(comm, on, tensor_slice_rows(in, half * N / 2, N / 2), peer);
            comm_send(comm, on, tensor_slice_rows(out, half * N / 2, N / 2), peer);
        }
}

static void send_messages(Comm *comm, Device *on, Way way, const Numbers *x)
{
    int n = comm->size, next = (comm->rank + 1) % n, before = (comm->rank + n - 1) % n;
    comm_group_begin(comm);
    if (way == ALL_PEERS) exchange(comm, on, x);
    if (way == RING || (way == CHAIN && next > 0)) comm_send(comm, on, nth(x->whole, 0), next);
    if (way == RING || (way == CHAIN && comm->rank > 0)) comm_receive(comm, on, x->part, before);
    comm_group_end(comm);
}

static void call_verb(Comm *comm, Device *on, const Call *c, const Numbers *x, int round)
{
    switch (c->verb) {
    case COMM_ALL_REDUCE: comm_all_reduce(comm, on, x->whole, c->op); break;
    case COMM_REDUCE_SCATTER: comm_reduce_scatter(comm, on, x->part, x->whole); break;
    case COMM_ALL_GATHER: comm_all_gather(comm, on, x->whole, x->part); break;
    case COMM_BROADCAST: comm_broadcast(comm, on, x->whole, round % comm->size); break;
    default: send_messages(comm, on, c->way, x);
    }
}

/* One round: the compute stream makes new numbers, the call runs, and the compute stream uses the
 * result. */
static void one_round(Comm *comm, Device *dev, Device *on, const Collective *c, const Numbers *x,
                      Event event[2], int round)
{
    op_add(dev, x->whole, x->whole, x->step);
    op_add(dev, x->brought, x->brought, x->step);
    if (!c->call->in_place) op_add(dev, x->part, x->part, nth(x->step, 0));
    device_event_record(dev, &event[0]);
    if (c->own_stream) device_event_wait(on, &event[0]);
    call_verb(comm, on, c->call, x, round);
    device_event_record(on, &event[1]);
    if (c->own_stream) device_event_wait(dev, &event[1]);
    op_add(dev, nth(x->sum, 0), nth(x->sum, 0), x->part);
    op_add(dev, x->sum, x->sum, x->brought);
    op_add(dev, x->sum, x->sum, x->whole);
}

static void collective_rank(Comm *comm, void *context)
{
    Collective *c = context;
    Device dev;
    Event event[2] = {0};
    int64_t n = (int64_t)comm->size * N;
    open_late(&dev, comm->rank, comm->size);
    size_t bytes = (size_t)(4 * n + N) * sizeof(float);
    float *memory = device_alloc(&dev, bytes, "numbers");
    Numbers x = {tensor_1d(memory, F32, n), tensor_1d(memory + n, F32, n),
                 tensor_1d(memory + 2 * n, F32, n), tensor_1d(memory + 3 * n, F32, N),
                 tensor_1d(memory + 3 * n + N, F32, n)};
    if (c->call->in_place) x.part = nth(x.whole, comm->rank);
    op_fill(&dev, x.step, 1 << comm->rank);
    Device own = device_on(&dev, c->call->verb == COMM_SEND         ? dev.p2p
                                 : c->call->verb == COMM_ALL_REDUCE ? dev.tp
                                                                    : dev.comm);
    Device *on = c->own_stream ? &own : &dev;
    device_synchronize(&dev);
    comm_barrier(comm);
    if (comm->rank == 0) late_burst_begin();
    comm_barrier(comm);
    for (int round = 0; round < ROUNDS; round++) {
        if (round == 2 || round == ROUNDS - 1) late_mark(&dev);
        one_round(comm, &dev, on, c, &x, event, round);
    }
    comm_barrier(comm);
    if (comm->rank == 0) c->verdict = late_burst_end(&printer);
    comm_barrier(comm);
    for (int i = 0; i < 2; i++)
        device_event_destroy(&dev, &event[i]);
    device_release(&dev, memory, bytes);
    comm_barrier(comm);
    device_close(&dev);
}

/* Every wait must be necessary: the call's waits for the peers' streams, before it reads their data
 * and before it overwrites what they read; and, if the call has its own stream, the waits between
 * that and the compute stream. */
static void test_leaving_out_any_wait_of_a_collective_changes_the_result(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 3; ranks++)
        for (int i = 0; i < 2 * (int)(sizeof calls / sizeof *calls); i++) {
            Collective c = {.call = &calls[i / 2], .own_stream = i % 2};
            thread_ranks(ranks, 60, collective_rank, &c);
            if (c.verdict.wrong[0] || c.verdict.red != c.verdict.waits)
                fail_msg("%s of %d%s: %s; of %d waits %d are red, %d covered", c.call->name, ranks,
                         c.own_stream ? " on its own stream" : "", c.verdict.wrong, c.verdict.waits,
                         c.verdict.red, c.verdict.covered);
            assert_true(c.verdict.waits > 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_work_is_done_only_when_the_host_waits_for_it),
        cmocka_unit_test(test_a_missing_wait_between_streams_changes_the_result),
        cmocka_unit_test(test_a_missing_wait_for_page_locked_memory_changes_the_result),
        cmocka_unit_test(test_leaving_out_any_wait_of_a_collective_changes_the_result),
    };
    return cmocka_run_group_tests_name("late device", tests, NULL, NULL);
}
