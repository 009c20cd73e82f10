/* test_emu_random.cc -- streams that go on by chance: every order that streams and events allow
 * comes with some seed, none that they forbid, and a seed's again with that seed. */
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
    static cudaStream_t stream[STREAMS];
    Turns got;
    cudaEvent_t middle;
    int *next, *turns;
    set_seed(seed - 1); /* the seed's chances begin anew */
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

/* No stream overtakes itself, whatever the seed. */
static void assert_in_order(const Turns *t)
{
    for (int s = 0; s < STREAMS; s++)
        for (int i = 1; i < ROUNDS; i++)
            assert_true(t->turn[s][i - 1] < t->turn[s][i]);
}

/* Whether all turns came in the order in which they were asked for. */
static bool is_as_asked(const Turns *t)
{
    bool same = true;
    for (int s = 0; s < STREAMS; s++)
        for (int i = 0; i < ROUNDS; i++)
            same = same && t->turn[s][i] == i * STREAMS + s;
    return same;
}

/* Whether stream a was two turns before b, and later two after it, all in the first half. */
static bool lead_changes(const Turns *t, int a, int b)
{
    int n = 0;
    for (int i = 0; i + 2 < ROUNDS / 2; i++)
        if (t->turn[a][i + 1] < t->turn[b][i])
            for (int k = i + 1; k + 1 < ROUNDS; k++)
                n += t->turn[b][k + 1] < t->turn[a][k];
    return n > 0;
}

static void test_orders(void **)
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
    /* Any stream all ahead of any other; the device done with all, and with nothing, when the host
     * first looks; the host's order from one end to the other; streams that overtake each other. */
    for (int a = 0; a < STREAMS; a++)
        for (int b = 0; b < STREAMS; b++)
            assert_true(a == b || before[a][b] > 0);
    assert_true(ready > 0 && waiting > 0 && as_asked > 0 && early > 0);
    assert_true(leads > SEEDS / 20);
    unsetenv("EMU_STREAMS");
    unsetenv("EMU_SEED");
}

static void test_seeds(void **)
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
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_seeds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
