/* test_block.c -- tests a single block: the gradient of its input, the column sums that are kept
 * with the gradient of the residual stream, and the gradients of biases that attention computes. */
#include "model/core/check.h"
#include "tests/support/model/model_fixture.h"
#include "tests/support/model/tensor_ranks.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A single block; its unit and gradient are acquired. */
typedef struct {
    Fixture f;
    const Block *block;
    BlockActs acts;
    Pass pass;
    Arena arena;
    void *memory;
    Tensor x, y;   /* this rank's rows of (N, C) */
    int64_t first; /* index in the whole tensor of this rank's first element */
    ResidualGrad grad;
    bool accumulate;
} Alone;

enum { ALONE_ROWS = 14 };

/* Opens everything except the fixture a->f, which must be open. */
static void alone_begin(Alone *a)
{
    const GptShape *s = &a->f.layers.shape;
    const int64_t N = ALONE_ROWS, rows = shape_stream_rows(s, N);
    Arena measure = arena_measuring();
    block_layout(&a->acts, s, 2, 7, RECOMPUTE_NONE, &measure, &measure);
    for (int i = 0; i < 2; i++)
        arena_tensor(&measure, F64, 2, rows, s->C, 0);
    residual_layout(s, N, &measure);
    rope_table_layout(s, &measure);
    block_backward_layout(s, N, &measure);
    a->memory = must_calloc(1, measure.peak);
    a->arena = arena_over(a->memory, measure.peak);
    a->x = arena_tensor(&a->arena, F64, 2, rows, s->C, 0);
    a->y = arena_tensor(&a->arena, F64, 2, rows, s->C, 0);
    a->first = a->f.tp.part * rows * s->C;
    a->grad = residual_layout(s, N, &a->arena);
    block_layout(&a->acts, s, 2, 7, RECOMPUTE_NONE, &a->arena, &a->arena);
    a->pass = (Pass){.dev = &a->f.dev,
                     .store = a->f.params,
                     .tp = &a->f.tp,
                     .shape = s,
                     .scratch = &a->arena,
                     .B = 2,
                     .T = 7};
    a->pass.positions = tensor_1d(a->f.positions, I32, N);
    a->pass.rope_table = rope_table_layout(s, &a->arena);
    if (tensor_present(a->pass.rope_table)) rope_table_fill(&a->f.dev, a->pass.rope_table, s);
    a->block = &a->f.layers.block[0];
    Use use = {.unit = a->block->unit, .weight = true, .gradient = true};
    a->f.params->step_begin(a->f.params, &use, 1);
    a->f.params->acquire(a->f.params, a->block->unit);
    a->accumulate = a->f.params->grad_acquire(a->f.params, a->block->unit);
}

static void alone_open(Alone *a, const GptShape *s)
{
    *a = (Alone){0};
    fixture_open(&a->f, s, 2, 7, 1, 1, 0);
    alone_begin(a);
}

/* Releases the unit and sums its gradient over the ranks. */
static void alone_end(Alone *a)
{
    a->f.params->grad_release(a->f.params, a->block->unit);
    a->f.params->release(a->f.params, a->block->unit);
    a->f.params->step_end(a->f.params);
}

static void alone_close(Alone *a)
{
    fixture_close(&a->f);
    free(a->memory);
}

/* Returns the sum of y * c, where y = block(random input + step * random direction). */
static double alone_forward(Alone *a, double step)
{
    double *x = a->x.data, *y = a->y.data, sum = 0;
    for (int64_t i = 0; i < tensor_count(a->x); i++)
        x[i] = drawn_normal(11, a->first + i) + step * drawn_normal(13, a->first + i);
    block_forward(&a->pass, a->block, &a->acts, a->x, a->y);
    for (int64_t i = 0; i < tensor_count(a->x); i++)
        sum += y[i] * drawn_normal(12, a->first + i);
    return sum;
}

/* Runs the block's backward pass for the sum that alone_forward returns. */
static void alone_backward(Alone *a)
{
    double *d = a->grad.d.data;
    for (int64_t i = 0; i < tensor_count(a->grad.d); i++)
        d[i] = drawn_normal(12, a->first + i);
    block_backward(&a->pass, a->block, &a->acts, a->x, &a->grad, a->accumulate);
}

/* Compares the gradient of sum(y * c) with respect to the block's input with finite differences. */
static void test_the_input_gradient_of_a_block_matches_finite_differences(void **state)
{
    (void)state;
    Alone a;
    GptShape s = fixture_llama_shape();
    alone_open(&a, &s);
    double sum[4], h = 1e-4, steps[4] = {h, -h, 2 * h, -2 * h};
    for (int k = 0; k < 4; k++)
        sum[k] = alone_forward(&a, steps[k]);
    alone_forward(&a, 0);
    alone_backward(&a);
    double exact = 0, measured = (8 * (sum[0] - sum[1]) - (sum[2] - sum[3])) / (12 * h);
    const double *d = a.grad.d.data;
    for (int64_t i = 0; i < tensor_count(a.grad.d); i++)
        exact += d[i] * drawn_normal(13, i);
    assert_true(fabs(exact - measured) < 1e-8 * (1 + fabs(exact)));
    assert_false(tensor_present(a.grad.columns) || a.grad.summed);
    alone_end(&a);
    alone_close(&a);
}

/* Backward must use the column sums that come with a gradient and replace them with those of the
 * gradient that it passes on. If the sums are marked as out of date, they must not be read. */
static void test_backward_uses_valid_column_sums_and_ignores_stale_ones(void **state)
{
    (void)state;
    Alone a;
    GptShape s = fixture_shape();
    size_t bytes;
    alone_open(&a, &s);
    double *d = a.grad.d.data, *columns = a.grad.columns.data, sums[64] = {0};
    alone_forward(&a, 0);
    for (int64_t j = 0; j < s.C; j++)
        columns[j] = (double)NAN;
    alone_backward(&a);
    unsigned char *unknown = fixture_gradients(&a.f, &bytes);
    assert_true(a.grad.summed);
    for (int64_t i = 0; i < tensor_count(a.grad.d); i++)
        sums[i % s.C] += d[i];
    for (int64_t j = 0; j < s.C; j++)
        assert_true(fabs(columns[j] - sums[j]) < 1e-13);
    Tensor bias = fixture_grad(&a.f, a.block->mlp.down.bias);
    for (int known = 0; known < 2; known++) { /* first valid sums, then stale ones */
        for (int64_t j = 0; j < s.C; j++) {
            columns[j] = known;
            for (int64_t n = 0; !known && n < ALONE_ROWS; n++)
                columns[j] += drawn_normal(12, n * s.C + j);
        }
        alone_backward(&a);
        double *all = (double *)fixture_gradients(&a.f, &bytes);
        for (size_t i = 0; !known && i < bytes / sizeof(double); i++)
            assert_true(fabs(all[i] - ((double *)unknown)[i]) < 1e-12);
        for (int64_t j = 0; known && j < s.C; j++)
            assert_true(((double *)bias.data)[j] == 1);
        free(all);
    }
    free(unknown);
    alone_end(&a);
    alone_close(&a);
}

/* ---- gradients of biases from attention ------------------------------------------------------ */

/* A table of ops for f64 that counts the calls of attention and of linear layers that compute
 * gradients of biases, and passes every call on to the device's real table. */
typedef struct {
    OpTable table; /* must be first: dev->ops_f64 points to it, and so to the spy */
    const OpTable *real;
    int attention, linear;
} BiasSpy;

static BiasSpy *spy_of(const Device *dev)
{
    union {
        const OpTable *table;
        BiasSpy *spy;
    } from = {.table = dev->ops_f64};
    return from.spy;
}

static void spied_attention_backward(Device *dev, const AttentionTensors *t, bool accumulate,
                                     Attention attention)
{
    spy_of(dev)->attention += tensor_present(t->dbq);
    spy_of(dev)->real->attention_backward(dev, t, accumulate, attention);
}

static void spied_linear_backward_weight(Device *dev, Tensor dw, Tensor db, Tensor dy, Tensor x,
                                         Tensor columns, bool accumulate)
{
    spy_of(dev)->linear += tensor_present(db);
    spy_of(dev)->real->linear_backward_weight(dev, dw, db, dy, x, columns, accumulate);
}

static void spy_open(BiasSpy *spy, Device *dev, bool attention_sums_biases)
{
    *spy = (BiasSpy){.table = *dev->ops_f64, .real = dev->ops_f64};
    spy->table.attention_backward = spied_attention_backward;
    spy->table.linear_backward_weight = spied_linear_backward_weight;
    dev->ops_f64 = &spy->table;
    dev->attention_sums_biases = attention_sums_biases;
}

enum { MICROS = 3 };

/* Returns the gradients of a model after MICROS micro-batches on the CPU. */
static unsigned char *gradients_of(const GptShape *s, bool attention_sums_biases, BiasSpy *spy,
                                   size_t *bytes)
{
    Fixture f;
    fixture_open_on(&f, "cpu", s, 2, 7, MICROS, 2, 0);
    spy_open(spy, &f.dev, attention_sums_biases);
    fixture_backward(&f);
    unsigned char *all = fixture_gradients(&f, bytes);
    fixture_close(&f);
    return all;
}

/* Compares the gradients with and without attention_sums_biases, bit by bit, and checks which ops
 * computed the gradients of biases. `moved`: attention_sums_biases must make attention compute
 * those of q, k and v; else it must change nothing. */
static void check_moved(const GptShape *s, bool moved)
{
    BiasSpy spy[2];
    size_t bytes[2];
    unsigned char *gradients[2];
    for (int i = 0; i < 2; i++)
        gradients[i] = gradients_of(s, i, &spy[i], &bytes[i]);
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(gradients[0], gradients[1], bytes[0]);
    int calls = s->dtype == F64 && moved ? MICROS * (int)s->L : 0;
    assert_int_equal(spy[0].attention, 0);
    assert_int_equal(spy[1].attention, calls);
    assert_int_equal(spy[0].linear - spy[1].linear, calls);
    free(gradients[0]);
    free(gradients[1]);
}

/* On a device with attention_sums_biases, the block must let attention compute the gradients of the
 * biases of q, k and v: with one kv head per query head or fewer, with recompute, and in every
 * dtype. It must not if q and k are rotated or normalised before attention, or if there are no
 * biases. */
static void test_attention_computes_the_gradients_of_biases_with_the_same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < FIXTURE_BIASES; i++) {
        GptShape s = fixture_shape();
        fixture_set_biases(&s, i);
        s.G = i == 2 ? 1 : 4;
        s.recompute = i == 1 ? RECOMPUTE_SELECTIVE : i == 2 ? RECOMPUTE_FULL : RECOMPUTE_NONE;
        check_moved(&s, s.attention_bias != ATTENTION_BIAS_NONE);
    }
    GptShape rotated = fixture_shape(), normed = fixture_shape();
    rotated.position = POSITION_ROPE;
    normed.qk_norm = true;
    check_moved(&rotated, false);
    check_moved(&normed, false);
    for (DType dtype = F32; dtype <= F16; dtype++) {
        GptShape s = fixture_with_dtype(fixture_shape(), dtype);
        check_moved(&s, true);
        s.grad_dtype = dtype;
        check_moved(&s, true);
    }
}

/* ---- tensor-parallel ranks ------------------------------------------------------------------- */

/* The block's gradients and its input's gradient on one rank. */
typedef struct {
    GptShape shape;
    bool sequence_parallel;
    bool attention_sums_biases; /* of the ranks' devices */
    Alone *one;
} Over;

static void compare_with_one(Fixture *f, const Shard *shard, const ParamExtent *extent,
                             Tensor values, void *context)
{
    Comm *world = ((void **)context)[0];
    const Over *over = ((void **)context)[1];
    if (shard->unit != over->one->block->unit) return;
    Tensor want = fixture_grad(&over->one->f, extent->param);
    for (int64_t i = 0; i < extent->count; i++) {
        int64_t element = param_extent_element(extent, i);
        double is = ((double *)values.data)[extent->offset - shard->offset + i],
               one = ((double *)want.data)[element];
        if (!(fabs(is - one) <= 1e-12 * (1 + fabs(one))))
            rank_wrong(world, "gradient of %s[%lld]: %.17g, one rank has %.17g",
                       f->table.param[extent->param].name, (long long)element, is, one);
    }
}

static void block_on_rank(Comm *world, void *context)
{
    Over *over = context;
    void *both[] = {world, over};
    RankedCase c = {.dp = 1,
                    .tp = world->size,
                    .sequence_parallel = over->sequence_parallel,
                    .B = 2,
                    .T = 7,
                    .micros = 1};
    Alone a = {0};
    ranked_open(&a.f, world, &over->shape, &c);
    BiasSpy spy;
    spy_open(&spy, &a.f.dev, over->attention_sums_biases);
    alone_begin(&a);
    alone_forward(&a, 0);
    alone_backward(&a);
    alone_end(&a);
    if (spy.attention != (int)over->attention_sums_biases)
        rank_wrong(world, "attention computed gradients of biases %d times", spy.attention);
    visit_extents(&a.f, true, compare_with_one, both);
    const double *d = a.grad.d.data, *one = over->one->grad.d.data;
    for (int64_t i = 0; i < tensor_count(a.grad.d); i++)
        if (!(fabs(d[i] - one[a.first + i]) <= 1e-12 * (1 + fabs(d[i]))))
            rank_wrong(world, "gradient of the input, element %lld: %.17g, one rank has %.17g",
                       (long long)(a.first + i), d[i], one[a.first + i]);
    alone_close(&a);
}

/* Simulates a gradient from another stage, which has no column sums. The gradient of a bias that is
 * added after a sum over ranks must be the sum of this rank's rows only, never of the rows that a
 * region has gathered. */
static void test_bias_gradients_on_ranks_are_right_without_column_sums(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        Alone one;
        Over over = {.shape = i / 2 ? fixture_llama_shape() : fixture_shape(),
                     .sequence_parallel = i % 2,
                     .one = &one};
        fixture_set_biases(&over.shape, 1);
        alone_open(&one, &over.shape);
        alone_forward(&one, 0);
        alone_backward(&one);
        alone_end(&one);
        thread_ranks(2, 60, block_on_rank, &over);
        alone_close(&one);
    }
}

/* Each rank computes the gradients of the biases of its own heads, from all rows. In the last case
 * four ranks share two kv heads, so k and v form a linear layer of their own, apart from q. */
static void test_attention_on_each_rank_computes_bias_gradients_of_its_own_heads(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        Alone one;
        Over over = {.shape = fixture_shape(),
                     .sequence_parallel = i == 1,
                     .attention_sums_biases = true,
                     .one = &one};
        over.shape.G = i == 2 ? 2 : 4;
        alone_open(&one, &over.shape);
        alone_forward(&one, 0);
        alone_backward(&one);
        alone_end(&one);
        thread_ranks(i == 2 ? 4 : 2, 60, block_on_rank, &over);
        alone_close(&one);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_input_gradient_of_a_block_matches_finite_differences),
        cmocka_unit_test(test_backward_uses_valid_column_sums_and_ignores_stale_ones),
        cmocka_unit_test(test_attention_computes_the_gradients_of_biases_with_the_same_bits),
        cmocka_unit_test(test_bias_gradients_on_ranks_are_right_without_column_sums),
        cmocka_unit_test(test_attention_on_each_rank_computes_bias_gradients_of_its_own_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
