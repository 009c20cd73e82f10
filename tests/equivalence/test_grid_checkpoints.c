/* test_grid_checkpoints.c -- a run that was saved on one grid resumes on any other with the same
 * tensors, the same samples and the same losses. */
#include "data/sampler.h"
#include "model/core/check.h"
#include "parallel/memory/memory_plan.h"
#include "parallel/trainer/save.h"
#include "tests/support/checkpoint/held.h"
#include "tests/support/files/scratch.h"
#include "tests/support/grid/grid_world.h"
#include "tests/support/support.h"
#include "tests/support/trainer/training.h"
#include "tests/support/turns.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>

enum { BATCH = 12, BEFORE = 2, AFTER = 3, STEPS = BEFORE + AFTER };

static const GridWorld worlds[] = {
    {1, 1, 1, false, 1, 0, 1, 1, 0, 0},   {1, 2, 1, false, 1, 0, 1, 2, 0, 100},
    {1, 4, 1, false, 1, 3, 3, 1, 0, 100}, {1, 3, 1, false, 1, 2, 2, 3, 0, 50},
    {1, 1, 2, false, 1, 0, 2, 1, 0, 0},   {1, 2, 4, true, 1, 1, 1, 8, 0, 100},
    {1, 1, 3, true, 1, 0, 1, 2, 0, 0},    {2, 1, 1, false, 1, 0, 4, 2, 0, 100},
    {4, 1, 1, false, 1, 0, 2, 4, 0, 50},  {3, 2, 1, false, 1, 2, 3, 1, 0, 0},
    {2, 2, 2, true, 1, 3, 2, 3, 0, 0},    {2, 1, 1, false, 2, 0, 2, 1, 0, 100},
    {1, 4, 1, false, 1, 3, 1, 2, 2, 100}, {1, 4, 1, false, 1, 2, 3, 4, 1, 50},
    {1, 6, 1, false, 1, 3, 2, 1, 3, 50},  {2, 1, 4, false, 1, 0, 1, 5, 0, 100},
    {4, 1, 2, true, 1, 0, 3, 2, 0, 100},  {2, 3, 1, false, 1, 1, 1, 1, 0, 0},
    {3, 1, 3, false, 1, 0, 2, 4, 0, 0},   {2, 2, 2, false, 2, 2, 3, 2, 0, 100},
};
enum { WORLDS = sizeof worlds / sizeof *worlds };

/* One run: resumes from the newest checkpoint in `load`, or starts; runs steps up to BEFORE, saves
 * in `save`, and runs AFTER more steps if asked to. After an asynchronous save has begun, the run
 * makes at least one more step before it waits for the save. */
typedef struct {
    const char *load, *save;
    bool goes_on, async;
    int64_t planned; /* planned bytes of a checkpoint */
    double loss[STEPS];
    _Atomic int seen[STEPS][BATCH]; /* how often each sample of a step was read */
} RunOf;

typedef struct {
    Trainer trainer;
    RunOf *run;
} Rank;

/* Calls the trainer's feed and records which samples a data-parallel rank trains on. */
static GptBatch noted_batch(void *context, const Action *action)
{
    Rank *r = context;
    Trainer *t = &r->trainer;
    const Grid *grid = &t->session.grid;
    int64_t B = t->config->train_micro_batch_size_per_gpu;
    bool first = action->kind == ACT_FORWARD && action->chunk == 0;
    for (int64_t row = 0; first && grid->at.pp + grid->at.tp == 0 && row < B; row++) {
        int64_t sample =
            sampler_index(t->samples, action->micro, grid->at.dp, grid->size.dp, B, row);
        if (sample < STEPS * BATCH) r->run->seen[sample / BATCH][sample % BATCH]++;
    }
    return feed_batch(&t->feed, action);
}

static void step_to(Rank *r, int64_t steps)
{
    StepRecord record[TRAINER_HISTORY];
    Trainer *t = &r->trainer;
    while (t->steps < steps) {
        trainer_step(t);
        trainer_read_all(t, record);
        if (t->session.world->rank == 0) r->run->loss[t->steps - 1] = record[0].loss;
    }
}

typedef struct {
    RunOf *run;
    Training training;
} Job;

static void save_and_go_on(Rank *r, Comm *world)
{
    const RunOf *run = r->run;
    Trainer *t = &r->trainer;
    AsyncResult result;
    char err[1024];
    if (!run->async && !trainer_save(t, run->save, "{}", "{}", err, sizeof err))
        rank_wrong(world, "%s", err);
    if (run->async && !trainer_save_begin(t, run->save, "{}", "{}", (CheckpointHook){NULL, NULL}))
        rank_wrong(world, "an asynchronous save does not begin");
    if (run->async) step_to(r, BEFORE + 1);
    if (run->goes_on) step_to(r, STEPS);
    if (run->async && trainer_save_await(t, false, &result) != ASYNC_SAVED)
        rank_wrong(world, "%s", result.err);
}

static void train(Comm *world, void *context)
{
    const Job *job = context;
    RunOf *run = job->run;
    Rank r = {.run = run};
    Trainer *t = &r.trainer;
    char err[1024];
    Checkpoint *c = NULL;
    training_lay_out(t, world, &job->training);
    t->saves_async = run->async;
    training_allocate(t, &job->training);
    if (world->rank == 0) run->planned = memory_plan(t, &job->training.data).checkpoint;
    gpt_connect(t->gpt, noted_batch, &r, &t->state->stats, &t->state->state.loss_seed);
    if (run->load)
        CHECK(checkpoint_open_newest(&t->io, run->load, &c, err, sizeof err) && c != NULL &&
                  trainer_load(t, c, err, sizeof err),
              "%s", err);
    checkpoint_close(c);
    step_to(&r, BEFORE);
    save_and_go_on(&r, world);
    trainer_close(t);
}

static void run_world(RunOf *run, const GridWorld *world, const GridModel *what)
{
    Job job = {.run = run};
    training_of_tokens(&job.training, grid_world_config(world, what, BATCH),
                       grid_world_ranks(world));
    training_run(&job.training, train, &job);
    training_close(&job.training);
}

/* ---- pairs ----------------------------------------------------------------------------------- */

static void remove_folder(const char *folder)
{
    char err[512];
    fs_remove_tree(&fs_system, AT_FDCWD, folder, err, sizeof err);
}

/* In f64 the losses equal those of an uninterrupted run up to rounding, on any ranks. */
static void check_steps(const RunOf *from, const RunOf *to, const char *what)
{
    for (int s = BEFORE; s < STEPS; s++) {
        double off = fabs(to->loss[s] / from->loss[s] - 1);
        if (!(off <= 1e-12)) fail_msg("%s: loss of step %d is off by %g", what, s + 1, off);
        for (int i = 0; i < BATCH; i++)
            if (to->seen[s][i] != 1 || to->seen[BEFORE - 1][i] != 0)
                fail_msg("%s: sample %d of step %d is read %d times", what, i, s + 1,
                         to->seen[s][i]);
    }
}

static void check_manifest(const Held *held, const GridWorld *w)
{
    const ManifestWorld *m = &checkpoint_manifest(held->c)->world;
    assert_int_equal(m->ranks, grid_world_ranks(w));
    assert_int_equal(m->pp, w->pp);
    assert_int_equal(m->dp, w->dp);
    assert_int_equal(m->cp, 1);
    assert_int_equal(m->tp, w->tp);
    assert_int_equal(m->zero_stage, w->stage);
    assert_int_equal(m->writers, w->writers);
}

/* Writes the name of a pair, such as "pp 2 x dp 1 x tp 4, ZeRO 0 -> ...". */
static void name_pair(const GridWorld *a, const GridWorld *b, char *out, size_t n)
{
    snprintf(out, n, "pp %d x dp %d x tp %d, ZeRO %d -> pp %d x dp %d x tp %d, ZeRO %d", a->pp,
             a->dp, a->tp, a->stage, b->pp, b->dp, b->tp, b->stage);
}

/* Another grid loads the checkpoint in `saved`, saves it again in `again`, and trains on. */
static void check_pair(const RunOf *source, const Held *held, const GridWorld *from,
                       const GridWorld *to, const GridModel *what, const char *again)
{
    char name[160];
    RunOf other = {.load = source->save, .save = again, .goes_on = source->goes_on};
    Held resaved;
    name_pair(from, to, name, sizeof name);
    run_world(&other, to, what);
    held_open(&resaved, again);
    held_equal(held, &resaved, name);
    check_manifest(&resaved, to);
    assert_int_equal(other.planned, held_bytes(&resaved));
    if (source->goes_on) check_steps(source, &other, name);
    held_close(&resaved);
}

/* Saves on the grid number `from`, asynchronously if the number is odd, and resumes on every
 * `every`-th grid; the first of these depends on the commit (turns.h). Returns the number of
 * pairs. */
static int check_from(const GridModel *what, int from, int every, const char *folder)
{
    char saved[256], again[256];
    int pairs = 0;
    RunOf source = {
        .save = saved, .goes_on = grid_world_dtype(what) == F64, .async = from % 2 == 1};
    Held held;
    snprintf(saved, sizeof saved, "%s/saved", folder);
    snprintf(again, sizeof again, "%s/again", folder);
    run_world(&source, &worlds[from], what);
    held_open(&held, saved);
    check_manifest(&held, &worlds[from]);
    for (int to = (from + (int)turns_first(every)) % every; to < WORLDS; to += every) {
        if (!grid_world_fits(&worlds[to], what)) continue;
        check_pair(&source, &held, &worlds[from], &worlds[to], what, again);
        remove_folder(again);
        pairs++;
    }
    held_close(&held);
    remove_folder(saved);
    return pairs;
}

static void check_pairs(const GridModel *what, int n, int every, int least)
{
    char *folder = text_format("%s/test_grid_checkpoints.XXXXXX", test_scratch_folder());
    int pairs = 0;
    assert_non_null(mkdtemp(folder));
    /* With TEST_EVERY=N, only one of N pairs is tested. */
    int share = getenv("TEST_SAMPLE") ? 1 : (int)turns_every(1);
    every = getenv("TEST_SAMPLE") ? WORLDS - 1 : every * share;
    /* Slow builds (TEST_SAMPLE) save on every ninth grid only. The 9 turns for this and the
     * WORLDS-1 turns of check_from together cover all pairs. */
    const int step = getenv("TEST_SAMPLE") ? 9 : 1;
    for (int from = (int)turns_first(step); from < WORLDS; from += step)
        if (grid_world_fits(&worlds[from], &what[from % n]))
            pairs += check_from(&what[from % n], from, every, folder);
    print_message("  %d pairs of worlds\n", pairs);
    assert_true(pairs >= least / share || getenv("TEST_SAMPLE"));
    remove_folder(folder);
    free(folder);
}

static void test_bug_44_45_a_run_saved_on_any_grid_resumes_on_any_other(void **state)
{
    (void)state;
    static const GridModel what[] = {{.model = 0}, {.model = 2}, {.model = 1}};
    check_pairs(what, 3, 3, 80);
}

/* In bf16 there are also master weights, and optimizer states in another dtype than the weights. */
static void test_bf16_weights_and_master_weights_resume_on_other_grids(void **state)
{
    (void)state;
    static const GridModel what[] = {{0, 1}, {1, 2}, {2, 3}, {2, 1}};
    check_pairs(what, 4, 6, 40);
}

/* Layers are saved with their number in the model, not in the stage. All layers have different
 * weights, and the losses must equal those of an uninterrupted run, from 1 stage to 2 and to 4, and
 * back. */
static void test_bug_33_layers_keep_their_names_on_other_stages(void **state)
{
    (void)state;
    static const GridWorld stages[] = {{1, 1, 1, false, 1, 0, 2, 1, 0, 0},
                                       {2, 1, 1, false, 1, 0, 2, 1, 0, 0},
                                       {4, 1, 1, false, 1, 0, 2, 1, 0, 0},
                                       {2, 1, 1, false, 2, 0, 2, 1, 0, 0}};
    for (int model = getenv("TEST_SAMPLE") ? 1 : 0; model < 2; model++) {
        GridModel what = {.model = model};
        char *folder[5];
        RunOf source = {.goes_on = true};
        Held held;
        for (int i = 0; i < 5; i++) {
            folder[i] = text_format("%s/test_grid_layers.XXXXXX", test_scratch_folder());
            assert_non_null(mkdtemp(folder[i]));
        }
        source.save = folder[0];
        run_world(&source, &stages[0], &what);
        held_open(&held, folder[0]);
        for (int i = 1; i < 5; i++) { /* each run loads the checkpoint of the one before */
            source.save = folder[i - 1];
            check_pair(&source, &held, &stages[i - 1], &stages[i % 4], &what, folder[i]);
        }
        held_close(&held);
        for (int i = 0; i < 5; i++) {
            remove_folder(folder[i]);
            free(folder[i]);
        }
    }
}

/* From one rank to ranks with a GPU each, and back: each run loads the checkpoint of the one
 * before. */
static void test_a_run_resumes_on_ranks_with_a_gpu_each_and_back(void **state)
{
    (void)state;
    static const GridWorld to[] = {{1, 2, 2, true, 1, 1, 2, 2, 0, 100},
                                   {1, 1, 1, false, 1, 0, 1, 1, 0, 0},
                                   {2, 2, 1, false, 1, 3, 1, 2, 0, 50},
                                   {1, 1, 1, false, 1, 0, 2, 1, 0, 0},
                                   {4, 1, 1, false, 1, 0, 2, 4, 0, 0}};
    enum { CHAIN = sizeof to / sizeof *to };
    static const GridModel what = {.model = 2, .dtype = 1};
    char *folder[CHAIN];
    RunOf source = {.async = true};
    Held held;
    for (int i = 0; i < CHAIN; i++) {
        folder[i] = text_format("%s/test_grid_gpus.XXXXXX", test_scratch_folder());
        assert_non_null(mkdtemp(folder[i]));
    }
    source.save = folder[0];
    run_world(&source, &to[0], &what);
    held_open(&held, folder[0]);
    for (int i = 1; i < CHAIN; i++) {
        source.save = folder[i - 1];
        check_pair(&source, &held, &to[i - 1], &to[i], &what, folder[i]);
    }
    held_close(&held);
    for (int i = 0; i < CHAIN; i++) {
        remove_folder(folder[i]);
        free(folder[i]);
    }
}

int main(void)
{
    const struct CMUnitTest gpus[] = {
        cmocka_unit_test(test_a_run_resumes_on_ranks_with_a_gpu_each_and_back)};
    if (getenv("TEST_DEVICE") && cuda_devices() >= 4)
        return cmocka_run_group_tests(gpus, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bug_44_45_a_run_saved_on_any_grid_resumes_on_any_other),
        cmocka_unit_test(test_bf16_weights_and_master_weights_resume_on_other_grids),
        cmocka_unit_test(test_bug_33_layers_keep_their_names_on_other_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
