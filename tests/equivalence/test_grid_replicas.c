/* test_grid_replicas.c -- runs short trainings on ranks of every axis. After each step, every
 * tensor that several ranks hold must be the same on all of them. */
#include "parallel/trainer/replicas.h"
#include "parallel/verify/capture.h"
#include "tests/support/trainer/training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 20, FEW_STEPS = 6, RANKS = 8 };

typedef struct {
    Training shared;
    double first, last;     /* losses */
    int64_t steps, clipped; /* number of steps, and of clipped ones */
} Run;

/* Compares hashes of the weights between two steps, after an update. */
static void check_replicas(Trainer *t, int step)
{
    const char *drifted = capture_drift(t);
    char err[2048];
    if (drifted) rank_wrong(t->session.world, "%s differs after step %d", drifted, step);
    if (!trainer_replicas_equal(t, err, sizeof err))
        rank_wrong(t->session.world, "after step %d: %s", step, err);
}

static void train(Comm *world, void *context)
{
    Run *run = context;
    Trainer t;
    StepRecord record[TRAINER_HISTORY];
    training_open_rank(&t, world, &run->shared);
    check_replicas(&t, 0);
    for (int i = 1; i <= run->steps; i++) {
        trainer_step(&t);
        trainer_read_all(&t, record);
        double mine[] = {record[0].loss, record[0].grad_norm, record[0].lr}, first[3];
        memcpy(first, mine, sizeof first);
        comm_broadcast(world, NULL, tensor_1d(first, F64, 3), 0);
        if (memcmp(first, mine, sizeof first) != 0)
            rank_wrong(world, "step %d: loss %.17g and norm %.17g, rank 0 has %.17g and %.17g", i,
                       mine[0], mine[1], first[0], first[1]);
        check_replicas(&t, i);
        if (world->rank > 0) continue;
        run->first = i == 1 ? mine[0] : run->first;
        run->last = mine[0];
        run->clipped += mine[1] > run->shared.config->gradient_clipping;
    }
    trainer_close(&t);
}

/* Trains on eight ranks; most steps are clipped. With TEST_SAMPLE, which is for sanitizers, a few
 * steps are enough to execute everything, and the loss need not fall so far. */
static void learns(void **state, const char *const *sets)
{
    bool sample = getenv("TEST_SAMPLE") != NULL;
    Run run = {.steps = sample ? FEW_STEPS : STEPS};
    training_of_text(&run.shared, *state, RANKS, sets);
    training_run(&run.shared, train, &run);
    print_message("  loss %.4f to %.4f, %lld steps clipped\n", run.first, run.last,
                  (long long)run.clipped);
    assert_true(run.last < run.first - (sample ? 0.02 : 0.5));
    assert_in_range(run.clipped, run.steps / 2, run.steps);
    training_close(&run.shared);
}

#define CUBE                                                                                       \
    "parallel.tensor=2", "parallel.pipeline=2", "gradient_clipping=0.5", "train_batch_size=12"

/* Tests data-parallel replicas, and the parameters that tensor-parallel ranks do not split: the
 * weights of norms and of QK-norm. */
static void test_bug_16_replicas_stay_equal_after_every_step(void **state)
{
    learns(state, (const char *const[]){CUBE, "train_micro_batch_size_per_gpu=2", NULL});
    learns(state, (const char *const[]){CUBE, "train_micro_batch_size_per_gpu=2",
                                        "zero_optimization.stage=3", "model.num_layers=4",
                                        "parallel.pipeline_chunks=2", "bf16.enabled=true", NULL});
}

/* Tests the weights of norms and biases: each rank computes their gradients from its own rows
 * only. */
static void test_bug_19_norm_weights_stay_equal_under_sequence_parallelism(void **state)
{
    learns(state, (const char *const[]){CUBE, "train_micro_batch_size_per_gpu=2",
                                        "parallel.sequence_parallel=true", "model.norm=layernorm",
                                        "model.bias=true", "model.position=learned",
                                        "zero_optimization.stage=1", NULL});
    learns(state,
           (const char *const[]){CUBE, "train_micro_batch_size_per_gpu=2",
                                 "parallel.sequence_parallel=true", "model.bias=true",
                                 "zero_optimization.stage=2", "parallel.schedule=gpipe", NULL});
}

/* Tests a token table that two stages hold, and key/value heads that two ranks hold; also with the
 * optimizer's states on the host. */
static void test_bug_30_copies_of_tied_tables_and_shared_heads_stay_equal(void **state)
{
    learns(state,
           (const char *const[]){CUBE, "train_micro_batch_size_per_gpu=1",
                                 "model.tie_word_embeddings=true", "model.num_key_value_heads=1",
                                 "zero_optimization.offload_optimizer.device=cpu", NULL});
    learns(state, (const char *const[]){"parallel.tensor=4", "parallel.pipeline=2",
                                        "gradient_clipping=0.5", "model.tie_word_embeddings=true",
                                        "zero_optimization.stage=3", NULL});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bug_16_replicas_stay_equal_after_every_step),
        cmocka_unit_test(test_bug_19_norm_weights_stay_equal_under_sequence_parallelism),
        cmocka_unit_test(test_bug_30_copies_of_tied_tables_and_shared_heads_stay_equal),
    };
    return cmocka_run_group_tests(tests, trainer_folder_setup, trainer_folder_teardown);
}
