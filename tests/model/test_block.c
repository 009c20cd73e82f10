/* test_block.c -- one block by itself: the gradient of its input, and the column sums that come
 * with a gradient. */
#include "model/core/check.h"
#include "tests/support/model_fixture.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* One block alone, its unit and gradient acquired. */
typedef struct {
    Fixture f;
    const Block *block;
    BlockActs acts;
    Pass pass;
    Arena arena;
    void *memory;
    Tensor x, y; /* (N, C) */
    ResidualGrad grad;
    bool accumulate;
} Alone;

enum { ALONE_ROWS = 14 };

static void alone_open(Alone *a, const GptShape *s)
{
    const int64_t N = ALONE_ROWS;
    *a = (Alone){0};
    fixture_open(&a->f, s, 2, 7, 1, 1, 0);
    Arena measure = arena_measuring();
    block_layout(&a->acts, s, 2, 7, RECOMPUTE_NONE, &measure, &measure);
    for (int i = 0; i < 2; i++)
        arena_tensor(&measure, F64, 2, N, s->C, 0);
    residual_layout(s, N, &measure);
    rope_table_layout(s, &measure);
    block_backward_layout(s, N, &measure);
    a->memory = must_calloc(1, measure.peak);
    a->arena = arena_over(a->memory, measure.peak);
    a->x = arena_tensor(&a->arena, F64, 2, N, s->C, 0);
    a->y = arena_tensor(&a->arena, F64, 2, N, s->C, 0);
    a->grad = residual_layout(s, N, &a->arena);
    block_layout(&a->acts, s, 2, 7, RECOMPUTE_NONE, &a->arena, &a->arena);
    a->pass = (Pass){.dev = &a->f.dev,
                     .store = a->f.params,
                     .tp = &a->f.tp,
                     .shape = &a->f.layers.shape,
                     .scratch = &a->arena,
                     .B = 2,
                     .T = 7};
    a->pass.positions = tensor_1d(a->f.positions, I32, N);
    a->pass.rope_table = rope_table_layout(s, &a->arena);
    if (tensor_present(a->pass.rope_table))
        rope_table_fill(&a->f.dev, a->pass.rope_table, s->rope_theta);
    a->block = &a->f.layers.block[0];
    Use use = {.unit = a->block->unit, .weight = true, .gradient = true};
    a->f.params->step_begin(a->f.params, &use, 1);
    a->f.params->acquire(a->f.params, a->block->unit);
    a->accumulate = a->f.params->grad_acquire(a->f.params, a->block->unit);
}

static void alone_close(Alone *a)
{
    a->f.params->grad_release(a->f.params, a->block->unit);
    a->f.params->release(a->f.params, a->block->unit);
    fixture_close(&a->f);
    free(a->memory);
}

/* y of x = the drawn input, `step` along the drawn direction; the sum of y * c. */
static double alone_forward(Alone *a, double step)
{
    double *x = a->x.data, *y = a->y.data, sum = 0;
    for (int64_t i = 0; i < tensor_count(a->x); i++)
        x[i] = drawn_normal(11, i) + step * drawn_normal(13, i);
    block_forward(&a->pass, a->block, &a->acts, a->x, a->y);
    for (int64_t i = 0; i < tensor_count(a->x); i++)
        sum += y[i] * drawn_normal(12, i);
    return sum;
}

/* Backward of that sum. */
static void alone_backward(Alone *a)
{
    double *d = a->grad.d.data;
    for (int64_t i = 0; i < tensor_count(a->grad.d); i++)
        d[i] = drawn_normal(12, i);
    block_backward(&a->pass, a->block, &a->acts, a->x, &a->grad, a->accumulate);
}

/* The gradient of sum(y * c) with respect to a block's input. */
static void test_block_input_gradient(void **state)
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
    alone_close(&a);
}

/* The column sums that come with a gradient are used and replaced by those of what goes on; sums
 * that are not d's are not looked at. */
static void test_column_sums_go_with_their_gradient(void **state)
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
    for (int known = 0; known < 2; known++) { /* those of the drawn gradient, then others */
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
    alone_close(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_block_input_gradient),
        cmocka_unit_test(test_column_sums_go_with_their_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
