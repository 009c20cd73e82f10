/* test_init_cuts.c -- tests that initial weights do not depend on how they are split. Whatever part
 * a rank has and updates, its bits must be those of the whole parameter, with zeros between
 * parameters. */
#include "model/core/check.h"
#include "model/core/rng.h"
#include "model/kernels/ops.h"
#include "model/param/init.h"
#include "tests/support/model/cut_store.h"
#include "tests/support/model/model_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { SEED = 11 };

/* Draws the whole parameter and copies a rank's part of it to `want`; padding rows are zero. */
static void draw_part(Device *dev, const Param *p, GridPlace at, double *want)
{
    double *cells = must_calloc((size_t)param_count(p), sizeof *cells);
    Tensor whole = tensor_1d(cells, p->dtype, param_count(p));
    Segment all = {.stream = rng_stream(p->name)};
    if (p->init == INIT_NORMAL)
        op_normal(dev, whole, SEED, &all, (double)p->std);
    else
        op_fill(dev, whole, p->init == INIT_ONE);
    for (int64_t k = 0; k < p->local[0] * p->local[1]; k++) {
        int64_t element = cut_element(p, at, k);
        want[k] = element < param_count(p) ? dtype_get(p->dtype, cells, element) : 0;
    }
    free(cells);
}

/* Checks every element of the units, including gaps and padding. */
static void check_against_whole(Device *dev, const CutStore *s)
{
    const ParamTable *table = s->base.table;
    for (int u = 0; u < table->n_units; u++) {
        int64_t n = tensor_count(s->weight[u]);
        double *want = must_calloc((size_t)n, sizeof *want);
        for (int i = 0; i < table->n_params; i++)
            if (table->param[i].unit == u)
                draw_part(dev, &table->param[i], s->base.at, want + table->param[i].offset);
        for (int64_t k = 0; k < n; k++) {
            double got = dtype_get(s->weight[u].dtype, s->weight[u].data, k);
            if (got != want[k])
                fail_msg("%d parts, tp rank %d, unit %d, element %lld: %g, not %g", s->parts,
                         s->base.at.tp, u, (long long)k, got, want[k]);
        }
        free(want);
    }
}

/* Fills units with NaN, then initialises them piece by piece; initialising a piece must not change
 * elements of later pieces. */
static void check_cut(const ParamTable *table, GridPlace at, int parts)
{
    CutStore *s = cut_store_open(table, at, parts, table->unit[0].dtype);
    DeviceOptions options = {.threads = 1, .local_ranks = 1};
    Device dev;
    char err[256];
    if (!device_open(&dev, "cpu", &options, err, sizeof err)) fail_msg("%s", err);
    for (int u = 0; u < table->n_units; u++)
        op_fill(&dev, s->weight[u], (double)NAN);
    for (s->part = 0; s->part < parts; s->part++) {
        s->published = 0;
        param_init(&dev, &s->base, SEED);
        assert_int_equal(s->published, table->n_units);
        for (int u = 0; u < table->n_units; u++)
            for (int64_t k = cut_store_border(s, u, s->part + 1); k < table->unit[u].size; k++)
                assert_true(isnan(dtype_get(table->unit[u].dtype, s->weight[u].data, k)));
    }
    check_against_whole(&dev, s);
    cut_store_close(s);
    device_close(&dev);
}

static void check_cuts(const ParamTable *table, int tp)
{
    static const int parts[] = {1, 2, 3, 5};
    for (int k = 0; k < 4; k++)
        for (int rank = 0; rank < tp; rank++)
            check_cut(table, (GridPlace){.tp = rank}, parts[k]);
}

/* Tests whole models in 1, 2, 3 and 5 pieces. */
static void test_initial_weights_do_not_depend_on_the_shards(void **state)
{
    (void)state;
    for (int i = 0; i < FIXTURE_VARIANTS; i += 7) {
        GptShape shape = fixture_variant(i);
        GptLayers layers;
        ParamTable table = {0};
        gpt_layers_build(&layers, &table, &shape, &LAYERS_WHOLE);
        check_cuts(&table, 1);
        gpt_layers_free(&layers);
        param_table_free(&table);
    }
}

/* Tests ranks that have some rows, some columns, or all of a parameter, in pieces. */
static void test_initial_weights_do_not_depend_on_the_grid(void **state)
{
    (void)state;
    for (DType dtype = F64; dtype <= F16; dtype++)
        for (int tp = 1; tp <= 4; tp *= 2) {
            ParamTable table;
            cut_table(&table, tp, dtype);
            check_cuts(&table, tp);
            param_table_free(&table);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_initial_weights_do_not_depend_on_the_shards),
        cmocka_unit_test(test_initial_weights_do_not_depend_on_the_grid),
    };
    return cmocka_run_group_tests_name("initial weights of shards", tests, NULL, NULL);
}
