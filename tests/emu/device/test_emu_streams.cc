/* test_emu_streams.cc -- deferred streams show the worst that a GPU may do: host code and streams
 * that do not wait see the old data. Also tests ranks as host threads, and random streams. */
#include "model/kernels/cuda/kernel.cuh"

#include <initializer_list>
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

static void copy(void *dst, const void *src, int n, cudaStream_t stream)
{
    CUDA_CHECK(cudaMemcpyAsync(dst, src, (size_t)n * sizeof(float), cudaMemcpyDefault, stream));
}

static void copy(void *dst, const void *src, cudaStream_t stream)
{
    copy(dst, src, THREADS, stream);
}

static int setup(void **)
{
    return setenv("EMU_STREAMS", "deferred", 1);
}

/* A result appears after the wait and not before. An event covers the work before it. Destroying an
 * event does not wait. */
static void test_a_result_appears_only_after_the_host_has_waited(void **)
{
    cudaStream_t stream = stream_create();
    cudaEvent_t event, brief;
    float *x = device_zeros(), *first = pinned_floats(0), *second = pinned_floats(0);
    CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    LAUNCH(add_kernel, 1, THREADS, 0, stream, x, 1.0f);
    copy(first, x, stream);
    CUDA_CHECK(cudaEventRecord(event, stream));
    LAUNCH(add_kernel, 1, THREADS, 0, stream, x, 1.0f);
    copy(second, x, stream);
    CUDA_CHECK(cudaEventCreate(&brief));
    CUDA_CHECK(cudaEventRecord(brief, stream));
    CUDA_CHECK(cudaEventDestroy(brief));
    assert_true(isnan(first[0]) && isnan(second[0]));
    CUDA_CHECK(cudaEventSynchronize(event));
    assert_true(first[5] == 1 && isnan(second[5]));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    assert_true(second[5] == 2);
    CUDA_CHECK(cudaEventDestroy(event));
    CUDA_CHECK(cudaStreamDestroy(stream));
    CUDA_CHECK(cudaFree(x));
}

/* A pinned source is read when the stream reaches the copy, a pageable one before the call
 * returns. */
static void test_a_pinned_source_is_read_late_and_a_pageable_one_at_once(void **)
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

/* Uses two streams; the second waits for the first one's event only if `waits`. */
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

static void test_a_stream_without_a_wait_for_the_other_reads_old_data(void **)
{
    assert_true(sum_of_two_streams(true) == 3);
    assert_true(sum_of_two_streams(false) == 0);
}

/* The default stream does not wait for a non-blocking stream. */
static void test_the_default_stream_waits_for_blocking_streams_only(void **)
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
    LAUNCH(add_kernel, 1, THREADS, 0, NULL, x, 1.0f);
    copy(got, x, stream);
    assert_true(got[0] == 2);
    copy(got, x, blocking);
    assert_true(got[0] == 3);
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

/* ---- ranks that wait for each other ---------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS) next_kernel(float *to, const float *from)
{
    to[threadIdx.x] = from[threadIdx.x] + 1;
}

enum { ROUNDS = 10, RANKS = 2 };

/* Two host threads, each with a stream on its own device, pass a number back and forth. The one
 * whose turn it is waits for the other's event and adds 1 to the other's number. */
typedef struct {
    pthread_barrier_t host;
    float *x[RANKS], got[RANKS];
    cudaEvent_t event[RANKS];
    int forgotten; /* the round whose wait is left out; -1: none */
    int first;     /* the rank that waits for its stream before the other does; -1: both at once */
} Ring;

typedef struct {
    Ring *ring;
    int rank;
} RingRank;

static void *ring_run(void *argument)
{
    RingRank *self = (RingRank *)argument;
    Ring *ring = self->ring;
    int rank = self->rank, other = 1 - rank;
    CUDA_CHECK(cudaSetDevice(rank));
    cudaDeviceEnablePeerAccess(other, 0);
    cudaGetLastError(); /* ignore the error if access is already enabled */
    cudaStream_t stream = stream_create();
    ring->x[rank] = device_zeros();
    CUDA_CHECK(cudaEventCreate(&ring->event[rank]));
    for (int i = 0; i < ROUNDS; i++) {
        pthread_barrier_wait(&ring->host);
        if (i % RANKS != rank) continue;
        if (i > 0 && i != ring->forgotten)
            CUDA_CHECK(cudaStreamWaitEvent(stream, ring->event[other], 0));
        LAUNCH(next_kernel, 1, THREADS, 0, stream, ring->x[rank], ring->x[other]);
        CUDA_CHECK(cudaEventRecord(ring->event[rank], stream));
    }
    pthread_barrier_wait(&ring->host);
    if (ring->first == other) pthread_barrier_wait(&ring->host);
    copy(&ring->got[rank], &ring->x[rank][THREADS - 1], 1, stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    if (ring->first == rank) pthread_barrier_wait(&ring->host);
    pthread_barrier_wait(&ring->host);
    CUDA_CHECK(cudaEventDestroy(ring->event[rank]));
    CUDA_CHECK(cudaStreamDestroy(stream));
    return NULL;
}

/* Returns the final number. */
static float ring_turns(int forgotten, int first)
{
    Ring ring = {};
    RingRank rank[RANKS];
    pthread_t thread[RANKS];
    ring.forgotten = forgotten;
    ring.first = first;
    pthread_barrier_init(&ring.host, NULL, RANKS);
    for (int i = 0; i < RANKS; i++) {
        rank[i] = {&ring, i};
        assert_int_equal(pthread_create(&thread[i], NULL, ring_run, &rank[i]), 0);
    }
    for (int i = 0; i < RANKS; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < RANKS; i++)
        CUDA_CHECK(cudaFree(ring.x[i]));
    pthread_barrier_destroy(&ring.host);
    assert_true(ring.got[0] == ring.got[1] - 1 || forgotten >= 0);
    return ring.got[1];
}

static void test_a_missing_wait_for_an_event_between_ranks_changes_the_result(void **)
{
    setenv("EMU_DEVICES", "2", 1);
    for (int i = 0; i < 20; i++)
        assert_true(ring_turns(-1, i % (RANKS + 1) - 1) == ROUNDS);
    /* The rank that lacks a wait also waits for its stream first, so that this stream gets as far
     * ahead as it can. */
    for (int forgotten = 1; forgotten < ROUNDS; forgotten++)
        assert_true(ring_turns(forgotten, forgotten % RANKS) < ROUNDS);
    unsetenv("EMU_DEVICES");
}

/* A host function that ends only together with the other rank's, like a collective. */
static void meet(void *barrier)
{
    pthread_barrier_wait((pthread_barrier_t *)barrier);
}

static void *meeting_run(void *barrier)
{
    cudaStream_t stream = stream_create();
    for (int i = 0; i < ROUNDS; i++) {
        CUDA_CHECK(cudaLaunchHostFunc(stream, meet, barrier));
        if (i % 3 == 2) CUDA_CHECK(cudaStreamSynchronize(stream));
    }
    CUDA_CHECK(cudaStreamDestroy(stream));
    return NULL;
}

static void test_host_functions_that_wait_for_each_other_do_not_hang(void **)
{
    pthread_barrier_t barrier;
    pthread_t thread[RANKS];
    pthread_barrier_init(&barrier, NULL, RANKS);
    for (int i = 0; i < RANKS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, meeting_run, &barrier), 0);
    for (int i = 0; i < RANKS; i++)
        pthread_join(thread[i], NULL);
    pthread_barrier_destroy(&barrier);
}

enum { MEETINGS = 3 };

/* A rank's streams meet those of its peers at these barriers. */
typedef struct {
    pthread_barrier_t *barrier; /* an array of MEETINGS barriers */
    int rank;
} Crossing;

/* Each rank waits for its streams in a different order. */
static void *crossing_run(void *context)
{
    const Crossing *c = (const Crossing *)context;
    cudaStream_t stream[MEETINGS];
    for (int i = 0; i < MEETINGS; i++)
        stream[i] = stream_create();
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < MEETINGS; i++)
            CUDA_CHECK(cudaLaunchHostFunc(stream[i], meet, &c->barrier[i]));
        for (int i = 0; i < MEETINGS; i++)
            CUDA_CHECK(cudaStreamSynchronize(stream[(c->rank + i) % MEETINGS]));
    }
    for (int i = 0; i < MEETINGS; i++)
        CUDA_CHECK(cudaStreamDestroy(stream[i]));
    return NULL;
}

static void test_ranks_may_wait_for_their_streams_in_different_orders(void **)
{
    pthread_barrier_t barrier[MEETINGS];
    pthread_t thread[RANKS];
    Crossing rank[RANKS];
    for (int i = 0; i < MEETINGS; i++)
        pthread_barrier_init(&barrier[i], NULL, RANKS);
    for (int i = 0; i < RANKS; i++) {
        rank[i] = {barrier, i};
        assert_int_equal(pthread_create(&thread[i], NULL, crossing_run, &rank[i]), 0);
    }
    for (int i = 0; i < RANKS; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < MEETINGS; i++)
        pthread_barrier_destroy(&barrier[i]);
}

static void test_several_host_threads_may_launch_at_once(void **)
{
    hosts_run();
    unsetenv("EMU_STREAMS");
    hosts_run();
}

/* With random streams, too, work that waits for other work must complete with the right result. */
static void test_streams_in_random_order_still_give_the_right_result(void **state)
{
    setenv("EMU_STREAMS", "random", 1);
    setenv("EMU_DEVICES", "2", 1);
    for (const char *seed : {"1", "2", "3", "4", "5", "6", "7", "8"}) {
        setenv("EMU_SEED", seed, 1);
        for (int i = 0; i < 5; i++)
            assert_true(ring_turns(-1, i % (RANKS + 1) - 1) == ROUNDS);
        assert_true(sum_of_two_streams(true) == 3);
        test_host_functions_that_wait_for_each_other_do_not_hang(state);
        test_ranks_may_wait_for_their_streams_in_different_orders(state);
        hosts_run();
    }
    unsetenv("EMU_DEVICES");
    unsetenv("EMU_SEED");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_result_appears_only_after_the_host_has_waited),
        cmocka_unit_test(test_a_pinned_source_is_read_late_and_a_pageable_one_at_once),
        cmocka_unit_test(test_a_stream_without_a_wait_for_the_other_reads_old_data),
        cmocka_unit_test(test_the_default_stream_waits_for_blocking_streams_only),
        cmocka_unit_test(test_a_missing_wait_for_an_event_between_ranks_changes_the_result),
        cmocka_unit_test(test_host_functions_that_wait_for_each_other_do_not_hang),
        cmocka_unit_test(test_ranks_may_wait_for_their_streams_in_different_orders),
        cmocka_unit_test(test_streams_in_random_order_still_give_the_right_result),
        cmocka_unit_test(test_several_host_threads_may_launch_at_once),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
