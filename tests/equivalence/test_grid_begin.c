/* test_grid_begin.c -- a run that begins with the weights of a checkpoint begins with the same bits
 * on any grid as on one rank, and trains like it. */
#include "model/core/check.h"
#include "parallel/checkpoint/source.h"
#include "parallel/trainer/save.h"
#include "tests/support/checkpoint/held.h"
#include "tests/support/files/scratch.h"
#include "tests/support/grid/grid_world.h"
#include "tests/support/trainer/training.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 12, STEPS = 3 };

static const GridWorld one = {1, 1, 1, false, 1, 0, 1, 1, 0, 0};
static const GridWorld worlds[] = {
    {1, 2, 1, false, 1, 0, 1, 1, 0, 0}, {1, 1, 2, false, 1, 0, 1, 1, 0, 0},
    {2, 1, 1, false, 1, 0, 2, 1, 0, 0}, {1, 2, 1, false, 1, 3, 1, 1, 0, 0},
    {1, 3, 1, false, 1, 1, 2, 2, 0, 0}, {1, 1, 4, true, 1, 0, 1, 1, 0, 0},
    {2, 2, 2, false, 2, 3, 3, 2, 0, 0}, {3, 2, 1, false, 1, 2, 1, 1, 0, 0},
};

/* One run. It begins with the weights of the newest checkpoint in `from`, and saves in `save`
 * before its first step. If `from` is NULL, it begins with the weights of its seed, and saves in
 * `save` after its last step. */
typedef struct {
    const char *from, *save;
    double loss[STEPS];
    Training training;
} RunOf;

static void save(Trainer *t, const RunOf *run)
{
    char err[1024];
    CHECK(trainer_save(t, run->save, "{}", "{}", err, sizeof err), "%s", err);
}

static void train(Comm *world, void *context)
{
    RunOf *run = context;
    StepRecord record[TRAINER_HISTORY];
    Trainer t;
    Checkpoint *c = NULL;
    char err[2048];
    Take take = {.from = "test"};
    WeightSource *source = NULL;
    training_open_rank(&t, world, &run->training);
    if (run->from)
        CHECK(checkpoint_open_newest(&t.io, run->from, &c, err, sizeof err) && c != NULL &&
                  checkpoint_source_open_masters(c, &source, err, sizeof err) &&
                  trainer_begin_with(&t, source, &take, err, sizeof err),
              "%s", err);
    if (source) source->close(source);
    checkpoint_close(c);
    if (run->from) save(&t, run);
    while (t.steps < STEPS) {
        trainer_step(&t);
        trainer_read_all(&t, record);
        if (world->rank == 0) run->loss[t.steps - 1] = record[0].loss;
    }
    if (!run->from) save(&t, run);
    trainer_close(&t);
}

static void run_world(RunOf *run, const GridWorld *world, const GridModel *what)
{
    training_of_tokens(&run->training, grid_world_config(world, what, BATCH),
                       grid_world_ranks(world));
    training_run(&run->training, train, run);
    training_close(&run->training);
}

/* ---- one rank -------------------------------------------------------------------------------- */

static double value(const Piece *p, int64_t i)
{
    const void *data = p->data.data;
    switch (p->dtype) {
    case F64: return ((const double *)data)[i];
    case F32: return ((const float *)data)[i];
    case BF16: return bf16_to_f32(((const uint16_t *)data)[i]);
    default: return f16_to_f32(((const uint16_t *)data)[i]);
    }
}

/* Returns the tensor WEIGHT.master; NULL if there is none. */
static const Piece *master_of(const Held *h, const char *weight)
{
    char name[80];
    snprintf(name, sizeof name, "%s.master", weight);
    for (int i = 0; i < h->n; i++)
        if (strcmp(h->piece[i].name, name) == 0) return &h->piece[i];
    return NULL;
}

/* Compares a weight of one rank, and its master, with the source's most precise values (those of
 * its master, if it has one): the master must have these values rounded to f32, and the weight must
 * have them rounded to its own dtype, a 16-bit weight by way of f32. */
static void check_weight(const Held *source, const Held *begun, const Piece *w)
{
    const Piece *from = master_of(source, w->name), *master = master_of(begun, w->name);
    if (from == NULL) from = held_find(source, w->name);
    for (int64_t i = 0; i < piece_elements(w); i++) {
        double x = value(from, i), here = value(w, i);
        float narrow = (float)x;
        if (master && value(master, i) != narrow)
            fail_msg("%s: master %lld is %.9g and not %.9g", w->name, (long long)i,
                     value(master, i), x);
        double rounded = w->dtype == F64    ? x
                         : w->dtype == F32  ? narrow
                         : w->dtype == BF16 ? bf16_to_f32(bf16_from_f32(narrow))
                                            : f16_to_f32(f16_from_f32(narrow));
        if (here != rounded)
            fail_msg("%s: element %lld is %.17g and not %.17g", w->name, (long long)i, here,
                     rounded);
    }
}

/* Checks every weight and master, and that all optimizer states are zero. */
static void check_one_rank(const Held *source, const Held *begun)
{
    assert_int_equal(checkpoint_manifest(begun->c)->state.steps, 0);
    for (int i = 0; i < begun->n; i++) {
        const Piece *p = &begun->piece[i];
        const char *dot = strrchr(p->name, '.');
        bool weight = strcmp(dot, ".weight") == 0 || strcmp(dot, ".bias") == 0;
        if (weight) check_weight(source, begun, p);
        for (int64_t k = 0; !weight && strcmp(dot, ".master") != 0 && k < piece_elements(p); k++)
            if (value(p, k) != 0) fail_msg("%s is not zero at the start", p->name);
    }
}

/* ---- grids ----------------------------------------------------------------------------------- */

static void remove_folder(const char *folder)
{
    char err[512];
    fs_remove_tree(&fs_system, AT_FDCWD, folder, err, sizeof err);
}

static void check_world(const RunOf *single, const Held *held, const GridWorld *w,
                        const GridModel *what, const char *folder)
{
    char name[96];
    RunOf run = {.from = single->from, .save = folder};
    Held begun;
    snprintf(name, sizeof name, "pp %d x dp %d x tp %d, ZeRO %d", w->pp, w->dp, w->tp, w->stage);
    run_world(&run, w, what);
    held_open(&begun, folder);
    held_equal(held, &begun, name);
    held_close(&begun);
    remove_folder(folder);
    for (int s = 0; grid_world_dtype(what) == F64 && s < STEPS; s++)
        if (!(fabs(run.loss[s] / single->loss[s] - 1) <= 1e-12))
            fail_msg("%s: loss of step %d is %.17g and not %.17g", name, s + 1, run.loss[s],
                     single->loss[s]);
}

/* Trains a source of one dtype and begins a run of another with its weights: on one rank, where
 * every value is compared, and on all grids. */
static void check_dtypes(const GridModel *from, const GridModel *to)
{
    char folder[3][256], *at = text_format("%s/test_grid_begin.XXXXXX", test_scratch_folder());
    static const char *const names[] = {"source", "one", "grid"};
    Held source, begun;
    assert_non_null(mkdtemp(at));
    for (int i = 0; i < 3; i++)
        snprintf(folder[i], sizeof folder[i], "%s/%s", at, names[i]);
    RunOf first = {.save = folder[0]}, single = {.from = folder[0], .save = folder[1]};
    run_world(&first, &one, from);
    run_world(&single, &one, to);
    held_open(&source, folder[0]);
    held_open(&begun, folder[1]);
    check_one_rank(&source, &begun);
    for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++)
        if (grid_world_fits(&worlds[w], to))
            check_world(&single, &begun, &worlds[w], to, folder[2]);
    held_close(&source);
    held_close(&begun);
    remove_folder(at);
    free(at);
}

static void any_grid_starts_from_a_checkpoint_with_the_same_bits_as_one_rank(void **state)
{
    (void)state;
    for (int model = 0; model < GRID_WORLD_MODELS; model++)
        check_dtypes(&(GridModel){model, 0}, &(GridModel){model, 0});
}

/* The pairs: from f64 to bf16 with masters, to bf16 without them, and to f16; from bf16 with
 * masters to bf16 with masters, and to f64. Masters are the most precise values of a bf16
 * source. */
static void a_run_of_another_dtype_loads_the_most_precise_values(void **state)
{
    (void)state;
    static const int pairs[][2] = {{0, 1}, {0, 3}, {0, 2}, {1, 1}, {1, 0}};
    for (int i = 0; i < 5; i++)
        check_dtypes(&(GridModel){i % GRID_WORLD_MODELS, pairs[i][0]},
                     &(GridModel){i % GRID_WORLD_MODELS, pairs[i][1]});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_grid_starts_from_a_checkpoint_with_the_same_bits_as_one_rank),
        cmocka_unit_test(a_run_of_another_dtype_loads_the_most_precise_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
