/* test_init_cuts.c -- initial weights do not depend on how they are cut: the bits of parameters
 * that are drawn whole, whatever part of them a rank has and updates, and zeros between them. */
#include "model/core/check.h"
#include "model/core/rng.h"
#include "model/kernels/ops.h"
#include "model/param/init.h"
#include "tests/support/model_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MOST_UNITS = 16 };

/* A store over flat units that are cut into `parts` pieces at odd elements, of which this rank
 * updates piece `part` alone: a piece has several runs in one unit, and none in another. */
typedef struct {
    ParamStore base; /* first: the contract's pointer is the store's */
    Tensor weight[MOST_UNITS];
    int parts, part, published;
} CutStore;

/* Where piece `part` of a unit begins: at its end from half of them on in every third unit. */
static int64_t border(const CutStore *s, int unit, int part)
{
    int64_t size = s->base.table->unit[unit].size, share = size * part / s->parts | (part > 0);
    if (unit % 3 == 2 && part > s->parts / 2) return size;
    return part == s->parts || share > size ? size : share;
}

static int cut_shards(ParamStore *base, Purpose purpose, Shard *shards, int max)
{
    const CutStore *s = (const CutStore *)base;
    int n = 0;
    assert_true(purpose == PURPOSE_UPDATE);
    for (int u = 0; u < base->table->n_units; u++) {
        int64_t from = border(s, u, s->part), to = border(s, u, s->part + 1);
        for (int r = 0; r < base->table->unit[u].n_ranges; r++) {
            const Range *range = &base->table->unit[u].range[r];
            int64_t begin = range->offset > from ? range->offset : from,
                    end = range->offset + range->count < to ? range->offset + range->count : to;
            if (begin >= end) continue;
            if (n < max)
                shards[n] = (Shard){.unit = u,
                                    .offset = begin,
                                    .count = end - begin,
                                    .group = range->group,
                                    .weight = tensor_slice_rows(s->weight[u], begin, end - begin)};
            n++;
        }
    }
    return n;
}

static void cut_publish(ParamStore *base, int unit)
{
    CutStore *s = (CutStore *)base;
    assert_int_equal(s->published++, unit);
}

/* Element (row, col) of a whole parameter as drawn in one call, padding rows zero. */
static double drawn_whole(const Param *p, Tensor whole, int64_t row, int64_t col)
{
    if (row >= p->dim[0] || p->init == INIT_ZERO) return 0;
    return p->init == INIT_ONE ? 1 : dtype_get(whole.dtype, whole.data, row * p->dim[1] + col);
}

/* Every element of the units, gaps and padding included, against parameters drawn whole. */
static void check_against_whole(Device *dev, const CutStore *s, uint64_t seed)
{
    for (int u = 0; u < s->base.table->n_units; u++) {
        const Unit *unit = &s->base.table->unit[u];
        double *want = must_calloc((size_t)unit->size, sizeof *want);
        for (int i = unit->first; i < unit->first + unit->count; i++) {
            const Param *p = &s->base.table->param[i];
            double *cells = must_calloc((size_t)param_count(p), sizeof *cells);
            Tensor whole = tensor_1d(cells, unit->dtype, param_count(p));
            int64_t row0 = p->tp_dim == 0 ? s->base.at.tp * p->local[0] : 0,
                    col0 = p->tp_dim == 1 ? s->base.at.tp * p->local[1] : 0;
            op_normal(dev, whole, seed, &(Segment){.stream = rng_stream(p->name)}, (double)p->std);
            for (int64_t k = 0; k < p->local[0] * p->local[1]; k++)
                want[p->offset + k] =
                    drawn_whole(p, whole, row0 + k / p->local[1], col0 + k % p->local[1]);
            free(cells);
        }
        for (int64_t k = 0; k < unit->size; k++) {
            double got = dtype_get(unit->dtype, s->weight[u].data, k);
            if (got != want[k])
                fail_msg("%d parts, tp rank %d, unit %d, element %lld: %g, not %g", s->parts,
                         s->base.at.tp, u, (long long)k, got, want[k]);
        }
        free(want);
    }
}

/* Units of NaNs are filled piece by piece, each by a store of its own; a piece leaves what others
 * filled before it. */
static void check_cut(const ParamTable *table, GridPlace at, int parts, uint64_t seed)
{
    CutStore s = {.base = {.table = table, .at = at, .shards = cut_shards, .publish = cut_publish},
                  .parts = parts};
    DeviceOptions options = {.threads = 1, .local_ranks = 1};
    Device dev;
    char err[256];
    assert_true(table->n_units <= MOST_UNITS);
    if (!device_open(&dev, "cpu", &options, err, sizeof err)) fail_msg("%s", err);
    for (int u = 0; u < table->n_units; u++) {
        int64_t n = table->unit[u].size;
        s.weight[u] = tensor_1d(must_calloc((size_t)n, sizeof(double)), table->unit[u].dtype, n);
        op_fill(&dev, s.weight[u], (double)NAN);
    }
    for (s.part = 0; s.part < parts; s.part++) {
        s.published = 0;
        param_init(&dev, &s.base, seed);
        assert_int_equal(s.published, table->n_units);
        /* What comes later is still untouched. */
        for (int u = 0; u < table->n_units; u++) {
            int64_t end = border(&s, u, s.part + 1);
            if (end < table->unit[u].size)
                assert_true(isnan(dtype_get(table->unit[u].dtype, s.weight[u].data, end)));
        }
    }
    check_against_whole(&dev, &s, seed);
    for (int u = 0; u < table->n_units; u++)
        free(s.weight[u].data);
    device_close(&dev);
}

static void check_cuts(const ParamTable *table, int tp)
{
    static const int parts[] = {1, 2, 3, 5};
    for (int k = 0; k < 4; k++)
        for (int rank = 0; rank < tp; rank++)
            check_cut(table, (GridPlace){.tp = rank}, parts[k], 11);
}

/* Whole models in 1, 2, 3 and 5 pieces. */
static void test_weights_do_not_depend_on_the_shards(void **state)
{
    (void)state;
    for (int i = 0; i < FIXTURE_VARIANTS; i += 7) {
        GptShape shape = fixture_variant(i);
        GptLayers layers;
        ParamTable table = {0};
        gpt_layers_build(&layers, &table, &shape, &GRID_OF_ONE);
        check_cuts(&table, 1);
        gpt_layers_free(&layers);
        param_table_free(&table);
    }
}

/* Parameters of which every rank has some rows (padding rows are the last one's), some columns, or
 * all, in pieces that begin within their rows. */
static void test_weights_do_not_depend_on_the_grid(void **state)
{
    static const ParamSpec spec[] = {
        {.name = "rows",
         .pack = -1,
         .rows = 21,
         .cols = 10,
         .padded_rows = 32,
         .tp_dim = 0,
         .init = INIT_NORMAL,
         .std = 0.5},
        {.name = "columns",
         .pack = -1,
         .rows = 19,
         .cols = 28,
         .tp_dim = 1,
         .init = INIT_NORMAL,
         .std = 0.5},
        {.name = "all",
         .pack = -1,
         .rows = 19,
         .cols = 13,
         .tp_dim = -1,
         .init = INIT_NORMAL,
         .std = 2},
        {.name = "ones",
         .pack = -1,
         .rows = 36,
         .tp_dim = 0,
         .group = GROUP_NO_DECAY,
         .init = INIT_ONE},
        {.name = "zeros", .pack = -1, .rows = 9, .tp_dim = -1, .group = GROUP_NO_DECAY},
    };
    (void)state;
    for (int tp = 1; tp <= 4; tp *= 2) {
        ParamTable table = {.tp = tp};
        for (int unit = 0; unit < 3; unit++)
            for (size_t i = 0; i < sizeof spec / sizeof *spec; i++)
                param_table_add(&table, unit, unit == 1 ? F64 : F32, &spec[i]);
        param_table_layout(&table);
        check_cuts(&table, tp);
        param_table_free(&table);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_do_not_depend_on_the_shards),
        cmocka_unit_test(test_weights_do_not_depend_on_the_grid),
    };
    return cmocka_run_group_tests_name("initial weights of shards", tests, NULL, NULL);
}
