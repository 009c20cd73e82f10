/* test_plan_grids.c -- tests that on every kind of grid, each rank's memory plan equals what its
 * device has allocated, and each class equals an independent formula. A plan that was made without
 * the grid (tests/support/trainer/counted_step.h) has the same memory, calls and graph as each
 * rank. */
#include "model/kernels/ops.h"
#include "parallel/memory/memory_plan.h"
#include "parallel/plan/counted_stage.h"
#include "parallel/trainer/evaluate.h"
#include "tests/support/device/late_device.h"
#include "tests/support/grid/thread_ranks.h"
#include "tests/support/model/model_inside.h"
#include "tests/support/support.h"
#include "tests/support/trainer/counted_step.h"
#include "tests/support/trainer/training.h"
#include "tests/support/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A model of five blocks, or of one block per layer range if there are more than five ranges.
 * `accumulation` is the number of micro-batches, which have two rows each. */
typedef struct {
    int dp, tp, pp, stage, chunks, accumulation;
    bool sp, tied, bf16;
    const char *schedule, *recompute, *more; /* more: another setting */
} GridCase;

#define OVERLAP     "zero_optimization.overlap_comm=true"
#define GROUPS_OF_2 "parallel.shard=2"
#define ALL_REDUCE  "zero_optimization.reduce_scatter=false"
#define F32_WIRE    "communication_data_type=fp32"
#define HOST        "zero_optimization.offload_optimizer.device=cpu"

static const GridCase grids[] = {
    {1, 1, 2, 0, 1, 4, false, true, false, "1f1b", "none", NULL},
    {1, 1, 2, 0, 1, 4, false, false, false, "gpipe", "none", NULL},
    {1, 1, 4, 0, 1, 3, false, true, false, "1f1b", "full", NULL},
    {1, 1, 4, 0, 1, 1, false, true, false, "gpipe", "full", NULL},
    {1, 1, 2, 0, 2, 4, false, true, false, "interleaved", "full", NULL},
    {1, 1, 2, 0, 2, 3, false, false, true, "interleaved", "selective", NULL},
    {1, 2, 1, 0, 1, 2, false, true, false, "1f1b", "none", NULL},
    {1, 2, 1, 0, 1, 2, true, false, false, "1f1b", "selective", NULL},
    {1, 4, 1, 0, 1, 1, true, true, false, "1f1b", "full", NULL},
    {2, 2, 1, 3, 1, 2, true, true, false, "1f1b", "none", NULL},
    {2, 2, 1, 2, 1, 2, false, true, true, "1f1b", "none", NULL},
    {2, 1, 2, 1, 1, 2, false, true, false, "1f1b", "none", NULL},
    {2, 1, 2, 2, 1, 4, false, true, false, "1f1b", "selective", NULL},
    {2, 1, 2, 3, 1, 4, false, false, false, "gpipe", "full", NULL},
    {2, 1, 2, 3, 2, 4, false, true, false, "interleaved", "none", NULL},
    {3, 1, 2, 3, 1, 2, false, true, true, "1f1b", "full", NULL},
    {1, 2, 2, 0, 1, 4, false, true, false, "1f1b", "none", NULL},
    {1, 2, 2, 0, 1, 4, true, true, false, "gpipe", "full", NULL},
    {1, 2, 2, 0, 2, 2, true, false, false, "interleaved", "selective", NULL},
    {2, 2, 2, 1, 1, 2, true, true, false, "1f1b", "none", NULL},
    {2, 2, 2, 2, 1, 3, false, true, false, "gpipe", "selective", NULL},
    {2, 2, 2, 3, 1, 2, true, true, true, "1f1b", "full", NULL},
    {2, 2, 2, 3, 2, 3, true, false, false, "interleaved", "full", NULL},
    {1, 4, 2, 0, 1, 2, true, true, false, "1f1b", "selective", NULL},
    {2, 1, 4, 3, 1, 5, false, true, false, "1f1b", "none", NULL},
    {1, 1, 16, 0, 1, 9, false, true, false, "1f1b", "none", NULL},
    {1, 1, 16, 0, 3, 17, false, true, true, "interleaved", "full", NULL},
    {2, 1, 16, 3, 1, 3, false, true, false, "1f1b", "selective", NULL},
    {4, 1, 1, 1, 1, 2, false, true, false, "1f1b", "none", OVERLAP},
    {4, 1, 1, 2, 1, 3, false, false, true, "1f1b", "selective", OVERLAP},
    {4, 1, 1, 3, 1, 2, false, true, false, "1f1b", "full", OVERLAP},
    {8, 1, 1, 3, 1, 1, false, false, false, "1f1b", "none", NULL},
    {3, 1, 1, 0, 1, 2, false, false, true, "1f1b", "none", F32_WIRE},
    {2, 4, 1, 1, 1, 1, true, true, false, "1f1b", "selective", OVERLAP},
    {2, 4, 1, 3, 1, 2, false, false, true, "1f1b", "full", NULL},
    {4, 2, 1, 2, 1, 2, true, true, false, "1f1b", "none", ALL_REDUCE},
    {1, 4, 2, 0, 2, 4, true, false, false, "interleaved", "none", NULL},
    {1, 4, 4, 0, 1, 4, true, true, false, "gpipe", "none", NULL},
    {4, 1, 2, 2, 1, 2, false, false, true, "1f1b", "full", F32_WIRE},
    {4, 2, 2, 3, 1, 2, true, true, true, "1f1b", "full", OVERLAP},
    {2, 1, 3, 1, 2, 6, false, true, false, "interleaved", "selective", OVERLAP},
    {1, 1, 3, 0, 1, 5, false, false, true, "1f1b", "full", NULL},
    {2, 2, 4, 2, 1, 4, true, false, false, "gpipe", "full", NULL},
    {1, 1, 8, 0, 1, 8, false, true, false, "gpipe", "selective", NULL},
    {4, 1, 1, 3, 1, 2, false, true, true, "1f1b", "none", GROUPS_OF_2},
    {4, 1, 1, 2, 1, 3, false, false, true, "1f1b", "full", GROUPS_OF_2},
    {4, 1, 2, 3, 1, 2, false, true, false, "1f1b", "none", GROUPS_OF_2},
    {4, 2, 1, 1, 1, 2, true, true, true, "1f1b", "selective", GROUPS_OF_2},
    {2, 1, 1, 0, 1, 2, false, true, false, "1f1b", "none", HOST},
    {2, 1, 2, 2, 1, 2, false, true, false, "1f1b", "none", HOST},
    {3, 1, 1, 3, 1, 2, false, false, false, "1f1b", "full", HOST},
};
enum { GRIDS = sizeof grids / sizeof *grids };

static int blocks_of(const GridCase *g)
{
    return g->pp * g->chunks > 5 ? g->pp * g->chunks : 5;
}

typedef struct {
    const Training *training;
    const GridCase *grid;
} Shared;

static size_t aligned(size_t bytes)
{
    return (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

/* Returns the number of ranks in a shard group. */
static int shard_of(const GridCase *g)
{
    return g->more && strcmp(g->more, GROUPS_OF_2) == 0 ? 2 : g->dp;
}

/* Computes the bytes of weights, gradients and optimizer states that a rank of this stage keeps,
 * independently of the program. A unit (the flat buffer of a block, a table, the final norm or the
 * head) is padded so that it divides into equal shards, each a multiple of 128 elements. A shard
 * group divides weights and gradients, all data-parallel ranks divide the optimizer states. A table
 * that embedding and head of the same stage share has two gradients in a micro-batch, so its
 * gradient is kept whole. Each unit is a separate tensor. */
static void states_by_hand(const Trainer *t, const GridCase *g, size_t *weights, size_t *gradients,
                           size_t *optimizer)
{
    const ParamTable *table = &t->session.table;
    int at = t->session.grid.at.pp, stage = g->dp > 1 ? g->stage : 0;
    size_t weight = g->bf16 ? 2 : 4, moments = g->bf16 ? 12 : 8;
    *weights = *gradients = *optimizer = 0;
    for (int u = 0; u < table->n_units; u++) {
        const Home *home = &table->unit[u].home;
        bool here = home->stage[0] == at || (home->n == 2 && home->stage[1] == at);
        if (!here) continue;
        int64_t end = 0, grain = 128 * g->dp;
        for (int p = 0; p < table->n_params; p++) {
            const Param *row = &table->param[p];
            int64_t e = row->offset + row->local[0] * row->local[1];
            if (row->unit == u && e > end) end = e;
        }
        size_t whole = (size_t)((end + grain - 1) / grain * grain),
               part = whole / (size_t)shard_of(g);
        bool twice = g->tied && u == 0 && g->pp == 1;
        *weights += aligned((stage >= 3 ? part : whole) * weight);
        *gradients += aligned((stage >= 2 && !twice ? part : whole) * 4);
        *optimizer += (stage >= 1 ? whole / (size_t)g->dp : whole) * moments;
    }
}

/* Returns the number of micro-batches whose activations a stage keeps at once. */
static int slots_by_hand(const GridCase *g, int stage)
{
    if (g->pp == 1) return 1;
    if (strcmp(g->schedule, "gpipe") == 0) return g->accumulation;
    int most = g->pp - stage;
    return g->accumulation < most ? g->accumulation : most;
}

static void check_classes(Comm *world, const Trainer *t, const MemoryPlan *plan, const GridCase *g)
{
    const Session *s = &t->session;
    size_t weights, gradients, optimizer;
    states_by_hand(t, g, &weights, &gradients, &optimizer);
    size_t offloaded = g->more && strcmp(g->more, HOST) == 0 ? optimizer : 0;
    if (plan->offloaded != offloaded)
        rank_wrong(world, "%zu bytes planned on the host; by hand %zu", plan->offloaded, offloaded);
    if (plan->weights != weights || plan->gradients != gradients ||
        plan->optimizer + offloaded != optimizer)
        rank_wrong(world,
                   "weights %zu, gradients %zu, optimizer %zu planned; by hand %zu, %zu, %zu",
                   plan->weights, plan->gradients, plan->optimizer, weights, gradients, optimizer);
    GptBytes used = model_used(t->gpt);
    if (plan->activations != used.activations || plan->scratch != used.scratch)
        rank_wrong(world, "activations %zu, scratch %zu planned; %zu, %zu used", plan->activations,
                   plan->scratch, used.activations, used.scratch);
    /* With several stages, the bound `most` counts all layers on each stage, and a group of its own
     * for each transfer between stages. So it is larger than the list, but it is still little
     * memory. */
    size_t list = step_plan_bytes(&s->step),
           most = step_plan_most_bytes(t->config, g->accumulation);
    if (list > most || (g->pp <= 4 && 2 * most > (g->pp > 1 ? 6 : 3) * list))
        rank_wrong(world, "a list of %zu bytes, at most %zu were planned", list, most);
    if (g->chunks == 1 && s->room.slots[0] != slots_by_hand(g, s->grid.at.pp))
        rank_wrong(world, "%d slots on stage %d", s->room.slots[0], s->grid.at.pp);
    /* Stages exchange this rank's rows of the residual stream: two sequences of 16 tokens, with
     * width 32. */
    ZeroBytes zero = zero_bytes(s->store);
    size_t stream = aligned((size_t)(2 * 16 * 32 / (g->sp ? g->tp : 1)) * (g->bf16 ? 2 : 4));
    if (plan->buffers - zero.gathered - zero.transient - zero.wire !=
        (g->pp > 1 ? (size_t)s->room.buffers * stream : 0))
        rank_wrong(world, "buffers %zu for %d streams of %zu", plan->buffers, s->room.buffers,
                   stream);
    /* The reserve is for NCCL, including what each communicator sends in its first uses. */
    size_t ours = plan->total - plan->reserve,
           first_uses = session_connects(s) ? GRID_COMMS * 2 * 64 * sizeof(float) : 0;
    if (s->dev.held < ours || s->dev.held > ours + first_uses)
        rank_wrong(world, "a plan of %zu bytes, and %zu are held", ours, s->dev.held);
}

/* Does everything that a run does besides steps, so every layout is used. */
static void use_all(Comm *world, Trainer *t)
{
    trainer_warm_up(t);
    trainer_evaluate(t, 3);
    char *text = trainer_sample(t, "light and the day was upon the earth", 12);
    if (text == NULL) rank_wrong(world, "no sample");
    free(text);
}

static void check_rank(Comm *world, void *context)
{
    const Shared *r = context;
    Trainer t;
    CountedStep counted;
    training_lay_out(&t, world, r->training);
    counted_step_open(&counted, &t, &r->training->data);
    training_allocate(&t, r->training);
    bool several = t.session.dev.backend->place == PLACE_DEVICE && device_count(&t.session.dev) > 1;
    if (several && !session_connects(&t.session)) rank_wrong(world, "no device of its own");
    if (getenv("TEST_SAMPLE") == NULL) use_all(world, &t);
    /* The plan describes a step that follows another one: it gathers the shards that the previous
     * update changed. */
    trainer_step(&t);
    counted_step_check(&counted, world, &t);
    check_classes(world, &t, &counted.memory, r->grid);
    comm_barrier(world);
    trainer_close(&t);
}

/* Compares the graph of two steps, in which the second may wait for the first. */
static void check_two_steps(Recorder *recorder, Comm *world, Trainer *t)
{
    const CountedFacts facts = {.place = t->session.dev.backend->place};
    Graph graph = {0};
    StagePlan planned;
    char why[600];
    recorder_start(recorder, &graph);
    trainer_step(t);
    trainer_step(t);
    recorder_stop(recorder);
    plan_rank(t->config, &facts, world->rank, &planned);
    if (!graph_equal(&graph, &planned.two, (GraphNames){op_name, comm_verb_name}, why, sizeof why))
        rank_wrong(world, "two steps, run and plan: %s", why);
    if (facts.place == PLACE_DEVICE && world->size > 1 && graph.n[GRAPH_COMPUTE] == graph.issued)
        rank_wrong(world, "all %lld nodes are on one stream", (long long)graph.issued);
    plan_rank_free(&planned);
    graph_free(&graph);
}

/* Late devices (tests/support/device/late_device.h) have several streams, like a GPU, so the graphs
 * contain waits between streams. */
static void check_streams(Comm *world, void *context)
{
    const Shared *r = context;
    Trainer t;
    CountedStep counted;
    training_lay_out(&t, world, r->training);
    counted_step_open(&counted, &t, &r->training->data);
    training_allocate(&t, r->training);
    trainer_warm_up(&t);
    trainer_step(&t);
    counted_step_check(&counted, world, &t);
    check_two_steps(&counted.recorder, world, &t);
    comm_barrier(world);
    trainer_close(&t);
}

static void run_grid(const Folder *folder, const GridCase *g, RankBody body)
{
    Training t;
    Shared shared = {.training = &t, .grid = g};
    char set[13][64];
    const char *sets[14] = {0};
    int n = 0, ranks = g->dp * g->tp * g->pp;
    snprintf(set[n++], sizeof set[0], "model.num_layers=%d", blocks_of(g));
    snprintf(set[n++], sizeof set[0], "parallel.tensor=%d", g->tp);
    snprintf(set[n++], sizeof set[0], "parallel.pipeline=%d", g->pp);
    snprintf(set[n++], sizeof set[0], "train_batch_size=%d", 2 * g->accumulation * g->dp);
    snprintf(set[n++], sizeof set[0], "zero_optimization.stage=%d", g->stage);
    snprintf(set[n++], sizeof set[0], "model.tie_word_embeddings=%s", g->tied ? "true" : "false");
    snprintf(set[n++], sizeof set[0], "bf16.enabled=%s", g->bf16 ? "true" : "false");
    snprintf(set[n++], sizeof set[0], "activation_checkpointing.policy=%s", g->recompute);
    snprintf(set[n++], sizeof set[0], "parallel.sequence_parallel=%s", g->sp ? "true" : "false");
    if (g->pp > 1) snprintf(set[n++], sizeof set[0], "parallel.schedule=%s", g->schedule);
    if (g->chunks > 1) snprintf(set[n++], sizeof set[0], "parallel.pipeline_chunks=%d", g->chunks);
    if (g->more) snprintf(set[n++], sizeof set[0], "%s", g->more);
    snprintf(set[n++], sizeof set[0], "zero_optimization.stage3_param_persistence_threshold=0");
    for (int i = 0; i < n; i++)
        sets[i] = set[i];
    training_of_text(&t, folder, ranks, sets);
    assert_int_equal(t.config->gradient_accumulation_steps, g->accumulation);
    training_run(&t, body, &shared);
    training_close(&t);
}

/* Runs the body on the grids of at most `most` ranks (0: all). */
static void run_grids(const Folder *folder, int most, RankBody body)
{
    int every = (int)turns_every(4);
    for (int i = (int)turns_first(every); i < GRIDS; i += every)
        if (most == 0 || grids[i].dp * grids[i].tp * grids[i].pp <= most)
            run_grid(folder, &grids[i], body);
}

static void test_each_rank_of_a_grid_holds_exactly_its_planned_memory(void **state)
{
    int devices = getenv("TEST_DEVICE") ? cuda_devices() : 0;
    /* Either all ranks share a device, or each has its own. */
    run_grids(*state, devices > 1 ? devices : 0, check_rank);
}

static void test_on_several_streams_a_step_has_the_planned_graph(void **state)
{
    if (getenv("TEST_DEVICE") || ranks_are_processes())
        skip_because("late devices compute on the CPU, and their ranks are threads");
    late_devices(true);
    run_grids(*state, 8, check_streams);
    late_devices(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_rank_of_a_grid_holds_exactly_its_planned_memory),
        cmocka_unit_test(test_on_several_streams_a_step_has_the_planned_graph),
    };
    return cmocka_run_group_tests(tests, trainer_folder_setup, trainer_folder_teardown);
}
