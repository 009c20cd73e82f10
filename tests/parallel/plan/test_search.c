/* test_search.c -- tests the search for layouts with made-up costs: it finds the best layouts of
 * the whole space, tries layouts that are similar to the best ones early, and ends after a given
 * amount of work. */
#include "parallel/plan/search.h"

#include "model/core/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    uint64_t seed;
    int64_t asked;
} MadeUp;

/* Returns a number from 0 to 1 that the layout and the seed determine. */
static double chance(const MadeUp *m, const PlanLayout *l, uint64_t salt)
{
    const int64_t parts[] = {l->tensor, l->pipeline,  l->chunks,           l->micro,
                             l->zero,   l->recompute, l->sequence_parallel};
    uint64_t h = m->seed * 0x9e3779b97f4a7c15u + salt;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        h = (h ^ (uint64_t)parts[i]) * 0xff51afd7ed558ccdu, h ^= h >> 33;
    return (double)(h >> 11) / 9007199254740992.0;
}

static double made_up(const MadeUp *m, const PlanLayout *l)
{
    return chance(m, l, 1) < 0.3 ? INFINITY : 1 + floor(20 * chance(m, l, 2));
}

static double made_up_seconds(void *context, PlanLayout *l, int64_t *work)
{
    MadeUp *m = context;
    m->asked++;
    *work += 1;
    return made_up(m, l);
}

/* A bound is at most the seconds. For about half of the layouts that do not fit, the bound is
 * infinite, which says so. */
static double made_up_bound(void *context, const PlanLayout *l)
{
    double seconds = made_up(context, l);
    if (isinf(seconds)) return chance(context, l, 3) < 0.5 ? INFINITY : 2;
    return seconds * chance(context, l, 4);
}

static double made_up_guess(void *context, const PlanLayout *l)
{
    return chance(context, l, 5);
}

static Candidate small_candidate(int64_t ranks, int64_t heads, int64_t kv, int64_t layers,
                                 int64_t batch)
{
    Candidate c = {.fixed = ~0u};
    for (int key = 0; key < CANDIDATE_KEYS; key++)
        c.most[key] = 1000000;
    c.value[CANDIDATE_RANKS] = ranks;
    c.value[CANDIDATE_TENSOR] = c.value[CANDIDATE_PIPELINE] = c.value[CANDIDATE_CHUNKS] = 1;
    c.value[CANDIDATE_BATCH] = batch;
    c.value[CANDIDATE_HEADS] = heads;
    c.value[CANDIDATE_KV] = kv;
    c.value[CANDIDATE_LAYERS] = layers;
    c.value[CANDIDATE_WIDTH] = 4 * heads;
    c.value[CANDIDATE_HIDDEN] = 2 * heads;
    c.value[CANDIDATE_HEAD_DIM] = 2;
    c.value[CANDIDATE_LENGTH] = c.value[CANDIDATE_POSITIONS] = 6;
    return c;
}

static void the_search_finds_the_same_best_layouts_as_trying_all_layouts(void **state)
{
    (void)state;
    int pruned = 0;
    for (uint64_t round = 0; round < 300; round++) {
        int64_t ranks = 1 + (int64_t)(round % 16), heads = round % 3 ? 12 : 8;
        Candidate base = small_candidate(ranks, heads, round % 2 ? heads : 4,
                                         1 + (int64_t)(round % 7), (int64_t)(1 + round % 5) * 12);
        MadeUp m = {.seed = round};
        const SearchCosts costs = {made_up_seconds, made_up_bound, made_up_guess, &m};
        PlanSearch s = search_layouts(&base, 8, &costs, INT64_MAX);
        PlanLayout *all;
        int64_t n = search_space(&base, 8, &all);
        assert_int_equal(n, s.space);
        assert_int_equal(s.left, 0);
        assert_int_equal(s.planned, m.asked);
        pruned += n - s.misfits > m.asked;
        /* The i-th best of the search is the i-th smallest of all. */
        double *seconds = must_calloc((size_t)n + 1, sizeof *seconds);
        for (int64_t i = 0; i < n; i++) {
            double now = made_up(&m, &all[i]);
            int64_t at = i;
            for (; at > 0 && seconds[at - 1] > now; at--)
                seconds[at] = seconds[at - 1];
            seconds[at] = now;
        }
        for (int i = 0; i < SEARCH_BEST; i++) {
            bool is = i < n && isfinite(seconds[i]);
            if (is != (i < s.found) || (is && s.seconds[i] != seconds[i]))
                fail_msg("round %d, best %d: %g, not %g", (int)round, i, s.seconds[i], seconds[i]);
            if (is) assert_true(made_up(&m, &s.best[i]) == s.seconds[i]);
        }
        free(seconds);
        free(all);
    }
    assert_true(pruned > 50);
}

static void a_search_that_ends_early_says_how_many_layouts_are_left(void **state)
{
    (void)state;
    Candidate base = small_candidate(8, 8, 8, 4, 48);
    MadeUp m = {.seed = 7};
    const SearchCosts costs = {made_up_seconds, made_up_bound, made_up_guess, &m};
    PlanSearch all = search_layouts(&base, 8, &costs, INT64_MAX),
               some = search_layouts(&base, 8, &costs, 5);
    assert_int_equal(some.planned, 5);
    assert_true(some.left > 0 && some.left + some.misfits + 5 <= some.space);
    assert_int_equal(all.left, 0);
}

/* The fewer choices of a layout differ from those of one fixed layout, the faster it is. */
static double seconds_from_best(void *context, PlanLayout *l, int64_t *work)
{
    (void)context;
    *work += 1;
    return 1 + (l->tensor != 2) + (l->pipeline != 2) + (l->chunks != 2) + (l->micro != 4) +
           (l->zero != 1) + (l->recompute != RECOMPUTE_SELECTIVE) + (l->sequence_parallel != true);
}

static double no_bound(void *context, const PlanLayout *l)
{
    (void)context;
    (void)l;
    return 0;
}

/* A guess that says nothing about the layout: a random number from 1 to 1.4, so no layout seems
 * much slower than another. */
static double near_guess(void *context, const PlanLayout *l)
{
    return 1 + 0.4 * chance(context, l, 5);
}

/* Only a tenth of the space is planned, in an order of guesses that say nothing. It must contain
 * the best layout, which the search reaches by layouts that differ in a single choice. */
static void layouts_that_differ_from_the_best_in_one_choice_are_planned_early(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        Candidate base = small_candidate(8, 8, 8, 8, 48);
        MadeUp m = {.seed = seed};
        const SearchCosts costs = {seconds_from_best, no_bound, near_guess, &m};
        PlanLayout *all;
        int64_t space = search_space(&base, 8, &all);
        PlanSearch s = search_layouts(&base, 8, &costs, space / 10);
        free(all);
        assert_true(s.planned == space / 10 && space > 300);
        if (s.seconds[0] != 1) fail_msg("seed %d: %g", (int)seed, s.seconds[0]);
    }
}

static int64_t layouts_with_chunks(int64_t own, int64_t chunks)
{
    Candidate base = small_candidate(2, 8, 8, 22, 48);
    PlanLayout *all;
    int64_t found = 0;
    base.value[CANDIDATE_CHUNKS] = own;
    int64_t n = search_space(&base, 8, &all);
    for (int64_t i = 0; i < n; i++)
        found += all[i].chunks == chunks;
    free(all);
    return found;
}

static void the_search_tries_the_number_of_chunks_that_the_config_gives(void **state)
{
    (void)state;
    assert_int_equal(layouts_with_chunks(1, 5), 0);
    assert_true(layouts_with_chunks(5, 5) > 0);
    assert_int_equal(layouts_with_chunks(4, 4), layouts_with_chunks(1, 4));
    /* A stage has 11 layers, and the divisors of that number are tried. */
    assert_true(layouts_with_chunks(1, 11) > 0);
}

/* Returns whether the candidate, with this batch and this number of ranks, has a legal layout. */
static bool has_layout(const Candidate *base, int64_t batch, int64_t ranks)
{
    Candidate c = *base;
    PlanLayout *all;
    c.value[CANDIDATE_BATCH] = batch;
    c.value[CANDIDATE_RANKS] = ranks;
    int64_t n = search_space(&c, 8, &all);
    free(all);
    return n > 0;
}

/* If no layout is legal, the nearest numbers that the search proposes must be those that trying one
 * number after another finds. */
static void if_no_layout_is_legal_the_search_finds_the_nearest_batch_and_ranks(void **state)
{
    (void)state;
    int none = 0, below = 0;
    for (int64_t ranks = 1; ranks <= 60; ranks++)
        for (int64_t batch = 1; batch <= 26; batch += 5) {
            Candidate base = small_candidate(ranks, 12, 12, 5, batch);
            if (has_layout(&base, batch, ranks)) continue;
            SearchNearest near = search_nearest(&base, 8);
            const PlanLayout *l = &near.layout;
            int64_t less = batch - 1, more = batch + 1, fewer = ranks - 1, further = ranks + 1;
            while (less > 0 && !has_layout(&base, less, ranks))
                less--;
            while (!has_layout(&base, more, ranks))
                more++;
            while (fewer > 0 && !has_layout(&base, batch, fewer))
                fewer--;
            /* A layout has at most `batch` data-parallel ranks, 8 tensor-parallel ranks and 5
             * stages. */
            while (further <= 40 * batch && !has_layout(&base, batch, further))
                further++;
            if (further > 40 * batch) further = 0;
            assert_int_equal(near.ranks[0], fewer);
            assert_int_equal(near.ranks[1], further);
            /* The nearer of the two batches must be the one that was found here; the other belongs
             * to the same layout. */
            double down = less > 0 ? (double)batch / (double)less : INFINITY,
                   up = (double)more / (double)batch;
            assert_int_equal(near.batch[up < down], up < down ? more : less);
            assert_int_equal(near.batch[1] - near.batch[0], near.dp);
            assert_int_equal(l->tensor * l->pipeline * near.dp, ranks);
            assert_false(search_legal(&base, l, ALL_RULES));
            for (int i = 0; i < 2; i++) {
                Candidate changed = base;
                changed.value[CANDIDATE_BATCH] = near.batch[i];
                if (near.batch[i] > 0) assert_true(search_legal(&changed, l, ALL_RULES));
            }
            none++;
            below += near.batch[0] > 0;
        }
    assert_true(none > 50 && below > 10 && below < none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_search_finds_the_same_best_layouts_as_trying_all_layouts),
        cmocka_unit_test(layouts_that_differ_from_the_best_in_one_choice_are_planned_early),
        cmocka_unit_test(the_search_tries_the_number_of_chunks_that_the_config_gives),
        cmocka_unit_test(if_no_layout_is_legal_the_search_finds_the_nearest_batch_and_ranks),
        cmocka_unit_test(a_search_that_ends_early_says_how_many_layouts_are_left),
    };
    return cmocka_run_group_tests_name("search", tests, NULL, NULL);
}
