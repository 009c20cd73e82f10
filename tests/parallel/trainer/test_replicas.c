/* test_replicas.c -- compares replicas between steps on grids of every kind: they are equal, and a
 * single bit that is flipped on one rank is found on all ranks, which name the unit and the ranks.
 */
#include "parallel/trainer/replicas.h"

#include "tests/support/device/late_device.h"
#include "tests/support/grid/made_up_machines.h"
#include "tests/support/support.h"
#include "tests/support/trainer/flipped_bit.h"
#include "tests/support/trainer/training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_SETS = 8, MASTER = 0, AVERAGE = 1, SQUARES = 2, WEIGHT = -1 };

/* A bit that is flipped on one rank, and what all ranks must say; "": nothing, because no other
 * rank holds this. */
typedef struct {
    int ranks;
    const char *sets[MOST_SETS];
    int rank;
    const char *param;
    int slot;
    const char *words;
    const char *machines; /* as in made_up_machines.h; NULL: one */
} Plant;

#define DP2         "zero_optimization.stage=0"
#define TIED        "model.tie_word_embeddings=true"
#define BATCH       "train_batch_size=12"
#define BF16_       "bf16.enabled=true"
#define ALL_SHARDED "zero_optimization.stage3_param_persistence_threshold=0"
#define OFFLOAD     "zero_optimization.offload_optimizer.device=cpu"
#define NO          "; there is no majority"

static const Plant plants[] = {
    /* Two data-parallel ranks: both are named. */
    {2,
     {DP2},
     1,
     "block.1.attn.q.weight",
     WEIGHT,
     "data-parallel ranks differ in the weights of block.1: ranks 0, 1" NO,
     NULL},
    {2,
     {DP2},
     0,
     "block.0.mlp.norm.weight",
     AVERAGE,
     "data-parallel ranks differ in the optimizer state exp_avg of block.0: ranks 0, 1" NO,
     NULL},
    /* Of three ranks, the one whose bits differ is named. */
    {3,
     {DP2, BATCH},
     2,
     "token.weight",
     WEIGHT,
     "differ in the weights of token.weight: rank 2, from the others (ranks 0, 1)",
     NULL},
    {3,
     {DP2, BATCH},
     0,
     "token.weight",
     SQUARES,
     "differ in the optimizer state exp_avg_sq of token.weight: rank 0, from the others (ranks 1, "
     "2)",
     NULL},
    {3,
     {DP2, BATCH, BF16_},
     1,
     "block.1.attn.k.weight",
     MASTER,
     "differ in the optimizer state master of block.1: rank 1, from the others (ranks 0, 2)",
     NULL},
    {3,
     {DP2, BATCH, "device=cpu"}, /* GPUs know their machine */
     1,
     "final_norm.weight",
     WEIGHT,
     "rank 1 on host-a, from the others (ranks 0, 2 on host-a, host-b)",
     "aab"},
    /* Copies of weights that other ranks update. */
    {3,
     {"zero_optimization.stage=1", BATCH},
     1,
     "block.0.attn.out.weight",
     WEIGHT,
     "data-parallel ranks differ in the weights of block.0: rank 1, from the others (ranks 0, 2)",
     NULL},
    {3,
     {"zero_optimization.stage=2", BATCH, BF16_},
     2,
     "block.1.mlp.down.weight",
     WEIGHT,
     "differ in the weights of block.1: rank 2, from the others (ranks 0, 1)",
     NULL},
    {3,
     {"zero_optimization.stage=3", BATCH},
     0,
     "final_norm.weight",
     WEIGHT,
     "differ in the weights of final_norm.weight: rank 0, from the others (ranks 1, 2)",
     NULL},
    /* Parts that ranks of other shard groups hold, too. */
    {4,
     {"zero_optimization.stage=3", "parallel.shard=2", ALL_SHARDED, "train_batch_size=16"},
     0,
     "block.0.attn.q.weight",
     WEIGHT,
     "ranks of several shard groups differ in the weights of block.0: ranks 0, 2" NO,
     NULL},
    {6,
     {"zero_optimization.stage=3", "parallel.shard=2", BATCH, ALL_SHARDED},
     4,
     "token.weight",
     WEIGHT,
     "ranks of several shard groups differ in the weights of token.weight: rank 4, from the others "
     "(ranks 0, 2)",
     NULL},
    {4,
     {"zero_optimization.stage=2", "parallel.shard=2", "train_batch_size=16"},
     2,
     "block.1.mlp.down.weight",
     WEIGHT,
     "data-parallel ranks differ in the weights of block.1: rank 2, from the others (ranks 0, 1, "
     "3)",
     NULL},
    /* With optimizer states on the host. */
    {2,
     {DP2, BF16_, OFFLOAD},
     1,
     "block.0.attn.k.weight",
     MASTER,
     "data-parallel ranks differ in the optimizer state master of block.0: ranks 0, 1" NO,
     NULL},
    {4,
     {"zero_optimization.stage=3", "parallel.shard=2", ALL_SHARDED, "train_batch_size=16", OFFLOAD},
     3,
     "block.1.mlp.down.weight",
     WEIGHT,
     "ranks of several shard groups differ in the weights of block.1: ranks 1, 3" NO,
     NULL},
    /* Rows that tensor-parallel ranks do not cut. */
    {2,
     {"parallel.tensor=2"},
     0,
     "block.0.attn.norm.weight",
     WEIGHT,
     "tensor-parallel ranks differ in the weights of block.0: ranks 0, 1" NO,
     NULL},
    {4,
     {"parallel.tensor=4", "parallel.sequence_parallel=true"},
     3,
     "block.1.attn.q_norm.weight",
     WEIGHT,
     "tensor-parallel ranks differ in the weights of block.1: rank 3, from the others "
     "(ranks 0-2)",
     NULL},
    {4,
     {"parallel.tensor=2", "zero_optimization.stage=3", BF16_,
      "zero_optimization.stage3_param_persistence_threshold=0"},
     1,
     "final_norm.weight",
     MASTER,
     "tensor-parallel ranks differ in the optimizer state master of final_norm.weight: ranks 0, "
     "1" NO,
     NULL},
    {2, {"parallel.tensor=2"}, 0, "block.0.mlp.up.weight", WEIGHT, "", NULL},
    /* A kv head on two ranks. */
    {4,
     {"parallel.tensor=4"},
     3,
     "block.0.attn.v.weight",
     WEIGHT,
     "tensor-parallel ranks that share a kv head differ in the weights of block.0: ranks 2, 3" NO,
     NULL},
    /* A tied table on two stages. */
    {2,
     {"parallel.pipeline=2", TIED},
     1,
     "token.weight",
     WEIGHT,
     "pipeline stages that share a tied table differ in the weights of token.weight: ranks 0, 1" NO,
     NULL},
    {6,
     {"parallel.pipeline=3", "model.num_layers=3", TIED, "zero_optimization.stage=1"},
     4,
     "token.weight",
     SQUARES,
     "pipeline stages that share a tied table differ in the optimizer state exp_avg_sq of "
     "token.weight: ranks 0, 4" NO,
     NULL},
    {2, {"parallel.pipeline=2"}, 1, "block.1.attn.q.weight", WEIGHT, "", NULL},
    /* In two groups that overlap in one rank. */
    {4,
     {"parallel.tensor=2"},
     3,
     "block.0.attn.norm.weight",
     WEIGHT,
     "ranks 1, 3" NO "; only rank 3 differs in 2 groups",
     NULL},
    {4,
     {"parallel.pipeline=2", TIED},
     2,
     "token.weight",
     AVERAGE,
     "ranks 0, 2" NO "; only rank 2 differs in 2 groups",
     NULL},
};
enum { PLANTS = sizeof plants / sizeof *plants };

typedef struct {
    const Plant *plant;
    Training shared;
} Job;

static void check(Trainer *t, const char *when, const char *words)
{
    char err[2048] = "", first[2048];
    bool equal = trainer_replicas_equal(t, err, sizeof err);
    Comm *world = t->session.world;
    memcpy(first, err, sizeof first);
    comm_broadcast(world, NULL, tensor_1d(first, U8, sizeof first), 0);
    if (equal != (words[0] == '\0') || strstr(err, words) == NULL)
        rank_wrong(world, "%s: \"%s\", not \"%s\"", when, err, words);
    if (strcmp(err, first) != 0) rank_wrong(world, "%s: \"%s\", rank 0: \"%s\"", when, err, first);
}

/* Makes two steps, flips a bit, and flips it back. The difference must be found while the bit is
 * flipped, and only then. */
static void plant(Comm *world, void *context)
{
    const Job *job = context;
    const Plant *p = job->plant;
    StepRecord record[TRAINER_HISTORY];
    Trainer t;
    training_open_rank(&t, world, &job->shared);
    check(&t, "at the start", "");
    for (int step = 0; step < 2; step++) {
        trainer_step(&t);
        check(&t, "after a step", "");
        trainer_read_all(&t, record);
    }
    for (int round = 0; round < 2; round++) {
        if (world->rank == p->rank && !flip_held_bit(&t, p->param, p->slot, 2, 9))
            rank_wrong(world, "does not hold %s", p->param);
        check(&t, p->param, round == 0 ? p->words : "");
    }
    trainer_close(&t);
}

static void test_a_flipped_bit_is_found_and_its_unit_and_rank_are_named(void **state)
{
    for (int i = 0; i < PLANTS; i++) {
        const Plant *p = &plants[i];
        Job job = {.plant = p};
        print_message("  %s on rank %d of %d\n", p->param, p->rank, p->ranks);
        if (p->machines) made_up_machines(p->machines);
        training_of_text(&job.shared, *state, p->ranks, p->sets);
        training_run(&job.shared, plant, &job);
        training_close(&job.shared);
        if (p->machines) machines_forget();
    }
}

/* In the second step rank 1 has another learning rate, so its update makes it differ. */
static void drift(Comm *world, void *context)
{
    const Job *job = context;
    double rate = 0.5;
    Trainer t;
    training_open_rank(&t, world, &job->shared);
    trainer_step(&t);
    check(&t, "after a step", "");
    if (world->rank == 1)
        device_copy(&t.session.dev, tensor_slice_rows(t.lr_table, 1, 1), tensor_1d(&rate, F64, 1));
    device_synchronize(&t.session.dev);
    trainer_step(&t);
    check(&t, "after an update", "differ in the weights of token.weight: ranks 0, 1" NO);
    trainer_close(&t);
}

/* With states on the host a step ends before its updates. On devices that do their work only when
 * somebody waits for it, the comparison must still wait for the updates. */
static void test_weights_are_compared_only_after_late_updates_have_finished(void **state)
{
    const char *const sets[] = {"device=cpu", DP2, OFFLOAD, NULL};
    Job job = {0};
    if (ranks_are_processes()) skip_because("ranks with late devices are threads");
    late_devices(true);
    training_of_text(&job.shared, *state, 2, sets);
    training_run(&job.shared, drift, &job);
    training_close(&job.shared);
    late_devices(false);
}

/* Flips a bit of every parameter of one rank in turn. Flips in parameters that another rank also
 * holds must be found. */
static void every_row(Comm *world, void *context)
{
    const Job *job = context;
    Trainer t;
    training_open_rank(&t, world, &job->shared);
    trainer_step(&t);
    const ParamTable *table = &t.session.table;
    for (int p = 0; p < table->n_params; p++) {
        const Param *row = &table->param[p];
        char err[2048];
        int64_t held = 0, cut = row->tp_dim >= 0 && row->sharers == 1;
        bool stages = table->unit[row->unit].home.n > 1;
        if (world->rank == 0) held = flip_held_bit(&t, row->name, WEIGHT, 1, 3);
        comm_broadcast(world, NULL, tensor_1d(&held, I64, 1), 0);
        bool equal = trainer_replicas_equal(&t, err, sizeof err);
        if (equal != (!held || (cut && !stages)))
            rank_wrong(world, "%s is %s", row->name, equal ? "not found" : err);
        if (world->rank == 0 && held) flip_held_bit(&t, row->name, WEIGHT, 1, 3);
    }
    trainer_close(&t);
}

static void test_a_flipped_bit_is_found_in_any_parameter_that_several_ranks_hold(void **state)
{
    const char *const sets[] = {
        "parallel.tensor=4",    "parallel.pipeline=2",    TIED, "model.bias=true",
        "model.norm=layernorm", "model.position=learned", NULL};
    Job job = {0};
    training_of_text(&job.shared, *state, 8, sets);
    training_run(&job.shared, every_row, &job);
    training_close(&job.shared);
}

/* Returns how many ops of this kind the rank has issued. */
static int ops_issued(const Trainer *t, OpId op)
{
    FlightEntry *entry = must_calloc(FLIGHT_SNAPSHOT, sizeof *entry);
    int n = flight_snapshot(t->session.flight, entry), found = 0;
    for (int i = 0; i < n; i++)
        found += entry[i].kind == FLIGHT_OP && entry[i].code == op;
    free(entry);
    return found;
}

/* Stages have nothing in common but a tied table. */
static void two_stages(Comm *world, void *context)
{
    const Job *job = context;
    bool tied = job->shared.config->model.tie_word_embeddings;
    Trainer t;
    training_open_rank(&t, world, &job->shared);
    check(&t, "at the start", "");
    int hashes = ops_issued(&t, OP_hash), expected = tied ? 3 : 0; /* weights, two moments */
    if (hashes != expected) rank_wrong(world, "%d hashes, not %d", hashes, expected);
    trainer_close(&t);
}

static void test_parameters_that_only_one_rank_holds_are_not_hashed(void **state)
{
    static const char *const tables[] = {TIED, "model.tie_word_embeddings=false"};
    for (int i = 0; i < 2; i++) {
        const char *const sets[] = {"parallel.pipeline=2", tables[i], NULL};
        Job job = {0};
        training_of_text(&job.shared, *state, 2, sets);
        training_run(&job.shared, two_stages, &job);
        training_close(&job.shared);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_flipped_bit_is_found_and_its_unit_and_rank_are_named),
        cmocka_unit_test(test_weights_are_compared_only_after_late_updates_have_finished),
        cmocka_unit_test(test_a_flipped_bit_is_found_in_any_parameter_that_several_ranks_hold),
        cmocka_unit_test(test_parameters_that_only_one_rank_holds_are_not_hashed),
    };
    return cmocka_run_group_tests(tests, trainer_folder_setup, trainer_folder_teardown);
}
