/* test_grid_faults.c -- tests that the comparison with a single rank detects typical mistakes of
 * grids. Each mistake is injected on every rank of a case that passes without it, and the case must
 * fail. */
#include "tests/support/grid/grid_faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* A case. Choices that are not given have their simplest value, except that there are two blocks.
 */
#define ON(...)                                                                                    \
    {                                                                                              \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define DATA(n)      [GRID_DATA] = (n)-1
#define TENSOR(n)    [GRID_TENSOR] = (n)-1
#define STAGES(n)    [GRID_PIPELINE] = (n)-1
#define GPIPE        [GRID_SCHEDULE] = 1
#define INTERLEAVED  [GRID_SCHEDULE] = 2
#define SEQUENCE     [GRID_SEQUENCE] = 1
#define ZERO(n)      [GRID_STAGE] = (n)
#define MICROS(n)    [GRID_MICROS] = (n)-1
#define BLOCKS(n)    [GRID_BLOCKS] = (n)-1
#define MODEL(n)     [GRID_MODEL] = (n)
#define RECOMPUTE(n) [GRID_RECOMPUTE] = (n)
#define DTYPE(n)     [GRID_DTYPE] = (n)
#define CLIPPED      [GRID_CLIP] = 1
#define OPTIMIZER(n) [GRID_OPTIMIZER] = (n)
#define MASKED       [GRID_MASKED] = 1
#define KEYS(n)      [GRID_KEYS] = (n)
#define HALVES       [GRID_SHARD] = 1 /* two shard groups */

typedef struct {
    GridFault fault;
    GridCase on[6];
    int n;
} Planting;

static const Planting plantings[] = {
    {FAULT_SKIPPED_REDUCE,
     {ON(DATA(2)), ON(DATA(3), ZERO(1), MICROS(2), MODEL(1), DTYPE(1), OPTIMIZER(1)),
      ON(DATA(2), ZERO(2), MICROS(2), MODEL(1), KEYS(1)), ON(DATA(3), ZERO(3), MODEL(4), DTYPE(2))},
     4},
    {FAULT_SKIPPED_UNIT,
     {ON(DATA(2)), ON(DATA(4), ZERO(1), MODEL(3), OPTIMIZER(1)),
      ON(DATA(2), ZERO(2), MODEL(5), OPTIMIZER(1)), ON(DATA(5), ZERO(3), MICROS(2), MODEL(1))},
     4},
    {FAULT_UNPUBLISHED,
     {ON(DATA(2), ZERO(1)), ON(DATA(5), ZERO(1), MICROS(2), MODEL(4), CLIPPED),
      ON(DATA(3), ZERO(2), MICROS(2), MODEL(6), CLIPPED, OPTIMIZER(1), KEYS(1))},
     3},
    {FAULT_16_BIT_SUM,
     {ON(DATA(2), DTYPE(1)),
      ON(DATA(3), ZERO(1), MICROS(3), MODEL(1), DTYPE(1), CLIPPED, OPTIMIZER(1)),
      ON(DATA(3), ZERO(2), MICROS(3), MODEL(1), DTYPE(1), CLIPPED, OPTIMIZER(1)),
      ON(DATA(2), ZERO(3), MICROS(2), MODEL(5), DTYPE(1), KEYS(2))},
     4},
    {FAULT_LOCAL_DECISION,
     {ON(DATA(2), CLIPPED), ON(DATA(3), ZERO(1), MODEL(5), MASKED),
      ON(DATA(2), ZERO(2), DTYPE(1), CLIPPED),
      ON(DATA(4), ZERO(3), MICROS(2), MODEL(1), CLIPPED, OPTIMIZER(1), MASKED),
      ON(DATA(2), DTYPE(2)), ON(DATA(3), ZERO(3), MODEL(1), DTYPE(4), OPTIMIZER(1))},
     6},
    {FAULT_GAP,
     {ON(DATA(2), ZERO(2), MODEL(2)),
      ON(DATA(3), ZERO(3), MICROS(2), MODEL(10), CLIPPED, OPTIMIZER(1))},
     2},
    {FAULT_STALE,
     {ON(DATA(2), ZERO(1)), ON(DATA(3), ZERO(1), MICROS(2), MODEL(2), OPTIMIZER(1)),
      ON(DATA(3), ZERO(2), MODEL(1), CLIPPED)},
     3},
    {FAULT_OLD_GATHER,
     {ON(DATA(2), ZERO(3)),
      ON(DATA(3), ZERO(3), MICROS(2), MODEL(1), RECOMPUTE(2), OPTIMIZER(1), KEYS(2)),
      ON(DATA(2), ZERO(3), MODEL(4), DTYPE(1), CLIPPED)},
     3},
    {FAULT_DRIFT,
     {ON(DATA(2)), ON(DATA(3), ZERO(1), MICROS(2), MODEL(1), DTYPE(1), OPTIMIZER(1)),
      ON(DATA(4), DTYPE(2), CLIPPED), ON(DATA(2), ZERO(3))},
     4},
    {FAULT_LOCAL_DECISION,
     {ON(TENSOR(2), CLIPPED), ON(STAGES(2), CLIPPED), ON(TENSOR(2), STAGES(2), SEQUENCE, CLIPPED)},
     3},
    {FAULT_16_BIT_SUM,
     {ON(TENSOR(2), DTYPE(1)), ON(TENSOR(3), SEQUENCE, DTYPE(1)), ON(STAGES(2), DTYPE(1))},
     3},
    {FAULT_SKIPPED_REDUCE,
     {ON(DATA(2), TENSOR(2), ZERO(2)), ON(DATA(2), STAGES(2), ZERO(3), MICROS(2))},
     2},
    {FAULT_SKIPPED_UNIT, {ON(DATA(2), TENSOR(2), ZERO(1)), ON(DATA(2), STAGES(2), ZERO(3))}, 2},
    {FAULT_UNPUBLISHED, {ON(DATA(2), TENSOR(2), ZERO(1)), ON(DATA(2), STAGES(2), ZERO(2))}, 2},
    {FAULT_STALE, {ON(DATA(2), TENSOR(2), ZERO(1)), ON(DATA(2), STAGES(2), ZERO(2))}, 2},
    {FAULT_OLD_GATHER,
     {ON(DATA(2), TENSOR(2), ZERO(3)), ON(DATA(2), STAGES(2), ZERO(3), MICROS(3))},
     2},
    {FAULT_GAP,
     {ON(DATA(2), TENSOR(2), ZERO(2), MODEL(10)), ON(DATA(2), STAGES(2), ZERO(3), MODEL(2))},
     2},
    {FAULT_GROUPS_APART,
     {ON(DATA(4), ZERO(3), HALVES), ON(DATA(2), ZERO(1), HALVES, MICROS(2)),
      ON(DATA(4), ZERO(2), HALVES, MICROS(2), MODEL(1), OPTIMIZER(1), KEYS(1))},
     3},
    {FAULT_GROUPS_TWICE,
     {ON(DATA(4), ZERO(3), HALVES), ON(DATA(4), ZERO(1), HALVES, MICROS(2), KEYS(1))},
     2},
    {FAULT_OTHER_SHARE,
     {ON(DATA(4), ZERO(3), HALVES), ON(DATA(4), ZERO(2), HALVES, TENSOR(2), MICROS(2))},
     2},
    /* FAULT_STALE is not injected at ZeRO stage 3, where weights are gathered only for their next
     * use. */
    {FAULT_STALE,
     {ON(DATA(4), ZERO(1), HALVES), ON(DATA(4), ZERO(2), HALVES, MICROS(2), MODEL(1))},
     2},
    {FAULT_OLD_GATHER, {ON(DATA(4), ZERO(3), HALVES), ON(DATA(4), ZERO(3), HALVES, MICROS(2))}, 2},
    {FAULT_UNPUBLISHED,
     {ON(DATA(4), ZERO(3), HALVES, BLOCKS(3)), ON(DATA(4), ZERO(2), HALVES, STAGES(2))},
     2},
    {FAULT_SKIPPED_UNIT, {ON(DATA(4), ZERO(3), HALVES), ON(DATA(4), ZERO(1), HALVES)}, 2},
    {FAULT_LOCAL_MAXIMUM,
     {ON(TENSOR(2), MODEL(8)), ON(TENSOR(4), MODEL(12)),
      ON(TENSOR(3), SEQUENCE, MODEL(9), DTYPE(1))},
     3},
    {FAULT_LOCAL_KV,
     {ON(TENSOR(2), MODEL(4)), ON(TENSOR(4), MODEL(12), SEQUENCE),
      ON(DATA(2), TENSOR(4), MODEL(17), ZERO(3), DTYPE(2))},
     3},
    {FAULT_LOCAL_TIE,
     {ON(STAGES(2)), ON(STAGES(3), BLOCKS(3), DATA(2), ZERO(2), MICROS(2)),
      ON(STAGES(2), TENSOR(2), INTERLEAVED, BLOCKS(4), DTYPE(2))},
     3},
    {FAULT_DECLARED_WHOLE,
     {ON(TENSOR(2), SEQUENCE), ON(TENSOR(2), MODEL(11)), ON(DATA(2), TENSOR(3), MODEL(4), ZERO(3)),
      ON(TENSOR(2), SEQUENCE, STAGES(2), DTYPE(2))},
     4},
    {FAULT_COUNTED_OFTEN,
     {ON(TENSOR(2)), ON(DATA(2), TENSOR(4), MODEL(4), ZERO(2)), ON(TENSOR(2), STAGES(2), DTYPE(2))},
     3},
    {FAULT_EARLY_BIAS,
     {ON(TENSOR(2)), ON(TENSOR(3), SEQUENCE, MODEL(10)),
      ON(DATA(2), TENSOR(4), MODEL(11), ZERO(3))},
     3},
    /* Injected only with several stages: there, a gradient that was received from another stage has
     * not gone through the backward pass of a norm layer, which would have summed its columns. */
    {FAULT_ALL_COLUMNS,
     {ON(TENSOR(2), SEQUENCE, STAGES(2)), ON(TENSOR(3), SEQUENCE, STAGES(2), MODEL(10), MICROS(2)),
      ON(TENSOR(2), SEQUENCE, STAGES(2), INTERLEAVED, BLOCKS(4), DTYPE(2))},
     3},
    {FAULT_OTHER_BATCH,
     {ON(STAGES(2), MICROS(2)), ON(STAGES(2), MICROS(3), GPIPE),
      ON(STAGES(2), MICROS(4), INTERLEAVED, BLOCKS(4), TENSOR(2), DTYPE(2))},
     3},
    {FAULT_SWAPPED,
     {ON(STAGES(2), MICROS(4), INTERLEAVED, BLOCKS(4)),
      ON(STAGES(2), MICROS(3), INTERLEAVED, BLOCKS(4), TENSOR(2), SEQUENCE, DTYPE(2))},
     2},
    {FAULT_DRIFT, {ON(DATA(2), STAGES(2), ZERO(3)), ON(DATA(2), TENSOR(2), ZERO(1))}, 2},
    {FAULT_DRIFT_TENSOR, {ON(TENSOR(2)), ON(TENSOR(3), STAGES(2), MODEL(4))}, 2},
    {FAULT_DRIFT_KV, {ON(TENSOR(2), MODEL(4)), ON(TENSOR(4), STAGES(2), MODEL(12))}, 2},
    {FAULT_DRIFT_TIE, {ON(STAGES(2)), ON(STAGES(3), BLOCKS(3), TENSOR(2))}, 2},
};
enum { PLANTINGS = sizeof plantings / sizeof *plantings };

static void check(GridFault fault, const GridCase *on, bool good)
{
    Comparison r;
    char text[512];
    GridHooks hooks = grid_fault_hooks(fault);
    GridCase c = *on;
    if (c.of[GRID_BLOCKS] == 0) c.of[GRID_BLOCKS] = 1;
    GridCase legal = grid_case_legal(c);
    printf("%s on %s\n", grid_fault_name[fault], grid_case_text(&c, text, sizeof text));
    fflush(stdout);
    assert_memory_equal(&legal, &c, sizeof c);
    bool found_good = grid_check(&c, &hooks, &r);
    if (found_good != good)
        fail_msg("%s on %s: %s", grid_fault_name[fault], text,
                 good ? r.difference : "nobody has noticed");
    if (!good) printf("  %s\n", r.difference);
}

/* Replacing the function tables alone changes nothing. */
static void test_the_comparison_passes_if_no_mistake_is_injected(void **state)
{
    (void)state;
    for (int i = 0; i < PLANTINGS; i++)
        for (int k = 0; k < (getenv("TEST_SAMPLE") ? 1 : plantings[i].n); k++)
            check(FAULT_NONE, &plantings[i].on[k], true);
}

/* If every rank stores whole gradients, the gaps between parameters are zero from the start. So a
 * missing zeroing is only detected in buffers that are reused, which shows that the fault affects
 * nothing else. */
static void test_missing_zeroing_is_harmless_for_whole_gradients(void **state)
{
    (void)state;
    check(FAULT_GAP, &(GridCase)ON(DATA(2), MODEL(2)), true);
    check(FAULT_GAP, &(GridCase)ON(DATA(3), ZERO(1), MICROS(2), MODEL(10), CLIPPED, OPTIMIZER(1)),
          true);
}

static void test_bug_13_14_16_38_injected_faults_are_detected(void **state)
{
    (void)state;
    bool seen[FAULT_COUNT] = {[FAULT_NONE] = true};
    for (int i = 0; i < PLANTINGS; i++)
        for (int k = 0; k < (getenv("TEST_SAMPLE") ? 1 : plantings[i].n); k++) {
            check(plantings[i].fault, &plantings[i].on[k], false);
            seen[plantings[i].fault] = true;
        }
    for (int f = 0; f < FAULT_COUNT; f++)
        assert_true(seen[f]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_comparison_passes_if_no_mistake_is_injected),
        cmocka_unit_test(test_missing_zeroing_is_harmless_for_whole_gradients),
        cmocka_unit_test(test_bug_13_14_16_38_injected_faults_are_detected),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    grid_forget();
    return failed;
}
