/* test_grid_training.c -- tests what a trainer does besides normal steps on several ranks:
 * evaluations and samples, and stopping them on all ranks together; steps that overflow on one
 * rank; the times of its phases. */
#include "parallel/trainer/evaluate.h"
#include "parallel/trainer/replicas.h"
#include "parallel/verify/capture.h"
#include "tests/support/grid/thread_ranks.h"
#include "tests/support/trainer/trainer_fixture.h"
#include "tests/support/turns.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_RANKS = 8, STEPS = 4, STAGES = 4 };

/* Returns the step by which tests go through their cases: 1, or `sample` under sanitizers. If a
 * test has cases of several kinds, `sample` shares no divisor with the number of kinds, so all
 * kinds occur. */
static int stride(int sample)
{
    return getenv("TEST_SAMPLE") ? sample : 1;
}

/* What the ranks run, the config and the data that they share, and their results. */
typedef struct Together Together;
struct Together {
    Training shared;
    void (*body)(Trainer *, Together *);
    int ranks;
    int64_t batches; /* number of micro-batches of an evaluation */
    bool disturbed;  /* run evaluations and samples between steps */
    int at;          /* the rank that is stopped or overflows */
    EvalRecord eval[MOST_RANKS];
    double bubble[MOST_RANKS];
    char *text[MOST_RANKS];
    StepRecord record[MOST_RANKS][STEPS];
    double *weights; /* of all parameters, from capture_weights */
    int64_t n;
    bool agree;
};

static void open_rank(Comm *world, void *context)
{
    Together *w = context;
    Trainer t;
    training_open_rank(&t, world, &w->shared);
    w->body(&t, w);
    Capture end = capture_create(&t.session.table);
    capture_weights(&end, &t);
    char err[2048];
    bool agree = capture_drift(&t) == NULL && trainer_replicas_equal(&t, err, sizeof err);
    if (world->rank == 0) {
        w->agree = agree;
        w->n = end.n;
        w->weights = end.weight;
        end.weight = NULL;
    }
    capture_free(&end);
    trainer_close(&t);
}

/* Runs `body` on `ranks` ranks. Free the result with together_free. */
static void together(Together *w, const Folder *p, int ranks, const char *const *sets,
                     void (*body)(Trainer *, Together *))
{
    w->body = body;
    w->ranks = ranks;
    training_of_text(&w->shared, p, ranks, sets);
    training_run(&w->shared, open_rank, w);
    assert_true(w->agree);
}

static void together_free(Together *w)
{
    for (int i = 0; i < MOST_RANKS; i++)
        free(w->text[i]);
    free(w->weights);
    training_close(&w->shared);
}

static int rank_of(const Trainer *t)
{
    return t->session.world->rank;
}

/* Options of a batch of 12 sequences, which any number of ranks that divides 12 can share. */
#define BATCH "train_batch_size=12", "train_micro_batch_size_per_gpu=1", "fp64.enabled=true"

/* Grids that divide a model of four blocks, all with the same padding of the vocabulary. */
static const struct {
    int ranks;
    const char *tensor, *pipeline, *more;
} worlds[] = {
    {1, "parallel.tensor=1", "parallel.pipeline=1", "seed=1337"},
    {2, "parallel.tensor=1", "parallel.pipeline=1", "seed=1337"},
    {3, "parallel.tensor=1", "parallel.pipeline=1", "seed=1337"},
    {4, "parallel.tensor=1", "parallel.pipeline=1", "zero_optimization.stage=3"},
    {6, "parallel.tensor=1", "parallel.pipeline=1", "zero_optimization.stage=1"},
    {2, "parallel.tensor=1", "parallel.pipeline=2", "seed=1337"},
    {4, "parallel.tensor=1", "parallel.pipeline=4", "seed=1337"},
    {6, "parallel.tensor=1", "parallel.pipeline=2", "zero_optimization.stage=3"},
    {2, "parallel.tensor=1", "parallel.pipeline=2", "parallel.pipeline_chunks=2"},
    {2, "parallel.tensor=2", "parallel.pipeline=1", "parallel.sequence_parallel=true"},
    {4, "parallel.tensor=2", "parallel.pipeline=2", "parallel.sequence_parallel=true"},
};
enum { WORLDS = sizeof worlds / sizeof *worlds };

/* ---- evaluations ----------------------------------------------------------------------------- */

static void evaluate(Trainer *t, Together *w)
{
    w->eval[rank_of(t)] = trainer_evaluate(t, w->batches);
}

/* Every rank gets the complete results, equal to those of a single rank, even if at the end fewer
 * windows than ranks are left, or if eval.steps ends the evaluation earlier. */
static void test_bug_2_evaluations_equal_those_of_a_single_rank(void **state)
{
    static const char *const parts[][2] = {{"data.val_fraction=0.11", "eval.steps=0"},
                                           {"data.val_fraction=0.02", "eval.steps=0"},
                                           {"data.val_fraction=0.11", "eval.steps=5"}};
    for (int f = (int)turns_first(stride(3)); f < 3; f += stride(3)) {
        EvalRecord single = {0};
        for (int i = 0; i < WORLDS; i++) {
            Together w = {0};
            together(&w, *state, worlds[i].ranks,
                     (const char *const[]){BATCH, "model.num_layers=4", worlds[i].tensor,
                                           worlds[i].pipeline, worlds[i].more, parts[f][0],
                                           parts[f][1], NULL},
                     evaluate);
            if (i == 0) single = w.eval[0];
            if (f == 2) assert_int_equal(single.targets, 5 * w.shared.config->data.seq_length);
            for (int r = 0; r < worlds[i].ranks; r++) {
                const EvalRecord *e = &w.eval[r];
                if (e->targets != single.targets || e->bytes != single.bytes || e->cut ||
                    !(fabs(e->loss - single.loss) <= 1e-12 * single.loss) ||
                    !(fabs(e->bits_per_byte - single.bits_per_byte) <=
                      1e-12 * single.bits_per_byte))
                    fail_msg("%s, rank %d of %d: loss %.17g of %lld targets, %lld bytes; a single "
                             "rank has %.17g of %lld, %lld",
                             parts[f][f / 2], r, worlds[i].ranks, e->loss, (long long)e->targets,
                             (long long)e->bytes, single.loss, (long long)single.targets,
                             (long long)single.bytes);
            }
            together_free(&w);
        }
    }
}

static void sample(Trainer *t, Together *w)
{
    w->text[rank_of(t)] = trainer_sample(t, "the water", 12);
}

/* All ranks generate the same text as a single rank. */
static void test_samples_equal_those_of_a_single_rank(void **state)
{
    Together single = {0};
    together(&single, *state, 1, (const char *const[]){BATCH, "model.num_layers=4", NULL}, sample);
    for (int i = 1 + (int)turns_first(stride(3)); i < WORLDS; i += stride(3)) {
        Together w = {0};
        together(&w, *state, worlds[i].ranks,
                 (const char *const[]){BATCH, "model.num_layers=4", worlds[i].tensor,
                                       worlds[i].pipeline, worlds[i].more, NULL},
                 sample);
        for (int r = 0; r < worlds[i].ranks; r++)
            assert_string_equal(w.text[r], single.text[0]);
        together_free(&w);
    }
    together_free(&single);
}

/* ---- stops ----------------------------------------------------------------------------------- */

/* The feed's callback on one rank: requests a stop before the third micro-batch of an evaluation,
 * and after the third token of a sample. */
static bool stop_early(void *context, const Work *work)
{
    (void)context;
    return work->kind == WORK_STEP || work->done < (work->kind == WORK_SAMPLE ? 3 : 2);
}

static void cut_and_go_on(Trainer *t, Together *w)
{
    if (rank_of(t) == w->at) t->feed.watch = stop_early;
    w->eval[rank_of(t)] = trainer_evaluate(t, 0);
    w->text[rank_of(t)] = trainer_sample(t, "the water", 12);
    t->feed.watch = NULL;
    /* All ranks must have stopped at the same point, or these calls would never end. */
    trainer_step(t);
    EvalRecord after = trainer_evaluate(t, 0);
    if (after.cut) rank_wrong(t->session.world, "an evaluation is cut that nobody stops");
    trainer_read_all(t, w->record[rank_of(t)]);
}

/* If one rank is asked to stop, all stop at the same micro-batch and the same token. */
static void check_cut(const Folder *folder, int ranks, int at, const char *grid)
{
    Together w = {.at = at};
    together(&w, folder, ranks,
             (const char *const[]){BATCH, "zero_optimization.stage=2", "data.val_fraction=0.2",
                                   grid, NULL},
             cut_and_go_on);
    for (int r = 0; r < ranks; r++) {
        assert_true(w.eval[r].cut);
        assert_null(w.text[r]);
        step_records_equal(w.record[r], w.record[0], 1, grid);
    }
    together_free(&w);
}

static void test_bug_50_a_stop_request_on_one_rank_stops_all_at_the_same_point(void **state)
{
    for (int at = (int)turns_first(stride(4)); at < 4; at += stride(4)) {
        if (at < 3) check_cut(*state, 3, at, "parallel.pipeline=1");
        check_cut(*state, 4, at, "parallel.pipeline=2");
        check_cut(*state, 4, at, "parallel.tensor=2");
    }
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void train(Trainer *t, Together *w)
{
    for (int i = 0; i < STEPS; i++) {
        trainer_step(t);
        if (!w->disturbed) continue;
        free(trainer_sample(t, "and the", 3)); /* directly after the step */
        trainer_evaluate(t, i);
    }
    trainer_read_all(t, w->record[rank_of(t)]);
}

/* Bugs 26 and 50: evaluations and samples do not change the bits of the training on several ranks.
 */
static void test_bug_26_50_evaluations_do_not_change_the_training(void **state)
{
    static const struct {
        int ranks;
        const char *set[2];
    } grids[] = {{3, {"parallel.pipeline=1"}},
                 {4, {"parallel.pipeline=2"}},
                 {2, {"parallel.pipeline=2", "parallel.tensor=1"}},
                 {4, {"parallel.tensor=2", "parallel.sequence_parallel=true"}},
                 {8, {"parallel.tensor=2", "parallel.pipeline=2"}}};
    for (int i = (int)turns_first(stride(9)); i < STAGES * 5; i += stride(9)) {
        char set[64];
        int ranks = grids[i / STAGES].ranks;
        snprintf(set, sizeof set, "zero_optimization.stage=%d", i % STAGES);
        const char *const sets[] = {"train_batch_size=24",
                                    "train_micro_batch_size_per_gpu=1",
                                    "fp64.enabled=true",
                                    set,
                                    grids[i / STAGES].set[0],
                                    grids[i / STAGES].set[1],
                                    NULL};
        Together a = {0}, b = {.disturbed = true};
        together(&a, *state, ranks, sets, train);
        together(&b, *state, ranks, sets, train);
        assert_memory_equal(a.weights, b.weights, (size_t)a.n * sizeof *a.weights);
        for (int r = 0; r < ranks; r++)
            step_records_equal(a.record[r], b.record[r], STEPS, "disturbed");
        together_free(&a);
        together_free(&b);
    }
}

/* Makes the gradients of one rank infinite in the second step. */
static void overflow_once(Trainer *t, Together *w)
{
    double *scale = device_alloc(&t->session.dev, sizeof *scale, "a scale");
    *scale = INFINITY;
    for (int i = 0; i < STEPS; i++) {
        bool here = i == 1 && rank_of(t) == w->at;
        gpt_connect(t->gpt, feed_batch, &t->feed, &t->state->stats,
                    here ? scale : &t->state->state.loss_seed);
        trainer_step(t);
    }
    trainer_read_all(t, w->record[rank_of(t)]);
    device_release(&t->session.dev, scale, sizeof *scale);
}

/* Bug 9: all ranks skip the step, count it, and continue with the same weights, which together()
 * compares. */
static void test_bug_9_an_overflow_on_one_rank_is_skipped_by_all(void **state)
{
    /* at: the rank that overflows. With several stages it is on the last stage, which computes the
     * loss. */
    static const struct {
        int ranks, at;
        const char *set[2];
    } grids[] = {{3, 0, {"parallel.pipeline=1"}},
                 {2, 1, {"parallel.pipeline=2"}},
                 {4, 3, {"parallel.pipeline=2", "parallel.tensor=2"}}};
    for (int i = (int)turns_first(stride(7)); i < 2 * STAGES * 3; i += stride(7)) {
        char set[64];
        const int g = i / 2 / STAGES, ranks = grids[g].ranks;
        snprintf(set, sizeof set, "zero_optimization.stage=%d", i / 2 % STAGES);
        Together w = {.at = g == 0 && i % 2 ? 2 : grids[g].at};
        together(&w, *state, ranks,
                 (const char *const[]){"train_batch_size=12",
                                       i % 2 ? "fp16.enabled=true" : "fp64.enabled=true",
                                       i % 2 ? "train_micro_batch_size_per_gpu=2"
                                             : "train_micro_batch_size_per_gpu=1",
                                       i % 2 ? "fp16.initial_scale_power=8" : "seed=1337", set,
                                       grids[g].set[0], grids[g].set[1], NULL},
                 overflow_once);
        for (int r = 0; r < ranks; r++) {
            assert_true(w.record[r][0].applied);
            assert_false(w.record[r][1].applied);
            assert_true(w.record[r][2].applied);
            assert_int_equal(w.record[r][3].updates, 3);
            assert_int_equal(w.record[r][3].skipped, 1);
            step_records_equal(w.record[r], w.record[0], STEPS, "overflow");
        }
        together_free(&w);
    }
}

/* ---- times of phases ------------------------------------------------------------------------- */

static void look_at_clock(Trainer *t, Together *w)
{
    int64_t last = t->phases.n - 1;
    const PhaseSeconds *s = &t->phases.seconds;
    StepRecord record[TRAINER_HISTORY];
    trainer_step(t);
    trainer_read_all(t, record);
    double all =
        device_event_seconds(&t->session.dev, &t->phases.border[0], &t->phases.border[last]);
    double sum = s->forward + s->backward + s->optimizer;
    sum += t->feed.seconds; /* of this step only, and in none of the phases */
    sum += s->layers + s->communication + s->exchange + s->bubble;
    GridPlace size = t->session.grid.size;
    bool stages = size.pp > 1;
    if ((s->layers > 0) != (size.tp > 1) || (s->communication > 0) != (size.dp * size.tp > 1) ||
        (s->exchange > 0) != stages || s->bubble < 0 || (s->bubble > 0 && !stages) ||
        !(fabs(sum - all) <= 1e-9) || s->optimizer <= 0)
        rank_wrong(
            t->session.world,
            "%g s of layers, %g s of communication, %g s of exchange, %g s of bubble and %g s "
            "of all phases in a step of %g s",
            s->layers, s->communication, s->exchange, s->bubble, sum, all);
    w->bubble[rank_of(t)] = s->bubble;
}

/* Communication time is not part of the phases that it interrupts, and together with them it makes
 * up the step. The collectives of tensor-parallel layers are listed separately, the others once per
 * step. With several stages the exchange between stages and the bubble are listed, too: some stage
 * must wait, because all stages work on a single micro-batch. */
static void test_the_phases_of_the_time_breakdown_add_up_to_the_step(void **state)
{
    static const struct {
        int ranks;
        const char *stages, *tensor;
    } grids[] = {{1, "parallel.pipeline=1", "parallel.tensor=1"},
                 {2, "parallel.pipeline=1", "parallel.tensor=1"},
                 {3, "parallel.pipeline=1", "parallel.tensor=1"},
                 {2, "parallel.pipeline=1", "parallel.tensor=2"},
                 {2, "parallel.pipeline=2", "parallel.tensor=1"},
                 {4, "parallel.pipeline=2", "parallel.tensor=1"},
                 {4, "parallel.pipeline=2", "parallel.tensor=2"}};
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) {
        Together w = {0};
        together(&w, *state, grids[i].ranks,
                 (const char *const[]){"train_batch_size=null", "gradient_accumulation_steps=1",
                                       "wall_clock_breakdown=true", grids[i].stages,
                                       grids[i].tensor, NULL},
                 look_at_clock);
        assert_true(i < 4 || w.bubble[0] + w.bubble[1] + w.bubble[2] + w.bubble[3] > 0);
        together_free(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bug_2_evaluations_equal_those_of_a_single_rank),
        cmocka_unit_test(test_samples_equal_those_of_a_single_rank),
        cmocka_unit_test(test_bug_50_a_stop_request_on_one_rank_stops_all_at_the_same_point),
        cmocka_unit_test(test_bug_26_50_evaluations_do_not_change_the_training),
        cmocka_unit_test(test_bug_9_an_overflow_on_one_rank_is_skipped_by_all),
        cmocka_unit_test(test_the_phases_of_the_time_breakdown_add_up_to_the_step),
    };
    return cmocka_run_group_tests(tests, trainer_folder_setup, trainer_folder_teardown);
}
