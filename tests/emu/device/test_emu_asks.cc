/* test_emu_asks.cc -- streams that do not work at once, and hosts that do not wait for them: a
 * watchdog that asks moves nothing, a loop of the owner's that asks comes to an end, functions of
 * the host's are done while hosts wait beside their streams. */
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

/* ---- who only asks ---------------------------------------------------------------------------
 */

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

static void test_a_watchdog_moves_nothing(void **)
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

/* A thread that keeps another device busy: nothing is done for the reason that nothing moves. */
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

/* ---- functions of the host's ----------------------------------------------------------------- */

static void post(void *semaphore)
{
    sem_post((sem_t *)semaphore);
}

/* A loop that asks gets past a function of the host's, which asking does not wait for. */
static void test_loops_end(void **)
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

/* Some seeds start a function of the host's before anybody waits, some do not. */
static void test_functions_by_chance(void **)
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

/* Two ranks' functions that end only together; `over` is where both hosts come once one has waited
 * for its stream. */
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

/* A rank whose host waits for the other's host, not for its own stream, is not what the other's
 * stream waits for: asked for before that one's function begins, or after. */
static void test_hosts_wait_for_each_other(void **)
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

/* ---- a host that waits for another process ---------------------------------------------------
 */

/* Ends of two pipes. */
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

/* Tells by its stream, for which it waits only once the other's host has said so. */
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

/* Runs first: nobody has called CUDA before. */
static void test_hosts_wait_beside_streams(void **)
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
        cmocka_unit_test(test_hosts_wait_beside_streams),
        cmocka_unit_test(test_a_watchdog_moves_nothing),
        cmocka_unit_test(test_loops_end),
        cmocka_unit_test(test_functions_by_chance),
        cmocka_unit_test(test_hosts_wait_for_each_other),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
