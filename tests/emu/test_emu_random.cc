/* test_emu_random.cc -- streams that go on by chance: every order that streams and events allow
 * comes with some seed, none that they forbid, and a seed's again with that seed. And who only
 * asks, in both kinds of streams that do not work at once: a watchdog moves nothing, a loop of the
 * owner's comes to an end. */
#include "model/kernels/cuda/kernel.cuh"
#include <initializer_list>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

enum { STREAMS = 3, ROUNDS = 8, SEEDS = 300, PATIENCE = 60 /* seconds */ };

static const char *const LATE[] = {"deferred", "random"};

static void set_seed(int seed)
{
    char word[16];
    snprintf(word, sizeof word, "%d", seed);
    setenv("EMU_SEED", word, 1);
}

static cudaStream_t stream_create(void)
{
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

/* ---- orders ---------------------------------------------------------------------------------- */

/* Takes the next number. */
static __global__ void __launch_bounds__(32) turn_kernel(int *next, int *turn)
{
    *turn = (*next)++;
}

/* When each stream had its turns, in numbers from 0 on; and how many turns were over when the host
 * first looked, which waited for none of them. */
typedef struct {
    int turn[STREAMS][ROUNDS];
    int ahead;
} Turns;

/* Each stream's turns, asked for round by round; event: stream 2's turns from the middle on wait
 * for all of stream 0's before it. */
static Turns turns_of(int seed, bool event)
{
    Turns got;
    cudaStream_t stream[STREAMS];
    cudaEvent_t middle;
    int *next, *turns;
    set_seed(seed - 1); /* the seed's chances begin anew */
    for (cudaStream_t &s : stream)
        s = stream_create();
    CUDA_CHECK(cudaEventCreateWithFlags(&middle, cudaEventDisableTiming));
    CUDA_CHECK(cudaMalloc(&next, sizeof *next));
    CUDA_CHECK(cudaMalloc(&turns, sizeof got.turn));
    CUDA_CHECK(cudaMemset(next, 0, sizeof *next));
    CUDA_CHECK(cudaDeviceSynchronize());
    set_seed(seed);
    for (int i = 0; i < ROUNDS; i++) {
        if (i == ROUNDS / 2 && event) {
            CUDA_CHECK(cudaEventRecord(middle, stream[0]));
            CUDA_CHECK(cudaStreamWaitEvent(stream[2], middle, 0));
        }
        for (int s = 0; s < STREAMS; s++)
            LAUNCH(turn_kernel, 1, 1, 0, stream[s], next, turns + s * ROUNDS + i);
    }
    CUDA_CHECK(cudaMemcpy(&got.ahead, next, sizeof *next, cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemcpy(got.turn, turns, sizeof got.turn, cudaMemcpyDeviceToHost));
    for (cudaStream_t s : stream)
        CUDA_CHECK(cudaStreamDestroy(s));
    CUDA_CHECK(cudaEventDestroy(middle));
    CUDA_CHECK(cudaFree(next));
    CUDA_CHECK(cudaFree(turns));
    return got;
}

static void assert_in_order(const Turns *t)
{
    for (int s = 0; s < STREAMS; s++)
        for (int i = 1; i < ROUNDS; i++)
            assert_true(t->turn[s][i - 1] < t->turn[s][i]);
}

static void test_orders(void **)
{
    enum { LAST = ROUNDS - 1 };
    int before[STREAMS][STREAMS] = {}, ready = 0, waiting = 0, as_asked = 0, early = 0;
    setenv("EMU_STREAMS", "random", 1);
    for (int seed = 1; seed <= SEEDS; seed++) {
        Turns free = turns_of(seed, false), tied = turns_of(seed, true);
        assert_in_order(&free);
        assert_in_order(&tied);
        assert_true(tied.turn[0][ROUNDS / 2 - 1] < tied.turn[2][ROUNDS / 2]);
        early += free.turn[2][ROUNDS / 2] < free.turn[0][ROUNDS / 2 - 1];
        for (int a = 0; a < STREAMS; a++)
            for (int b = 0; b < STREAMS; b++)
                before[a][b] += free.turn[a][LAST] < free.turn[b][0];
        ready += free.ahead == STREAMS * ROUNDS;
        waiting += free.ahead == 0;
        as_asked += free.turn[1][0] == 1 && free.turn[0][1] == 3;
    }
    /* Any stream all ahead of any other; the device done with all, and with nothing, when the host
     * first looks; the host's order. */
    for (int a = 0; a < STREAMS; a++)
        for (int b = 0; b < STREAMS; b++)
            assert_true(a == b || before[a][b] > 0);
    assert_true(ready > 0 && waiting > 0 && as_asked > 0 && early > 0);
    unsetenv("EMU_STREAMS");
    unsetenv("EMU_SEED");
}

static void test_seeds(void **)
{
    int same = 0;
    setenv("EMU_STREAMS", "random", 1);
    for (int seed = 1; seed <= 20; seed++) {
        Turns first = turns_of(seed, true), again = turns_of(seed, true),
              other = turns_of(seed + 100, true);
        assert_memory_equal(&first, &again, sizeof first);
        same += memcmp(&first, &other, sizeof first) == 0;
    }
    assert_true(same < 3);
    unsetenv("EMU_STREAMS");
    unsetenv("EMU_SEED");
}

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

static void set_flag(void *flag)
{
    __atomic_store_n((bool *)flag, true, __ATOMIC_RELEASE);
}

/* A loop that asks gets past a function of the host's, which asking does not wait for. */
static void test_loops_end(void **)
{
    alarm(PATIENCE);
    for (const char *mode : LATE) {
        bool called = false;
        cudaStream_t stream = stream_create();
        setenv("EMU_STREAMS", mode, 1);
        CUDA_CHECK(cudaLaunchHostFunc(stream, set_flag, &called));
        while (cudaStreamQuery(stream) == cudaErrorNotReady) {
        }
        assert_true(__atomic_load_n(&called, __ATOMIC_ACQUIRE));
        CUDA_CHECK(cudaStreamDestroy(stream));
    }
    alarm(0);
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

/* Tells by its stream, for which it waits only once it was told by the other's host. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts_wait_beside_streams),
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_a_watchdog_moves_nothing),
        cmocka_unit_test(test_loops_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
