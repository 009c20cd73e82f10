/* test_search_print.c -- tests what a search prints: whether there may be a better layout that it
 * has not planned, and which part of the states each layout has on the host. */
#include "parallel/plan/plan.h"
#include "parallel/plan/search.h"
#include "tests/support/files/child.h"
#include "tests/support/plan/layouts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    SearchSource source;
    Hardware hardware;
    PlanSearch found;
    const Config *config;
    bool json;
} Searched;

static void print(void *context)
{
    const Searched *s = context;
    (s->json ? plan_search_print_json : plan_search_print)(&s->found, &s->source, s->config,
                                                           &s->hardware, "machine.json");
    fflush(stdout);
}

/* Fails unless the search prints these words, wherever its lines are folded. */
static void says(Searched *s, bool json, const char *words)
{
    char text[16384], *to = text;
    s->json = json;
    assert_int_equal(child_run(print, s, text, sizeof text), 0);
    for (const char *at = text; *at; at++) {
        bool blank = *at == ' ' || *at == '\n';
        if (!blank || to == text || to[-1] != ' ') *to++ = blank ? ' ' : *at;
    }
    *to = '\0';
    if (strstr(text, words) == NULL) fail_msg("not \"%s\" but:\n%s", words, text);
}

static void search(Searched *s)
{
    char err[1024];
    if (!plan_search(&s->source, &s->hardware, &s->found, &s->config, err, sizeof err))
        fail_msg("%s", err);
}

static void end(Searched *s)
{
    config_free(s->config);
    plan_search_free(&s->found);
}

/* The grid of the config is impossible on this number of ranks, and the search ends before it has
 * planned all layouts. */
static void the_output_says_that_the_search_ended_early(void **state)
{
    (void)state;
    static const char *const sets[] = {"model.num_layers=12"};
    Searched s = {.source = {.path = "configs/gpt3_175b.json",
                             .n_sets = 1,
                             .sets = sets,
                             .world = 24,
                             .work = 100000},
                  .hardware = layout_machine("b200")};
    search(&s);
    assert_true(s.found.found > 0 && s.found.left > 0);
    says(&s, false, "search the best layouts of configs/gpt3_175b.json for 24 ranks of");
    says(&s, false, " seem slower by an estimate, but that is not proven");
    char unproven[64];
    snprintf(unproven, sizeof unproven, "\"unproven\": %lld}", (long long)s.found.left);
    says(&s, true, unproven);
    end(&s);
    s.source.path = "configs/gpt2_124m.json";
    s.source.world = 1;
    s.source.work = 0;
    search(&s);
    assert_int_equal(s.found.left, 0);
    says(&s, false, "certainly slower; so these are the best");
    end(&s);
}

static void the_output_says_which_part_of_the_states_is_offloaded(void **state)
{
    (void)state;
    static const char *const sets[] = {"train_batch_size=8",
                                       "zero_optimization.offload_optimizer.device=cpu",
                                       "zero_optimization.offload_optimizer.ratio=0.355"};
    static const struct {
        int n_sets;
        const char *states, *part, *json;
        int64_t work;
    } row[] = {
        {1,
         "states no layout that was planned fits with all states on the GPUs, so each layout has ",
         "% of the states on the host ./train plan ", "\"offload_ratio\": 0.", 1},
        {1,
         "states no layout fits with all states on the GPUs, so each layout has the least part of "
         "the optimizer's states on the host with which it fits 1. predicted",
         "tokens/s; 69 % of the states on the host ./train plan ", "\"offload_ratio\": 0.69,", 0},
        {2,
         "states each layout has the least part of the optimizer's states on the host with which "
         "it fits 1. predicted",
         "tokens/s; 69 % of the states on the host ./train plan ", "\"offload_ratio\": 0.69,", 0},
        {3, "so these are the best 1. predicted",
         "tokens/s; 36 % of the states on the host ./train plan ", "\"offload_ratio\": 0.355,", 0}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        Searched s = {.source = {.path = "configs/gpt2_124m.json",
                                 .n_sets = row[i].n_sets,
                                 .sets = sets,
                                 .world = 1,
                                 .work = row[i].work},
                      .hardware = layout_machine("rtx4090")};
        if (row[i].n_sets < 3) s.hardware.device.bytes = (int64_t)1.9e9;
        search(&s);
        says(&s, false, row[i].states);
        says(&s, false, row[i].part);
        says(&s, true, row[i].json);
        end(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_output_says_that_the_search_ended_early),
        cmocka_unit_test(the_output_says_which_part_of_the_states_is_offloaded),
    };
    return cmocka_run_group_tests_name("what a search prints", tests, NULL, NULL);
}
