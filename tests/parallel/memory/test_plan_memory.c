/* test_plan_memory.c -- tests that the memory plan equals what a trainer allocates, for all kinds
 * of data, for any number of micro-batches, and on each of several ranks. */
#include "parallel/memory/memory_plan.h"
#include "tests/support/grid/made_up_machines.h"
#include "tests/support/grid/thread_ranks.h"
#include "tests/support/trainer/trainer_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

/* Fails unless a trainer with these data allocates exactly its plan, and has a decoder if and only
 * if `samples`. Returns the total of the plan. */
static size_t check_plan(const Config *config, const DataSet *data, bool samples)
{
    const Training training = {.config = config, .data = *data};
    Trainer t;
    training_lay_out(&t, NULL, &training);
    size_t total = memory_plan(&t, data).total;
    training_allocate(&t, &training);
    trainer_warm_up(&t);
    assert_int_equal(total, t.session.dev.held);
    assert_int_equal(t.decoder != NULL, samples);
    trainer_close(&t);
    return total;
}

/* A decoder for samples is either planned and allocated, or neither: token shards without a
 * tokenizer need none. A dry run replaces missing data by random tokens and counts the decoder that
 * the real run would have. */
static void test_the_plan_counts_a_decoder_if_and_only_if_one_is_allocated(void **state)
{
    Opened o;
    DataSet drawn;
    trainer_run_open(&o, *state, (const char *const[]){NULL});
    const GptShape *s = &o.trainer.session.layers.shape;
    DataSet bare = o.data;
    bare.tokenizer = NULL;
    data_open_random(&drawn, s->V);
    size_t decoder = decoder_bytes(&o.trainer.session.layers, s->P);
    size_t all = check_plan(o.config, &o.data, true);
    assert_int_equal(check_plan(o.config, &bare, false), all - decoder);
    assert_int_equal(check_plan(o.config, &drawn, true), all);
    data_close(&drawn);
    trainer_run_close(&o);
}

/* Micro-batches that wait to be copied take the same memory for any gradient accumulation. */
static void test_page_locked_memory_does_not_grow_with_accumulation(void **state)
{
    size_t held[2];
    for (int i = 0; i < 2; i++) {
        Opened o;
        trainer_run_open(&o, *state,
                         (const char *const[]){i ? "train_batch_size=400" : "seed=1", NULL});
        assert_int_equal(o.config->gradient_accumulation_steps, i ? 200 : 2);
        assert_int_equal(o.plan.host, trainer_run_host_bytes(&o));
        held[i] = o.trainer.session.dev.host_held;
        trainer_run_close(&o);
    }
    assert_int_equal(held[0], held[1]);
}

/* Each rank has a plan with a different number in every part. */
static void add_up(Comm *world, void *context)
{
    (void)context;
    size_t r = (size_t)world->rank + 1;
    MemoryPlan own = {.weights = r,
                      .gradients = 10 * r,
                      .buffers = 100 * r,
                      .optimizer = 1000 * r,
                      .activations = 10000 * r,
                      .scratch = 100000 * r,
                      .other = 1000000 * r,
                      .reserve = 10000000 * r,
                      .total = r == 2 ? SIZE_MAX : 11111111 * r,
                      .host = 7 * r,
                      .checkpoint = 42,
                      .ranks = 1};
    MemoryPlan all = memory_plan_of_ranks(world, &own, 0);
    MemoryPlan mine = memory_plan_of_ranks(world, &own, world->rank % 2);
    if (all.weights != 6 || all.gradients != 60 || all.buffers != 600 || all.optimizer != 6000 ||
        all.activations != 60000 || all.scratch != 600000 || all.other != 6000000 ||
        all.reserve != 60000000 || all.total != SIZE_MAX || all.host != 42 || all.ranks != 3 ||
        all.of != 3 || all.checkpoint != 42)
        rank_wrong(world, "all take %zu, %zu on the host", all.total, all.host);
    bool odd = world->rank == 1;
    if (mine.total != (odd ? SIZE_MAX : 44444444) || mine.weights != (odd ? 2 : 4) ||
        mine.ranks != (odd ? 1 : 2) || mine.of != 3 || mine.host != 42)
        rank_wrong(world, "those of its device take %zu", mine.total);
}

/* Ranks 0 and 2 are on host-a. All ranks pass device number 0, which is a different device on each
 * machine. */
static void add_up_machines(Comm *world, void *context)
{
    (void)context;
    size_t r = (size_t)world->rank + 1;
    bool there = world->rank == 1;
    MemoryPlan own = {.weights = r, .total = 10 * r, .host = 7 * r, .checkpoint = 42, .ranks = 1};
    MemoryPlan mine = memory_plan_of_ranks(world, &own, 0);
    if (mine.total != (there ? 20 : 40) || mine.host != (there ? 14 : 28) ||
        mine.weights != (there ? 2 : 4) || mine.ranks != (there ? 1 : 2) || mine.of != 3 ||
        mine.rank != world->rank || mine.checkpoint != 42 ||
        strcmp(mine.machine, there ? "host-b" : "host-a") != 0)
        rank_wrong(world, "those of %s take %zu, %zu on the host", mine.machine, mine.total,
                   mine.host);
}

/* Per rank: the available memory and the total of its plan. `tightest`: the rank whose plan must be
 * found. */
typedef struct {
    size_t available[3], total[3];
    int tightest;
    bool device;
} Tight;

static void find_tightest(Comm *world, void *context)
{
    const Tight *t = context;
    MemoryPlan plan = {.total = t->total[world->rank], .rank = world->rank};
    MemoryRoom room = {.available = t->available[world->rank], .device = t->device};
    memory_tightest(world, &plan, &room);
    if (plan.rank != t->tightest || plan.total != t->total[t->tightest] ||
        room.available != t->available[t->tightest])
        rank_wrong(world, "the plan of rank %d", plan.rank);
}

/* The memory of each machine is compared with the plans of its own ranks. */
static void test_plans_add_up_by_machine_and_the_plan_with_least_memory_left_is_found(void **state)
{
    static Tight tight[] = {{{100, 50, 100}, {90, 45, 90}, 1, false},
                            {{100, 50, 100}, {90, 30, 95}, 2, false},
                            {{100, 50, 10}, {200, 150, 20}, 0, false},
                            {{SIZE_MAX, 50, SIZE_MAX}, {90, SIZE_MAX, 90}, 1, false},
                            {{100, 1 << 30, 100}, {50, 1 << 10, 60}, 2, true}};
    (void)state;
    made_up_machines("aba");
    thread_ranks(3, 60, add_up_machines, NULL);
    for (size_t i = 0; i < sizeof tight / sizeof *tight; i++)
        thread_ranks(3, 60, find_tightest, &tight[i]);
    machines_forget();
    static Tight own = {{100, 50, 100}, {90, 45, 90}, 0, false};
    thread_ranks(1, 60, find_tightest, &own);
}

/* There are two stages of two data-parallel ranks; in each stage one rank has the largest plan. */
static void compare_stages(Comm *world, void *context)
{
    static const size_t total[] = {3, 9, 12, 4};
    MemoryPlan largest[2], own = {.total = total[world->rank], .weights = 10 + (size_t)world->rank};
    (void)context;
    int most = memory_largest_of_stages(world, &own, (GridPlace){2, 2, 1, 1}, largest);
    if (most != 1 || largest[0].total != 9 || largest[0].weights != 11 || largest[1].total != 12 ||
        largest[1].weights != 12)
        rank_wrong(world, "stage %d of %zu and %zu", most, largest[0].total, largest[1].total);
}

static void test_the_largest_plan_of_each_stage_is_found(void **state)
{
    (void)state;
    thread_ranks(4, 60, compare_stages, NULL);
}

/* Ranks of one device share its memory, and no sum overflows. */
static void test_plans_of_ranks_on_one_device_add_up_without_overflow(void **state)
{
    (void)state;
    MemoryPlan cpu = {.host = SIZE_MAX - 1, .other = 2, .total = 2};
    memory_add_host(&cpu);
    assert_true(cpu.other == SIZE_MAX && cpu.total == SIZE_MAX);
    thread_ranks(3, 60, add_up, NULL);
}

/* ---- ranks that share a model ---------------------------------------------------------------- */

/* The elements of the model's states that one rank keeps. Each unit is padded to a multiple of 128
 * elements per rank; either the whole unit or the rank's part of it is kept. */
typedef struct {
    int64_t weights, gradients, updated;
} States;

/* Computes the elements from the parameters' positions. A tied table has two gradients in a
 * micro-batch, so beyond stage 1 its gradient is kept whole. */
static States states_by_hand(const ParamTable *table, int64_t ranks, int stage, bool tied)
{
    States s = {0};
    for (int u = 0; u < table->n_units; u++) {
        int64_t end = 0, grain = 128 * ranks;
        for (int p = 0; p < table->n_params; p++) {
            const Param *row = &table->param[p];
            int64_t e = row->offset + row->padded[0] * row->padded[1];
            if (row->unit == u && e > end) end = e;
        }
        int64_t whole = (end + grain - 1) / grain * grain, part = whole / ranks;
        s.weights += stage >= 3 ? part : whole;
        s.gradients += stage >= 2 && !(tied && u == 0) ? part : whole;
        s.updated += stage >= 1 ? part : whole;
    }
    return s;
}

/* A run and the bytes of its dtypes per element. AdamW keeps two moments in f32, and a master
 * weight for each 16-bit weight. */
typedef struct {
    const Training *training;
    int stage;
    bool tied;
    size_t weight, gradient, optimizer;
} Shared;

static void check_rank(Comm *world, void *context)
{
    const Shared *r = context;
    Trainer t;
    training_lay_out(&t, world, r->training);
    MemoryPlan plan = memory_plan(&t, &r->training->data);
    States s = states_by_hand(&t.session.table, world->size, r->stage, r->tied);
    if (plan.weights != (size_t)s.weights * r->weight ||
        plan.gradients != (size_t)s.gradients * r->gradient ||
        plan.optimizer != (size_t)s.updated * r->optimizer)
        rank_wrong(world,
                   "stage %d: weights %zu, gradients %zu, optimizer %zu bytes for %lld, %lld "
                   "and %lld elements",
                   r->stage, plan.weights, plan.gradients, plan.optimizer, (long long)s.weights,
                   (long long)s.gradients, (long long)s.updated);
    training_allocate(&t, r->training);
    trainer_warm_up(&t);
    trainer_step(&t);
    if (plan.total - plan.reserve != t.session.dev.held)
        rank_wrong(world, "stage %d: a plan of %zu bytes, of which buffers %zu, and %zu are held",
                   r->stage, plan.total, plan.buffers, t.session.dev.held);
    comm_barrier(world);
    trainer_close(&t);
}

/* Every rank's plan equals what its device has allocated, at every ZeRO stage, and the states agree
 * with ZeRO's formulas; also with prefetching, and with gradients that are sent in another type. */
static void test_each_data_parallel_rank_holds_exactly_its_planned_memory(void **state)
{
    enum { RANKS = 3, TYPES = 3, STAGES = 4 };
    static const struct {
        const char *set[2];
        size_t weight, gradient, optimizer;
    } types[TYPES] = {{{"bf16.enabled=false", "seed=1"}, 4, 4, 8},
                      {{"bf16.enabled=true", "seed=1"}, 2, 4, 12},
                      {{"bf16.enabled=false", "communication_data_type=bf16"}, 4, 4, 8}};
    for (int i = 0; i < STAGES * TYPES * 2; i++) {
        int type = i / STAGES % TYPES;
        char stage[64], tied[64];
        Training t;
        Shared r = {&t,
                    i % STAGES,
                    i / STAGES / TYPES,
                    types[type].weight,
                    types[type].gradient,
                    types[type].optimizer};
        snprintf(stage, sizeof stage, "zero_optimization.stage=%d", r.stage);
        snprintf(tied, sizeof tied, "model.tie_word_embeddings=%s", r.tied ? "true" : "false");
        training_of_text(
            &t, *state, RANKS,
            (const char *const[]){stage, tied, types[type].set[0], types[type].set[1],
                                  "train_batch_size=6", "gradient_accumulation_steps=null",
                                  "zero_optimization.stage3_param_persistence_threshold=0", NULL});
        training_run(&t, check_rank, &r);
        training_close(&t);
    }
}

/* ---- the preset for eight GPUs --------------------------------------------------------------- */

enum { GPUS = 8 };

/* Adds up what a rank of the preset needs on its GPU. */
static void check_preset(Comm *world, void *context)
{
    const Config *c = context;
    const size_t GIB = (size_t)1 << 30, gpu = 79 * GIB; /* an H100 of 80 GB shows 79.1 GiB */
    const size_t beside = GIB / 2;                      /* CUDA's context and the code of kernels */
    Trainer t = {.config = c};
    session_build(&t.session, c, world, true);
    GridNccl nccl = grid_nccl(c);
    size_t reserve = grid_reserve(&t.session.grid, &nccl);
    t.optimizer_bytes = optimizer_bytes(c, t.session.params);
    DataSet data = {0};
    MemoryPlan plan = memory_plan(&t, &data);
    if (plan.total + reserve + beside > gpu || plan.activations < 10 * GIB)
        rank_wrong(world, "%zu MiB, of them %zu for activations, and %zu for NCCL",
                   plan.total >> 20, plan.activations >> 20, reserve >> 20);
    if (world->rank == 0)
        print_message("a rank of the preset needs %.1f GiB: weights %.1f, gradients %.1f, "
                      "optimizer %.1f, activations %.1f; NCCL %zu MiB\n",
                      (double)plan.total / (double)GIB, (double)plan.weights / (double)GIB,
                      (double)plan.gradients / (double)GIB, (double)plan.optimizer / (double)GIB,
                      (double)plan.activations / (double)GIB, reserve >> 20);
    comm_barrier(world);
    session_close(&t.session);
}

/* The preset for eight GPUs fits into GPUs of 80 GB, with large micro-batches. */
static void test_the_preset_for_eight_gpus_fits_into_80_gb(void **state)
{
    static const char *const bf16[] = {"bf16.enabled=true"};
    const ConfigContext eight = {.world = GPUS};
    ConfigReport report;
    (void)state;
    const Config *c = config_load("configs/gpt2_1558m_8gpu.json", 1, bf16, &eight, &report);
    assert_non_null(c);
    config_report_free(&report);
    thread_ranks(GPUS, 60, check_preset, (void *)c);
    config_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_plan_counts_a_decoder_if_and_only_if_one_is_allocated),
        cmocka_unit_test(test_page_locked_memory_does_not_grow_with_accumulation),
        cmocka_unit_test(test_plans_of_ranks_on_one_device_add_up_without_overflow),
        cmocka_unit_test(test_plans_add_up_by_machine_and_the_plan_with_least_memory_left_is_found),
        cmocka_unit_test(test_the_largest_plan_of_each_stage_is_found),
        cmocka_unit_test(test_each_data_parallel_rank_holds_exactly_its_planned_memory),
        cmocka_unit_test(test_the_preset_for_eight_gpus_fits_into_80_gb),
    };
    return cmocka_run_group_tests(tests, trainer_folder_setup, trainer_folder_teardown);
}
