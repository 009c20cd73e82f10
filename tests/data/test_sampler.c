/* test_sampler.c -- tests the order of windows: one permutation per epoch, computed without storing
 * it. */
#include "data/sampler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void test_sampler_permute_is_a_bijection(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= 130; n++)
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            bool seen[130] = {false};
            for (int64_t i = 0; i < n; i++) {
                int64_t w = sampler_permute(77, epoch, n, i);
                if (w < 0 || w >= n || seen[w])
                    fail_msg("n %lld, epoch %d: %lld goes to %lld", (long long)n, (int)epoch,
                             (long long)i, (long long)w);
                seen[w] = true;
            }
        }
    int64_t large = INT64_C(1) << 40; /* far more than 2^31 windows */
    for (int64_t i = 0; i < 1000; i++) {
        int64_t w = sampler_permute(77, 0, large - 5, large - 6 - i);
        assert_true(w >= 0 && w < large - 5);
    }
}

static void test_the_order_differs_between_epochs_and_seeds(void **state)
{
    (void)state;
    enum { N = 1000 };
    int same_epoch = 0, same_seed = 0, same_place = 0;
    for (int64_t i = 0; i < N; i++) {
        int64_t w = sampler_permute(1, 0, N, i);
        same_epoch += w == sampler_permute(1, 1, N, i);
        same_seed += w == sampler_permute(2, 0, N, i);
        same_place += w == i;
    }
    /* Two random orders agree in about one place. The seeds are fixed, so this check cannot fail by
     * chance. */
    assert_true(same_epoch < 10 && same_seed < 10 && same_place < 10);
}

static void test_every_window_is_drawn_once_per_epoch(void **state)
{
    (void)state;
    enum { N = 37 };
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        Sampler s = {.n_windows = N, .seed = 5, .shuffle = shuffle};
        for (int64_t epoch = 0; epoch < 4; epoch++) {
            int seen[N] = {0};
            for (int64_t i = 0; i < N; i++)
                seen[sampler_window(&s, epoch * N + i)]++;
            for (int w = 0; w < N; w++)
                if (seen[w] != 1)
                    fail_msg("epoch %d: window %d comes %d times", (int)epoch, w, seen[w]);
        }
    }
}

static void test_only_complete_windows_are_counted(void **state)
{
    (void)state;
    assert_int_equal(sampler_windows(0, 8), 0);
    assert_int_equal(sampler_windows(8, 8), 0);
    assert_int_equal(sampler_windows(9, 8), 1);
    assert_int_equal(sampler_windows(16, 8), 1);
    assert_int_equal(sampler_windows(17, 8), 2);
    assert_true(sampler_windows((INT64_C(1) << 40) + 1, 1) == INT64_C(1) << 40);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_sampler_permute_is_a_bijection),
    cmocka_unit_test(test_the_order_differs_between_epochs_and_seeds),
    cmocka_unit_test(test_every_window_is_drawn_once_per_epoch),
    cmocka_unit_test(test_only_complete_windows_are_counted),
};

int main(void)
{
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
