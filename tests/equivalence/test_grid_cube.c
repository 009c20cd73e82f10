/* test_grid_cube.c -- compares eight grids of dp 2 x tp 2 x pp 2 with a single rank: the smallest
 * grid that uses all axes, with every schedule, with and without sequence parallelism, and at every
 * ZeRO stage. Under sanitizers only every second case runs; the first depends on the commit. */
#include "tests/support/grid/grid_run.h"
#include "tests/support/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { CASES = 8, SEED = 2022, STAGES = 4, SCHEDULES = 4 };

/* Draws a case and replaces the choices that must all occur; draws again if the result is not
 * legal. */
static GridCase cube_of(int i, int64_t *drawn)
{
    GridCase c, legal;
    do {
        c = grid_case_drawn(SEED, (*drawn)++);
        c.of[GRID_DATA] = c.of[GRID_TENSOR] = c.of[GRID_PIPELINE] = 1;
        c.of[GRID_SCHEDULE] = i % SCHEDULES;
        c.of[GRID_STAGE] = (i + i / STAGES) % STAGES;
        c.of[GRID_SEQUENCE] = i / SCHEDULES;
        c.of[GRID_DTYPE] = i % 4 == 3; /* f32 */
        legal = grid_case_legal(c);
    } while (memcmp(&legal, &c, sizeof c) != 0);
    return grid_case_here(c);
}

static void test_two_ranks_on_every_axis_give_the_results_of_one_rank(void **state)
{
    (void)state;
    int64_t drawn = 0, every = turns_every(2), first = turns_first(every);
    for (int i = 0; i < CASES; i++) {
        char text[512], numbers[128];
        Comparison r;
        GridCase c = cube_of(i, &drawn);
        if (i % every != first) continue;
        printf("%s (GRID_CASE=%s)", grid_case_text(&c, text, sizeof text),
               grid_case_numbers(&c, numbers, sizeof numbers));
        fflush(stdout);
        bool good = grid_check(&c, NULL, &r);
        printf(": %.2g\n", r.worst);
        if (!good) fail_msg("%s\n%s", text, r.difference);
    }
    grid_forget();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_ranks_on_every_axis_give_the_results_of_one_rank)};
    return cmocka_run_group_tests_name("grid cube", tests, NULL, NULL);
}
