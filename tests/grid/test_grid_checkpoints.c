/* test_grid_checkpoints.c -- a run that was saved on one world goes on on any other: the same
 * tensors, the same samples, the same losses. */
#include "data/sampler.h"
#include "model/core/check.h"
#include "parallel/plan/memory.h"
#include "parallel/trainer/save.h"
#include "tests/support/grid_case.h"
#include "tests/support/scratch.h"
#include "tests/support/thread_ranks.h"

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

typedef struct {
    int ranks, stage, micros, writers;
} World;
static const World worlds[] = {
    {1, 0, 1, 1}, {2, 0, 1, 2}, {2, 1, 3, 1}, {3, 2, 1, 3}, {4, 1, 1, 2},
    {4, 3, 3, 1}, {3, 0, 2, 1}, {6, 1, 2, 6}, {2, 3, 2, 2}, {3, 3, 1, 1},
};
enum { WORLDS = sizeof worlds / sizeof *worlds };

/* One run: goes on from the newest checkpoint below `load` or begins, makes steps up to BEFORE,
 * saves below `save`, and makes AFTER more where they are wanted. */
typedef struct {
    GridCase of;
    World world;
    const char *load, *save;
    bool goes_on;
    int64_t planned; /* bytes of a checkpoint */
    double loss[STEPS];
    _Atomic int seen[STEPS][BATCH]; /* how often each sample of a step was read */
} RunOf;

typedef struct {
    Trainer trainer;
    RunOf *run;
} Rank;

/* The trainer's feed; notes which samples a rank reads. */
static GptBatch noted_batch(void *context, const Action *action)
{
    Rank *r = context;
    Trainer *t = &r->trainer;
    const Grid *grid = &t->session.grid;
    int64_t B = t->config->train_micro_batch_size_per_gpu;
    for (int64_t row = 0; row < B; row++) {
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
    const Config *config;
    const DataSet *data;
} Job;

static void train(Comm *world, void *context)
{
    const Job *job = context;
    RunOf *run = job->run;
    Rank r = {.run = run};
    Trainer *t = &r.trainer;
    char err[1024];
    Checkpoint *c = NULL;
    CHECK(trainer_open(t, job->config, world, err, sizeof err) &&
              trainer_allocate(t, job->config, job->data, err, sizeof err),
          "%s", err);
    if (world->rank == 0) run->planned = memory_plan(t, job->data).checkpoint;
    gpt_connect(t->gpt, noted_batch, &r, &t->state->stats, &t->state->state.loss_seed);
    if (run->load)
        CHECK(checkpoint_open_newest(&t->io, run->load, &c, err, sizeof err) && c != NULL &&
                  trainer_load(t, c, err, sizeof err),
              "%s", err);
    checkpoint_close(c);
    step_to(&r, BEFORE);
    if (!trainer_save(t, run->save, "{}", "{}", err, sizeof err)) rank_wrong(world, "%s", err);
    if (run->goes_on) step_to(&r, STEPS);
    trainer_close(t);
}

static void run_world(RunOf *run, const World *world, const GridCase *of)
{
    GridCase c = *of;
    c.of[GRID_DATA] = world->ranks - 1;
    c.of[GRID_STAGE] = world->stage;
    c.of[GRID_MICROS] = world->micros - 1;
    c.of[GRID_BLOCKS] = 1;
    Config *config = grid_case_config(&c, BATCH);
    config->checkpoint.writers = world->writers;
    DataSet data;
    data_open_random(&data, config->model.vocab_size);
    Job job = {.run = run, .config = config, .data = &data};
    thread_ranks(world->ranks, 60, train, &job);
    data_close(&data);
    grid_config_free(config);
}

/* ---- what is in a checkpoint ----------------------------------------------------------------- */

/* All tensors of a checkpoint by name, whole. */
typedef struct {
    Checkpoint *c;
    CheckpointIo io;
    Piece *piece;
    int n;
} Held;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const Piece *)a)->name, ((const Piece *)b)->name);
}

static void held_open(Held *h, const char *folder)
{
    char err[1024];
    *h = (Held){0};
    checkpoint_io_open(&h->io, NULL, NULL);
    if (!checkpoint_open_newest(&h->io, folder, &h->c, err, sizeof err) || h->c == NULL)
        fail_msg("%s", err);
    const Manifest *m = checkpoint_manifest(h->c);
    h->piece = must_calloc((size_t)m->n_tensors, sizeof *h->piece);
    for (int part = 0; part < CHECKPOINT_PARTS; part++) {
        int first = h->n;
        for (int i = 0; i < m->n_tensors; i++) {
            const SafetensorsEntry *e = &m->tensor[i].entry;
            if ((int)m->file[m->tensor[i].file].part != part) continue;
            Tensor t = {.dtype = e->dtype, .ndim = e->ndim};
            memcpy(t.dim, e->dim, sizeof t.dim);
            t.ld = tensor_cols(t);
            t.data = must_alloc((size_t)e->bytes);
            h->piece[h->n++] = piece_whole(e->name, t);
        }
        if (!checkpoint_read(&h->io, h->c, (CheckpointPart)part, h->piece + first, h->n - first,
                             err, sizeof err))
            fail_msg("%s", err);
    }
    qsort(h->piece, (size_t)h->n, sizeof *h->piece, by_name);
}

static int64_t held_bytes(const Held *h)
{
    int64_t bytes = 0;
    for (int i = 0; i < h->n; i++)
        bytes += (int64_t)tensor_bytes(h->piece[i].data);
    return bytes;
}

static void held_close(Held *h)
{
    for (int i = 0; i < h->n; i++)
        free(h->piece[i].data.data);
    free(h->piece);
    checkpoint_close(h->c);
    checkpoint_io_close(&h->io);
}

static void held_equal(const Held *a, const Held *b, const char *what)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(&checkpoint_manifest(a->c)->state, &checkpoint_manifest(b->c)->state,
                        sizeof(StepState));
    for (int i = 0; i < a->n; i++) {
        const Piece *x = &a->piece[i], *y = &b->piece[i];
        assert_string_equal(x->name, y->name);
        assert_int_equal(tensor_bytes(x->data), tensor_bytes(y->data));
        if (memcmp(x->data.data, y->data.data, tensor_bytes(x->data)) != 0)
            fail_msg("%s: %s differs", what, x->name);
    }
}

/* ---- pairs ----------------------------------------------------------------------------------- */

static void remove_folder(const char *folder)
{
    char err[512];
    fs_remove_tree(&fs_system, AT_FDCWD, folder, err, sizeof err);
}

/* In doubles: the losses of an uninterrupted run are met to rounding, whatever the ranks. */
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

/* From one world to all; every `every`-th of those. */
static int check_from(const GridCase *of, int from, int every, const char *folder)
{
    char saved[256], again[256], what[160];
    int pairs = 0;
    bool doubles = grid_case_dtype(of) == F64;
    RunOf source = {.of = *of, .save = saved, .goes_on = doubles};
    Held held;
    snprintf(saved, sizeof saved, "%s/saved", folder);
    snprintf(again, sizeof again, "%s/again", folder);
    run_world(&source, &worlds[from], of);
    held_open(&held, saved);
    assert_int_equal(checkpoint_manifest(held.c)->world.ranks, worlds[from].ranks);
    assert_int_equal(checkpoint_manifest(held.c)->world.zero_stage, worlds[from].stage);
    assert_int_equal(checkpoint_manifest(held.c)->world.writers, worlds[from].writers);
    for (int to = from % every; to < WORLDS; to += every, pairs++) {
        RunOf other = {.of = *of, .load = saved, .save = again, .goes_on = doubles};
        Held resaved;
        snprintf(what, sizeof what, "%d ranks, ZeRO %d -> %d ranks, ZeRO %d", worlds[from].ranks,
                 worlds[from].stage, worlds[to].ranks, worlds[to].stage);
        run_world(&other, &worlds[to], of);
        held_open(&resaved, again);
        held_equal(&held, &resaved, what);
        assert_int_equal(other.planned, held_bytes(&resaved));
        if (doubles) check_steps(&source, &other, what);
        held_close(&resaved);
        remove_folder(again);
    }
    held_close(&held);
    remove_folder(saved);
    return pairs;
}

static void check_pairs(const GridCase *of, int n_of, int every, int least)
{
    char *folder = text_format("%s/test_grid_checkpoints.XXXXXX", test_scratch_folder());
    int pairs = 0;
    assert_non_null(mkdtemp(folder));
    if (getenv("TEST_SAMPLE")) every = WORLDS - 1;
    for (int from = 0; from < WORLDS; from++)
        pairs += check_from(&of[from % n_of], from, every, folder);
    print_message("  %d pairs of worlds\n", pairs);
    assert_true(pairs >= least || getenv("TEST_SAMPLE"));
    remove_folder(folder);
    free(folder);
}

static void test_bug_44_45_any_world_goes_on_from_any_other(void **state)
{
    (void)state;
    GridCase of[3] = {{{0}}, {{0}}, {{0}}};
    of[1].of[GRID_MODEL] = 6;
    of[1].of[GRID_OPTIMIZER] = 1;
    of[2].of[GRID_MODEL] = 4;
    of[2].of[GRID_CLIP] = 1;
    check_pairs(of, 3, 1, WORLDS * WORLDS);
}

/* In bf16 there are masters besides, and slots of another type than the weights. */
static void test_16_bit_weights_and_masters_go_with_them(void **state)
{
    (void)state;
    GridCase of[2] = {{{0}}, {{0}}};
    of[0].of[GRID_DTYPE] = 2;
    of[1].of[GRID_DTYPE] = 3;
    of[1].of[GRID_MODEL] = 3;
    check_pairs(of, 2, 3, WORLDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bug_44_45_any_world_goes_on_from_any_other),
        cmocka_unit_test(test_16_bit_weights_and_masters_go_with_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
