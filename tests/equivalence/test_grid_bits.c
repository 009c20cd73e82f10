/* test_grid_bits.c -- tests choices that change no bit of the results on a grid: a rerun,
 * recompute, schedules (interleaved chunks round the norm differently), the config keys of ZeRO,
 * ZeRO stage 0 instead of 1 and 2 instead of 3, any ZeRO stage if there is one micro-batch, and
 * optimizer states on the host. */
#include "tests/support/grid/grid_run.h"
#include "tests/support/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CASES = 11, FIXED_SEED = 141 };

/* Trains both cases and compares them; their norms may differ by the relative amount `norm`. */
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

/* Further conditions on both cases of a pair, and how far their norms may differ. */
typedef struct {
    int first;     /* number of the first case within the test, by which turns are chosen */
    int micros;    /* number of micro-batches; 0: any */
    bool tensor;   /* several tensor-parallel ranks */
    bool pipeline; /* several stages */
    int shard;     /* 1: several shard groups of more than one rank */
    double norm; /* allowed relative difference of the norms; if not 0, gradients are not clipped */
} Wanted;

/* Draws cases of several ranks. For each it compares two cases: one with `choice` set to values[0],
 * and one with `choice` set to one of the other values. Draws again unless both are legal and as
 * `wanted`. Omitted cases are drawn, too, so that the others do not depend on TEST_EVERY. */
static void each_beside(GridChoice choice, const int *values, int n_values, Wanted wanted)
{
    int64_t drawn = 0, every = turns_every(12), first = turns_first(every);
    for (int64_t i = 0; i < CASES; i++) {
        GridCase a, b;
        do {
            a = grid_case_here(grid_case_drawn(FIXED_SEED + (uint64_t)choice, drawn++));
            if (wanted.micros > 0) a.of[GRID_MICROS] = wanted.micros - 1;
            if (wanted.norm > 0) a.of[GRID_CLIP] = 0;
            if (wanted.shard > 0) a.of[GRID_DATA] = 3, a.of[GRID_SHARD] = 1;
            b = a;
            a.of[choice] = values[0];
            b.of[choice] = values[1 + i / every % (n_values - 1)];
        } while (!is_legal(&a) || !is_legal(&b) || grid_case_ranks(&a) == 1 ||
                 (wanted.tensor && a.of[GRID_TENSOR] == 0) ||
                 (wanted.pipeline && a.of[GRID_PIPELINE] == 0));
        if ((wanted.first + i) % every == first) same_bits(&a, &b, wanted.norm);
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

static void test_bug_36_zero_stages_0_and_1_have_the_same_bits(void **state)
{
    (void)state;
    each_beside(GRID_STAGE, (const int[]){0, 1}, 2, (Wanted){0});
}

/* Holds only with one micro-batch. With several, stages 2 and 3 reduce first and then add over
 * micro-batches, and stages 0 and 1 add first and then reduce. */
static void test_bug_36_every_zero_stage_has_the_same_bits_with_one_micro_batch(void **state)
{
    (void)state;
    each_beside(GRID_STAGE, (const int[]){0, 2, 3}, 3, (Wanted){.micros = 1});
    each_beside(GRID_STAGE, (const int[]){1, 3, 2}, 3, (Wanted){.micros = 1});
}

/* Tests bf16 without and with master weights; few drawn cases have master weights. The random
 * numbers of stochastic rounding depend on the element of the parameter, not on where its shard and
 * its states are. */
static void test_bf16_moments_have_the_same_bits_at_every_zero_stage(void **state)
{
    (void)state;
    for (int dtype = 5; dtype <= 6; dtype++) {
        GridCase whole = {.of = {[GRID_DATA] = 2, [GRID_BLOCKS] = 1, [GRID_DTYPE] = dtype}};
        for (int stage = 1; stage <= 3; stage++) {
            GridCase cut = whole;
            cut.of[GRID_STAGE] = stage;
            cut.of[GRID_OFFLOAD] = stage - 1;
            same_bits(&whole, &cut, 0);
        }
    }
}

/* Holds with any number of micro-batches. */
static void test_zero_stages_2_and_3_have_the_same_bits(void **state)
{
    (void)state;
    each_beside(GRID_STAGE, (const int[]){2, 3}, 2, (Wanted){0});
}

/* Tests shard groups of half of the ranks. Gradients are summed within each group first, so the
 * bits depend on the size of the groups; both cases of a pair have the same size. */
static void test_zero_stages_have_the_same_bits_in_shard_groups(void **state)
{
    (void)state;
    each_beside(GRID_STAGE, (const int[]){2, 3}, 2, (Wanted){.shard = 1});
    each_beside(GRID_STAGE, (const int[]){1, 2, 3}, 3, (Wanted){.micros = 1, .shard = 1});
    each_beside(GRID_KEYS, (const int[]){0, 1, 2, 3}, 4, (Wanted){.shard = 1});
    each_beside(GRID_CLIP, (const int[]){1, 1}, 2, (Wanted){.first = CASES, .shard = 1});
}

/* A group of one rank has nothing to divide, so at any ZeRO stage it trains like stage 1 in a group
 * of all ranks. */
static void test_shard_groups_of_one_rank_have_the_same_bits_as_zero_stage_1(void **state)
{
    (void)state;
    GridCase a = {.of = {[GRID_DATA] = 1, [GRID_STAGE] = 1, [GRID_MICROS] = 2, [GRID_CLIP] = 1}};
    for (int stage = 1; stage < 4; stage++) {
        GridCase b = a;
        b.of[GRID_STAGE] = stage;
        b.of[GRID_SHARD] = 1;
        same_bits(&a, &b, 0);
    }
}

/* Holds if the layer ranges are the same: within each range the backward passes of the
 * micro-batches have the same order in both schedules. (With interleaved chunks the ranges are
 * different: see the next test.) */
static void test_gpipe_and_1f1b_have_the_same_bits(void **state)
{
    (void)state;
    each_beside(GRID_SCHEDULE, (const int[]){0, 1}, 2, (Wanted){.pipeline = true});
}

/* The gradient of a weight is a sum over micro-batches in their order, on whichever stage its layer
 * is. Only the norm differs: each stage adds the squares of its layers, and with interleaved chunks
 * a stage has other layers. */
static void test_interleaved_chunks_change_only_the_bits_of_the_gradient_norm(void **state)
{
    (void)state;
    each_beside(GRID_SCHEDULE, (const int[]){0, 2, 3}, 3,
                (Wanted){.pipeline = true, .norm = 1e-13});
}

/* Varies buckets, overlap, prefetch and the size below which units are not sharded, at every stage.
 */
static void test_bug_39_the_config_keys_of_ZeRO_change_no_bit(void **state)
{
    (void)state;
    each_beside(GRID_KEYS, (const int[]){0, 1, 2, 3}, 4, (Wanted){0});
}

/* With overlap, collectives run during computation; without it, the computation waits for each of
 * them. Tests all axes; the order of collectives also differs. */
static void test_overlap_changes_no_bit(void **state)
{
    enum { SMALL = 1, SMALL_ALONE = 4, OVERLAP, ALONE };
    (void)state;
    each_beside(GRID_KEYS, (const int[]){SMALL, SMALL_ALONE}, 2, (Wanted){.pipeline = true});
    each_beside(GRID_KEYS, (const int[]){OVERLAP, ALONE}, 2,
                (Wanted){.first = CASES, .tensor = true});
}

static void test_optimizer_states_in_host_memory_change_no_bit(void **state)
{
    (void)state;
    each_beside(GRID_OFFLOAD, (const int[]){0, 1, 2}, 3, (Wanted){0});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rerun_has_the_same_bits),
        cmocka_unit_test(test_bug_53_recompute_has_the_same_bits),
        cmocka_unit_test(test_bug_36_zero_stages_0_and_1_have_the_same_bits),
        cmocka_unit_test(test_bug_36_every_zero_stage_has_the_same_bits_with_one_micro_batch),
        cmocka_unit_test(test_bf16_moments_have_the_same_bits_at_every_zero_stage),
        cmocka_unit_test(test_zero_stages_2_and_3_have_the_same_bits),
        cmocka_unit_test(test_zero_stages_have_the_same_bits_in_shard_groups),
        cmocka_unit_test(test_shard_groups_of_one_rank_have_the_same_bits_as_zero_stage_1),
        cmocka_unit_test(test_gpipe_and_1f1b_have_the_same_bits),
        cmocka_unit_test(test_interleaved_chunks_change_only_the_bits_of_the_gradient_norm),
        cmocka_unit_test(test_bug_39_the_config_keys_of_ZeRO_change_no_bit),
        cmocka_unit_test(test_overlap_changes_no_bit),
        cmocka_unit_test(test_optimizer_states_in_host_memory_change_no_bit),
    };
    const char *only = getenv("TEST_ONLY"); /* the name of the only test to run */
    if (only) cmocka_set_test_filter(only);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
