/* test_grid_faults.c -- the gates see the mistakes that grids are prone to: each is planted on
 * every rank of a case that is good without it, and the case must fail. */
#include "tests/support/grid_faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* A case of two blocks; what is not named is the simplest. */
#define ON(...)                                                                                    \
    {                                                                                              \
        {                                                                                          \
            [GRID_BLOCKS] = 1, __VA_ARGS__                                                         \
        }                                                                                          \
    }
#define DATA(n)      [GRID_DATA] = (n)-1
#define ZERO(n)      [GRID_STAGE] = (n)
#define MICROS(n)    [GRID_MICROS] = (n)-1
#define MODEL(n)     [GRID_MODEL] = (n)
#define RECOMPUTE(n) [GRID_RECOMPUTE] = (n)
#define DTYPE(n)     [GRID_DTYPE] = (n)
#define CLIPPED      [GRID_CLIP] = 1
#define OPTIMIZER(n) [GRID_OPTIMIZER] = (n)
#define MASKED       [GRID_MASKED] = 1
#define KEYS(n)      [GRID_KEYS] = (n)

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
    check(FAULT_GAP, &(GridCase)ON(DATA(2), MODEL(2)), true);
    check(FAULT_GAP, &(GridCase)ON(DATA(3), ZERO(1), MICROS(2), MODEL(10), CLIPPED, OPTIMIZER(1)),
          true);
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
