/* test_cuda_ranks.c -- tests ranks that share one GPU: their collectives, also on several streams
 * at once, and training by grids of ranks. On emulated devices, runs with delayed streams and with
 * immediate ones must have the same bits; on a GPU the second run is a repetition of the first.
 * Losses and gradient norms must also be close to the CPU's. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "tests/support/grid/busy_ranks.h"
#include "tests/support/support.h"
#include "tests/support/trainer/rank_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 1000, ROUNDS = 4 };

/* ---- sums ------------------------------------------------------------------------------------ */

/* Tests op_sum with doubles: the sums of a training step are doubles, although no tensor of a model
 * on CUDA is. */
static void test_op_sum_adds_doubles_in_order(void **state)
{
    enum { SOURCES = 5, COUNT = 300 };
    char err[512];
    DeviceOptions options = {.threads = 1, .local_ranks = 1};
    Device dev;
    double host[SOURCES][COUNT], got[COUNT];
    Tensor src[SOURCES];
    (void)state;
    cuda_needed();
    if (!device_open(&dev, "cuda", &options, err, sizeof err)) fail_msg("%s", err);
    double *memory = device_alloc(&dev, sizeof host, "doubles");
    for (int k = 0; k < SOURCES; k++) {
        for (int i = 0; i < COUNT; i++)
            host[k][i] = drawn_normal(5 + (uint64_t)k, i);
        src[k] = tensor_1d(memory + (ptrdiff_t)k * COUNT, F64, COUNT);
    }
    for (int n = 1; n <= SOURCES; n += 2) {
        device_copy(&dev, tensor_1d(memory, F64, SOURCES * COUNT),
                    tensor_1d(host, F64, SOURCES * COUNT));
        op_sum(&dev, src[0], src, n);
        op_fill(&dev, src[1], 7.5);
        device_copy(&dev, tensor_1d(got, F64, COUNT), src[0]);
        device_synchronize(&dev);
        for (int i = 0; i < COUNT; i++) {
            double sum = host[0][i];
            for (int k = 1; k < n; k++)
                sum += host[k][i];
            assert_true(got[i] == sum);
        }
        device_copy(&dev, tensor_1d(got, F64, COUNT), src[1]);
        device_synchronize(&dev);
        assert_true(got[0] == 7.5 && got[COUNT - 1] == 7.5);
    }
    device_release(&dev, memory, sizeof host);
    device_close(&dev);
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* In each round, every rank adds its number to its tensor, and an all-reduce sums the tensors of
 * all ranks, on the comm stream and on the compute stream in turn. At the end all ranks gather the
 * tensors of all others. */
static void rank_sums(Comm *comm, void *context)
{
    Device dev;
    Event ready = {0}, done = {0};
    char err[512];
    double expected = 0;
    float got[2] = {0};
    DeviceOptions options = {.threads = 1, .local_ranks = comm->size};
    (void)context;
    if (!device_open(&dev, "cuda", &options, err, sizeof err)) {
        rank_wrong(comm, "%s", err);
        return;
    }
    size_t bytes = (size_t)(comm->size + 2) * N * sizeof(float);
    float *memory = device_alloc(&dev, bytes, "numbers");
    Tensor x = tensor_1d(memory, F32, N), own = tensor_1d(memory + N, F32, N),
           whole = tensor_1d(memory + (size_t)2 * N, F32, (int64_t)comm->size * N);
    Device comm_stream = device_on(&dev, dev.comm);
    op_fill(&dev, own, comm->rank + 1);
    for (int round = 0; round < ROUNDS; round++) {
        Device *on = round % 2 ? &dev : &comm_stream;
        op_add(&dev, x, x, own);
        device_event_record(&dev, &ready);
        device_event_wait(on, &ready);
        comm_all_reduce(comm, on, x, REDUCE_SUM);
        device_event_record(on, &done);
        device_event_wait(&dev, &done);
        expected = comm->size * expected + comm->size * (comm->size + 1) / 2.0;
    }
    op_add(&dev, x, x, own);
    comm_all_gather(comm, &dev, whole, x);
    for (int r = 0; r < comm->size; r++) {
        device_copy(&dev, tensor_1d(got, F32, 2), tensor_slice_rows(whole, r * N + N - 2, 2));
        device_synchronize(&dev);
        if (got[0] != expected + r + 1 || got[1] != got[0])
            rank_wrong(comm, "rank %d has %g and %g, not %g", r, got[0], got[1], expected + r + 1);
    }
    device_event_destroy(&dev, &ready);
    device_event_destroy(&dev, &done);
    comm_barrier(comm);
    device_release(&dev, memory, bytes);
    device_close(&dev);
}

static void test_ranks_on_one_gpu_get_correct_sums_and_gathers(void **state)
{
    (void)state;
    cuda_needed();
    for (int ranks = 2; ranks <= 4; ranks++)
        thread_ranks(ranks, 60, rank_sums, NULL);
}

/* ---- three streams at once ------------------------------------------------------------------- */

static void test_ranks_on_one_gpu_can_use_three_streams_at_once(void **state)
{
    (void)state;
    cuda_needed();
    for (int ranks = 2; ranks <= BUSY_MOST_RANKS; ranks++)
        busy_ranks(ranks, false);
}

/* ---- training -------------------------------------------------------------------------------- */

/* Checks that losses and gradient norms are close to the CPU's. In f32 the two differ only in the
 * order of sums. */
static void near_the_cpu(const RankRun *on_gpu, const Folder *folder, const char *const *sets)
{
    const char *with_device[16];
    RankRun on_cpu = {0};
    int n = 0;
    for (; sets[n]; n++)
        with_device[n] = sets[n];
    with_device[n] = "device=cpu";
    with_device[n + 1] = NULL;
    rank_run_open(&on_cpu, folder, on_gpu->ranks, with_device);
    rank_run_train(&on_cpu);
    const Trained *a = &on_gpu->result[0], *b = &on_cpu.result[0];
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        double x = a->record[i].loss, y = b->record[i].loss;
        if (!(fabs(x - y) <= 2e-5 * y))
            fail_msg("%s: the loss of step %d is %.9g, on the CPU %.9g", on_gpu->name, i + 1, x, y);
        x = a->record[i].grad_norm;
        y = b->record[i].grad_norm;
        if (!(fabs(x - y) <= 1e-4 * y))
            fail_msg("%s: the norm of step %d is %.9g, on the CPU %.9g", on_gpu->name, i + 1, x, y);
    }
    rank_run_close(&on_cpu);
}

/* Mode of the emulated streams: EMU_STREAMS if it is set, else "deferred". */
static char *lag;

/* Trains twice on `ranks` ranks, with delayed and with immediate streams, and compares the bits.
 * The first setting must be "device=cuda". */
static void trains_alike(const Folder *folder, int ranks, const char *const *sets)
{
    RankRun lagging = {0}, again = {0};
    setenv("EMU_STREAMS", lag, 1);
    rank_run_open(&lagging, folder, ranks, sets);
    rank_run_open(&again, folder, ranks, sets);
    rank_run_train(&lagging);
    unsetenv("EMU_STREAMS");
    rank_run_train(&again);
    rank_runs_equal(&lagging, &again);
    if (config_dtype(lagging.training.config) == F32) near_the_cpu(&lagging, folder, sets + 1);
    setenv("EMU_STREAMS", lag, 1);
    rank_run_close(&lagging);
    rank_run_close(&again);
}

static void test_data_parallel_training_on_one_gpu_is_reproducible(void **state)
{
    cuda_needed();
    trains_alike(
        *state, 2,
        (const char *const[]){"device=cuda", "zero_optimization.stage=3", "bf16.enabled=true",
                              "zero_optimization.stage3_param_persistence_threshold=0", NULL});
    if (getenv("TEST_SAMPLE")) return;
    trains_alike(*state, 2,
                 (const char *const[]){"device=cuda", "zero_optimization.stage=0", NULL});
    trains_alike(*state, 2,
                 (const char *const[]){"device=cuda", "zero_optimization.stage=2",
                                       "gradient_accumulation_steps=2", NULL});
}

static void test_tensor_parallel_training_on_one_gpu_is_reproducible(void **state)
{
    cuda_needed();
    trains_alike(*state, 2,
                 (const char *const[]){"device=cuda", "parallel.tensor=2",
                                       "parallel.sequence_parallel=true", NULL});
    if (getenv("TEST_SAMPLE")) return;
    trains_alike(
        *state, 2,
        (const char *const[]){"device=cuda", "parallel.tensor=2", "bf16.enabled=true", NULL});
    /* One kv head for two ranks. */
    trains_alike(*state, 4,
                 (const char *const[]){"device=cuda", "parallel.tensor=2",
                                       "zero_optimization.stage=2", "model.num_key_value_heads=1",
                                       NULL});
}

static void test_pipeline_training_on_one_gpu_is_reproducible(void **state)
{
    cuda_needed();
    trains_alike(*state, 2,
                 (const char *const[]){"device=cuda", "parallel.pipeline=2",
                                       "gradient_accumulation_steps=3", NULL});
    if (getenv("TEST_SAMPLE")) return;
    trains_alike(*state, 4,
                 (const char *const[]){"device=cuda", "parallel.pipeline=2", "parallel.tensor=2",
                                       "bf16.enabled=true", "gradient_accumulation_steps=2",
                                       "parallel.schedule=gpipe", NULL});
}

static int teardown(void **state)
{
    free(lag);
    return trainer_folder_teardown(state);
}

static int setup(void **state)
{
    const char *said = getenv("EMU_STREAMS");
    lag = must_strdup(said ? said : "deferred");
    setenv("EMU_STREAMS", lag, 1);
    return trainer_folder_setup(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_op_sum_adds_doubles_in_order),
        cmocka_unit_test(test_ranks_on_one_gpu_get_correct_sums_and_gathers),
        cmocka_unit_test(test_ranks_on_one_gpu_can_use_three_streams_at_once),
        cmocka_unit_test(test_data_parallel_training_on_one_gpu_is_reproducible),
        cmocka_unit_test(test_tensor_parallel_training_on_one_gpu_is_reproducible),
        cmocka_unit_test(test_pipeline_training_on_one_gpu_is_reproducible),
    };
    return cmocka_run_group_tests_name("ranks on one GPU", tests, setup, teardown);
}
