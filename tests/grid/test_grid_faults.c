/* test_grid_faults.c -- the gates see the mistakes that grids are prone to: each is planted on
 * every rank of a case that is good without it, and the case must fail. */
#include "tests/support/grid_faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* Ranks, stage, micro-batches, model, recompute, dtype, clip, optimizer, masked, keys. */
typedef struct {
    GridFault fault;
    GridCase on[6];
    int n;
} Planting;

static const Planting plantings[] = {
    {FAULT_SKIPPED_REDUCE,
     {{{1, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
      {{2, 1, 1, 1, 0, 1, 0, 1, 0, 0}},
      {{1, 2, 1, 1, 0, 0, 0, 0, 0, 1}},
      {{2, 3, 0, 4, 0, 2, 0, 0, 0, 0}}},
     4},
    {FAULT_SKIPPED_UNIT,
     {{{1, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
      {{3, 1, 0, 3, 0, 0, 0, 1, 0, 0}},
      {{1, 2, 0, 5, 0, 0, 0, 1, 0, 0}},
      {{4, 3, 1, 1, 0, 0, 0, 0, 0, 0}}},
     4},
    {FAULT_UNPUBLISHED,
     {{{1, 1, 0, 0, 0, 0, 0, 0, 0, 0}},
      {{4, 1, 1, 4, 0, 0, 1, 0, 0, 0}},
      {{2, 2, 1, 6, 0, 0, 1, 1, 0, 1}}},
     3},
    {FAULT_16_BIT_SUM,
     {{{1, 0, 0, 0, 0, 1, 0, 0, 0, 0}},
      {{2, 1, 2, 1, 0, 1, 1, 1, 0, 0}},
      {{2, 2, 2, 1, 0, 1, 1, 1, 0, 0}},
      {{1, 3, 1, 5, 0, 1, 0, 0, 0, 2}}},
     4},
    {FAULT_LOCAL_DECISION,
     {{{1, 0, 0, 0, 0, 0, 1, 0, 0, 0}},
      {{2, 1, 0, 5, 0, 0, 0, 0, 1, 0}},
      {{1, 2, 0, 0, 0, 1, 1, 0, 0, 0}},
      {{3, 3, 1, 1, 0, 0, 1, 1, 1, 0}},
      {{1, 0, 0, 0, 0, 2, 0, 0, 0, 0}},
      {{2, 3, 0, 1, 0, 4, 0, 1, 0, 0}}},
     6},
    {FAULT_GAP, {{{1, 2, 0, 2, 0, 0, 0, 0, 0, 0}}, {{2, 3, 1, 10, 0, 0, 1, 1, 0, 0}}}, 2},
    {FAULT_STALE,
     {{{1, 1, 0, 0, 0, 0, 0, 0, 0, 0}},
      {{2, 1, 1, 2, 0, 0, 0, 1, 0, 0}},
      {{2, 2, 0, 1, 0, 0, 1, 0, 0, 0}}},
     3},
    {FAULT_OLD_GATHER,
     {{{1, 3, 0, 0, 0, 0, 0, 0, 0, 0}},
      {{2, 3, 1, 1, 2, 0, 0, 1, 0, 2}},
      {{1, 3, 0, 4, 0, 1, 1, 0, 0, 0}}},
     3},
    {FAULT_DRIFT,
     {{{1, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
      {{2, 1, 1, 1, 0, 1, 0, 1, 0, 0}},
      {{3, 0, 0, 0, 0, 2, 1, 0, 0, 0}},
      {{1, 3, 0, 0, 0, 0, 0, 0, 0, 0}}},
     4},
};
enum { PLANTINGS = sizeof plantings / sizeof *plantings };

static void check(GridFault fault, const GridCase *c, bool good)
{
    Comparison r;
    char text[512];
    GridHooks hooks = grid_fault_hooks(fault);
    printf("%s on %s\n", grid_fault_name[fault], grid_case_text(c, text, sizeof text));
    fflush(stdout);
    bool found_good = grid_check(c, &hooks, &r);
    if (found_good != good)
        fail_msg("%s on %s: %s", grid_fault_name[fault], text,
                 good ? r.difference : "nobody has noticed");
    if (!good) printf("  %s\n", r.difference);
}

/* The replaced tables themselves change nothing. */
static void test_tables_that_do_the_same_are_good(void **state)
{
    (void)state;
    for (int i = 0; i < PLANTINGS; i++)
        for (int k = 0; k < (getenv("TEST_SAMPLE") ? 1 : plantings[i].n); k++)
            check(FAULT_NONE, &plantings[i].on[k], true);
}

/* Where every rank keeps its gradients whole their gaps are zero from the start: so what goes red
 * without zeroing is the gaps of buffers that change hands, and no other fill. */
static void test_gaps_of_whole_gradients_stay_zero(void **state)
{
    (void)state;
    check(FAULT_GAP, &(GridCase){{1, 0, 0, 2, 0, 0, 0, 0, 0, 0}}, true);
    check(FAULT_GAP, &(GridCase){{2, 1, 1, 10, 0, 0, 1, 1, 0, 0}}, true);
}

static void test_bug_16_38_planted_faults_are_seen(void **state)
{
    (void)state;
    for (int i = 0; i < PLANTINGS; i++)
        for (int k = 0; k < (getenv("TEST_SAMPLE") ? 1 : plantings[i].n); k++)
            check(plantings[i].fault, &plantings[i].on[k], false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables_that_do_the_same_are_good),
        cmocka_unit_test(test_gaps_of_whole_gradients_stay_zero),
        cmocka_unit_test(test_bug_16_38_planted_faults_are_seen),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    grid_forget();
    return failed;
}
