/* test_grid_bits.c -- what changes no bit on one grid: a rerun, recompute, schedules (but that
 * interleaved chunks round the norm otherwise), the keys of ZeRO, its stages 0 and 1, and 2 and 3;
 * with one micro-batch all its stages. */
#include "tests/support/grid/grid_run.h"
#include "tests/support/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CASES = 11, FIXED_SEED = 141 };

/* Trains both and compares; their norms may differ by `norm`. */
static void same_bits(const GridCase *a, const GridCase *b, double norm)
{
    GridRun x, y;
    char why[512], one[512], other[512];
    printf("%s\n", grid_case_text(b, other, sizeof other));
    grid_run(&x, a, grid_case_batch(a), GRID_FEW_STEPS, NULL);
    grid_run(&y, b, grid_case_batch(b), GRID_FEW_STEPS, NULL);
    bool equal = grid_runs_equal(&x, &y, norm, why, sizeof why);
    grid_run_free(&x);
    grid_run_free(&y);
    if (!equal) fail_msg("%s\nand %s:\n%s", grid_case_text(a, one, sizeof one), other, why);
}

static bool is_legal(const GridCase *c)
{
    GridCase legal = grid_case_legal(*c);
    return memcmp(&legal, c, sizeof legal) == 0;
}

/* What a pair of cases must have, besides. */
typedef struct {
    int micros;    /* so many micro-batches; 0: any number */
    bool tensor;   /* several tensor-parallel ranks */
    bool pipeline; /* several stages */
    double norm;   /* by how much of it norms may differ, and then nothing is clipped by them */
} Wanted;

/* Drawn cases of several ranks, each beside itself with these choices; both as they are legal. A
 * run that leaves out cases draws them all the same: the others stay what they are. */
static void each_beside(GridChoice choice, const int *values, int n_values, Wanted wanted)
{
    int64_t drawn = 0, every = turns_every(12), first = turns_first(every);
    for (int64_t i = 0; i < CASES; i++) {
        GridCase a, b;
        do {
            a = grid_case_here(grid_case_drawn(FIXED_SEED + (uint64_t)choice, drawn++));
            if (wanted.micros > 0) a.of[GRID_MICROS] = wanted.micros - 1;
            if (wanted.norm > 0) a.of[GRID_CLIP] = 0;
            b = a;
            a.of[choice] = values[0];
            b.of[choice] = values[1 + i / every % (n_values - 1)];
        } while (!is_legal(&a) || !is_legal(&b) || grid_case_ranks(&a) == 1 ||
                 (wanted.tensor && a.of[GRID_TENSOR] == 0) ||
                 (wanted.pipeline && a.of[GRID_PIPELINE] == 0));
        if (i % every == first) same_bits(&a, &b, wanted.norm);
    }
}

static void test_a_rerun_has_the_same_bits(void **state)
{
    (void)state;
    each_beside(GRID_CLIP, (const int[]){1, 1}, 2, (Wanted){0});
}

static void test_bug_53_recompute_has_the_same_bits(void **state)
{
    (void)state;
    each_beside(GRID_RECOMPUTE, (const int[]){0, 1, 2}, 3, (Wanted){0});
}

static void test_bug_36_zero_0_and_1_have_the_same_bits(void **state)
{
    (void)state;
    each_beside(GRID_STAGE, (const int[]){0, 1}, 2, (Wanted){0});
}

/* On one micro-batch; on several, stages 2 and 3 add what they have reduced, and 0 and 1 reduce
 * what they have added. */
static void test_bug_36_stages_of_one_micro_batch_have_the_same_bits(void **state)
{
    (void)state;
    each_beside(GRID_STAGE, (const int[]){0, 2, 3}, 3, (Wanted){.micros = 1});
    each_beside(GRID_STAGE, (const int[]){1, 3, 2}, 3, (Wanted){.micros = 1});
}

/* And 2 and 3 on any number. */
static void test_zero_2_and_3_have_the_same_bits(void **state)
{
    (void)state;
    each_beside(GRID_STAGE, (const int[]){2, 3}, 2, (Wanted){0});
}

/* Where the runs of layers are the same: within each run micro-batches go backward in the same
 * order, whatever the schedule. (Interleaved chunks are other runs: see below.) */
static void test_gpipe_and_1f1b_have_the_same_bits(void **state)
{
    (void)state;
    each_beside(GRID_SCHEDULE, (const int[]){0, 1}, 2, (Wanted){.pipeline = true});
}

/* A weight's gradient is a sum over micro-batches in their order, whichever stage has its layer.
 * The norm alone is not: squares are added up by stages, which have other layers here. */
static void test_interleaved_chunks_have_the_same_bits_but_the_norm(void **state)
{
    (void)state;
    each_beside(GRID_SCHEDULE, (const int[]){0, 2, 3}, 3,
                (Wanted){.pipeline = true, .norm = 1e-13});
}

/* Buckets, overlap, prefetch and what stays whole, at every stage. */
static void test_bug_39_keys_of_zero_change_no_bit(void **state)
{
    (void)state;
    each_beside(GRID_KEYS, (const int[]){0, 1, 2, 3}, 4, (Wanted){0});
}

/* What is on its way beside the computation, and what is waited for at once, on all axes; the
 * schedule of collectives is another, too. */
static void test_overlap_changes_no_bit(void **state)
{
    enum { SMALL = 1, SMALL_ALONE = 4, OVERLAP, ALONE };
    (void)state;
    each_beside(GRID_KEYS, (const int[]){SMALL, SMALL_ALONE}, 2, (Wanted){.pipeline = true});
    each_beside(GRID_KEYS, (const int[]){OVERLAP, ALONE}, 2, (Wanted){.tensor = true});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rerun_has_the_same_bits),
        cmocka_unit_test(test_bug_53_recompute_has_the_same_bits),
        cmocka_unit_test(test_bug_36_zero_0_and_1_have_the_same_bits),
        cmocka_unit_test(test_bug_36_stages_of_one_micro_batch_have_the_same_bits),
        cmocka_unit_test(test_zero_2_and_3_have_the_same_bits),
        cmocka_unit_test(test_gpipe_and_1f1b_have_the_same_bits),
        cmocka_unit_test(test_interleaved_chunks_have_the_same_bits_but_the_norm),
        cmocka_unit_test(test_bug_39_keys_of_zero_change_no_bit),
        cmocka_unit_test(test_overlap_changes_no_bit),
    };
    const char *only = getenv("TEST_ONLY"); /* the name of one */
    if (only) cmocka_set_test_filter(only);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
