/* test_grid_bits.c -- what changes no bit on one grid: a rerun, recompute, the keys of ZeRO, its
 * stages 0 and 1; with one micro-batch all its stages. */
#include "tests/support/grid_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { CASES = 16, FIXED_SEED = 141 };

/* Trains both and compares. */
static void same_bits(const GridCase *a, const GridCase *b)
{
    GridRun x, y;
    char why[512], one[512], other[512];
    printf("%s\n", grid_case_text(b, other, sizeof other));
    grid_run(&x, a, grid_case_batch(a), GRID_STEPS, NULL);
    grid_run(&y, b, grid_case_batch(b), GRID_STEPS, NULL);
    bool equal = grid_runs_equal(&x, &y, why, sizeof why);
    grid_run_free(&x);
    grid_run_free(&y);
    if (!equal) fail_msg("%s\nand %s:\n%s", grid_case_text(a, one, sizeof one), other, why);
}

/* Drawn cases, each beside itself with these choices. */
static void each_beside(GridChoice choice, const int *values, int n_values, int micros)
{
    for (int64_t i = 0; i < CASES; i += grid_case_every()) {
        GridCase a = grid_case_drawn(FIXED_SEED + (uint64_t)choice, i);
        if (a.of[GRID_DATA] == 0) a.of[GRID_DATA] = 2;
        if (micros > 0) a.of[GRID_MICROS] = micros - 1;
        a.of[choice] = values[0];
        GridCase b = a;
        b.of[choice] = values[1 + i % (n_values - 1)];
        same_bits(&a, &b);
    }
}

static void test_a_rerun_has_the_same_bits(void **state)
{
    (void)state;
    each_beside(GRID_CLIP, (const int[]){1, 1}, 2, 0);
}

static void test_bug_53_recompute_has_the_same_bits(void **state)
{
    (void)state;
    each_beside(GRID_RECOMPUTE, (const int[]){0, 1, 2}, 3, 0);
}

static void test_bug_36_zero_0_and_1_have_the_same_bits(void **state)
{
    (void)state;
    each_beside(GRID_STAGE, (const int[]){0, 1}, 2, 0);
}

/* On one micro-batch; on several, stages 2 and 3 add what they have reduced, and 0 and 1 reduce
 * what they have added. */
static void test_bug_36_stages_of_one_micro_batch_have_the_same_bits(void **state)
{
    (void)state;
    each_beside(GRID_STAGE, (const int[]){0, 2, 3}, 3, 1);
    each_beside(GRID_STAGE, (const int[]){1, 3, 2}, 3, 1);
}

/* And 2 and 3 on any number. */
static void test_zero_2_and_3_have_the_same_bits(void **state)
{
    (void)state;
    each_beside(GRID_STAGE, (const int[]){2, 3}, 2, 0);
}

/* Buckets, overlap, prefetch and what stays whole, at every stage. */
static void test_bug_39_keys_of_zero_change_no_bit(void **state)
{
    (void)state;
    each_beside(GRID_KEYS, (const int[]){0, 1, 2, 3}, 4, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rerun_has_the_same_bits),
        cmocka_unit_test(test_bug_53_recompute_has_the_same_bits),
        cmocka_unit_test(test_bug_36_zero_0_and_1_have_the_same_bits),
        cmocka_unit_test(test_bug_36_stages_of_one_micro_batch_have_the_same_bits),
        cmocka_unit_test(test_zero_2_and_3_have_the_same_bits),
        cmocka_unit_test(test_bug_39_keys_of_zero_change_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
