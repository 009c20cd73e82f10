/* test_emu_asks.cc -- queries of deferred and random streams: a watchdog's query advances nothing,
 * a loop of queries by the stream's owner ends, and host functions run while the hosts wait for
 * something other than their streams. */
#include "tests/emu/device/turns.h"

#include <initializer_list>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

enum { PATIENCE = 60 /* seconds */ };

static const char *const LATE[] = {"deferred", "random"};

/* ---- queries --------------------------------------------------------------------------------- */

typedef struct {
    cudaStream_t stream;
    cudaEvent_t event;
    int reached;
} Watched;

static void *watch(void *context)
{
    Watched *w = (Watched *)context;
    for (int i = 0; i < 500; i++) {
        w->reached += cudaStreamQuery(w->stream) != cudaErrorNotReady;
        w->reached += cudaEventQuery(w->event) != cudaErrorNotReady;
    }
    return NULL;
}

static void test_queries_by_a_watchdog_thread_do_not_advance_a_stream(void **)
{
    int *next, *turn, waited = 0;
    CUDA_CHECK(cudaMalloc(&next, 2 * sizeof *next));
    CUDA_CHECK(cudaMallocHost(&turn, sizeof *turn));
    for (const char *mode : LATE) {
        for (int seed = 0; seed < 40; seed++) {
            Watched w = {stream_create(), NULL, 0};
            pthread_t thread;
            setenv("EMU_STREAMS", mode, 1);
            set_seed(seed);
            CUDA_CHECK(cudaEventCreate(&w.event));
            *turn = 0;
            LAUNCH(turn_kernel, 1, 1, 0, w.stream, next, next + 1);
            CUDA_CHECK(cudaMemcpyAsync(turn, next, sizeof *turn, cudaMemcpyDefault, w.stream));
            CUDA_CHECK(cudaEventRecord(w.event, w.stream));
            bool waits = *turn == -1;
            waited += waits;
            assert_true(waits || strcmp(mode, "random") == 0);
            if (waits) {
                assert_int_equal(pthread_create(&thread, NULL, watch, &w), 0);
                pthread_join(thread, NULL);
                assert_int_equal(w.reached, 0);
                assert_int_equal(*turn, -1);
            }
            while (cudaEventQuery(w.event) == cudaErrorNotReady) {
            }
            assert_int_not_equal(*turn, -1);
            CUDA_CHECK(cudaEventDestroy(w.event));
            CUDA_CHECK(cudaStreamDestroy(w.stream));
        }
    }
    assert_true(waited > 50);
    CUDA_CHECK(cudaFree(next));
    CUDA_CHECK(cudaFreeHost(turn));
    unsetenv("EMU_STREAMS");
    unsetenv("EMU_SEED");
}

/* ---- other work ------------------------------------------------------------------------------ */

/* A thread that keeps another device busy, so that the emulation does not regard the tested streams
 * as stalled (queue.cc). */
typedef struct {
    pthread_t thread;
    bool stop;
} Busy;

static void *be_busy(void *context)
{
    Busy *busy = (Busy *)context;
    CUDA_CHECK(cudaSetDevice(1));
    cudaStream_t stream = stream_create();
    int *p;
    CUDA_CHECK(cudaMalloc(&p, sizeof *p));
    while (!__atomic_load_n(&busy->stop, __ATOMIC_ACQUIRE)) {
        CUDA_CHECK(cudaMemsetAsync(p, 0, sizeof *p, stream));
        CUDA_CHECK(cudaStreamSynchronize(stream));
    }
    CUDA_CHECK(cudaStreamDestroy(stream));
    CUDA_CHECK(cudaFree(p));
    return NULL;
}

static void busy_start(Busy *busy)
{
    busy->stop = false;
    assert_int_equal(pthread_create(&busy->thread, NULL, be_busy, busy), 0);
    alarm(PATIENCE);
}

static void busy_stop(Busy *busy)
{
    __atomic_store_n(&busy->stop, true, __ATOMIC_RELEASE);
    pthread_join(busy->thread, NULL);
    alarm(0);
}

/* ---- host functions -------------------------------------------------------------------------- */

static void post(void *semaphore)
{
    sem_post((sem_t *)semaphore);
}

/* A loop of queries must end although queries do not wait for a host function. */
static void test_a_loop_of_queries_ends_despite_a_host_function(void **)
{
    Busy busy;
    sem_t called;
    sem_init(&called, 0, 0);
    for (const char *mode : LATE) {
        setenv("EMU_STREAMS", mode, 1);
        cudaStream_t stream = stream_create();
        busy_start(&busy);
        CUDA_CHECK(cudaLaunchHostFunc(stream, post, &called));
        while (cudaStreamQuery(stream) == cudaErrorNotReady) {
        }
        assert_int_equal(sem_trywait(&called), 0);
        busy_stop(&busy);
        CUDA_CHECK(cudaStreamDestroy(stream));
    }
    sem_destroy(&called);
    unsetenv("EMU_STREAMS");
}

/* With some seeds a host function starts before anybody waits, with others it does not. */
static void test_the_seed_decides_whether_a_host_function_starts_early(void **)
{
    Busy busy;
    int started = 0, waiting = 0;
    setenv("EMU_STREAMS", "random", 1);
    busy_start(&busy);
    for (int seed = 1; started == 0 || waiting == 0; seed++) {
        sem_t called;
        struct timespec until;
        cudaStream_t stream = stream_create();
        sem_init(&called, 0, 0);
        set_seed(seed);
        CUDA_CHECK(cudaLaunchHostFunc(stream, post, &called));
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 50000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        *(sem_timedwait(&called, &until) == 0 ? &started : &waiting) += 1;
        CUDA_CHECK(cudaStreamDestroy(stream));
        sem_destroy(&called);
    }
    busy_stop(&busy);
    unsetenv("EMU_STREAMS");
    unsetenv("EMU_SEED");
}

/* Two ranks' functions that end only together. Both hosts wait for `over` after one of them has
 * waited for its stream. */
typedef struct {
    pthread_barrier_t inside, over;
    sem_t begun;
} Meeting;

static void meet(void *context)
{
    Meeting *meeting = (Meeting *)context;
    post(&meeting->begun);
    pthread_barrier_wait(&meeting->inside);
}

static void *wait_for_stream(void *context)
{
    Meeting *meeting = (Meeting *)context;
    cudaStream_t stream = stream_create();
    CUDA_CHECK(cudaLaunchHostFunc(stream, meet, meeting));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    pthread_barrier_wait(&meeting->over);
    CUDA_CHECK(cudaStreamDestroy(stream));
    return NULL;
}

/* Two ranks' host functions wait for each other. One rank's host waits for its stream. The other
 * rank's host waits only for the first host, yet its stream must run its function too. That
 * function is issued before or after the first one has begun. */
static void test_a_host_function_runs_while_its_host_waits_for_another_host(void **)
{
    for (int i = 0; i < 4; i++) {
        Busy busy;
        Meeting meeting;
        pthread_t thread;
        bool after = i % 2;
        setenv("EMU_STREAMS", LATE[i / 2], 1);
        pthread_barrier_init(&meeting.inside, NULL, 2);
        pthread_barrier_init(&meeting.over, NULL, 2);
        sem_init(&meeting.begun, 0, 0);
        cudaStream_t stream = stream_create();
        busy_start(&busy);
        if (!after) CUDA_CHECK(cudaLaunchHostFunc(stream, meet, &meeting));
        assert_int_equal(pthread_create(&thread, NULL, wait_for_stream, &meeting), 0);
        if (after) {
            sem_wait(&meeting.begun);
            CUDA_CHECK(cudaLaunchHostFunc(stream, meet, &meeting));
        }
        pthread_barrier_wait(&meeting.over);
        pthread_join(thread, NULL);
        busy_stop(&busy);
        CUDA_CHECK(cudaStreamDestroy(stream));
    }
    unsetenv("EMU_STREAMS");
}

/* ---- hosts that wait for another process ----------------------------------------------------- */

/* One end of each of two pipes. */
typedef struct {
    int in, out;
} Ends;

static void tell(void *context)
{
    const Ends *ends = (const Ends *)context;
    if (write(ends->out, "x", 1) != 1) _exit(2);
}

static void hear(void *context)
{
    char c;
    const Ends *ends = (const Ends *)context;
    if (read(ends->in, &c, 1) != 1) _exit(2);
}

/* Sends a byte from its stream, but waits for the stream only after the other host has replied. */
static void teller(Ends ends)
{
    cudaStream_t stream = stream_create();
    CUDA_CHECK(cudaLaunchHostFunc(stream, tell, &ends));
    hear(&ends);
    CUDA_CHECK(cudaStreamSynchronize(stream));
}

static void hearer(Ends ends)
{
    cudaStream_t stream = stream_create();
    CUDA_CHECK(cudaLaunchHostFunc(stream, hear, &ends));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    tell(&ends);
}

static pid_t process(void (*body)(Ends), Ends ends)
{
    pid_t child = fork();
    if (child != 0) return child;
    alarm(PATIENCE);
    body(ends);
    _exit(0);
}

static void assert_ends_well(pid_t child)
{
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* This test runs first, before any CUDA call. */
static void test_a_host_function_runs_while_its_host_waits_for_a_process(void **)
{
    for (const char *mode : LATE) {
        int there[2], back[2];
        setenv("EMU_STREAMS", mode, 1);
        assert_int_equal(pipe(there) | pipe(back), 0);
        pid_t one = process(teller, {there[0], back[1]}),
              other = process(hearer, {back[0], there[1]});
        assert_ends_well(one);
        assert_ends_well(other);
        for (int end : {there[0], there[1], back[0], back[1]})
            close(end);
    }
    unsetenv("EMU_STREAMS");
}

static int setup(void **)
{
    return setenv("EMU_DEVICES", "2", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_host_function_runs_while_its_host_waits_for_a_process),
        cmocka_unit_test(test_queries_by_a_watchdog_thread_do_not_advance_a_stream),
        cmocka_unit_test(test_a_loop_of_queries_ends_despite_a_host_function),
        cmocka_unit_test(test_the_seed_decides_whether_a_host_function_starts_early),
        cmocka_unit_test(test_a_host_function_runs_while_its_host_waits_for_another_host),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
