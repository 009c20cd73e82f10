/* test_grid_stages.c -- compares pipelines of every number of stages and micro-batches with one
 * rank, while memory that no action may read any more is poisoned. Also tests which stage has which
 * layers, and which ranks count the loss. */
#include "model/core/check.h"
#include "parallel/pipeline/pipeline.h"
#include "parallel/trainer/decide.h"
#include "tests/support/grid/thread_ranks.h"
#include "tests/support/model/model_inside.h"
#include "tests/support/trainer/training.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCKS = 5, STEPS = 2, MOST_SETS = 8, MOST_ROWS = 96 };

/* A run of a few steps: the report of each step, and the rows of each rank. */
typedef struct {
    Training shared;
    int ranks;
    StepRecord record[STEPS];
    bool holds[8][MOST_ROWS]; /* by rank and row of the parameter table */
    char name[MOST_ROWS][56];
    int rows;
} Run;

/* The feed of a trainer, which is called at every action. It poisons scratch memory, empty buffers,
 * and the slot that the next forward pass will fill, because none of these may be read again. */
static GptBatch poisoning_feed(void *context, const Action *action)
{
    Trainer *t = context;
    model_poison_scratch(t->gpt);
    if (t->session.pipeline) pipeline_poison(t->session.pipeline);
    if (action->kind == ACT_FORWARD) model_poison_slot(t->gpt, action);
    return feed_batch(&t->feed, action);
}

static void train_rank(Comm *world, void *context)
{
    Run *run = context;
    Trainer t;
    StepRecord record[TRAINER_HISTORY];
    training_open_rank(&t, world, &run->shared);
    gpt_connect(t.gpt, poisoning_feed, &t, &t.state->stats, &t.state->state.loss_seed);
    for (int s = 0; s < STEPS; s++)
        trainer_step(&t);
    trainer_read_all(&t, record);
    if (world->rank == 0) memcpy(run->record, record, sizeof run->record);
    const ParamTable *table = &t.session.table;
    CHECK(table->n_params <= MOST_ROWS, "%d rows", table->n_params);
    SessionExtent *rows = must_calloc((size_t)table->n_params, sizeof *rows);
    session_extents(&t.session, PURPOSE_UPDATE, rows);
    for (int p = 0; p < table->n_params; p++) {
        run->holds[world->rank][p] = rows[p].extent.count > 0;
        if (world->rank == 0) strcpy(run->name[p], table->param[p].name);
    }
    if (world->rank == 0) run->rows = table->n_params;
    free(rows);
    comm_barrier(world);
    trainer_close(&t);
}

/* `sets` are --set texts and end with NULL. */
static void train(Run *run, const Folder *folder, int ranks, int micros, const char *const *sets)
{
    const char *all[MOST_SETS + 3] = {"model.num_layers=5", "fp64.enabled=true"};
    char batch[64];
    int n = 2;
    *run = (Run){.ranks = ranks};
    snprintf(batch, sizeof batch, "train_batch_size=%d", 2 * micros);
    all[n++] = batch;
    while (*sets)
        all[n++] = *sets++;
    training_of_text(&run->shared, folder, ranks, all);
    assert_int_equal(run->shared.config->gradient_accumulation_steps, micros);
    training_run(&run->shared, train_rank, run);
    training_close(&run->shared);
}

static void check_equal(const Run *have, const Run *want, const char *what)
{
    for (int s = 0; s < STEPS; s++) {
        const StepRecord *a = &have->record[s], *b = &want->record[s];
        if (!(fabs(a->loss - b->loss) <= 1e-12 * b->loss) ||
            !(fabs(a->grad_norm - b->grad_norm) <= 1e-12 * b->grad_norm))
            fail_msg("%s, step %d: loss %.17g and norm %.17g; one rank has %.17g and %.17g", what,
                     s + 1, a->loss, a->grad_norm, b->loss, b->grad_norm);
    }
}

/* Runs one to five micro-batches on one to four stages with each schedule: fewer micro-batches than
 * stages, as many, and a number that is not a multiple of the stages. */
static void check_stages(const Folder *folder, int micros, int stages, const char *schedule,
                         int chunks)
{
    Run one, many;
    char pipeline[64], kind[64], parts[64], what[128];
    snprintf(pipeline, sizeof pipeline, "parallel.pipeline=%d", stages);
    snprintf(kind, sizeof kind, "parallel.schedule=%s", schedule);
    snprintf(parts, sizeof parts, "parallel.pipeline_chunks=%d", chunks);
    snprintf(what, sizeof what, "%d micro-batches on %d stages of %d, %s", micros, stages, chunks,
             schedule);
    train(&one, folder, 1, micros, (const char *const[]){NULL});
    train(&many, folder, stages, micros, (const char *const[]){pipeline, kind, parts, NULL});
    check_equal(&many, &one, what);
}

static void test_bug_31_every_micro_batch_has_its_own_activations(void **state)
{
    for (int stages = 2; stages <= 4; stages++) {
        for (int micros = stages; micros <= 5; micros++) {
            check_stages(*state, micros, stages, "gpipe", 1);
            check_stages(*state, micros, stages, "1f1b", 1);
            if (stages == 2) check_stages(*state, micros, stages, "interleaved", 2);
        }
    }
}

static void test_bug_34_fewer_micro_batches_than_stages_train_like_one_rank(void **state)
{
    for (int stages = 2; stages <= 4; stages++) {
        for (int micros = 1; micros < stages; micros++) {
            check_stages(*state, micros, stages, "gpipe", 1);
            check_stages(*state, micros, stages, "1f1b", 1);
            if (stages == 2) check_stages(*state, micros, stages, "interleaved", 2);
        }
    }
}

/* Returns whether a stage should have row `name`: the first has the embedding, the last has the
 * final norm and the head, and both have a tied table. */
static bool belongs(const char *name, int stage, int stages, const int *first, bool tied)
{
    int block;
    if (strcmp(name, "token.weight") == 0) return stage == 0 || (tied && stage == stages - 1);
    if (sscanf(name, "block.%d.", &block) == 1)
        return block >= first[stage] && block < first[stage + 1];
    return stage == stages - 1; /* final_norm, head */
}

/* Splits five blocks into two, three and four stages. Each row is on the stage of its layer, and
 * the model trains as on one rank. */
static void test_bug_32_every_layer_is_on_exactly_one_stage(void **state)
{
    /* The expected numbers of blocks: the last stage has fewer, because it also has the head, which
     * costs less than a block. */
    static const char *const cuts[] = {"[3,2]", "[2,2,1]", "[1,2,1,1]"};
    static const int first[3][5] = {{0, 3, 5}, {0, 2, 4, 5}, {0, 1, 3, 4, 5}};
    for (int i = 0; i < 6; i++) {
        int stages = i % 3 + 2;
        bool tied = i / 3;
        Run one, many;
        char pipeline[64], cut[64];
        const char *tie =
            tied ? "model.tie_word_embeddings=true" : "model.tie_word_embeddings=false";
        snprintf(pipeline, sizeof pipeline, "parallel.pipeline=%d", stages);
        snprintf(cut, sizeof cut, "parallel.pipeline_split=%s", cuts[i % 3]);
        train(&one, *state, 1, 2, (const char *const[]){tie, NULL});
        train(&many, *state, stages, 2, (const char *const[]){tie, pipeline, cut, NULL});
        check_equal(&many, &one, cut);
        for (int r = 0; r < stages; r++)
            for (int p = 0; p < many.rows; p++)
                if (many.holds[r][p] != belongs(many.name[p], r, stages, first[i % 3], tied))
                    fail_msg("%s %s on stage %d of %d", many.name[p],
                             many.holds[r][p] ? "is" : "is not", r, stages);
        /* Also without the given split: then the layers are split by their cost. */
        train(&many, *state, stages, 2, (const char *const[]){tie, pipeline, NULL});
        check_equal(&many, &one, pipeline);
    }
}

/* The loss is that of all rows, with and without sequence parallelism. */
static void test_bug_4_sequence_parallelism_does_not_scale_the_loss(void **state)
{
    Run one, many;
    train(&one, *state, 1, 2, (const char *const[]){NULL});
    for (int i = 0; i < 6; i++) {
        int tp = i < 4 ? 2 << i / 2 : 2, pp = i < 4 ? 1 : 2;
        char tensor[64], pipeline[64];
        const char *rows =
            i % 2 ? "parallel.sequence_parallel=true" : "parallel.sequence_parallel=false";
        snprintf(tensor, sizeof tensor, "parallel.tensor=%d", tp);
        snprintf(pipeline, sizeof pipeline, "parallel.pipeline=%d", pp);
        train(&many, *state, tp * pp, 2, (const char *const[]){tensor, pipeline, rows, NULL});
        check_equal(&many, &one, rows);
    }
}

/* ---- sums of a step -------------------------------------------------------------------------- */

/* Adds up the sums of sixteen ranks, 2 on each axis. The values of the ranks are powers of two, so
 * a sum shows which ranks it contains. */
static void sum_stats(Comm *world, void *context)
{
    Session s = {0};
    char err[256];
    DeviceOptions options = {.threads = 1, .local_ranks = 1};
    (void)context;
    if (!device_open(&s.dev, "cpu", &options, err, sizeof err)) rank_wrong(world, "%s", err);
    s.grid = grid_open(world, (GridPlace){2, 2, 2, 2}, NULL);
    double mine = ldexp(1, world->rank), all = 0, first = 0;
    StepStats *stats = device_alloc(&s.dev, sizeof *stats, "sums");
    *stats = (StepStats){.sq_norm = mine, .nats = 3 * mine, .targets = 5 * mine};
    session_sum_stats(&s, stats);
    for (int r = 0; r < world->size; r++) {
        all += ldexp(1, r);
        if (grid_place(s.grid.size, r).tp == 0) first += ldexp(1, r);
    }
    if (stats->sq_norm != all || stats->nats != 3 * first || stats->targets != 5 * first)
        rank_wrong(world, "%g, %g and %g, not %g, %g and %g", stats->sq_norm, stats->nats,
                   stats->targets, all, 3 * first, 5 * first);
    device_release(&s.dev, stats, sizeof *stats);
    grid_close(&s.grid);
    device_close(&s.dev);
}

/* The sum of squares (sq_norm) includes every rank. Losses and targets are added once per
 * tensor-parallel group, because all ranks of a group have the same ones. */
static void test_losses_count_once_per_tensor_parallel_group(void **state)
{
    (void)state;
    thread_ranks(16, 60, sum_stats, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses_count_once_per_tensor_parallel_group),
        cmocka_unit_test(test_bug_4_sequence_parallelism_does_not_scale_the_loss),
        cmocka_unit_test(test_bug_31_every_micro_batch_has_its_own_activations),
        cmocka_unit_test(test_bug_32_every_layer_is_on_exactly_one_stage),
        cmocka_unit_test(test_bug_34_fewer_micro_batches_than_stages_train_like_one_rank),
    };
    return cmocka_run_group_tests(tests, trainer_folder_setup, trainer_folder_teardown);
}
