/* test_shards.c -- tests that an update does not depend on how weights are split among ranks. The
 * bits must equal those of one rank that updates all weights, however units are split into shards
 * and parameters into parts, with and without masters. */
#include "model/core/check.h"
#include "model/param/init.h"
#include "optim/grad_norm.h"
#include "optim/optimizer.h"
#include "tests/support/model/cut_store.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { UPDATES = 3, SEED = 5 };

/* A way to store and update weights. */
typedef struct {
    DType storage;
    bool masters;
    OptimizerType optimizer;
    bool moments; /* in bf16 */
} Way;

static const Way ways[] = {
    {BF16, false, OPTIMIZER_ADAMW, false}, {BF16, false, OPTIMIZER_SGD, false},
    {BF16, true, OPTIMIZER_ADAMW, false},  {F16, true, OPTIMIZER_SGD, false},
    {F32, true, OPTIMIZER_ADAMW, false},   {F64, true, OPTIMIZER_SGD, false},
    {BF16, false, OPTIMIZER_ADAMW, true},  {BF16, true, OPTIMIZER_ADAMW, true}};
enum { WAYS = sizeof ways / sizeof *ways };

static Config config_of(const Way *way)
{
    Config c = {0};
    c.seed = SEED;
    c.bf16.enabled = way->storage == BF16;
    c.bf16.bf16_master_weights_and_grads = !way->masters;
    c.bf16.bf16_optimizer_states = way->moments;
    c.optimizer.type = way->optimizer;
    c.optimizer.params.betas[0] = 0.9;
    c.optimizer.params.betas[1] = 0.95;
    c.optimizer.params.eps = 1e-8;
    c.optimizer.params.momentum = 0.9;
    c.optimizer.params.weight_decay = 0.1;
    c.optimizer.params.bias_correction = true;
    return c;
}

/* Sets the gradients of an update as a function of each element's index in the whole parameter;
 * gaps and padding rows are zero. */
static void draw_gradients(CutStore *s, int update)
{
    const ParamTable *table = s->base.table;
    for (int i = 0; i < table->n_params; i++) {
        const Param *p = &table->param[i];
        Tensor g = s->grad[p->unit];
        for (int64_t k = 0; k < p->local[0] * p->local[1]; k++) {
            int64_t e = cut_element(p, s->base.at, k);
            double x = drawn_normal((uint64_t)(UPDATES * i + update), e);
            dtype_set(g.dtype, g.data, p->offset + k, e < param_count(p) ? x : 0);
        }
    }
}

/* Updates piece s->part as its rank would. */
static void update_part(CutStore *s, Device *dev, const Config *config)
{
    size_t bytes = optimizer_bytes(config, &s->base).device;
    void *memory = must_calloc(bytes + 1, 1);
    Arena arena = arena_over(memory, bytes);
    Optimizer optimizer;
    param_init(dev, &s->base, SEED);
    optimizer_plan(&optimizer, config, &s->base, &arena, NULL);
    optimizer_init(&optimizer, dev);
    for (int k = 0; k < UPDATES; k++) {
        StepDecision decision = {.apply = 1, .update = k + 1, .lr = 0.01, .grad_scale = 0.5};
        draw_gradients(s, k);
        s->published = 0;
        optimizer_step(&optimizer, dev, &s->base, &decision);
        assert_int_equal(s->published, s->base.table->n_units);
    }
    optimizer_free(&optimizer);
    free(memory);
}

/* Returns a store in which all pieces have been updated. */
static CutStore *updated(const ParamTable *table, GridPlace at, int parts, const Way *way)
{
    Config config = config_of(way);
    CutStore *s = cut_store_open(table, at, parts, way->masters ? F32 : way->storage);
    DeviceOptions options = {.threads = 1, .local_ranks = 1};
    Device dev;
    char err[256];
    if (way->storage == F64)
        for (int u = 0; u < table->n_units; u++)
            s->grad[u].dtype = F64;
    if (!device_open(&dev, "cpu", &options, err, sizeof err)) fail_msg("%s", err);
    for (s->part = 0; s->part < parts; s->part++)
        s->published = 0, update_part(s, &dev, &config);
    device_close(&dev);
    return s;
}

/* Compares every element of a part with the whole parameter; gaps and padding must be zero. */
static void check_against(const CutStore *whole, const CutStore *part)
{
    const ParamTable *table = part->base.table;
    for (int u = 0; u < table->n_units; u++) {
        Tensor w = part->weight[u], all = whole->weight[u];
        int64_t n = tensor_count(w);
        double *want = must_calloc((size_t)n, sizeof *want);
        for (int i = 0; i < table->n_params; i++) {
            const Param *p = &table->param[i], *q = &whole->base.table->param[i];
            for (int64_t k = 0; p->unit == u && k < p->local[0] * p->local[1]; k++)
                want[p->offset + k] =
                    dtype_get(all.dtype, all.data, q->offset + cut_element(p, part->base.at, k));
        }
        for (int64_t k = 0; k < n; k++)
            if (dtype_get(w.dtype, w.data, k) != want[k])
                fail_msg("%s, %d parts, tp rank %d, unit %d, element %lld: %a, not %a",
                         dtype_name(w.dtype), part->parts, part->base.at.tp, u, (long long)k,
                         dtype_get(w.dtype, w.data, k), want[k]);
        free(want);
    }
}

/* Tests shards that begin inside rows, shards of padding only, and units without a shard. */
static void test_updates_are_the_same_however_units_are_split_into_shards(void **state)
{
    static const int parts[] = {2, 3, 5};
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        ParamTable table;
        cut_table(&table, 1, ways[w].storage);
        CutStore *whole = updated(&table, (GridPlace){0}, 1, &ways[w]);
        for (int k = 0; k < 3; k++) {
            CutStore *cut = updated(&table, (GridPlace){0}, parts[k], &ways[w]);
            check_against(whole, cut);
            cut_store_close(cut);
        }
        cut_store_close(whole);
        param_table_free(&table);
    }
}

/* Tests ranks that have some of a parameter's rows or columns. */
static void test_updates_are_the_same_however_parameters_are_split(void **state)
{
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        ParamTable one;
        cut_table(&one, 1, ways[w].storage);
        CutStore *whole = updated(&one, (GridPlace){0}, 1, &ways[w]);
        for (int i = 0; i < 2 + 4; i++) {
            int tp = i < 2 ? 2 : 4;
            ParamTable table;
            cut_table(&table, tp, ways[w].storage);
            CutStore *cut = updated(&table, (GridPlace){.tp = i % tp}, 1 + i % 3, &ways[w]);
            check_against(whole, cut);
            cut_store_close(cut);
            param_table_free(&table);
        }
        cut_store_close(whole);
        param_table_free(&one);
    }
}

/* A shard that contains only padding has a table of segments, too. Its weights must stay zero
 * whatever random bits are used. */
static void test_a_shard_of_only_padding_stays_zero(void **state)
{
    (void)state;
    Config config = config_of(&ways[0]);
    ParamTable table;
    cut_table(&table, 1, BF16);
    CutStore *s = cut_store_open(&table, (GridPlace){0}, 3, BF16);
    Shard shard[16];
    Optimizer optimizer;
    Arena arena = arena_measuring();
    int alone = 0;
    s->part = 2;
    optimizer_plan(&optimizer, &config, &s->base, &arena, NULL);
    int n = s->base.shards(&s->base, PURPOSE_UPDATE, shard, 16);
    for (int i = 0; i < n; i++) {
        if (shard[i].offset < table.unit[shard[i].unit].size) continue;
        assert_true(tensor_rows(optimizer.shard[i].rounding.segments) == 1);
        alone++;
    }
    assert_int_equal(alone, 1);
    optimizer_free(&optimizer);
    cut_store_close(s);
    CutStore *done = updated(&table, (GridPlace){0}, 3, &ways[0]);
    for (int64_t k = table.unit[1].size; k < tensor_count(done->weight[1]); k++)
        assert_true(dtype_get(BF16, done->weight[1].data, k) == 0);
    cut_store_close(done);
    param_table_free(&table);
}

/* Compares each rank's part of the squared norm, and the sum of the parts, with sums in double.
 * Every element counts once. The f32 gradients include some whose squares do not fit in f32; bf16
 * gradients are tested, too. Gaps and padding are zero. */
static void test_bug_18_the_norm_over_shards_is_summed_in_double(void **state)
{
    static const struct {
        DType dtype;
        double factor;
    } of[] = {{F32, 1}, {F32, 1e30}, {F32, 1e-30}, {BF16, 1e30}, {F16, 1}, {F64, 1}};
    (void)state;
    for (int i = 0; i < 6; i++)
        for (int parts = 1; parts <= 5; parts++) {
            ParamTable table;
            double exact = 0, sum = 0;
            DeviceOptions options = {.threads = 1, .local_ranks = 1};
            Device dev;
            char err[256];
            cut_table(&table, 1, of[i].dtype);
            CutStore *s = cut_store_open(&table, (GridPlace){0}, parts, of[i].dtype);
            if (!device_open(&dev, "cpu", &options, err, sizeof err)) fail_msg("%s", err);
            draw_gradients(s, 1);
            for (int u = 0; u < table.n_units; u++)
                for (int64_t k = 0; k < tensor_count(s->grad[u]); k++) {
                    double x = of[i].factor * dtype_get(of[i].dtype, s->grad[u].data, k);
                    dtype_set(of[i].dtype, s->grad[u].data, k, x);
                    x = dtype_get(of[i].dtype, s->grad[u].data, k);
                    exact += x * x;
                }
            for (s->part = 0; s->part < parts; s->part++) {
                GradNorm norm = grad_norm_create(&s->base);
                StepStats stats = {0};
                grad_norm_add(&norm, &dev, &stats);
                grad_norm_free(&norm);
                sum += stats.sq_norm;
            }
            if (!(fabs(sum / exact - 1) < 1e-13))
                fail_msg("%s times %g in %d parts: %.17g, not %.17g", dtype_name(of[i].dtype),
                         of[i].factor, parts, sum, exact);
            device_close(&dev);
            cut_store_close(s);
            param_table_free(&table);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_updates_are_the_same_however_units_are_split_into_shards),
        cmocka_unit_test(test_updates_are_the_same_however_parameters_are_split),
        cmocka_unit_test(test_a_shard_of_only_padding_stays_zero),
        cmocka_unit_test(test_bug_18_the_norm_over_shards_is_summed_in_double),
    };
    return cmocka_run_group_tests_name("updates of shards", tests, NULL, NULL);
}
