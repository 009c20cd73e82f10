/* test_emu_driver.cc -- calls that wait for the work of other devices or keep other threads from
 * enqueuing, kernels that must be loaded, and processes that were forked after a use of CUDA. */
#include "model/kernels/cuda/kernel.cuh"
#include "tests/emu/device/emu.h"
#include "tests/emu/device/last_words.h"
extern "C" {
#include "tests/support/sleeping_threads.h"
}

#include <atomic>
#include <initializer_list>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

static std::atomic<bool> released, returned, enqueued;
static int *memory[2]; /* of each device */
static void *freed, *pinned;
static std::atomic<cudaError_t> answer;
static cudaStream_t stream[2];

template <int I> static __global__ void __launch_bounds__(32) mark_kernel(int *x)
{
    *x = I;
}

/* Creates a stream that the default stream does not wait for. */
static cudaStream_t stream_create(void)
{
    cudaStream_t made;
    CUDA_CHECK(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
    return made;
}

/* Stands for a collective of device 0 that waits for a rank. */
static void wait_for_release(void *)
{
    while (!released)
        usleep(1000);
}

static void call_malloc(void)
{
    int *p;
    CUDA_CHECK(cudaMalloc(&p, 4));
}

static void call_free(void)
{
    CUDA_CHECK(cudaFree(freed));
}

static void call_malloc_host(void)
{
    int *p;
    CUDA_CHECK(cudaMallocHost(&p, 4));
}

static void call_free_host(void)
{
    CUDA_CHECK(cudaFreeHost(pinned));
}

/* Each value of I makes a different kernel, which its first call loads. */
template <int I> static void call_launch(void)
{
    LAUNCH(mark_kernel<I>, 1, 1, 0, stream[1], memory[1]);
}

template <int I> static void call_attributes(void)
{
    cudaFuncAttributes attributes;
    CUDA_CHECK(cudaFuncGetAttributes(&attributes, (const void *)mark_kernel<I>));
}

static void call_again(void)
{
    LAUNCH(mark_kernel<0>, 1, 1, 0, stream[1], memory[1]);
}

static void *run_call(void *call)
{
    CUDA_CHECK(cudaSetDevice(1));
    ((void (*)(void))call)();
    returned = true;
    return NULL;
}

static void *run_launch(void *)
{
    CUDA_CHECK(cudaSetDevice(1));
    call_again();
    enqueued = true;
    return NULL;
}

/* Makes the call on device 1 while a host function of device 0 waits. Returns whether the call
 * waits, too. Sets *locked to whether another thread cannot enqueue work meanwhile. */
static bool waits(const char *mode, void (*call)(void), bool *locked)
{
    pthread_t caller, other;
    setenv("EMU_MEMORY_CALLS", "own", 1);
    for (int i = 0; i < 2; i++) {
        CUDA_CHECK(cudaSetDevice(i));
        CUDA_CHECK(cudaDeviceSynchronize());
    }
    CUDA_CHECK(cudaMalloc(&freed, 4));
    CUDA_CHECK(cudaMallocHost(&pinned, 4));
    setenv("EMU_MEMORY_CALLS", mode, 1);
    released = returned = enqueued = false;
    CUDA_CHECK(cudaLaunchHostFunc(stream[0], wait_for_release, NULL));
    assert_int_equal(pthread_create(&caller, NULL, run_call, (void *)call), 0);
    assert_true(other_threads_sleep(60));
    bool waited = !returned;
    assert_int_equal(pthread_create(&other, NULL, run_launch, NULL), 0);
    assert_true(other_threads_sleep(60));
    *locked = !enqueued;
    released = true;
    pthread_join(caller, NULL);
    pthread_join(other, NULL);
    return waited;
}

static void test_emu_memory_calls_decides_whether_memory_calls_and_loads_wait_or_lock(void **)
{
    static const struct {
        const char *mode;
        void (*call)(void);
        bool waits, locks;
    } rows[] = {
        {"own", call_malloc, false, false},      {"own", call_launch<1>, false, false},
        {"wait", call_malloc, true, false},      {"wait", call_free, true, false},
        {"wait", call_malloc_host, true, false}, {"wait", call_free_host, true, false},
        {"wait", call_launch<2>, true, false},   {"wait", call_launch<2>, false, false},
        {"lock", call_malloc, true, true},       {"lock", call_free, true, true},
        {"lock", call_malloc_host, true, true},  {"lock", call_free_host, true, true},
        {"lock", call_launch<3>, true, true},    {"lock", call_launch<3>, false, false},
    };
    for (int i = 0; i < 2; i++) {
        CUDA_CHECK(cudaSetDevice(i));
        CUDA_CHECK(cudaMalloc(&memory[i], 4));
        stream[i] = stream_create();
    }
    call_again();
    for (const auto &row : rows) {
        bool locked, waited = waits(row.mode, row.call, &locked);
        if (waited != row.waits || locked != row.locks)
            fail_msg("row %d: waits %d, locks %d", (int)(&row - rows), waited, locked);
    }
    unsetenv("EMU_MEMORY_CALLS");
    CUDA_CHECK(cudaSetDevice(0));
}

/* Returns the seconds that n calls take. */
static double seconds_of(void (*call)(void), int n)
{
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < n; i++)
        call();
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
}

/* Without delays these calls take about a millisecond. */
static void test_memory_calls_and_launches_are_delayed_at_random(void **)
{
    setenv("EMU_JITTER", "1", 1);
    CUDA_CHECK(cudaSetDevice(1));
    double memory_calls = seconds_of(call_malloc, 10), launches = seconds_of(call_again, 1000);
    unsetenv("EMU_JITTER");
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaSetDevice(0));
    if (memory_calls < 0.02 || launches < 0.012)
        fail_msg("memory calls %g s, launches %g s", memory_calls, launches);
}

static void *run_query(void *event)
{
    answer = cudaEventQuery((cudaEvent_t)event);
    returned = true;
    return NULL;
}

static void test_a_query_of_an_event_may_block_until_it_is_complete(void **)
{
    cudaEvent_t event;
    CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    for (bool blocks : {false, true}) {
        pthread_t asker;
        if (blocks) setenv("EMU_QUERY", "block", 1);
        returned = false;
        LAUNCH(mark_kernel<0>, 1, 1, 0, stream[0], memory[0]);
        CUDA_CHECK(cudaEventRecord(event, stream[0]));
        assert_int_equal(pthread_create(&asker, NULL, run_query, event), 0);
        if (blocks)
            assert_true(other_threads_sleep(60));
        else
            pthread_join(asker, NULL);
        assert_int_equal(returned, !blocks);
        CUDA_CHECK(cudaStreamSynchronize(stream[0]));
        if (blocks) pthread_join(asker, NULL);
        assert_int_equal(answer, blocks ? cudaSuccess : cudaErrorNotReady);
    }
    unsetenv("EMU_QUERY");
    CUDA_CHECK(cudaEventDestroy(event));
}

static void test_a_kernel_that_was_not_loaded_with_the_others_is_refused(void **)
{
    dies_saying(
        "a late kernel",
        [] {
            CUDA_CHECK(cudaSetDevice(1));
            call_attributes<4>();
            call_launch<5>();
        },
        "mark_kernel", "the kernel was not loaded before", NULL);
    dies_saying(
        "a loaded kernel",
        [] {
            CUDA_CHECK(cudaSetDevice(1));
            call_attributes<4>();
            call_launch<4>();
            emu_die("well");
        },
        "well", NULL);
}

static void test_a_device_with_a_communicator_may_load_no_kernel(void **)
{
    dies_saying(
        "a kernel after NCCL",
        [] {
            setenv("EMU_LOADS", "before", 1);
            CUDA_CHECK(cudaSetDevice(1));
            emu_driver_connected(0, 1);
            call_launch<6>(); /* device 1 has none */
            emu_driver_connected(1, 1);
            call_launch<6>(); /* allowed, because this kernel is already loaded */
            call_launch<7>();
        },
        "a kernel is loaded on device 1, which has an NCCL communicator", NULL);
    dies_saying(
        "a kernel after all communicators",
        [] {
            setenv("EMU_LOADS", "before", 1);
            CUDA_CHECK(cudaSetDevice(1));
            emu_driver_connected(1, 1);
            emu_driver_connected(1, -1);
            call_launch<8>();
            emu_die("well");
        },
        "well", NULL);
}

static void test_a_device_with_a_communicator_may_page_lock_no_memory(void **)
{
    dies_saying(
        "page-locking after NCCL",
        [] {
            setenv("EMU_LOADS", "before", 1);
            CUDA_CHECK(cudaSetDevice(1));
            emu_driver_connected(0, 1);
            call_malloc_host(); /* device 1 has none */
            emu_driver_connected(1, 1);
            call_malloc_host();
        },
        "host memory is page-locked on device 1, which has an NCCL communicator", NULL);
    dies_saying(
        "page-locking at any time",
        [] {
            CUDA_CHECK(cudaSetDevice(1));
            emu_driver_connected(1, 1);
            call_malloc_host();
            emu_die("well");
        },
        "well", NULL);
}

static void test_invalid_values_of_the_driver_settings_are_refused(void **)
{
    dies_saying(
        "a time",
        [] {
            setenv("EMU_LOADS", "after", 1);
            call_attributes<9>();
        },
        "EMU_LOADS is before, not \"after\"", NULL);
    dies_saying(
        "a mode",
        [] {
            setenv("EMU_MEMORY_CALLS", "often", 1);
            call_malloc();
        },
        "EMU_MEMORY_CALLS is own, wait or lock, not \"often\"", NULL);
    dies_saying(
        "a seed",
        [] {
            setenv("EMU_JITTER", "1x", 1);
            call_malloc();
        },
        "EMU_JITTER is a number, not \"1x\"", NULL);
}

/* Returns the exit status of a child that calls CUDA. */
static int child_calls(void)
{
    int status = -1, n, *p;
    pid_t child = fork();
    if (child == 0) {
        bool refused = cudaGetDeviceCount(&n) == cudaErrorInitializationError &&
                       cudaSetDevice(0) == cudaErrorInitializationError &&
                       cudaMalloc(&p, 4) == cudaErrorInitializationError &&
                       cudaDeviceSynchronize() == cudaErrorInitializationError;
        _exit(refused && cudaDriverGetVersion(&n) == cudaSuccess ? 3 : 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* This test runs first, before any CUDA call. */
static void test_a_child_of_a_process_that_used_cuda_is_refused(void **)
{
    int n;
    assert_int_equal(child_calls(), 0);
    assert_int_equal(cudaGetDeviceCount(&n), cudaSuccess);
    assert_int_equal(child_calls(), 3);
    setenv("EMU_FORK", "allow", 1);
    assert_int_equal(child_calls(), 0);
    unsetenv("EMU_FORK");
}

static int setup(void **)
{
    setenv("EMU_STREAMS", "deferred", 1);
    return setenv("EMU_DEVICES", "2", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_child_of_a_process_that_used_cuda_is_refused),
        cmocka_unit_test(test_emu_memory_calls_decides_whether_memory_calls_and_loads_wait_or_lock),
        cmocka_unit_test(test_memory_calls_and_launches_are_delayed_at_random),
        cmocka_unit_test(test_a_query_of_an_event_may_block_until_it_is_complete),
        cmocka_unit_test(test_a_kernel_that_was_not_loaded_with_the_others_is_refused),
        cmocka_unit_test(test_a_device_with_a_communicator_may_load_no_kernel),
        cmocka_unit_test(test_a_device_with_a_communicator_may_page_lock_no_memory),
        cmocka_unit_test(test_invalid_values_of_the_driver_settings_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
