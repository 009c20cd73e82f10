/* test_no_masters.c -- tests training of bf16 weights without f32 master copies. With stochastic
 * rounding a model must learn about as well as with masters, where rounding to nearest changes
 * almost no weight. Also tests the state that the optimizer keeps. */
#include "model/core/check.h"
#include "model/core/rng.h"
#include "optim/optimizer.h"
#include "optim/rounding.h"
#include "tests/support/model/fake_store.h"
#include "tests/support/model/model_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef enum { MASTERS, STOCHASTIC, NEAREST } Way;

static Config small_config(bool no_masters)
{
    Config c = {0};
    c.seed = 5;
    c.bf16.enabled = true;
    c.bf16.bf16_master_weights_and_grads = no_masters;
    c.optimizer.type = OPTIMIZER_ADAMW;
    c.optimizer.params.betas[0] = 0.9;
    c.optimizer.params.betas[1] = 0.95;
    c.optimizer.params.eps = 1e-8;
    c.optimizer.params.bias_correction = true;
    return c;
}

/* ---- training without masters ---------------------------------------------------------------- */

enum { STEPS = 200, MEASURED = 20 };

/* Trains a model repeatedly on one batch. Returns the mean of the last losses and sets *first to
 * the first loss. */
static double last_losses(Way way, double lr, double *first)
{
    Fixture f;
    GptShape shape = fixture_with_dtype(fixture_llama_shape(), BF16);
    Config c = small_config(way != MASTERS);
    Optimizer o;
    double sum = 0;
    shape.grad_dtype = config_grad_dtype(&c);
    fixture_open_on(&f, "cpu", &shape, 2, 8, 1, 1, 0);
    size_t bytes = optimizer_bytes(&c, f.params).device;
    void *memory = must_alloc(bytes);
    Arena arena = arena_over(memory, bytes);
    optimizer_plan(&o, &c, f.params, &arena, NULL);
    optimizer_init(&o, &f.dev);
    for (int i = 0; way == NEAREST && i < o.n_shards; i++)
        o.range[i].rounding.segments = NO_TENSOR;
    for (int step = 0; step < STEPS; step++) {
        double loss = fixture_backward(&f);
        StepDecision d = {.apply = 1, .update = step + 1, .lr = lr, .grad_scale = 1};
        if (step == 0) *first = loss;
        if (step >= STEPS - MEASURED) sum += loss;
        optimizer_step(&o, &f.dev, f.params, &d);
    }
    optimizer_free(&o);
    free(memory);
    fixture_close(&f);
    return sum / MEASURED;
}

/* The updates are so small that rounding to nearest changes few weights. With stochastic rounding
 * the loss must fall almost as far as with masters. */
static void test_stochastic_rounding_learns_about_as_well_as_masters(void **state)
{
    (void)state;
    double first, masters = last_losses(MASTERS, 2e-5, &first),
                  stochastic = last_losses(STOCHASTIC, 2e-5, &first),
                  nearest = last_losses(NEAREST, 2e-5, &first);
    double learnt = first - masters;
    if (!(learnt > 0.5 && fabs(stochastic - masters) < 0.02 * learnt &&
          first - nearest < 0.2 * learnt))
        fail_msg("loss %g at first, then %g with masters, %g stochastically, %g to nearest", first,
                 masters, stochastic, nearest);
}

/* ---- optimizer state without masters --------------------------------------------------------- */

/* Makes a thousand updates far below bf16's spacing, all downwards. The mean of a parameter's
 * weights must move by their sum, to within five standard deviations. */
static void test_bug_7_tiny_updates_move_the_mean_without_masters(void **state)
{
    (void)state;
    Config c = small_config(true);
    Store *s = store_open(BF16, BF16);
    size_t bytes = optimizer_bytes(&c, &s->base).device;
    void *memory = must_alloc(bytes);
    Arena arena = arena_over(memory, bytes);
    Optimizer o;
    enum { UPDATES = 1000, N = A_ROWS * A_COLS };
    optimizer_plan(&o, &c, &s->base, &arena, NULL);
    optimizer_init(&o, &s->dev);
    for (int u = 0; u < UNITS; u++)
        op_fill(&s->dev, s->weight[u], 1.0);
    for (int k = 1; k <= UPDATES; k++) {
        StepDecision d = {.apply = 1, .update = k, .lr = 1e-4, .grad_scale = 1.0};
        for (int u = 0; u < UNITS; u++)
            op_fill(&s->dev, s->grad[u], 1.0);
        optimizer_step(&o, &s->dev, &s->base, &d);
        s->n_published = 0;
    }
    for (int u = 0; u < UNITS; u++) {
        double mean = 0;
        for (int i = 0; i < N; i++)
            mean += 1 - dtype_get(BF16, s->weight[u].data, i);
        mean /= N;
        /* Each update either moves the weight by a step of at most 2^-8 or not at all. */
        double deviation = sqrt(UPDATES * 1e-4 * 0x1p-8 / N);
        if (fabs(mean - 0.1) > 5 * deviation) fail_msg("unit %d moved by %g, want 0.1", u, mean);
    }
    optimizer_free(&o);
    free(memory);
    store_close(s);
}

/* Checks that the shard's table gives, for each element from `offset` on, its parameter and its
 * index there. The first segment must be of the parameter at the offset, or before the gap
 * there. */
static void check_segments(const ParamTable *table, int u, int64_t offset)
{
    const Unit *unit = &table->unit[u];
    Segment segment[64];
    int n = rounding_segments(table, &(GridPlace){0}, u, offset, unit->size - offset, segment, 64);
    assert_true(n > 0 && n <= unit->count && segment[0].start <= 0);
    assert_true(n == 1 || segment[1].start > 0);
    for (int p = unit->first; p < unit->first + unit->count; p++) {
        const Param *row = &table->param[p];
        for (int64_t k = 0; k < param_count(row); k += 7) {
            int64_t i = row->offset + k - offset;
            int at = n - 1;
            while (at > 0 && segment[at].start > i)
                at--;
            if (i < 0) continue;
            assert_true(segment[at].stream == rng_stream(row->name));
            assert_true(segment[at].cols == segment[at].whole_cols);
            assert_int_equal(segment[at].first + i - segment[at].start, k);
        }
    }
}

/* Tests shards that begin inside parameters, in gaps, and where a parameter begins. */
static void test_segments_give_the_parameter_and_index_of_every_element(void **state)
{
    (void)state;
    GptLayers layers;
    ParamTable table = {0};
    GptShape shape = fixture_with_dtype(fixture_llama_shape(), BF16);
    gpt_layers_build(&layers, &table, &shape, &LAYERS_WHOLE);
    for (int u = 0; u < table.n_units; u++) {
        const Unit *unit = &table.unit[u];
        for (int64_t offset = 0; offset < unit->size; offset += 389)
            check_segments(&table, u, offset);
        for (int p = unit->first; p < unit->first + unit->count; p++)
            check_segments(&table, u, table.param[p].offset);
    }
    gpt_layers_free(&layers);
    param_table_free(&table);
}

/* No slot may be a master, and the state must take four bytes less per element than with
 * masters. */
static void test_stochastic_rounding_keeps_no_master_copy(void **state)
{
    (void)state;
    Config with = small_config(false), without = small_config(true);
    Store *s = store_open(BF16, BF16);
    size_t tables = 2 * UNITS * ARENA_ALIGNMENT; /* each table has one or two segments */
    assert_int_equal(optimizer_bytes(&with, &s->base).device, 3 * sizeof(float) * UNITS * SIZE);
    assert_int_equal(optimizer_bytes(&without, &s->base).device,
                     2 * sizeof(float) * UNITS * SIZE + tables);
    assert_int_equal(optimizer_bytes(&without, &s->base).device_slots,
                     2 * sizeof(float) * UNITS * SIZE);
    Optimizer o;
    Arena measuring = arena_measuring();
    optimizer_plan(&o, &without, &s->base, &measuring, NULL);
    for (int i = 0; i < o.n_shards; i++) {
        assert_false(tensor_present(o.shard[i].slot[SLOT_MASTER]));
        assert_true(o.shard[i].slot[SLOT_FIRST].dtype == F32);
        assert_true(tensor_present(o.shard[i].rounding.segments) && o.shard[i].rounding.seed == 5);
    }
    optimizer_free(&o);
    store_close(s);
    without.bf16.enabled = false; /* f32 weights need no masters and are not rounded */
    s = store_open(F32, F32);
    assert_int_equal(optimizer_bytes(&without, &s->base).device, 2 * sizeof(float) * UNITS * SIZE);
    store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stochastic_rounding_learns_about_as_well_as_masters),
        cmocka_unit_test(test_bug_7_tiny_updates_move_the_mean_without_masters),
        cmocka_unit_test(test_segments_give_the_parameter_and_index_of_every_element),
        cmocka_unit_test(test_stochastic_rounding_keeps_no_master_copy),
    };
    return cmocka_run_group_tests_name("bf16 without masters", tests, NULL, NULL);
}
