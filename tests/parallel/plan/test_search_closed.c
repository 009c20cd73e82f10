/* test_search_closed.c -- tests the closed forms of layouts: those that are lower bounds are never
 * above a plan, and estimates are near it. */
#include "parallel/plan/plan.h"
#include "parallel/plan/search.h"
#include "tests/support/plan/layouts.h"
#include "tests/support/turns.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* The bound is the time of the products of the blocks, each computed in one part: once forward,
 * twice backward, and all but the last once more if they are recomputed. */
static void the_lower_bound_includes_all_products_of_the_blocks(void **state)
{
    (void)state;
    static const struct {
        const char *path, *machine;
        int64_t width; /* columns of the product before the activation, divided by the columns after
                          it */
    } cases[] = {{"configs/gpt2_124m.json", "a100", 1}, {"configs/llama_160m.json", "h100", 2}};
    for (int i = 0; i < 4; i++) {
        const Hardware h = layout_machine(cases[i / 2].machine);
        const SearchSource source = {.path = cases[i / 2].path, .world = 2};
        const Config *c = layout_config(&source, &h, NULL, NULL);
        bool again = i % 2 == 1;
        const PlanLayout l = {.tensor = 1,
                              .pipeline = 2,
                              .chunks = 1,
                              .micro = 2,
                              .recompute = again ? RECOMPUTE_FULL : RECOMPUTE_SELECTIVE};
        int64_t hidden = c->model.hidden_size, inner = c->model.intermediate_size,
                q = c->model.num_attention_heads * c->model.head_dim,
                kv = c->model.num_key_value_heads * c->model.head_dim,
                sizes[][2] = {{q + 2 * kv, hidden},
                              {hidden, q},
                              {inner * cases[i / 2].width, hidden},
                              {hidden, inner}};
        double block = 0;
        for (int p = 0; p < 4; p++)
            block +=
                (3 + (again && p < 3)) * cost_product(&h, &COST_OWN, BF16, 2 * c->data.seq_length,
                                                      sizes[p][0], sizes[p][1], 0);
        int64_t layers = c->model.num_layers / 2, micros = c->train_batch_size / 2;
        double least = (double)(layers * micros) * block, got = plan_least_seconds(c, &h, &l, 2);
        assert_true(config_dtype(c) == BF16 && c->model.num_layers % 2 == 0);
        if (fabs(got / least - 1) > 1e-12)
            fail_msg("%s: %g, not %g", cases[i / 2].path, got, least);
        config_free(c);
    }
}

/* If all states are on the host, the backward passes begin only after the states have crossed the
 * link. If only some are on the host, the bound ignores the link, because possibly no whole shard
 * is on the host. */
static void the_lower_bound_includes_the_time_of_the_host_link(void **state)
{
    (void)state;
    Hardware h = layout_machine("h100");
    const SearchSource source = {.path = "configs/gpt2_124m.json", .world = 4};
    const Config *read = layout_config(&source, &h, NULL, NULL);
    Config all = plan_with_host(read, 100), some = plan_with_host(read, 99);
    const double hidden = (double)read->model.hidden_size,
                 states = 12.0 * (double)read->model.num_layers * 12 * hidden * hidden;
    for (int zero = 0; zero <= 3; zero++) {
        const PlanLayout l = {.tensor = 1, .pipeline = 1, .chunks = 1, .micro = 2, .zero = zero};
        double without = plan_least_seconds(read, &h, &l, 4), fast, slow;
        h.host_bandwidth = 1e18;
        fast = plan_least_seconds(&all, &h, &l, 4);
        h.host_bandwidth = 1e6;
        slow = plan_least_seconds(&all, &h, &l, 4);
        assert_true(fast == without && plan_least_seconds(&some, &h, &l, 4) == without);
        double link = states / (zero > 0 ? 4 : 1) / h.host_bandwidth;
        /* Two thirds of the products are those of backward. */
        if (fabs(slow / (link + without * 2 / 3) - 1) > 1e-12)
            fail_msg("stage %d: %g, not %g", zero, slow, link + without * 2 / 3);
    }
    config_free(read);
}

/* A config, of which every `every`-th layout is planned. */
typedef struct {
    const char *path, *machine;
    int64_t world;
    int every, n_sets;
    const char *set[2];
} Preset;

static const Preset preset[] = {
    {"configs/gpt2_124m.json", "a100", 4, 67, 0, {NULL}},
    {"configs/llama_1b.json", "h100", 16, 211, 0, {NULL}},
    {"configs/llama_8b.json", "h100", 32, 311, 0, {NULL}},
    {"configs/gpt3_6_7b.json", "b200", 16, 311, 0, {NULL}},
    {"configs/gpt2_350m.json", "cpu", 4, 173, 0, {NULL}},
    {"configs/llama_1b.json", "h100", 16, 397, 1, {"parallel.shard=2", NULL}},
    /* states on the host, of which whole shards stay on the device; and in bf16 */
    {"configs/llama_1b.json",
     "h100",
     16,
     397,
     2,
     {"zero_optimization.offload_optimizer.device=cpu",
      "zero_optimization.offload_optimizer.ratio=0.7"}},
    {"configs/gpt2_350m.json",
     "h100",
     8,
     397,
     2,
     {"bf16.bf16_master_weights_and_grads=true", "bf16.bf16_optimizer_states=true"}},
    {"configs/gpt2_350m.json",
     "cpu",
     4,
     397,
     1,
     {"zero_optimization.offload_optimizer.device=cpu", NULL}},
    /* products of f32 in TF32 */
    {"configs/gpt2_350m.json", "a100", 8, 173, 2, {"bf16.enabled=false", "cuda.tf32=true"}}};

/* How far estimates are from plans, as sums of absolute logarithms. */
typedef struct {
    int tried;
    double time, bytes;
} Errors;

/* Plans every `every`-th layout of the config, beginning with number `first`, and adds up the
 * errors of its estimates. */
static Errors estimate_errors(const SearchSource *source, const char *machine, int64_t first,
                              int64_t every)
{
    const Hardware hardware = layout_machine(machine),
                   rank = hardware_of_rank(&hardware, source->world);
    const Config *given = layout_config(source, &hardware, NULL, NULL);
    Candidate base = candidate_of_config(given, given->world);
    Errors errors = {0};
    PlanLayout *all;
    int64_t n = search_space(&base, hardware.devices_per_node, &all);
    char err[1024];
    given = plan_settle(given, &hardware, err, sizeof err);
    assert_non_null(given);
    for (int64_t l = first; l < n; l += every, errors.tried++) {
        const LayoutPlan plan = layout_plan(source, given, &hardware, &all[l]);
        double guess = plan_estimate_seconds(given, &rank, &all[l], given->world);
        errors.bytes += fabs(log(plan_estimate_bytes(given, &all[l], given->world) / plan.bytes));
        errors.time += fabs(log(guess / plan.seconds));
    }
    free(all);
    config_free(given);
    return errors;
}

/* Plans layouts of larger models. Slow builds (TEST_SAMPLE) plan a fifth of the layouts, by
 * turns. */
static void lower_bounds_are_below_plans_and_estimates_are_close_to_them(void **state)
{
    (void)state;
    const int64_t turns = turns_every(5), first = turns_first(turns);
    Errors sum = {0};
    for (size_t i = 0; i < sizeof preset / sizeof *preset; i++) {
        const Preset *p = &preset[i];
        const SearchSource source = {
            .path = p->path, .n_sets = p->n_sets, .sets = p->set, .world = p->world};
        const Errors e = estimate_errors(&source, p->machine, first * p->every, turns * p->every);
        sum.tried += e.tried;
        sum.time += e.time;
        sum.bytes += e.bytes;
    }
    print_message(
        "  %d layouts planned; estimates of the time err by %.1f %%, of the bytes by %.1f %%\n",
        sum.tried, 100 * sum.time / sum.tried, 100 * sum.bytes / sum.tried);
    /* The estimated bytes are only those of the blocks, which matter most for models that hardly
     * fit. With only a part of the layouts, the mean error may be larger, so it is not checked. */
    assert_true(sum.tried > 50 / turns &&
                (turns > 1 || (sum.time / sum.tried < 0.12 && sum.bytes / sum.tried < 0.7)));
}

/* With a slow link to the host, the link determines the time of a step. If some states are on the
 * host, the states of the units that are used first are on the device. More micro-batches hide no
 * more of the transfer. Slow builds (TEST_SAMPLE) plan a third of the layouts, by turns. */
static void estimates_include_the_time_of_the_host_link(void **state)
{
    (void)state;
    static const struct {
        const char *path, *machine;
        int64_t world, every;
        const char *set[3];
    } row[] = {{"configs/gpt2_1558m.json", "rtx4090", 1, 2, {"train_batch_size=4"}},
               {"configs/gpt2_1558m.json",
                "rtx4090",
                1,
                7,
                {"train_batch_size=4", "zero_optimization.offload_optimizer.ratio=0.5"}},
               {"configs/gpt2_774m.json", "a100", 8, 211, {"train_batch_size=64"}},
               {"configs/llama_8b.json", "h100", 8, 173, {"train_batch_size=16"}}};
    const int64_t turns = turns_every(3), first = turns_first(turns);
    int tried = 0;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const char *set[4] = {"zero_optimization.offload_optimizer.device=cpu"};
        SearchSource source = {
            .path = row[i].path, .n_sets = 1, .sets = set, .world = row[i].world};
        for (int s = 0; s < 3 && row[i].set[s] != NULL; s++)
            set[source.n_sets++] = row[i].set[s];
        const Errors e =
            estimate_errors(&source, row[i].machine, first * row[i].every, turns * row[i].every);
        tried += e.tried;
        if (e.tried == 0 && turns > 1)
            continue; /* this row has fewer layouts than there are turns, so none was planned */
        print_message("  %s on %d %s: %d layouts, estimates of the time err by %.1f %%\n",
                      row[i].path, (int)row[i].world, row[i].machine, e.tried,
                      100 * e.time / e.tried);
        if (!(e.time / e.tried < 0.12)) fail_msg("too far off");
    }
    assert_true(tried > 20 / turns);
}

/* Ranks that keep all weights and gradients sum over all data-parallel ranks, whatever the config's
 * shard groups are. */
static void shard_groups_change_the_estimates_only_from_zero_stage_1_on(void **state)
{
    (void)state;
    const Hardware h = layout_machine("h100"), rank = hardware_of_rank(&h, 4);
    const char *stage = "zero_optimization.stage=3", *shards[] = {stage, "parallel.shard=2"};
    const SearchSource plain = {
        .path = "configs/gpt2_124m.json", .n_sets = 1, .sets = &stage, .world = 4};
    SearchSource grouped = plain;
    grouped.n_sets = 2;
    grouped.sets = shards;
    const Config *without = layout_config(&plain, &h, NULL, NULL),
                 *with = layout_config(&grouped, &h, NULL, NULL);
    for (int zero = 0; zero <= 3; zero++) {
        const PlanLayout l = {.tensor = 1, .pipeline = 1, .chunks = 1, .micro = 2, .zero = zero};
        double a = plan_estimate_seconds(without, &rank, &l, 4),
               b = plan_estimate_seconds(with, &rank, &l, 4);
        if ((a == b) != (zero == 0)) fail_msg("stage %d: %g s, in shard groups %g s", zero, a, b);
    }
    config_free(without);
    config_free(with);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_lower_bound_includes_all_products_of_the_blocks),
        cmocka_unit_test(the_lower_bound_includes_the_time_of_the_host_link),
        cmocka_unit_test(lower_bounds_are_below_plans_and_estimates_are_close_to_them),
        cmocka_unit_test(estimates_include_the_time_of_the_host_link),
        cmocka_unit_test(shard_groups_change_the_estimates_only_from_zero_stage_1_on),
    };
    return cmocka_run_group_tests_name("closed forms of layouts", tests, NULL, NULL);
}
