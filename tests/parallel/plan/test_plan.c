/* test_plan.c -- tests that the parts of a plan fit together: parts of a step add up to it, a long
 * step that is only recorded in part equals one that is recorded whole, and whether the plan fits
 * into memory follows from the needs of its stages. */
#include "parallel/plan/plan.h"

#include "model/core/check.h"
#include "tests/support/files/config_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const grids[][6] = {
    {"parallel.pipeline=1", "zero_optimization.stage=0"},
    {"parallel.pipeline=1", "zero_optimization.stage=3", "zero_optimization.overlap_comm=true"},
    {"parallel.pipeline=2", "parallel.tensor=2", "parallel.sequence_parallel=true"},
    {"parallel.pipeline=4", "zero_optimization.stage=1"},
    {"parallel.pipeline=4", "parallel.schedule=gpipe", "zero_optimization.stage=2"},
    {"parallel.pipeline=3", "parallel.pipeline_chunks=2", "zero_optimization.stage=3"},
    {"parallel.pipeline=4", "parallel.pipeline_chunks=3", "model.tie_word_embeddings=true"},
};
enum { GRIDS = sizeof grids / sizeof *grids };

static Hardware machine(const char *name)
{
    Hardware hardware;
    ExitCode code;
    char err[512];
    if (!hardware_load(&hardware, name, &code, err, sizeof err)) fail_msg("%s", err);
    return hardware;
}

/* Returns a small model's config with these --set arguments, for 24 ranks and `micros`
 * micro-batches. */
static const Config *read_config(const char *const *set, int micros, const Hardware *hardware)
{
    static const char text[] =
        "{\"model\": {\"num_layers\": 12, \"hidden_size\": 256, \"num_attention_heads\": 4},"
        " \"data\": {\"text\": \"t\", \"seq_length\": 128}, \"train_steps\": 100,"
        " \"bf16\": {\"enabled\": \"auto\"}, \"train_micro_batch_size_per_gpu\": 2}";
    const char *sets[8];
    char number[64], err[512];
    int n = 0;
    snprintf(number, sizeof number, "gradient_accumulation_steps=%d", micros);
    sets[n++] = number;
    for (int i = 0; i < 6 && set[i]; i++)
        sets[n++] = set[i];
    ConfigReport report;
    ConfigContext context = plan_context(hardware, 24);
    const Config *config = config_parse(&context, "c.json", text, strlen(text), n, sets, &report);
    if (config == NULL) fail_msg("%s", report.error[0]);
    config_report_free(&report);
    config = plan_settle(config, hardware, err, sizeof err);
    if (config == NULL) fail_msg("%s", err);
    return config;
}

static double sum_of_parts(const StageTime *t)
{
    return t->products + t->attention + t->memory_bound + t->optimizer + t->copies + t->exposed_dp +
           t->exposed_tp + t->exposed_pp + t->exposed_host + t->bubble;
}

/* A step of 2 micro-batches is recorded whole, and one of 64 in part. */
static void test_the_parts_of_a_steps_time_add_up_to_its_time(void **state)
{
    static const char *const names[] = {"h100", "cpu"};
    (void)state;
    for (int i = 0; i < GRIDS * 2 * 2; i++) {
        const Hardware hardware = machine(names[i % 2]);
        const Config *config = read_config(grids[i / 4], i / 2 % 2 ? 64 : 2, &hardware);
        Plan plan;
        char err[256];
        assert_true(plan_make(&plan, config, &hardware, err, sizeof err));
        assert_int_equal(plan.fewer != NULL, i / 2 % 2);
        assert_true(plan.step.seconds > 0 && plan.step.products > 0 && plan.step.optimizer > 0);
        if (sum_of_parts(&plan.step) != plan.step.seconds)
            fail_msg("grid %d: %.17g, not %.17g", i / 4, sum_of_parts(&plan.step),
                     plan.step.seconds);
        assert_true(plan.time.seconds == plan.step.seconds);
        assert_true(plan_seconds(&plan, &COST_OWN) == plan.step.seconds);
        plan_vary(&plan);
        assert_true(plan.range.fast < plan.step.seconds && plan.step.seconds < plan.range.slow);
        assert_true(plan.range.half_network >= plan.step.seconds);
        assert_true(plan.mfu6 > 0 && plan.mfu6 < 1);
        plan_free(&plan);
        config_free(config);
    }
}

/* ---- long steps ------------------------------------------------------------------------------ */

static double cost(void *context, int stage, const GraphNode *node)
{
    const Plan *whole = context;
    Hardware rank = hardware_of_rank(&whole->hardware, whole->ranks);
    return cost_of_node(&rank, &COST_OWN, &whole->stage[stage].two, node);
}

/* Returns the time of a step that was recorded whole: its graphs contain all micro-batches. */
static StepTime whole_step(Plan *whole)
{
    Graph one[4], two[4];
    for (int s = 0; s < whole->grid.pp; s++) {
        one[s] = whole->stage[s].step;
        two[s] = whole->stage[s].two;
    }
    StepTime first = replay_step(one, whole->grid.pp, cost, whole),
             both = replay_step(two, whole->grid.pp, cost, whole);
    StepTime step = step_time_between(&first, &both);
    step_time_free(&first);
    step_time_free(&both);
    return step;
}

static void assert_same_parts(const StageTime *a, const StageTime *b)
{
    assert_true(a->products == b->products && a->attention == b->attention &&
                a->memory_bound == b->memory_bound && a->optimizer == b->optimizer &&
                a->copies == b->copies);
    assert_true(a->exposed_dp == b->exposed_dp && a->exposed_tp == b->exposed_tp &&
                a->exposed_pp == b->exposed_pp && a->bubble == b->bubble);
}

static void test_a_long_step_recorded_in_part_is_planned_like_one_recorded_whole(void **state)
{
    const Hardware hardware = machine("a100");
    const int micros[] = {48, 61, 63};
    (void)state;
    for (int i = 0; i < GRIDS * 3; i++) {
        const Config *config = read_config(grids[i / 3], micros[i % 3], &hardware);
        Plan plan, whole = {.hardware = hardware};
        char err[256];
        int stages;
        assert_true(plan_make(&plan, config, &hardware, err, sizeof err));
        assert_true(plan.fewer != NULL && plan.periods > 0);
        assert_true(plan_stages(config, &hardware, &whole.stage, &stages, err, sizeof err));
        whole.grid = plan.grid;
        whole.ranks = plan.ranks;
        for (int s = 0; s < stages; s++) {
            assert_memory_equal(plan.stage[s].wire, whole.stage[s].wire, sizeof plan.stage[s].wire);
            assert_memory_equal(&plan.stage[s].memory, &whole.stage[s].memory,
                                sizeof plan.stage[s].memory);
            assert_int_equal(plan.stage[s].checkpoint_bytes, whole.stage[s].checkpoint_bytes);
        }
        StepTime step = whole_step(&whole);
        if (plan.step.seconds != step.seconds)
            fail_msg("grid %d, %d micro-batches: %.9g s, not %.9g s", i / 3, micros[i % 3],
                     plan.step.seconds, step.seconds);
        /* Only the stage that ends last is compared. In the other stages, idle time may be counted
         * in other parts. */
        assert_int_equal(plan.time.last, step.last);
        assert_same_parts(&plan.step, &step.stage[step.last]);
        step_time_free(&step);
        plan_stages_free(whole.stage, stages);
        plan_free(&plan);
        config_free(config);
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void test_a_plan_fits_if_and_only_if_its_largest_stage_fits(void **state)
{
    Hardware hardware = machine("h100");
    (void)state;
    for (int i = 0; i < GRIDS; i++) {
        const Config *config = read_config(grids[i], 12, &hardware);
        Plan plan;
        char err[256];
        assert_true(plan_make(&plan, config, &hardware, err, sizeof err));
        int64_t most = 0, all = hardware.device.bytes;
        for (int s = 0; s < plan.grid.pp; s++)
            if ((int64_t)plan.stage[s].memory.total > most)
                most = (int64_t)plan.stage[s].memory.total;
        assert_true(plan.fits);
        assert_int_equal(plan.device.needed, most);
        assert_int_equal(plan.stage[plan.device.stage].memory.total, most);
        assert_int_equal(plan.device.margin, (int64_t)(0.03 * (double)all));
        assert_int_equal(plan.device.room, all - plan.device.margin - hardware.workspace_bytes);
        plan_free(&plan);
        /* First a device with exactly the memory that is needed, then one with a byte less. */
        for (int less = 0; less < 2; less++) {
            Hardware small = hardware;
            Config without = *config;
            without.memory_margin = 0;
            small.device.bytes = most + hardware.workspace_bytes - less;
            assert_true(plan_make(&plan, &without, &small, err, sizeof err));
            assert_int_equal(plan.fits, less == 0);
            plan_free(&plan);
        }
        config_free(config);
    }
}

/* On CPUs the ranks of a node share its memory. The 24 ranks are on nodes of 5, so the last node
 * has 4. */
static void test_ranks_on_cpus_share_the_memory_of_their_node(void **state)
{
    Hardware hardware = machine("cpu");
    (void)state;
    hardware.devices_per_node = 5;
    const Config *config = read_config(grids[3], 12, &hardware);
    Plan plan;
    char err[256];
    int64_t most = 0;
    assert_true(plan_make(&plan, config, &hardware, err, sizeof err));
    assert_int_equal(plan.nodes, 5);
    for (int node = 0; node < 5; node++) {
        int64_t sum = 0;
        for (int r = 5 * node; r < 5 * node + 5 && r < 24; r++)
            sum += (int64_t)plan.stage[r / 6].memory.total;
        if (sum > most) most = sum;
    }
    assert_int_equal(plan.device.needed, most);
    assert_int_equal(plan.host.needed, 0);
    assert_true(plan.stage[0].memory.on_host);
    plan_free(&plan);
    config_free(config);
}

static void test_values_that_depend_on_the_device_follow_the_machine_file(void **state)
{
    static const char *const none[6] = {NULL};
    const Hardware h100 = machine("h100"), a100 = machine("a100"), cpu = machine("cpu");
    const Config *on_h100 = read_config(none, 1, &h100), *on_a100 = read_config(none, 1, &a100),
                 *on_cpu = read_config(none, 1, &cpu);
    (void)state;
    assert_true(on_h100->bf16.enabled && on_a100->bf16.enabled && !on_cpu->bf16.enabled);
    assert_true(on_h100->model.fused_gelu && !on_a100->model.fused_gelu);
    assert_int_equal(on_h100->model.head_chunk_rows, 16384);
    assert_int_equal(on_cpu->model.head_chunk_rows, 0);
    assert_true(on_h100->zero_optimization.overlap_comm && !on_cpu->zero_optimization.overlap_comm);
    config_free(on_h100);
    config_free(on_a100);
    config_free(on_cpu);
}

static void test_a_config_for_another_kind_of_device_is_refused(void **state)
{
    const Hardware gpu = machine("h100"), cpu = machine("cpu");
    static const char *const on_cpu[6] = {"device=cpu"}, *const on_gpu[6] = {"device=cuda"};
    char err[512];
    ConfigReport report;
    static const char text[] = "{\"model\": {}, \"data\": {\"text\": \"t\"}, \"train_steps\": 1}";
    (void)state;
    for (int i = 0; i < 2; i++) {
        const Config *config =
            config_parse(NULL, "c.json", text, strlen(text), 1, i ? on_gpu : on_cpu, &report);
        config_report_free(&report);
        assert_null(plan_settle(config, i ? &cpu : &gpu, err, sizeof err));
        assert_non_null(
            strstr(err, i ? "has no GPUs; write \"auto\"" : "has GPUs; write \"auto\""));
        config_free(config);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_parts_of_a_steps_time_add_up_to_its_time),
        cmocka_unit_test(test_a_long_step_recorded_in_part_is_planned_like_one_recorded_whole),
        cmocka_unit_test(test_a_plan_fits_if_and_only_if_its_largest_stage_fits),
        cmocka_unit_test(test_ranks_on_cpus_share_the_memory_of_their_node),
        cmocka_unit_test(test_values_that_depend_on_the_device_follow_the_machine_file),
        cmocka_unit_test(test_a_config_for_another_kind_of_device_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
