/* test_search_plans.c -- tests the search for layouts with plans: it finds the best of all plans,
 * and the --set arguments that it prints give a valid config. */
#include "parallel/plan/search.h"

#include "data/tokenizer/tokenizer.h"
#include "parallel/plan/plan.h"
#include "tests/support/plan/layouts.h"
#include "tests/support/turns.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char file[] = "build/test_search_plans.json";

static void write_config(void)
{
    FILE *to = fopen(file, "w");
    assert_non_null(to);
    fputs("{\"model\": {\"num_layers\": 4, \"hidden_size\": 256, \"num_attention_heads\": 4,\n"
          " \"activation\": \"swiglu\"}, \"data\": {\"text\": \"t\", \"seq_length\": 128},\n"
          " \"train_steps\": 100, \"train_batch_size\": 24, \"bf16\": {\"enabled\": true},\n"
          " \"gradient_accumulation_steps\": 1}\n",
          to);
    fclose(to);
}

/* Plans every layout of a space, and compares the best with those of a search (source->work limits
 * its work). Also checks the closed forms of each layout. Slow builds (TEST_SAMPLE) plan a seventh
 * of the layouts, by turns; then each planned layout that is faster than the slowest of the
 * search's ten best must be one of these ten. */
static PlanSearch check_search(const SearchSource *source, const char *machine_name)
{
    const Hardware hardware = layout_machine(machine_name);
    char err[1024];
    PlanSearch s;
    const Config *settled;
    if (!plan_search(source, &hardware, &s, &settled, err, sizeof err)) fail_msg("%s", err);
    config_free(settled);
    const Config *given = layout_config(source, &hardware, NULL, NULL);
    Candidate base = candidate_of_config(given, source->world);
    PlanLayout *all;
    int64_t n = search_space(&base, hardware.devices_per_node, &all), found = 0,
            every = turns_every(7);
    double best[SEARCH_BEST + 1];
    for (int64_t i = turns_first(every); i < n; i += every) {
        const LayoutPlan plan = layout_plan(source, given, &hardware, &all[i]);
        if (!plan.fits) continue;
        int64_t at = found < SEARCH_BEST ? found++ : SEARCH_BEST;
        for (; at > 0 && best[at - 1] > plan.seconds; at--)
            best[at] = best[at - 1];
        best[at] = plan.seconds;
    }
    print_message("  %d layouts, %d planned, %d left; best %g s\n", (int)n, (int)s.planned,
                  (int)s.left, s.seconds[0]);
    assert_true(s.found == SEARCH_BEST && s.space == n && (found == SEARCH_BEST || every > 1));
    for (int i = 0, at = 0; i < found; i++, at++) {
        while (every > 1 && at < SEARCH_BEST && s.seconds[at] < best[i])
            at++;
        if (at == SEARCH_BEST) break;
        if (s.seconds[at] != best[i])
            fail_msg("best %d: %.17g, not %.17g", at, s.seconds[at], best[i]);
    }
    free(all);
    config_free(given);
    plan_search_free(&s);
    return s;
}

static void a_search_of_a_small_space_finds_its_ten_best_layouts(void **state)
{
    (void)state;
    write_config();
    check_search(&(SearchSource){.path = file, .world = 4}, "h100");
    remove(file);
}

/* The shape of a large model with few layers: the search plans a part of the layouts, and it finds
 * the ten best of all. Slow builds (TEST_SAMPLE) search one of the spaces, by turns. */
static void a_search_finds_the_ten_best_layouts_without_planning_all_layouts(void **state)
{
    (void)state;
    static const struct {
        const char *sets[6];
        int64_t world, work;
    } cases[] = {{{"model.num_layers=4", "train_batch_size=8", "parallel.tensor=1",
                   "parallel.pipeline=1", "parallel.pipeline_chunks=1",
                   "zero_optimization.stage3_max_live_parameters=100000000000"},
                  8,
                  300000},
                 {{"model.num_layers=4", "train_batch_size=16", "parallel.tensor=1",
                   "parallel.pipeline=1", "parallel.pipeline_chunks=1",
                   "zero_optimization.stage3_max_live_parameters=100000000000"},
                  16,
                  600000}};
    const size_t every = (size_t)turns_every(2);
    for (size_t i = (size_t)turns_first((int64_t)every); i < sizeof cases / sizeof *cases;
         i += every) {
        PlanSearch s = check_search(&(SearchSource){.path = "configs/gpt3_175b.json",
                                                    .n_sets = 6,
                                                    .sets = cases[i].sets,
                                                    .world = cases[i].world,
                                                    .work = cases[i].work},
                                    "a100");
        assert_true(s.space > 400 && s.planned < s.space / 2 && s.left > 0);
    }
}

/* The grid of one config does not divide the ranks; that of another has more stages than the model
 * has blocks. Slow builds (TEST_SAMPLE) search one of these two, by turns, and a config without a
 * grid. */
static void a_config_whose_grid_is_impossible_is_searched(void **state)
{
    (void)state;
    static const char *const sets[][3] = {{"parallel.tensor=4", "parallel.data=3", "seed=5"},
                                          {"parallel.pipeline=16", "parallel.data=1", "seed=5"}};
    const Hardware hardware = layout_machine("h100");
    double best = 0;
    write_config();
    const int without = turns_every(2) > 1 ? (int)turns_first(2) : 3;
    for (int i = 0; i < 3; i++) {
        if (i == without) continue;
        SearchSource source = {.path = file, .world = 6, .n_sets = i < 2 ? 3 : 0};
        char err[1024];
        PlanSearch s;
        const Config *settled;
        StringList own = {0}, again = {0};
        bool has_seed = false;
        source.sets = i < 2 ? sets[i] : NULL;
        if (!plan_search(&source, &hardware, &s, &settled, err, sizeof err)) fail_msg("%s", err);
        plan_search_sets(&s, settled, &s.best[0], &own);
        for (int set = 0; set < own.count; set++)
            has_seed = has_seed || strcmp(own.item[set], "seed=5") == 0;
        assert_true(has_seed == (i < 2));
        if (best == 0) best = s.seconds[0];
        assert_true(s.seconds[0] == best);
        /* The --set arguments of the best layout give a config whose grid is possible. */
        ConfigReport report;
        ConfigContext context = plan_context(&hardware, 6);
        const Config *c =
            config_load(file, own.count, (const char *const *)own.item, &context, &report);
        if (c == NULL) fail_msg("%s", report.error[0]);
        config_report_free(&report);
        assert_int_equal(c->train_batch_size, 24);
        plan_layout_sets(c, &s.best[0], &again);
        assert_int_equal(again.count, 0);
        config_free(c);
        string_list_free(&own);
        string_list_free(&again);
        config_free(settled);
        plan_search_free(&s);
    }
    remove(file);
}

/* Returns the number of legal layouts of a search that plans few of them. */
static int64_t searched_space(int n, const char *const *sets)
{
    const Hardware hardware = layout_machine("h100");
    const SearchSource source = {.path = file, .n_sets = n, .sets = sets, .world = 4, .work = 1};
    char err[1024];
    PlanSearch s;
    const Config *settled;
    if (!plan_search(&source, &hardware, &s, &settled, err, sizeof err)) fail_msg("%s", err);
    assert_true(s.found > 0);
    config_free(settled);
    plan_search_free(&s);
    return s.space;
}

/* DeepSpeed's name of parallel.shard is left out where it does not fit, so it rules out no layout;
 * parallel.shard itself does. */
static void deepspeed_names_of_shard_groups_rule_out_no_layout(void **state)
{
    (void)state;
    static const char *const sets[][2] = {
        {"zero_optimization.stage=3", NULL},
        {"zero_optimization.stage=3", "zero_optimization.mics_shard_size=2"},
        {"zero_optimization.stage=3", "zero_optimization.zero_hpz_partition_size=4"},
        {"zero_optimization.stage=3", "parallel.shard=2"}};
    int64_t space[4];
    write_config();
    for (int i = 0; i < 4; i++)
        space[i] = searched_space(i > 0 ? 2 : 1, sets[i]);
    remove(file);
    if (space[1] != space[0] || space[2] != space[0])
        fail_msg("%d and %d of %d layouts", (int)space[1], (int)space[2], (int)space[0]);
    assert_true(space[3] < space[0]);
}

/* However early a search ends, it does not say that nothing fits if the smallest layout fits. */
static void a_search_finds_nothing_only_if_the_smallest_layout_does_not_fit(void **state)
{
    (void)state;
    const Hardware hardware = layout_machine("a100");
    int none = 0, only = 0;
    for (int margin = 30; margin < 90; margin += 4) {
        char set[64], err[1024];
        const char *sets[] = {set};
        PlanSearch s;
        const Config *settled;
        snprintf(set, sizeof set, "memory_margin=0.%02d", margin);
        const SearchSource source = {
            .path = "configs/llama_8b.json", .n_sets = 1, .sets = sets, .world = 4, .work = 1};
        if (!plan_search(&source, &hardware, &s, &settled, err, sizeof err)) fail_msg("%s", err);
        const SearchNearest *near = &s.nearest;
        if (s.found == 0) {
            char *nothing = plan_search_nothing(&s, settled);
            assert_true(near->needed > near->room && near->layout.tensor > 0);
            assert_non_null(strstr(nothing, "no layout"));
            assert_true((strstr(nothing, "that was planned") != NULL) == (s.left > 0));
            free(nothing);
            none++;
        } else {
            assert_true(isfinite(s.seconds[0]));
            only += s.planned == 2;
        }
        config_free(settled);
        plan_search_free(&s);
    }
    print_message("  nothing found %d times, the smallest alone %d times\n", none, only);
    assert_true(none > 0 && only > 0);
}

/* Returns the bytes that this process has read from files, -1 if the system does not count them. */
static long long bytes_read(void)
{
    long long bytes = -1;
    FILE *io = fopen("/proc/self/io", "r");
    if (io == NULL) return -1;
    if (fscanf(io, "rchar: %lld", &bytes) != 1) bytes = -1;
    fclose(io);
    return bytes;
}

static void a_search_reads_the_tokenizer_once(void **state)
{
    (void)state;
    enum { PADDING = 1 << 20 };
    static const char path[] = "build/test_search_tokenizer.json";
    static const char *const sets[] = {"data.tokenizer=build/test_search_tokenizer.json"};
    const Hardware hardware = layout_machine("h100");
    const Merge merge = {'a', 'b'};
    const SearchSource source = {
        .path = file, .n_sets = 1, .sets = sets, .world = 4, .work = 100000};
    char err[1024];
    Tokenizer *tokenizer;
    PlanSearch s;
    const Config *settled;
    if (bytes_read() < 0) {
        print_message("skipped: the system does not count what is read\n");
        skip();
    }
    write_config();
    assert_true(tokenizer_from_merges(&merge, 1, &tokenizer, err, sizeof err));
    char *json = tokenizer_to_json(tokenizer);
    FILE *to = fopen(path, "w");
    assert_non_null(to);
    fprintf(to, "%s%*s\n", json, PADDING, "");
    fclose(to);
    long long before = bytes_read();
    if (!plan_search(&source, &hardware, &s, &settled, err, sizeof err)) fail_msg("%s", err);
    long long read = bytes_read() - before;
    remove(path);
    remove(file);
    assert_int_equal(settled->model.vocab_size, tokenizer_vocab_size(tokenizer));
    assert_true(s.planned > 10);
    if (read < PADDING || read >= 2 * PADDING) fail_msg("%lld bytes were read", read);
    free(json);
    tokenizer_free(tokenizer);
    config_free(settled);
    plan_search_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_search_of_a_small_space_finds_its_ten_best_layouts),
        cmocka_unit_test(a_search_finds_the_ten_best_layouts_without_planning_all_layouts),
        cmocka_unit_test(deepspeed_names_of_shard_groups_rule_out_no_layout),
        cmocka_unit_test(a_search_finds_nothing_only_if_the_smallest_layout_does_not_fit),
        cmocka_unit_test(a_search_reads_the_tokenizer_once),
        cmocka_unit_test(a_config_whose_grid_is_impossible_is_searched),
    };
    return cmocka_run_group_tests_name("search_plans", tests, NULL, NULL);
}
