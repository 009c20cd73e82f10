/* test_nccl_self.c -- tests NCCL on one GPU: the program's table of its functions, its
 * configuration of a communicator, and its transport. Every communicator has a single rank. So no
 * data moves between GPUs, but the installed library must know all functions, structs and numbers
 * that library.h declares, and give the right results. On emulated devices it is the emulated NCCL.
 */
#include "model/core/clock.h"
#include "model/kernels/ops.h"
#include "parallel/comm/nccl/library.h"
#include "parallel/comm/nccl/nccl.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* Elements of a tensor; tensors in device memory; seconds that a call may take. */
enum { N = 1000, TENSORS = 6, TIMEOUT = 15 };
enum { X, Y, Z, W, SUM, OWN };

/* Three communicators of one rank, as a grid opens them: two through the transport, and the one for
 * messages directly, because the transport refuses a message of a rank to itself. */
static struct {
    bool tried, open;
    Device dev, on_comm, on_tp; /* views: work on the device's streams comm and tp */
    Comm dp, shard, tp;         /* shard uses the communicator of dp */
    NcclHandle *pp;
    char *memory;
    double seconds; /* how long it took to open the communicators */
    size_t taken;   /* bytes of device memory that the communicators took */
} self;

static const size_t room = N * sizeof(double);

static Tensor tensor(int which, DType dtype)
{
    return tensor_1d(self.memory + (size_t)which * room, dtype, N);
}

static void expect(NcclResult result, const char *name)
{
    const NcclLibrary *nccl = nccl_library();
    if (result != NCCL_SUCCESS)
        fail_msg("%s: %s - %s", name, nccl->error_string(result), nccl->last_error(NULL));
}
#define OK(function, ...) expect(nccl_library()->function(__VA_ARGS__), #function)

static void open_pp(void)
{
    NcclConfig config = NCCL_CONFIG_NONE;
    NcclId id;
    config.blocking = 1;
    config.comm_name = "pp";
    config.max_ctas = 8;
    OK(get_unique_id, &id);
    OK(comm_init, &self.pp, 1, id, 0, &config);
    assert_non_null(self.pp);
}

/* Opens the device and all communicators, once. Skips the test without a device. */
static void self_needed(void)
{
    const DeviceOptions options = {.threads = 1, .local_ranks = 1};
    char err[1024];
    size_t before = 0, after = 0, total;
    if (self.open) return;
    setenv("EMU_STREAMS", "deferred", 0);
    cuda_needed();
    if (self.tried) fail_msg("NCCL has failed to open");
    self.tried = true;
    nccl_set_environment();
    if (!nccl_open(err, sizeof err)) fail_msg("%s", err);
    if (!device_open(&self.dev, "cuda", &options, err, sizeof err)) fail_msg("%s", err);
    self.on_comm = device_on(&self.dev, self.dev.comm);
    self.on_tp = device_on(&self.dev, self.dev.tp);
    self.memory = device_alloc(&self.dev, TENSORS * room, "tensors");
    self.dp = comm_self("dp");
    self.shard = comm_self("shard");
    self.tp = comm_self("tp");
    device_synchronize(&self.dev);
    double from = seconds_now();
    device_memory(&self.dev, &before, &total);
    nccl_connect(&self.dp, &self.dev, (NcclUse){NCCL_ALONE, 16}, TIMEOUT);
    nccl_share(&self.shard, &self.dp);
    nccl_start(&self.shard);
    nccl_connect(&self.tp, &self.dev, (NcclUse){NCCL_ALONE, 0}, TIMEOUT);
    open_pp();
    device_memory(&self.dev, &after, &total);
    self.taken = before > after ? before - after : 0;
    self.seconds = seconds_now() - from;
    self.open = true;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Returns element i of tensor `which`: a number that every type holds exactly. */
static double value(int which, int64_t i)
{
    return (double)((i * 7 + which * 5) % 29 + 1);
}

static void fill(int which, DType dtype)
{
    double host[N];
    for (int64_t i = 0; i < N; i++)
        dtype_set(dtype, host, i, value(which, i));
    device_copy(&self.dev, tensor(which, dtype), tensor_1d(host, dtype, N));
    device_synchronize(&self.dev);
}

/* Expects the elements that fill(of, dtype) has written. */
static void expect_values(int which, DType dtype, int of, const char *what)
{
    double host[N];
    device_copy(&self.dev, tensor_1d(host, dtype, N), tensor(which, dtype));
    device_synchronize(&self.dev);
    for (int64_t i = 0; i < N; i++)
        if (dtype_get(dtype, host, i) != value(of, i))
            fail_msg("%s of %s: element %d is %g, not %g", what, dtype_name(dtype), (int)i,
                     dtype_get(dtype, host, i), value(of, i));
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_the_library_has_the_functions_that_need_no_communicator(void **state)
{
    (void)state;
    self_needed();
    int version = 0;
    NcclId a, b;
    OK(get_version, &version);
    assert_true(version >= NCCL_LEAST);
    OK(get_unique_id, &a);
    OK(get_unique_id, &b);
    assert_memory_not_equal(&a, &b, sizeof a);
    for (int result = NCCL_SUCCESS; result <= NCCL_IN_PROGRESS; result++) {
        const char *text = nccl_library()->error_string((NcclResult)result);
        assert_true(text != NULL && text[0] != '\0');
    }
    assert_string_equal(getenv("NCCL_COMM_BLOCKING"), "1");
}

static void test_each_collective_gives_the_right_result_in_each_type(void **state)
{
    static const DType all[] = {F64, F32, BF16, F16, I32, I64, U8, U16};
    (void)state;
    self_needed();
    for (size_t t = 0; t < sizeof all / sizeof *all; t++) {
        DType dtype = all[t];
        Tensor x = tensor(X, dtype), y = tensor(Y, dtype);
        fill(X, dtype);
        comm_broadcast(&self.dp, &self.dev, x, 0);
        expect_values(X, dtype, X, "broadcast");
        fill(Y, dtype);
        comm_all_gather(&self.dp, &self.dev, y, x);
        expect_values(Y, dtype, X, "all-gather");
        if (dtype == U16) continue; /* U16 is only moved, never added */
        comm_all_reduce(&self.tp, &self.dev, x, REDUCE_SUM);
        comm_all_reduce(&self.tp, &self.dev, x, REDUCE_MAX);
        expect_values(X, dtype, X, "all-reduce");
        fill(Y, dtype);
        comm_reduce_scatter(&self.dp, &self.dev, y, x);
        expect_values(Y, dtype, X, "reduce-scatter");
    }
}

static void test_collectives_and_messages_in_an_nccl_group_give_the_right_results(void **state)
{
    (void)state;
    self_needed();
    const float *from = tensor(X, F32).data;
    float *to = tensor(Y, F32).data;
    void *stream = self.dev.compute.impl;
    for (int which = X; which <= W; which++)
        fill(which, F32);
    comm_group_begin(&self.dp);
    comm_all_gather(&self.dp, &self.dev, tensor(Y, F32), tensor(X, F32));
    comm_all_gather(&self.dp, &self.dev, tensor(W, F32), tensor(Z, F32));
    comm_group_end(&self.dp);
    expect_values(Y, F32, X, "all-gather in a group");
    expect_values(W, F32, Z, "all-gather in a group");
    fill(Y, F32);
    OK(group_start, );
    OK(send, from, N / 2, NCCL_FLOAT32, 0, self.pp, stream);
    OK(send, from + N / 2, N / 2, NCCL_FLOAT32, 0, self.pp, stream);
    OK(receive, to, N / 2, NCCL_FLOAT32, 0, self.pp, stream);
    OK(receive, to + N / 2, N / 2, NCCL_FLOAT32, 0, self.pp, stream);
    OK(group_end, );
    expect_values(Y, F32, X, "message");
}

/* The calls of dp's communicator are on two streams, while that of tp is used on a third. */
static void test_communicators_work_on_several_streams_at_once(void **state)
{
    enum { ROUNDS = 20 };
    static const int result[] = {Y, Z, OWN};
    Event ready = {0}, done[2] = {{0}, {0}};
    (void)state;
    self_needed();
    op_fill(&self.dev, tensor(SUM, F32), 0);
    for (int round = 1; round <= ROUNDS; round++) {
        op_fill(&self.dev, tensor(X, F32), round);
        op_fill(&self.dev, tensor(OWN, F32), 100 * round);
        device_event_record(&self.dev, &ready);
        device_event_wait(&self.on_comm, &ready);
        device_event_wait(&self.on_tp, &ready);
        comm_all_gather(&self.shard, &self.on_comm, tensor(Y, F32), tensor(X, F32));
        comm_all_reduce(&self.dp, &self.dev, tensor(OWN, F32), REDUCE_SUM);
        comm_reduce_scatter(&self.tp, &self.on_tp, tensor(Z, F32), tensor(X, F32));
        device_event_record(&self.on_comm, &done[0]);
        device_event_record(&self.on_tp, &done[1]);
        for (int i = 0; i < 2; i++)
            device_event_wait(&self.dev, &done[i]);
        for (size_t i = 0; i < sizeof result / sizeof *result; i++)
            op_add(&self.dev, tensor(SUM, F32), tensor(SUM, F32), tensor(result[i], F32));
    }
    float host[N];
    device_copy(&self.dev, tensor_1d(host, F32, N), tensor(SUM, F32));
    device_synchronize(&self.dev);
    const float sum = 51 * ROUNDS * (ROUNDS + 1);
    for (int i = 0; i < N; i++)
        if (host[i] != sum) fail_msg("three streams: element %d is %g, not %g", i, host[i], sum);
    device_event_destroy(&self.dev, &ready);
    for (int i = 0; i < 2; i++)
        device_event_destroy(&self.dev, &done[i]);
}

static void test_no_communicator_has_an_error_and_all_can_be_destroyed(void **state)
{
    char text[512];
    NcclResult error = NCCL_INTERNAL_ERROR;
    (void)state;
    self_needed();
    OK(comm_async_error, self.pp, &error);
    expect(error, "the asynchronous error");
    device_synchronize(&self.dev);
    OK(comm_destroy, self.pp);
    comm_close(&self.tp);
    comm_close(&self.shard);
    comm_close(&self.dp);
    device_release(&self.dev, self.memory, TENSORS * room);
    device_close(&self.dev);
    /* The line that scripts/gpu_check.sh shows. */
    printf("found: 3 communicators of one rank in %.1f s, %.0f MiB; %s\n", self.seconds,
           (double)self.taken / (1 << 20), nccl_describe(text, sizeof text));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_library_has_the_functions_that_need_no_communicator),
        cmocka_unit_test(test_each_collective_gives_the_right_result_in_each_type),
        cmocka_unit_test(test_collectives_and_messages_in_an_nccl_group_give_the_right_results),
        cmocka_unit_test(test_communicators_work_on_several_streams_at_once),
        cmocka_unit_test(test_no_communicator_has_an_error_and_all_can_be_destroyed),
    };
    return cmocka_run_group_tests_name("NCCL on one GPU", tests, NULL, NULL);
}
