/* test_grid_homes.c -- a tied token table is stored on the first and on the last pipeline stage.
 * Tests that both copies have the same bits initially and after every step. */
#include "model/core/check.h"
#include "parallel/trainer/trainer.h"
#include "tests/support/grid/grid_world.h"
#include "tests/support/trainer/training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 12, STEPS = 3 };

typedef struct {
    const GridWorld *world;
    const GridModel *model;
    Training training;
} Job;

static void run(const GridWorld *world, const GridModel *model, RankBody body)
{
    Config *config = grid_world_config(world, model, BATCH);
    Job job = {.world = world, .model = model};
    config->device = DEVICE_CPU; /* the test compares memory, which the host must be able to read */
    training_of_tokens(&job.training, config, grid_world_ranks(world));
    training_run(&job.training, body, &job);
    training_close(&job.training);
}

static const char *text_of(const Job *job, char *out, size_t n)
{
    const GridWorld *w = job->world;
    snprintf(out, n, "pp %d x dp %d x tp %d%s, chunks %d, ZeRO %d, model %d, type %d", w->pp, w->dp,
             w->tp, w->sequence_parallel ? " sp" : "", w->chunks, w->stage, job->model->model,
             job->model->dtype);
    return out;
}

static void compare_homes(const Job *job, Trainer *t, const Tensor *part, const char *what,
                          Comm *world)
{
    char text[160];
    int64_t bytes = (int64_t)tensor_bytes(*part);
    Comm *tie = &t->session.grid.tie;
    unsigned char *all = must_alloc((size_t)(bytes * tie->size));
    comm_all_gather(tie, NULL, tensor_1d(all, U8, bytes * tie->size),
                    tensor_1d(part->data, U8, bytes));
    for (int i = 1; i < tie->size; i++)
        if (memcmp(all, all + i * bytes, (size_t)bytes) != 0)
            rank_wrong(world, "%s: %s of the tied table differ after step %lld",
                       text_of(job, text, sizeof text), what, (long long)t->steps);
    free(all);
}

/* Checks the order in which units are updated: that of the parameter table. Only the last of
 * several stages updates the tied token table after all other units, because it uses that table
 * last. */
static void check_order(const Job *job, const Trainer *t, Comm *world)
{
    const ParamStore *s = t->session.params;
    int units = s->table->n_units;
    bool late = job->world->pp > 1 && t->session.grid.at.pp == job->world->pp - 1;
    for (int i = 0; i < units; i++)
        if (s->order[i] != (late ? (i + 1) % units : i))
            rank_wrong(world, "unit %d is updated at place %d", s->order[i], i);
}

/* Compares the weights, gradients and optimizer states of the table on both stages, bit by bit. */
static void train_homes(Comm *world, void *context)
{
    const Job *job = context;
    StepRecord record[TRAINER_HISTORY];
    Shard shard[64];
    Trainer t;
    training_open_rank(&t, world, &job->training);
    trainer_warm_up(&t);
    ParamStore *s = t.session.params;
    check_order(job, &t, world);
    for (int step = 0; step <= STEPS; step++) {
        int n = s->shards(s, PURPOSE_UPDATE, shard, 64);
        for (int i = 0; i < n && t.session.grid.tie.size > 1; i++) {
            if (shard[i].unit != 0) continue;
            compare_homes(job, &t, &shard[i].weight, "weights", world);
            compare_homes(job, &t, &shard[i].grad, "gradients", world);
            for (int slot = 0; slot < SLOT_MAX; slot++) {
                Tensor x = optimizer_slot_of(&t.optimizer, &shard[i], slot);
                if (tensor_present(x)) compare_homes(job, &t, &x, "slots", world);
            }
        }
        if (step == STEPS) break;
        trainer_step(&t);
        trainer_read_all(&t, record);
    }
    comm_barrier(world);
    trainer_close(&t);
}

static void test_bug_30_a_unit_on_two_stages_has_the_same_bits_on_both(void **state)
{
    (void)state;
    static const GridWorld worlds[] = {
        {2, 1, 1, false, 1, 0, 2, 1, 0, 0}, {3, 2, 1, false, 1, 1, 3, 1, 0, 0},
        {4, 1, 2, true, 1, 0, 2, 1, 0, 0},  {2, 2, 2, false, 1, 2, 2, 1, 0, 0},
        {2, 2, 3, true, 1, 3, 2, 1, 0, 0},  {2, 1, 2, false, 2, 0, 4, 1, 0, 0},
    };
    for (int w = 0; w < (int)(sizeof worlds / sizeof *worlds); w++)
        for (int dtype = getenv("TEST_SAMPLE") ? 3 : 0; dtype < 4; dtype++)
            run(&worlds[w], &(GridModel){.model = w % 2 * 2, .dtype = dtype}, train_homes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bug_30_a_unit_on_two_stages_has_the_same_bits_on_both),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
