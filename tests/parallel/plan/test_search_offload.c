/* test_search_offload.c -- tests where a search puts the optimizer states: where the config says
 * or, if the config leaves it open, on the GPUs if some layout fits. Otherwise each layout gets the
 * smallest part of the states on the host with which it fits. */
#include "parallel/plan/plan.h"
#include "parallel/plan/search.h"
#include "tests/support/plan/layouts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DEVICE "zero_optimization.offload_optimizer.device"
#define RATIO  "zero_optimization.offload_optimizer.ratio"

/* Returns a GPU with this many bytes. The states of GPT-2 124M, which is searched, take 1.5 GB. */
static Hardware card_of(double bytes)
{
    Hardware h = layout_machine("rtx4090");
    h.device.bytes = (int64_t)bytes;
    return h;
}

enum { SETS = 3 };

typedef struct {
    SearchSource source;
    const char *set[SETS + 1];
    PlanSearch found;
    const Config *config;
} Searched;

/* Searches with two further --set arguments, each of which may be NULL. */
static void search(Searched *s, const Hardware *h, const char *one, const char *two)
{
    char err[1024];
    *s = (Searched){.source = {.path = "configs/gpt2_124m.json", .n_sets = 1, .world = 1},
                    .set = {"train_batch_size=8"}};
    if (one) s->set[s->source.n_sets++] = one;
    if (two) s->set[s->source.n_sets++] = two;
    s->source.sets = s->set;
    if (!plan_search(&s->source, h, &s->found, &s->config, err, sizeof err)) fail_msg("%s", err);
}

static void end(Searched *s)
{
    config_free(s->config);
    plan_search_free(&s->found);
}

/* Returns whether `set` is among the --set arguments of the search's layout number `best`. */
static bool sets(const Searched *s, int best, const char *set)
{
    StringList list = {0};
    bool has = false;
    plan_search_sets(&s->found, s->config, &s->found.best[best], &list);
    for (int i = 0; i < list.count; i++)
        has = has || strcmp(list.item[i], set) == 0;
    string_list_free(&list);
    return has;
}

/* Returns the settled config that results from the --set arguments of a layout; the caller frees
 * it. */
static const Config *pasted(const Searched *s, const Hardware *h, const PlanLayout *layout)
{
    StringList list = {0};
    char err[1024];
    plan_search_sets(&s->found, s->config, layout, &list);
    const SearchSource source = {.path = s->source.path,
                                 .n_sets = list.count,
                                 .sets = (const char *const *)list.item,
                                 .world = s->source.world};
    const Config *c = plan_settle(layout_config(&source, h, NULL, NULL), h, err, sizeof err);
    if (c == NULL) fail_msg("%s", err);
    string_list_free(&list);
    return c;
}

/* Returns the smallest number of hundredths of the states on the host with which the layout fits;
 * 100 if it fits with no smaller number. */
static int least_host(const Searched *s, const Hardware *h, const PlanLayout *layout)
{
    const Config *c = pasted(s, h, layout);
    int host = 0;
    for (; host < 100; host++) {
        const Config with = plan_with_host(c, host);
        if (plan_memory(&with, h).fits) break;
    }
    config_free(c);
    return host;
}

/* Plans all layouts, each with the smallest part of the states on the host with which it fits.
 * Fails unless the search has found the ten best of them. */
static void check_best(const Searched *s, const Hardware *h)
{
    Candidate base = candidate_of_config(s->config, s->source.world);
    PlanLayout *all;
    int64_t n = search_space(&base, h->devices_per_node, &all), nodes = 0;
    int found = 0;
    double best[SEARCH_BEST + 1] = {0};
    for (int64_t i = 0; i < n; i++) {
        int host = all[i].host = least_host(s, h, &all[i]);
        const Config *c = pasted(s, h, &all[i]);
        double seconds = plan_seconds_if_fits(c, h, &nodes);
        config_free(c);
        if (isinf(seconds)) continue;
        int at = found < SEARCH_BEST ? found++ : SEARCH_BEST;
        for (; at > 0 && best[at - 1] > seconds; at--)
            best[at] = best[at - 1];
        best[at] = seconds;
        for (int b = 0; b < s->found.found; b++) {
            const PlanLayout *l = &s->found.best[b];
            bool same = l->micro == all[i].micro && l->recompute == all[i].recompute;
            if (same && l->host != host) fail_msg("%d hundredths instead of %d", l->host, host);
        }
    }
    print_message("  %d layouts, %d fit, %d found; the best with %d hundredths takes %g s\n",
                  (int)n, found, s->found.found, s->found.best[0].host, best[0]);
    assert_true(found > 1 && s->found.found == found);
    for (int i = 0; i < found; i++)
        if (s->found.seconds[i] != best[i])
            fail_msg("best %d: %.17g, not %.17g", i, s->found.seconds[i], best[i]);
    free(all);
}

static void states_are_offloaded_if_no_layout_fits_otherwise(void **state)
{
    (void)state;
    const Hardware h = card_of(1.9e9);
    Searched s, none;
    search(&s, &h, NULL, NULL);
    search(&none, &h, DEVICE "=none", NULL);
    assert_int_equal(none.found.found, 0);
    assert_true(s.found.on_host && s.found.misses && !none.found.on_host);
    check_best(&s, &h);
    char ratio[80];
    snprintf(ratio, sizeof ratio, RATIO "=%g", s.found.best[0].host / 100.0);
    assert_true(s.found.best[0].host > 0 && sets(&s, 0, DEVICE "=cpu") && sets(&s, 0, ratio));
    end(&s);
    end(&none);
}

static void states_stay_on_a_gpu_that_has_room(void **state)
{
    (void)state;
    const Hardware h = card_of(24e9);
    Searched s;
    search(&s, &h, NULL, NULL);
    assert_true(s.found.found == SEARCH_BEST && !s.found.on_host && !s.found.misses);
    assert_int_equal(s.found.best[0].host, HOST_GIVEN);
    assert_false(sets(&s, 0, DEVICE "=cpu"));
    end(&s);
}

/* Some layouts fit with all states on the GPU; layouts with larger micro-batches fit only with a
 * part of the states on the host. */
static void each_layout_gets_its_own_ratio_if_the_config_gives_none(void **state)
{
    (void)state;
    const Hardware h = card_of(3e9), large = card_of(24e9);
    Searched s, all;
    search(&s, &h, DEVICE "=cpu", NULL);
    search(&all, &large, DEVICE "=cpu", NULL);
    assert_true(s.found.on_host && !s.found.misses);
    check_best(&s, &h);
    assert_int_equal(all.found.best[0].host, 0);
    assert_true(sets(&all, 0, DEVICE "=cpu") && sets(&all, 0, RATIO "=0"));
    end(&s);
    end(&all);
}

static void a_ratio_in_the_config_is_kept(void **state)
{
    (void)state;
    const Hardware h = card_of(24e9);
    Searched s;
    search(&s, &h, DEVICE "=cpu", RATIO "=0.35");
    assert_true(s.found.found == SEARCH_BEST && !s.found.on_host);
    assert_int_equal(s.found.best[0].host, HOST_GIVEN);
    assert_true(sets(&s, 0, DEVICE "=cpu") && sets(&s, 0, RATIO "=0.35"));
    const Config *c = pasted(&s, &h, &s.found.best[0]);
    int64_t nodes = 0;
    assert_true(plan_seconds_if_fits(c, &h, &nodes) == s.found.seconds[0]);
    config_free(c);
    end(&s);
}

/* In the first cases the device has too little memory even without states, then the host has too
 * little memory for the states, and in the last case the config keeps the states on the device. */
static void a_search_that_finds_nothing_says_whether_it_tried_the_host(void **state)
{
    (void)state;
    static const struct {
        double device, host;
        const char *set, *words;
    } row[] = {
        {0.9e9, 60e9, NULL, "memory, with states of the optimizer on the host neither; the smal"},
        {0.9e9, 60e9, NULL, "that a rank may use"},
        {1.9e9, 0.4e9, NULL, "memory, with states of the optimizer on the host neither; the smal"},
        {1.9e9, 0.4e9, NULL, "that a node may use"},
        {1.9e9, 60e9, DEVICE "=none", "no layout fits into memory; the smallest by an estimate"}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        Hardware h = card_of(row[i].device);
        h.host_bytes = (int64_t)row[i].host;
        Searched s;
        search(&s, &h, row[i].set, NULL);
        assert_int_equal(s.found.found, 0);
        assert_true(s.found.nearest.needed > s.found.nearest.room);
        char *text = plan_search_nothing(&s.found, s.config);
        if (strstr(text, row[i].words) == NULL) fail_msg("%s instead of: %s", text, row[i].words);
        free(text);
        end(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_are_offloaded_if_no_layout_fits_otherwise),
        cmocka_unit_test(states_stay_on_a_gpu_that_has_room),
        cmocka_unit_test(each_layout_gets_its_own_ratio_if_the_config_gives_none),
        cmocka_unit_test(a_ratio_in_the_config_is_kept),
        cmocka_unit_test(a_search_that_finds_nothing_says_whether_it_tried_the_host),
    };
    return cmocka_run_group_tests_name("searches with states on the host", tests, NULL, NULL);
}
