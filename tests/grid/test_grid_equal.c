/* test_grid_equal.c -- any grid of data-parallel ranks is the training of a single rank: cases
 * drawn from all combinations of grid_case.h.
 *
 * With a fixed seed a fixed number of them. `make grid` gives it GRID_SECONDS, and GRID_SEED or a
 * new one: all combinations in a drawn order until the time is up.
 */
#include "model/core/clock.h"
#include "tests/support/grid_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

enum { CASES = 300, FIXED_SEED = 14, MOST_SHRUNK = 3 };

/* The worst that was seen, per dtype. */
typedef struct {
    double size;
    char what[700];
} Worst;

static double core_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int64_t number(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoll(text, NULL, 10) : otherwise;
}

/* The smallest case that still fails: each choice in turn gets the simplest value with which it
 * does, until none can be made simpler. */
static GridCase shrink(GridCase c)
{
    Comparison r;
    for (bool changed = true; changed;) {
        changed = false;
        for (int choice = 0; choice < GRID_CHOICES; choice++) {
            GridCase simpler = c;
            for (simpler.of[choice] = 0; simpler.of[choice] < c.of[choice]; simpler.of[choice]++) {
                if (grid_check(&simpler, NULL, &r)) continue;
                c = simpler;
                changed = true;
                break;
            }
        }
    }
    return c;
}

static void report(const GridCase *c)
{
    char text[512];
    Comparison r;
    GridCase least = shrink(*c);
    bool again = !grid_check(&least, NULL, &r);
    print_error("smallest that fails: %s\n  {", grid_case_text(&least, text, sizeof text));
    for (int i = 0; i < GRID_CHOICES; i++)
        print_error("%d%s", least.of[i], i + 1 < GRID_CHOICES ? ", " : "}\n");
    print_error("  %s\n", again ? r.difference : "not every time");
}

/* Holds one case to its single rank. */
static bool check_case(const GridCase *c, Worst *worst)
{
    static int shrunk;
    char text[512];
    Comparison r;
    /* Before it runs: a rank may end the program, and takes the words behind it along. */
    printf("%s", grid_case_text(c, text, sizeof text));
    fflush(stdout);
    bool good = grid_check(c, NULL, &r);
    printf(": %.2g%s%s\n", r.worst, good ? "" : "\n  ", r.difference);
    Worst *w = &worst[c->of[GRID_DTYPE]];
    if (r.worst > w->size) {
        w->size = r.worst;
        snprintf(w->what, sizeof w->what, "%s: %s", text, r.where);
    }
    fflush(stdout);
    if (!good && shrunk++ < MOST_SHRUNK) report(c);
    return good;
}

static void print_sum(int64_t n, const Worst *worst, double seconds)
{
    static const char *const name[] = {"f64", "f32", "bf16, beside f32", "f16, beside f32",
                                       "bf16 without masters, beside f32"};
    print_message("%lld cases, %.3f core-seconds each\n", (long long)n,
                  seconds / (double)(n > 0 ? n : 1));
    for (int i = 0; i < grid_choice_values(GRID_DTYPE); i++)
        if (worst[i].size > 0)
            print_message("worst deviation in %s: %.2g (%s)\n", name[i], worst[i].size,
                          worst[i].what);
}

/* Three of five cases are in f64, which sees most. */
static void test_bug_1_3_9_16_36_38_45_46_a_grid_is_a_single_rank(void **state)
{
    (void)state;
    Worst worst[5] = {0};
    double start = core_seconds();
    int64_t done = 0, bad = 0;
    for (int64_t i = 0; i < CASES; i += grid_case_every(), done++) {
        GridCase c = grid_case_drawn(FIXED_SEED, i);
        if (i % 5 < 3) c.of[GRID_DTYPE] = 0;
        c = grid_case_here(c);
        bad += !check_case(&c, worst);
    }
    print_sum(done, worst, core_seconds() - start);
    assert_int_equal(bad, 0);
}

/* All combinations in a drawn order, until the time is up or one fails. */
static void test_as_many_grids_as_there_is_time_for(void **state)
{
    (void)state;
    Worst worst[5] = {0};
    double end = seconds_now() + (double)number("GRID_SECONDS", 0), start = core_seconds();
    int64_t seed = number("GRID_SEED", (int64_t)time(NULL)), all = grid_cases(), i = 0;
    bool good = true;
    print_message("GRID_SEED=%lld\n", (long long)seed);
    for (; good && i < all && seconds_now() < end; i++) {
        GridCase c = grid_case_drawn((uint64_t)seed, i);
        c = grid_case_here(c);
        good = check_case(&c, worst);
        if (i % 200 == 199) grid_forget();
    }
    print_sum(i, worst, core_seconds() - start);
    print_message("%lld of %lld combinations\n", (long long)i, (long long)all);
    assert_true(good);
}

int main(void)
{
    const struct CMUnitTest fixed[] = {
        cmocka_unit_test(test_bug_1_3_9_16_36_38_45_46_a_grid_is_a_single_rank)};
    const struct CMUnitTest timed[] = {cmocka_unit_test(test_as_many_grids_as_there_is_time_for)};
    bool has_time = getenv("GRID_SECONDS") != NULL;
    int failed = has_time ? cmocka_run_group_tests(timed, NULL, NULL)
                          : cmocka_run_group_tests(fixed, NULL, NULL);
    grid_forget();
    return failed;
}
