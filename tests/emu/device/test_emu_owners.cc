/* test_emu_owners.cc -- two emulated devices: which device owns memory, streams and events, which
 * other device may use them, and that any other use ends the program. */
#include "model/kernels/cuda/kernel.cuh"
#include "tests/emu/device/emu.h"
#include "tests/emu/device/last_words.h"
#include "tests/emu/include/cublasLt.h"

#include <initializer_list>
#include <pthread.h>

enum { THREADS = 32, DEVICES = 2 };
static const size_t BYTES = THREADS * sizeof(float);

/* The objects of each device. Device 0 is current after they are created. */
typedef struct {
    float *x;
    cudaStream_t stream;
    cudaEvent_t event;
} Owned;

static Owned own[DEVICES];
static float host[THREADS];

static void make_both(void)
{
    for (int i = DEVICES - 1; i >= 0; i--) {
        CUDA_CHECK(cudaSetDevice(i));
        CUDA_CHECK(cudaMalloc(&own[i].x, BYTES));
        CUDA_CHECK(cudaStreamCreateWithFlags(&own[i].stream, cudaStreamNonBlocking));
        CUDA_CHECK(cudaEventCreate(&own[i].event));
    }
}

static void free_both(void)
{
    for (int i = 0; i < DEVICES; i++) {
        CUDA_CHECK(cudaFree(own[i].x));
        CUDA_CHECK(cudaStreamDestroy(own[i].stream));
        CUDA_CHECK(cudaEventDestroy(own[i].event));
    }
}

#define DIES(statements, ...)                                                                      \
    dies_saying(                                                                                   \
        #statements,                                                                               \
        [] {                                                                                       \
            make_both();                                                                           \
            statements;                                                                            \
        },                                                                                         \
        __VA_ARGS__, NULL)

static __global__ void __launch_bounds__(THREADS) set_kernel(float *x, float y)
{
    x[threadIdx.x] = y;
}

/* Copies 16 bytes through a pointer that is not an argument of the launch. */
static __global__ void __launch_bounds__(THREADS) follow_kernel(float *const *table)
{
    DYN_SHARED(float, shared);
    if (threadIdx.x != 0) return;
    emu_copy_start(shared + 28, table[0], 16, EmuPlace{"copy", __FILE__, __LINE__});
    emu_copy_commit();
    emu_copy_wait(0);
}

static void follow(float *x)
{
    float **table = NULL;
    CUDA_CHECK(cudaMalloc(&table, sizeof x));
    CUDA_CHECK(cudaMemcpy(table, &x, sizeof x, cudaMemcpyHostToDevice));
    LAUNCH(follow_kernel, 1, THREADS, BYTES, own[0].stream, table);
    CUDA_CHECK(cudaStreamSynchronize(own[0].stream));
}

static void set_mode(const char *streams)
{
    setenv("EMU_STREAMS", streams, 1);
}

/* ---- processes ------------------------------------------------------------------------------- */

static void work_of_a_process(void)
{
    float got[THREADS] = {0};
    set_mode("deferred");
    make_both();
    LAUNCH(set_kernel, 1, THREADS, 0, own[0].stream, own[0].x, 3.0f);
    CUDA_CHECK(cudaMemcpyAsync(got, own[0].x, BYTES, cudaMemcpyDefault, own[0].stream));
    free_both();
    _exit(got[1] == 3 ? 0 : 1);
}

/* This test runs first, before any CUDA call. */
static void test_each_forked_process_can_use_the_devices(void **)
{
    pid_t child[DEVICES];
    for (pid_t &c : child)
        if ((c = fork()) == 0) work_of_a_process();
    for (pid_t c : child) {
        int status = -1;
        assert_int_equal(waitpid(c, &status, 0), c);
        assert_int_equal(status, 0);
    }
}

/* ---- wrong uses ------------------------------------------------------------------------------ */

/* Multiplies with one device's handle on another device's stream, while one of them is current. */
static void multiply(int of, int on, int current)
{
    cublasLtHandle_t handle;
    CUDA_CHECK(cudaSetDevice(of));
    assert_int_equal(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
    CUDA_CHECK(cudaSetDevice(current));
    cublasLtMatmul(handle, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                   NULL, 0, own[on].stream);
}

static void test_using_another_devices_stream_or_event_ends_the_program(void **)
{
    DIES(LAUNCH(set_kernel, 1, THREADS, 0, own[1].stream, own[0].x, 1.0f), "set_kernel",
         "its stream is device 1's, and device 0 is current");
    DIES(cudaSetDevice(1); LAUNCH(set_kernel, 1, THREADS, 0, own[0].stream, own[1].x, 1.0f),
                           "its stream is device 0's, and device 1 is current");
    DIES(cudaEventRecord(own[0].event, own[1].stream),
         "an event of device 0 recorded on a stream of device 1");
    DIES(cudaSetDevice(1); cudaEventRecord(own[0].event, NULL),
                           "an event of device 0 recorded on a stream of device 1");
    DIES(float ms; cudaEventRecord(own[0].event, own[0].stream);
         cudaEventRecord(own[1].event, own[1].stream);
         cudaEventElapsedTime(&ms, own[0].event, own[1].event), "event of device 0", "device 1");
    DIES(multiply(1, 0, 0), "by a handle of device 1 on a stream of device 0, while device 0 is");
    DIES(multiply(0, 1, 0), "by a handle of device 0 on a stream of device 1, while device 0 is");
    DIES(multiply(0, 0, 1), "by a handle of device 0 on a stream of device 0, while device 1 is");
}

static void test_using_another_devices_memory_without_access_is_refused(void **)
{
    DIES(LAUNCH(set_kernel, 1, THREADS, 0, own[0].stream, own[1].x, 1.0f), "set_kernel",
         "is memory of device 1, to which device 0 was given no access");
    DIES(follow(own[1].x), "copy: memory of device 1, to which device 0 was given no access",
         "follow_kernel");
    DIES(cudaMemcpyAsync(own[0].x, own[1].x, BYTES, cudaMemcpyDefault, own[0].stream),
         "cudaMemcpyAsync on a stream of device 0", "is memory of device 1, to which device 0");
    DIES(cudaMemcpyAsync(own[0].x, own[1].x, BYTES, cudaMemcpyDeviceToDevice, own[1].stream),
         "cudaMemcpyAsync on a stream of device 1", "is memory of device 0, to which device 1");
    DIES(cudaMemcpy(own[1].x, host, BYTES, cudaMemcpyHostToDevice),
         "cudaMemcpy on a stream of device 0", "is memory of device 1");
    DIES(cudaMemcpy2DAsync(host, 8, own[1].x, 8, 4, 4, cudaMemcpyDefault, own[0].stream),
         "cudaMemcpy2DAsync on a stream of device 0", "is memory of device 1");
    DIES(cudaMemsetAsync(own[1].x, 0, BYTES, own[0].stream), "cudaMemset on a stream of device 0",
         "is memory of device 1");
    /* Access is one-directional. */
    DIES(cudaDeviceEnablePeerAccess(1, 0); cudaSetDevice(1);
         LAUNCH(set_kernel, 1, THREADS, 0, own[1].stream, own[0].x, 1.0f),
         "is memory of device 0, to which device 1 was given no access");
}

static void test_invalid_values_of_emu_streams_and_emu_seed_are_refused(void **)
{
    DIES(set_mode("now"); cudaMemsetAsync(own[0].x, 0, BYTES, own[0].stream),
                          "EMU_STREAMS is strict, deferred or random, not \"now\"");
    DIES(set_mode("random"); setenv("EMU_SEED", "seven", 1);
         LAUNCH(set_kernel, 1, THREADS, 0, own[0].stream, own[0].x, 1.0f),
         "EMU_SEED is a number, not \"seven\"");
}

/* ---- allowed uses ---------------------------------------------------------------------------- */

/* Waiting for, querying and freeing another device's objects, and copying on a stream whose device
 * is not current. */
static void test_waiting_for_another_devices_event_and_freeing_are_allowed(void **)
{
    float got[THREADS] = {0};
    make_both();
    CUDA_CHECK(cudaSetDevice(1));
    LAUNCH(set_kernel, 1, THREADS, 0, own[1].stream, own[1].x, 2.0f);
    CUDA_CHECK(cudaEventRecord(own[1].event, own[1].stream));
    CUDA_CHECK(cudaSetDevice(0));
    CUDA_CHECK(cudaStreamWaitEvent(own[0].stream, own[1].event, 0));
    CUDA_CHECK(cudaEventSynchronize(own[1].event));
    assert_int_equal(cudaEventQuery(own[1].event), cudaSuccess);
    assert_int_equal(cudaStreamQuery(own[1].stream), cudaSuccess);
    CUDA_CHECK(cudaMemcpyAsync(got, own[1].x, BYTES, cudaMemcpyDefault, own[1].stream));
    CUDA_CHECK(cudaStreamSynchronize(own[1].stream));
    assert_true(got[THREADS - 1] == 2);
    free_both();
}

/* Runs in a child process, because access cannot be withdrawn. */
static void use_a_peer(void)
{
    float got[THREADS] = {0};
    make_both();
    CUDA_CHECK(cudaDeviceEnablePeerAccess(1, 0));
    LAUNCH(set_kernel, 1, THREADS, 0, own[0].stream, own[1].x, 4.0f);
    CUDA_CHECK(cudaMemcpyAsync(own[0].x, own[1].x, BYTES, cudaMemcpyDefault, own[0].stream));
    CUDA_CHECK(cudaMemcpyAsync(got, own[0].x, BYTES, cudaMemcpyDefault, own[0].stream));
    follow(own[1].x);
    emu_die("access gave %g", (double)got[0]);
}

static void test_memory_of_another_device_can_be_used_after_enabling_access(void **)
{
    dies_saying("use_a_peer", use_a_peer, "emu: access gave 4", NULL);
}

/* ---- per device ------------------------------------------------------------------------------ */

static size_t free_mib(int device, size_t of)
{
    size_t available, total;
    CUDA_CHECK(cudaSetDevice(device));
    CUDA_CHECK(cudaMemGetInfo(&available, &total));
    assert_int_equal(total >> 20, of);
    return available >> 20;
}

static void test_each_device_has_its_own_amount_of_memory(void **)
{
    void *p[DEVICES], *more;
    setenv("EMU_MEMORY", "90", 1);
    assert_int_equal(free_mib(1, 90), 90);
    setenv("EMU_MEMORY", "90,100", 1);
    for (int i = 0; i < DEVICES; i++) {
        assert_int_equal(free_mib(i, i ? 100 : 90), i ? 100 : 90);
        CUDA_CHECK(cudaMalloc(&p[i], (size_t)(70 + 11 * i) << 20));
        assert_int_equal(cudaMalloc(&more, 30 << 20), cudaErrorMemoryAllocation);
        assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
        CUDA_CHECK(cudaMalloc(&more, 19 << 20));
        CUDA_CHECK(cudaFree(more));
    }
    assert_int_equal(free_mib(1, 100), 19);
    CUDA_CHECK(cudaFree(p[0]));
    assert_int_equal(free_mib(1, 100), 19);
    assert_int_equal(free_mib(0, 90), 90);
    CUDA_CHECK(cudaFree(p[1]));
    assert_int_equal(free_mib(1, 100), 100);
    CUDA_CHECK(cudaSetDevice(0));
    unsetenv("EMU_MEMORY");
}

/* Enqueues a kernel and a copy to got[i] on each device's stream (`standard`: its default stream)
 * and does not wait. */
static void ask_both(float *got[DEVICES], bool standard)
{
    for (int i = DEVICES - 1; i >= 0; i--) {
        cudaStream_t stream = standard ? NULL : own[i].stream;
        CUDA_CHECK(cudaSetDevice(i));
        LAUNCH(set_kernel, 1, THREADS, 0, stream, own[i].x, (float)i + 1);
        CUDA_CHECK(cudaMemcpyAsync(got[i], own[i].x, BYTES, cudaMemcpyDefault, stream));
        assert_true(isnan(got[i][0]));
    }
}

/* Waits for device 0 must not advance device 1. */
static void test_waiting_for_one_device_does_not_advance_the_other(void **)
{
    float *got[DEVICES];
    set_mode("deferred");
    make_both();
    for (float *&p : got)
        CUDA_CHECK(cudaMallocHost(&p, BYTES));
    for (int round = 0; round < 4; round++) {
        void *other = NULL;
        CUDA_CHECK(cudaSetDevice(0));
        CUDA_CHECK(cudaMalloc(&other, 8));
        ask_both(got, round % 2);
        if (round < 2)
            CUDA_CHECK(cudaDeviceSynchronize());
        else
            CUDA_CHECK(cudaFree(other));
        assert_true(got[0][3] == 1 && isnan(got[1][3]));
        CUDA_CHECK(cudaSetDevice(1));
        if (round == 1)
            CUDA_CHECK(cudaStreamSynchronize(NULL));
        else
            CUDA_CHECK(cudaDeviceSynchronize());
        assert_true(got[1][3] == 2);
        if (round < 2) CUDA_CHECK(cudaFree(other));
    }
    CUDA_CHECK(cudaSetDevice(0));
    for (float *p : got)
        CUDA_CHECK(cudaFreeHost(p));
    free_both();
    unsetenv("EMU_STREAMS");
}

static void ask_device(void *answer)
{
    CUDA_CHECK(cudaGetDevice((int *)answer));
}

static void *device_of_a_thread(void *answer)
{
    CUDA_CHECK(cudaStreamSynchronize(own[1].stream));
    ask_device(answer);
    return NULL;
}

/* The current device belongs to a thread. Inside a host function of a stream it is the stream's
 * device. */
static void test_each_thread_and_each_host_function_has_its_own_current_device(void **)
{
    make_both();
    for (const char *mode : {"strict", "deferred", "random"}) {
        int inside = -1, here = -1, there = -1;
        pthread_t thread;
        set_mode(mode);
        CUDA_CHECK(cudaSetDevice(1));
        CUDA_CHECK(cudaSetDevice(0));
        CUDA_CHECK(cudaLaunchHostFunc(own[1].stream, ask_device, &inside));
        CUDA_CHECK(cudaStreamSynchronize(own[1].stream));
        ask_device(&here);
        assert_int_equal(inside, 1);
        assert_int_equal(here, 0);
        CUDA_CHECK(cudaSetDevice(1));
        CUDA_CHECK(cudaLaunchHostFunc(own[1].stream, ask_device, &inside));
        assert_int_equal(pthread_create(&thread, NULL, device_of_a_thread, &there), 0);
        pthread_join(thread, NULL);
        assert_int_equal(inside, 1);
        assert_int_equal(there, 0);
        CUDA_CHECK(cudaSetDevice(0));
    }
    free_both();
    unsetenv("EMU_STREAMS");
}

/* ---- exported functions ---------------------------------------------------------------------- */

static void test_exported_functions_identify_streams_and_protect_pinned_memory(void **)
{
    EmuRange range;
    make_both();
    for (int i = 0; i < DEVICES; i++) {
        assert_int_equal(emu_stream_device(own[i].stream), i);
        assert_true(emu_memory_range(own[i].x + 3, &range));
        assert_ptr_equal(range.base, own[i].x);
        assert_int_equal(range.bytes, BYTES);
        assert_int_equal(range.device, i);
    }
    assert_int_equal(emu_stream_device(NULL), 0);
    assert_false(emu_memory_range(own[0].x + THREADS, &range));
    assert_false(emu_memory_range(host, &range));
    emu_memory_pin(own[1].x + 1, "one");
    emu_memory_pin(own[1].x + 1, "two");
    emu_memory_unpin(own[1].x + 1);
    emu_memory_unpin(own[1].x + 1);
    free_both();
    assert_false(emu_memory_range(own[1].x, &range));
    assert_int_equal(emu_stream_device(own[1].stream), -1);
    DIES(emu_memory_pin(own[1].x + 2, "a sum"); cudaFree(own[1].x),
                                                "cudaFree of 128 bytes of device 1's memory",
                                                "byte 8 is in use: a sum");
    DIES(emu_memory_pin(own[1].x, "a sum"); emu_memory_pin(own[1].x, "a message");
         emu_memory_unpin(own[1].x); cudaFree(own[1].x), "in use: a sum");
    DIES(emu_memory_unpin(own[0].x), "is not pinned");
    DIES(emu_memory_pin(host, "a sum"), "a sum: ", "is not in device memory");
}

static int setup(void **)
{
    return setenv("EMU_DEVICES", "2", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_forked_process_can_use_the_devices),
        cmocka_unit_test(test_using_another_devices_stream_or_event_ends_the_program),
        cmocka_unit_test(test_using_another_devices_memory_without_access_is_refused),
        cmocka_unit_test(test_invalid_values_of_emu_streams_and_emu_seed_are_refused),
        cmocka_unit_test(test_waiting_for_another_devices_event_and_freeing_are_allowed),
        cmocka_unit_test(test_memory_of_another_device_can_be_used_after_enabling_access),
        cmocka_unit_test(test_each_device_has_its_own_amount_of_memory),
        cmocka_unit_test(test_waiting_for_one_device_does_not_advance_the_other),
        cmocka_unit_test(test_each_thread_and_each_host_function_has_its_own_current_device),
        cmocka_unit_test(test_exported_functions_identify_streams_and_protect_pinned_memory),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
