/* test_counted_stage.c -- plans of grids that no machine here could run: in worlds of up to 65,536
 * ranks one rank stands for all of its stage, and a plan takes little time. That plans equal runs
 * is tested where grids run: parallel/memory/test_plan_grids, parallel/trainer/test_grid_wire. */
#include "parallel/plan/counted_stage.h"

#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "tests/support/files/config_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static const Hardware h100 = {.name = "h100", .cuda = true, .device = {90, (int64_t)80 << 30}};

typedef struct {
    const char *config; /* a preset */
    int pp, dp, tp, micros;
    const char *more[3]; /* other --set arguments */
} World;

static const Config *read_config(const World *w)
{
    char set[5][64];
    const char *sets[8];
    int n = 0;
    snprintf(set[0], sizeof set[0], "parallel.pipeline=%d", w->pp);
    snprintf(set[1], sizeof set[1], "parallel.tensor=%d", w->tp);
    snprintf(set[2], sizeof set[2], "gradient_accumulation_steps=%d", w->micros);
    snprintf(set[3], sizeof set[3], "train_batch_size=null");
    snprintf(set[4], sizeof set[4], "bf16.enabled=true");
    while (n < 5) {
        sets[n] = set[n];
        n++;
    }
    for (int i = 0; i < 3 && w->more[i]; i++)
        sets[n++] = w->more[i];
    char *text = config_test_file(w->config);
    ConfigReport report;
    const ConfigContext context = {.world = (int64_t)w->pp * w->dp * w->tp};
    const Config *config = config_parse(&context, "c.json", text, strlen(text), n, sets, &report);
    if (config == NULL) fail_msg("%s", report.error[0]);
    config_report_free(&report);
    free(text);
    return config_settle(config, &(ConfigFacts){.vocab_size = config->model.vocab_size}, NULL, 0);
}

/* Returns what differs between the plans of two ranks of a stage; "": nothing. Ranks with different
 * dp coordinates may sum different parts of gradients over tp, kv and tie. */
static const char *difference(const StagePlan *a, const StagePlan *b, bool same_dp)
{
    const MemoryPlan *x = &a->memory, *y = &b->memory;
    if (x->weights != y->weights || x->gradients != y->gradients || x->buffers != y->buffers ||
        x->optimizer != y->optimizer || x->activations != y->activations ||
        x->scratch != y->scratch || x->other != y->other || x->host != y->host)
        return "memory";
    for (int g = 0; g < GRID_COMMS; g++) {
        bool shard = strcmp(a->group[g], "tp") == 0 || strcmp(a->group[g], "kv") == 0 ||
                     strcmp(a->group[g], "tie") == 0;
        if (shard && !same_dp) continue;
        if (memcmp(a->wire[g].of, b->wire[g].of, sizeof a->wire[g].of) != 0) return a->group[g];
    }
    return "";
}

static const World worlds[] = {
    {"configs/gpt2_124m.json", 1, 65536, 1, 1, {"zero_optimization.stage=3"}},
    {"configs/gpt2_124m.json", 4, 4096, 4, 8, {"zero_optimization.stage=2"}},
    {"configs/llama_8b.json", 1, 8192, 8, 2, {"zero_optimization.stage=3"}},
    {"configs/llama_8b.json",
     8,
     1024,
     8,
     64,
     {"zero_optimization.stage=1", "parallel.pipeline_chunks=4",
      "parallel.sequence_parallel=true"}},
};

/* plan_stages plans the first rank of each stage. It must need the same memory and make the same
 * calls as other ranks of the stage (except for what `difference` says). */
static void test_ranks_of_a_stage_have_the_same_memory_and_calls_in_a_world_of_65536(void **state)
{
    const double most = getenv("TEST_SAMPLE") ? 30 : 2;
    (void)state;
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        const World *w = &worlds[i];
        const Config *config = read_config(w);
        const CountedFacts facts = {.facts = h100.device, .place = PLACE_DEVICE};
        StagePlan *of;
        int stages;
        char err[256];
        clock_t begun = clock();
        assert_true(plan_stages(config, &h100, &of, &stages, err, sizeof err));
        double seconds = (double)(clock() - begun) / CLOCKS_PER_SEC;
        if (seconds > most) fail_msg("the plan of world %zu takes %.1f s", i, seconds);
        assert_int_equal(stages, w->pp);
        for (int s = 0; s < stages; s++) {
            const int first = s * w->dp * w->tp,
                      ranks[] = {first + w->tp - 1, first + w->dp * w->tp - 1};
            for (int k = 0; k < 2; k++) {
                StagePlan other;
                plan_rank(config, &facts, ranks[k], &other);
                assert_int_equal(other.stage, s);
                const char *differs = difference(&of[s], &other, k == 0);
                if (*differs) fail_msg("world %zu, rank %d: %s", i, ranks[k], differs);
                plan_rank_free(&other);
            }
        }
        assert_true((of[0].memory.reserve > 0) && of[0].checkpoint_bytes > 0);
        plan_stages_free(of, stages);
        config_free(config);
    }
}

/* Returns the bytes that the calls of an op move in a step. */
static int64_t bytes_of(const StagePlan *plan, OpId op)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < plan->step.n[GRAPH_COMPUTE]; i++) {
        const GraphNode *node = &plan->step.node[GRAPH_COMPUTE][i];
        if (node->kind == NODE_OP && node->code == (int)op) bytes += node->bytes;
    }
    return bytes;
}

/* With attention for Hopper, the gradients of the biases of q, k and v are outputs of the attention
 * op and not of a linear op. They are in f32, and the second micro-batch adds to them. */
static void test_bias_gradients_are_planned_in_the_op_that_computes_them(void **state)
{
    enum { BLOCKS = 12, BYTES = 3 * 768 * 4 };
    int64_t attention[2], linear[2];
    (void)state;
    for (int hopper = 0; hopper < 2; hopper++) {
        const World w = {"configs/gpt2_124m.json",
                         1,
                         1,
                         1,
                         2,
                         {hopper ? "cuda.attention=hopper" : "cuda.attention=portable"}};
        const Config *config = read_config(&w);
        const CountedFacts facts = {.facts = h100.device, .place = PLACE_DEVICE};
        StagePlan plan;
        plan_rank(config, &facts, 0, &plan);
        attention[hopper] = bytes_of(&plan, OP_attention_backward);
        linear[hopper] = bytes_of(&plan, OP_linear_backward_weight);
        plan_rank_free(&plan);
        config_free(config);
    }
    assert_int_equal(attention[1] - attention[0], BLOCKS * BYTES * 3);
    assert_int_equal(linear[0] - linear[1], BLOCKS * BYTES * 3);
}

static void test_a_grid_of_more_than_65536_ranks_is_refused(void **state)
{
    const World w = {"configs/gpt2_124m.json", 1, 65536, 2, 1, {NULL}};
    const Config *config = read_config(&w);
    StagePlan *of;
    int stages;
    char err[256];
    (void)state;
    assert_false(plan_stages(config, &h100, &of, &stages, err, sizeof err));
    assert_string_equal(err, "a grid of 131072 ranks; at most 65536 are possible");
    config_free(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_of_a_stage_have_the_same_memory_and_calls_in_a_world_of_65536),
        cmocka_unit_test(test_bias_gradients_are_planned_in_the_op_that_computes_them),
        cmocka_unit_test(test_a_grid_of_more_than_65536_ranks_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
