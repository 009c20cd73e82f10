/* test_prefetch.c -- tests the plan of gathers of ZeRO stage 3: every unit has been gathered when
 * it is used, no two units occupy the same memory at the same time, and DeepSpeed's limits are
 * kept. */
#include "model/core/check.h"
#include "parallel/zero/prefetch.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { UNITS = 9, MOST_USES = 400 };

/* The unit used at each point of the step. */
static int64_t points_of(const Use *uses, int64_t n, int *unit)
{
    int64_t points = 0;
    for (int64_t i = 0; i < n; i++)
        if (uses[i].weight) unit[points++] = uses[i].unit;
    return points;
}

static bool lives(const Gather *g, int64_t point)
{
    return g->at <= point && point <= g->last + 1;
}

/* Walks through the plan point by point, as the store does. */
static void check_plan(const GatherPlan *plan, const int64_t *size, const Use *uses, int64_t n,
                       const GatherLimits *limits)
{
    int unit[MOST_USES];
    int64_t points = points_of(uses, n, unit);
    assert_true(plan->elements <= limits->max_live_parameters);
    for (int64_t i = 1; i < plan->n; i++) {
        assert_true(plan->gather[i].at >= plan->gather[i - 1].at);
        assert_true(plan->gather[i].first > plan->gather[i - 1].first);
    }
    for (int64_t p = 0; p <= points; p++) {
        int64_t ahead = 0;
        int here = 0;
        for (int64_t i = 0; i < plan->n; i++) {
            const Gather *g = &plan->gather[i];
            if (!lives(g, p)) continue;
            assert_true(g->offset >= 0 && g->offset + size[g->unit] <= plan->elements);
            if (p < points && g->unit == unit[p]) here += g->first <= p && p <= g->last;
            if (g->first > p) ahead += size[g->unit];
            for (int64_t k = 0; k < i; k++) {
                const Gather *h = &plan->gather[k];
                if (!lives(h, p)) continue;
                assert_true(h->unit != g->unit);
                assert_true(h->offset + size[h->unit] <= g->offset ||
                            g->offset + size[g->unit] <= h->offset);
            }
        }
        assert_true(ahead <= limits->prefetch_bucket_size);
        if (p < points) assert_int_equal(here, size[unit[p]] > 0);
    }
}

/* Returns the uses of a model's units: forward and backward, `micros` times. The first layer has
 * two units, whose gradients need no weights. The last layer has two units, one of which may be the
 * model's first unit (a tied table). */
static int64_t model_uses(Use *uses, int64_t micros, bool tied)
{
    int64_t n = 0;
    for (int64_t m = 0; m < micros; m++) {
        for (int u = 0; u < UNITS - 2; u++)
            uses[n++] = (Use){.unit = u, .weight = true};
        uses[n++] = (Use){.unit = UNITS - 2, .weight = true, .gradient = true};
        uses[n++] = (Use){.unit = tied ? 0 : UNITS - 1, .weight = true, .gradient = true};
        for (int u = UNITS - 3; u >= 2; u--)
            uses[n++] = (Use){.unit = u, .weight = true, .gradient = true};
        uses[n++] = (Use){.unit = 0, .gradient = true};
        uses[n++] = (Use){.unit = 1, .gradient = true};
    }
    return n;
}

static int64_t drawn(uint64_t stream, int64_t i, int64_t below)
{
    return (int64_t)(drawn_uniform(stream, i) * (double)below);
}

static void test_bug_38_random_gather_plans_are_valid(void **state)
{
    (void)state;
    for (int64_t i = 0; i < 3000; i++) {
        Use uses[MOST_USES];
        int64_t size[UNITS], n, most = 1 + drawn(10, i, 40), extra = drawn(11, i, 200);
        for (int u = 0; u < UNITS; u++)
            size[u] = drawn(12, i * UNITS + u, 8) == 0 ? 0 : 1 + drawn(13, i * UNITS + u, most);
        if (i % 2 == 0) {
            n = model_uses(uses, 1 + drawn(14, i, 4), i % 4 == 0);
        } else {
            n = 1 + drawn(14, i, 60);
            for (int64_t k = 0; k < n; k++) {
                int64_t at = i * 100 + k;
                uses[k] = (Use){.unit = (int)drawn(15, at, UNITS), .weight = drawn(16, at, 5) > 0};
                uses[k].gradient = !uses[k].weight;
            }
        }
        int64_t least = gathers_least(size, uses, n);
        GatherLimits limits = {.prefetch_bucket_size = drawn(17, i, 5) ? drawn(18, i, 100) : 0,
                               .max_live_parameters = least + (i % 3 ? extra : 0),
                               .max_reuse_distance = drawn(19, i, 3) ? drawn(20, i, 200) : 0};
        GatherPlan plan = gathers_plan(size, uses, n, &limits);
        check_plan(&plan, size, uses, n, &limits);
        gathers_free(&plan);
    }
}

static const int64_t ten[UNITS] = {10, 10, 10, 10, 10, 10, 10, 10, 10};

/* Without a limit a unit is gathered once per step; with a reuse distance of 0, at every use. It is
 * gathered just before its use, or earlier if the prefetch bucket has room. */
static void test_the_plan_obeys_reuse_distance_prefetch_size_and_live_limit(void **state)
{
    (void)state;
    Use uses[MOST_USES];
    int64_t n = model_uses(uses, 3, false), points = 3 * (UNITS + UNITS - 4);
    GatherLimits limits = {0, INT64_MAX, INT64_MAX};
    GatherPlan plan = gathers_plan(ten, uses, n, &limits);
    assert_int_equal(plan.n, UNITS);
    assert_int_equal(plan.elements, 10 * UNITS);
    gathers_free(&plan);
    limits.max_reuse_distance = 0;
    plan = gathers_plan(ten, uses, n, &limits);
    assert_int_equal(plan.n, points);
    assert_int_equal(plan.elements, 20);
    for (int64_t i = 0; i < plan.n; i++)
        assert_int_equal(plan.gather[i].at, plan.gather[i].first);
    gathers_free(&plan);
    limits.prefetch_bucket_size = 25; /* two units ahead; the buffer holds these, the unit in use
                                       * and the one before */
    plan = gathers_plan(ten, uses, n, &limits);
    assert_int_equal(plan.n, points);
    assert_int_equal(plan.elements, 40);
    for (int64_t i = 2; i < plan.n; i++) {
        /* The last block is needed again three points after its last use, just after it was
         * dropped. */
        bool again = i > 3 && plan.gather[i].unit == plan.gather[i - 3].unit;
        assert_int_equal(plan.gather[i].at, plan.gather[i].first - (again ? 1 : 2));
    }
    gathers_free(&plan);
    limits.max_live_parameters = 30; /* room for prefetching one unit */
    plan = gathers_plan(ten, uses, n, &limits);
    assert_int_equal(plan.elements, 30);
    assert_int_equal(plan.gather[5].at, plan.gather[5].first - 1);
    gathers_free(&plan);
}

/* Between two uses of the last block, the head's two units are used: a distance of 20 elements. */
static void test_reuse_distance_is_counted_in_elements(void **state)
{
    (void)state;
    Use uses[MOST_USES];
    int64_t n = model_uses(uses, 1, false), points = UNITS + UNITS - 4;
    GatherLimits limits = {0, INT64_MAX, 19};
    GatherPlan plan = gathers_plan(ten, uses, n, &limits);
    assert_int_equal(plan.n, points);
    gathers_free(&plan);
    limits.max_reuse_distance = 20;
    plan = gathers_plan(ten, uses, n, &limits);
    assert_int_equal(plan.n, points - 1);
    gathers_free(&plan);
    limits.max_live_parameters = 29; /* no room to keep it until then */
    plan = gathers_plan(ten, uses, n, &limits);
    assert_int_equal(plan.n, points);
    gathers_free(&plan);
}

/* The limit must have room for the two largest units that are used in succession. That is enough:
 * gaps between units never need more memory. */
static void test_the_smallest_limit_is_the_largest_pair_of_successive_units(void **state)
{
    (void)state;
    Use uses[MOST_USES];
    int64_t size[UNITS] = {70, 3, 11, 40, 12, 13, 14, 5, 60}, n = model_uses(uses, 2, false);
    /* The first block has 11 elements; the first unit of the next micro-batch has 70. */
    assert_int_equal(gathers_least(size, uses, n), 81);
    GatherLimits limits = {1000, 81, 1000};
    GatherPlan plan = gathers_plan(size, uses, n, &limits);
    check_plan(&plan, size, uses, n, &limits);
    assert_true(plan.elements <= 81);
    gathers_free(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bug_38_random_gather_plans_are_valid),
        cmocka_unit_test(test_the_plan_obeys_reuse_distance_prefetch_size_and_live_limit),
        cmocka_unit_test(test_reuse_distance_is_counted_in_elements),
        cmocka_unit_test(test_the_smallest_limit_is_the_largest_pair_of_successive_units),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
