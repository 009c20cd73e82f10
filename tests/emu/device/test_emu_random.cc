/* test_emu_random.cc -- random streams: every order that streams and events allow occurs with some
 * seed, forbidden orders never occur, and the same seed gives the same order. */
#include "tests/emu/device/turns.h"

#include <initializer_list>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

enum { STREAMS = 3, ROUNDS = 8, SEEDS = 300 };

/* ---- orders ---------------------------------------------------------------------------------- */

/* The turn numbers of each stream's work, from 0, and how much work was done when the host first
 * looked, without having waited for any. */
typedef struct {
    int turn[STREAMS][ROUNDS];
    int ahead;
} Turns;

/* Issues each stream's work, round by round. If `event`, stream 2's work from the middle on waits
 * for all of stream 0's work before it. */
static Turns turns_of(int seed, bool event)
{
    static cudaStream_t stream[STREAMS];
    Turns got;
    cudaEvent_t middle;
    int *next, *turns;
    set_seed(seed - 1); /* restarts the seed's random numbers below */
    for (cudaStream_t &s : stream)
        if (s == NULL) s = stream_create();
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
    CUDA_CHECK(cudaEventDestroy(middle));
    CUDA_CHECK(cudaFree(next));
    CUDA_CHECK(cudaFree(turns));
    return got;
}

/* Checks that the work of each stream is done in order. */
static void assert_in_order(const Turns *t)
{
    for (int s = 0; s < STREAMS; s++)
        for (int i = 1; i < ROUNDS; i++)
            assert_true(t->turn[s][i - 1] < t->turn[s][i]);
}

/* Returns whether all work was done in the order in which it was issued. */
static bool is_as_asked(const Turns *t)
{
    bool same = true;
    for (int s = 0; s < STREAMS; s++)
        for (int i = 0; i < ROUNDS; i++)
            same = same && t->turn[s][i] == i * STREAMS + s;
    return same;
}

/* Returns whether stream a was two turns ahead of b, and later two behind, beginning in the first
 * half. */
static bool lead_changes(const Turns *t, int a, int b)
{
    int n = 0;
    for (int i = 0; i + 2 < ROUNDS / 2; i++)
        if (t->turn[a][i + 1] < t->turn[b][i])
            for (int k = i + 1; k + 1 < ROUNDS; k++)
                n += t->turn[b][k + 1] < t->turn[a][k];
    return n > 0;
}

static void test_random_streams_take_every_allowed_order_and_no_other(void **)
{
    enum { LAST = ROUNDS - 1 };
    int before[STREAMS][STREAMS] = {}, ready = 0, waiting = 0, as_asked = 0, early = 0, leads = 0;
    setenv("EMU_STREAMS", "random", 1);
    for (int seed = 1; seed <= SEEDS; seed++) {
        Turns loose = turns_of(seed, false), tied = turns_of(seed, true);
        assert_in_order(&loose);
        assert_in_order(&tied);
        assert_true(tied.turn[0][ROUNDS / 2 - 1] < tied.turn[2][ROUNDS / 2]);
        early += loose.turn[2][ROUNDS / 2] < loose.turn[0][ROUNDS / 2 - 1];
        for (int a = 0; a < STREAMS; a++)
            for (int b = 0; b < STREAMS; b++)
                before[a][b] += loose.turn[a][LAST] < loose.turn[b][0];
        ready += loose.ahead == STREAMS * ROUNDS;
        waiting += loose.ahead == 0;
        as_asked += is_as_asked(&loose);
        leads += lead_changes(&loose, 0, 1);
    }
    /* Each of these must occur: any stream completely ahead of any other, all work or no work done
     * when the host first looks, the host's order from beginning to end, and streams that overtake
     * each other. */
    for (int a = 0; a < STREAMS; a++)
        for (int b = 0; b < STREAMS; b++)
            assert_true(a == b || before[a][b] > 0);
    assert_true(ready > 0 && waiting > 0 && as_asked > 0 && early > 0);
    assert_true(leads > SEEDS / 20);
    unsetenv("EMU_STREAMS");
    unsetenv("EMU_SEED");
}

static void test_the_same_seed_gives_the_same_order(void **)
{
    int same = 0;
    setenv("EMU_STREAMS", "random", 1);
    for (int seed = 1; seed <= 20; seed++) {
        Turns first = turns_of(seed, true), other = turns_of(seed + 100, true),
              again = turns_of(seed, true);
        assert_memory_equal(&first, &again, sizeof first);
        same += memcmp(&first, &other, sizeof first) == 0;
    }
    assert_true(same < 3);
    unsetenv("EMU_STREAMS");
    unsetenv("EMU_SEED");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_streams_take_every_allowed_order_and_no_other),
        cmocka_unit_test(test_the_same_seed_gives_the_same_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
