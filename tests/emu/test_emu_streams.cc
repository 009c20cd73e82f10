/* test_emu_streams.cc -- deferred streams show what a GPU may do at worst: host code and other
 * streams that do not wait see the state before. And several host threads may launch at once. */
#include "model/kernels/cuda/kernel.cuh"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

extern "C" {
#include <cmocka.h>
}

enum { THREADS = 32 };

static __global__ void __launch_bounds__(THREADS) add_kernel(float *x, float y)
{
    x[threadIdx.x] += y;
}

static float *device_zeros(void)
{
    float *p = NULL;
    CUDA_CHECK(cudaMalloc(&p, THREADS * sizeof *p));
    CUDA_CHECK(cudaMemset(p, 0, THREADS * sizeof *p));
    CUDA_CHECK(cudaDeviceSynchronize());
    return p;
}

static float *pinned_floats(float value)
{
    float *p = NULL;
    CUDA_CHECK(cudaMallocHost(&p, THREADS * sizeof *p));
    for (int i = 0; i < THREADS; i++)
        p[i] = value;
    return p;
}

static cudaStream_t stream_create(void)
{
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static void copy(void *dst, const void *src, cudaStream_t stream)
{
    CUDA_CHECK(cudaMemcpyAsync(dst, src, THREADS * sizeof(float), cudaMemcpyDefault, stream));
}

static int setup(void **)
{
    return setenv("EMU_STREAMS", "deferred", 1);
}

/* A result is there after the wait, not before; an event's covers what came before it. */
static void test_host_waits(void **)
{
    cudaStream_t stream = stream_create();
    cudaEvent_t event;
    float *x = device_zeros(), *first = pinned_floats(0), *second = pinned_floats(0);
    CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    LAUNCH(add_kernel, 1, THREADS, 0, stream, x, 1.0f);
    copy(first, x, stream);
    CUDA_CHECK(cudaEventRecord(event, stream));
    LAUNCH(add_kernel, 1, THREADS, 0, stream, x, 1.0f);
    copy(second, x, stream);
    assert_true(isnan(first[0]) && isnan(second[0]));
    CUDA_CHECK(cudaEventSynchronize(event));
    assert_true(first[5] == 1 && isnan(second[5]));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    assert_true(second[5] == 2);
    CUDA_CHECK(cudaEventDestroy(event));
    CUDA_CHECK(cudaStreamDestroy(stream));
    CUDA_CHECK(cudaFree(x));
}

/* A pinned source is read when the stream comes to it, a pageable one before the call returns. */
static void test_sources(void **)
{
    cudaStream_t stream = stream_create();
    float *x = device_zeros(), *pinned = pinned_floats(1), pageable[THREADS] = {1}, got[THREADS];
    copy(x, pinned, stream);
    pinned[0] = 2;
    copy(got, x, stream);
    assert_true(got[0] == 2);
    copy(x, pageable, stream);
    pageable[0] = 2;
    copy(got, x, stream);
    assert_true(got[0] == 1);
    CUDA_CHECK(cudaStreamDestroy(stream));
    CUDA_CHECK(cudaFreeHost(pinned));
    CUDA_CHECK(cudaFree(x));
}

/* Two streams, one of which may forget to wait for the other's event. */
static float sum_of_two_streams(bool waits)
{
    cudaStream_t one = stream_create(), two = stream_create();
    cudaEvent_t event;
    float *x = device_zeros(), got[THREADS];
    CUDA_CHECK(cudaEventCreate(&event));
    LAUNCH(add_kernel, 1, THREADS, 0, one, x, 3.0f);
    CUDA_CHECK(cudaEventRecord(event, one));
    if (waits) CUDA_CHECK(cudaStreamWaitEvent(two, event, 0));
    copy(got, x, two);
    CUDA_CHECK(cudaStreamDestroy(one));
    CUDA_CHECK(cudaStreamDestroy(two));
    CUDA_CHECK(cudaEventDestroy(event));
    CUDA_CHECK(cudaFree(x));
    return got[0];
}

static void test_streams_wait(void **)
{
    assert_true(sum_of_two_streams(true) == 3);
    assert_true(sum_of_two_streams(false) == 0);
}

/* The default stream does not wait for one that was made not to block. */
static void test_default_stream(void **)
{
    cudaStream_t stream = stream_create(), blocking;
    float *x = device_zeros(), got[THREADS];
    CUDA_CHECK(cudaStreamCreate(&blocking));
    LAUNCH(add_kernel, 1, THREADS, 0, stream, x, 1.0f);
    CUDA_CHECK(cudaMemcpy(got, x, sizeof got, cudaMemcpyDeviceToHost));
    assert_true(got[0] == 0);
    assert_int_equal(cudaStreamQuery(stream), cudaErrorNotReady);
    assert_int_equal(cudaStreamQuery(stream), cudaSuccess);
    LAUNCH(add_kernel, 1, THREADS, 0, blocking, x, 1.0f);
    CUDA_CHECK(cudaMemcpy(got, x, sizeof got, cudaMemcpyDeviceToHost));
    assert_true(got[0] == 2);
    CUDA_CHECK(cudaStreamDestroy(stream));
    CUDA_CHECK(cudaStreamDestroy(blocking));
    assert_int_equal(cudaFree(x), cudaSuccess);
}

/* ---- host threads ---------------------------------------------------------------------------- */

enum { HOSTS = 4, LAUNCHES = 200 };

static void *host_run(void *result)
{
    cudaStream_t stream = stream_create();
    float *x = device_zeros(), got[THREADS];
    for (int i = 0; i < LAUNCHES; i++) {
        LAUNCH(add_kernel, 1, THREADS, 0, stream, x, 1.0f);
        if (i % 50 == 0) CUDA_CHECK(cudaStreamSynchronize(stream));
    }
    copy(got, x, stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    *(float *)result = got[THREADS - 1];
    CUDA_CHECK(cudaFree(x));
    CUDA_CHECK(cudaStreamDestroy(stream));
    return NULL;
}

static void hosts_run(void)
{
    pthread_t thread[HOSTS];
    float result[HOSTS];
    for (int i = 0; i < HOSTS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, host_run, &result[i]), 0);
    for (int i = 0; i < HOSTS; i++) {
        pthread_join(thread[i], NULL);
        assert_true(result[i] == LAUNCHES);
    }
}

static void test_host_threads(void **)
{
    hosts_run();
    unsetenv("EMU_STREAMS");
    hosts_run();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_waits),   cmocka_unit_test(test_sources),
        cmocka_unit_test(test_streams_wait), cmocka_unit_test(test_default_stream),
        cmocka_unit_test(test_host_threads),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
