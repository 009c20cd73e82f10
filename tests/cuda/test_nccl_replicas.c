/* test_nccl_replicas.c -- tests, on ranks with a GPU each, that replicas are never reported as
 * different although NCCL adds in a different order in each group, and that all ranks decide on a
 * step by the same sums.
 *
 * In the emulated NCCL each group's ring starts at another rank and goes in another direction, as
 * EMU_NCCL_SEED says. On some grids replicas then really differ in last bits. The comparison of
 * replicas must leave out the parameters that differ in this way, and no others. */
#include "parallel/trainer/replicas.h"

#include "parallel/verify/capture.h"
#include "tests/support/support.h"
#include "tests/support/trainer/flipped_bit.h"
#include "tests/support/trainer/training.h"
#include "tests/support/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 4, SEEDS = 2, MOST_SETS = 8, MOST_RANKS = 8 };

/* A grid, and a fault that the comparison of replicas must find on it: a bit that is flipped on
 * rank `rank`, in the weight of the parameter `found` if slot is -1, otherwise in that slot of its
 * optimizer state. */
typedef struct {
    int ranks;
    const char *sets[MOST_SETS], *found;
    int slot, rank;
    bool drifts; /* other parameters differ between replicas, for each of the seeds */
} Case;

#define OFFLOAD "zero_optimization.offload_optimizer.device=cpu"
#define BATCH   "train_batch_size=12", "train_micro_batch_size_per_gpu=2", "gradient_clipping=0.5"

static const Case cases[] = {
    /* Each tensor-parallel rank sums the gradients of norms over its own three data-parallel ranks.
     * The gradients of QK-norm are added over the tensor-parallel ranks after that. */
    {6,
     {"parallel.tensor=2", "zero_optimization.stage=0", BATCH},
     "block.0.attn.q_norm.weight",
     -1,
     1,
     true},
    /* Each data-parallel rank adds the gradients of norms over its own four tensor-parallel
     * ranks. */
    {8,
     {"parallel.tensor=4", "parallel.sequence_parallel=true", "zero_optimization.stage=0", BATCH},
     "block.1.attn.norm.weight",
     -1,
     1,
     true},
    /* Each tensor-parallel rank adds the norms of three stages in a group of its own. */
    {6,
     {"parallel.tensor=2", "parallel.pipeline=3", "model.num_layers=3", BATCH},
     "block.2.mlp.norm.weight",
     -1,
     4,
     false},
    /* Optimizer states on the host, of which two data-parallel ranks have a copy each. */
    {6,
     {"parallel.pipeline=3", "model.num_layers=3", "zero_optimization.stage=0", BATCH, OFFLOAD},
     "block.1.mlp.up.weight",
     1,
     3,
     false},
    /* Weights of which two shard groups have a copy each, with optimizer states in host memory. */
    {4,
     {"zero_optimization.stage=3", "parallel.shard=2", "train_batch_size=8", OFFLOAD,
      "zero_optimization.stage3_param_persistence_threshold=0"},
     "block.0.attn.q.weight",
     -1,
     0,
     false},
};
enum { CASES = sizeof cases / sizeof *cases };

typedef struct {
    const Case *of;
    Training training;
    int drifted; /* how many seeds made replicas differ */
} Job;

/* Requires that all ranks have the same bits of the loss and the gradient norm, by which they
 * decide. */
static void check_decision(Comm *world, Trainer *t)
{
    StepRecord record[TRAINER_HISTORY];
    trainer_read_all(t, record);
    double mine[2] = {record[0].loss, record[0].grad_norm}, first[2];
    memcpy(first, mine, sizeof first);
    comm_broadcast(world, NULL, tensor_1d(first, F64, 2), 0);
    if (memcmp(first, mine, sizeof first) != 0)
        rank_wrong(world, "loss %.17g and norm %.17g, rank 0 has %.17g and %.17g", mine[0], mine[1],
                   first[0], first[1]);
}

static void train(Comm *world, void *context)
{
    Job *job = context;
    char err[2048];
    Trainer t;
    training_open_rank(&t, world, &job->training);
    if (!session_connects(&t.session)) rank_wrong(world, "the ranks have no GPU each");
    for (int i = 0; i < STEPS; i++) {
        trainer_step(&t);
        if (!trainer_replicas_equal(&t, err, sizeof err))
            rank_wrong(world, "after step %d: %s", i + 1, err);
        check_decision(world, &t);
    }
    const char *drifted = capture_drift(&t);
    if (world->rank == 0) {
        print_message("  %s\n", drifted ? drifted : "equal");
        job->drifted += drifted != NULL;
    }
    if (world->rank == job->of->rank && !flip_held_bit(&t, job->of->found, job->of->slot, 1, 7))
        rank_wrong(world, "does not hold %s", job->of->found);
    if (trainer_replicas_equal(&t, err, sizeof err))
        rank_wrong(world, "a flipped bit of %s is not found", job->of->found);
    trainer_close(&t);
}

static void test_a_flipped_bit_is_reported_but_another_order_of_sums_is_not(void **state)
{
    cuda_devices_needed(MOST_RANKS);
    for (int i = 0; i < CASES; i++) {
        Job job = {.of = &cases[i]};
        const char *sets[MOST_SETS + 2] = {"device=cuda"};
        for (int k = 0; cases[i].sets[k]; k++)
            sets[k + 1] = cases[i].sets[k];
        int tried = 0;
        for (int every = (int)turns_every(1), seed = 1 + (int)turns_first(every); seed <= SEEDS;
             seed += every, tried++) {
            char number[16];
            snprintf(number, sizeof number, "%d", seed);
            setenv("EMU_NCCL_SEED", number, 1);
            training_of_text(&job.training, *state, cases[i].ranks, sets);
            training_run(&job.training, train, &job);
            training_close(&job.training);
        }
        print_message("  case %d: replicas differ with %d of %d seeds\n", i, job.drifted, tried);
        assert_int_equal(job.drifted, cases[i].drifts ? tried : 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_flipped_bit_is_reported_but_another_order_of_sums_is_not),
    };
    setenv("EMU_DEVICES", "8", 0);
    return cmocka_run_group_tests(tests, trainer_folder_setup, trainer_folder_teardown);
}
