/* test_zero.c -- ranks that share weights, gradients and updates in any way compute what a single
 * rank computes, and every stage of ZeRO has the bits of the others. */
#include "model/core/check.h"
#include "tests/support/zero_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const int worlds[] = {1, 2, 3, 5};
enum { WORLDS = sizeof worlds / sizeof *worlds };

static double element(const unsigned char *x, DType dtype, int64_t i)
{
    return dtype_get(dtype, x, i);
}

/* Largest difference of two arrays, beside the rms of the first. */
static double distance(const unsigned char *a, const unsigned char *b, DType dtype, int64_t n)
{
    double most = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = element(a, dtype, i), d = fabs(x - element(b, dtype, i));
        squares += x * x;
        if (!(d <= most)) most = d;
    }
    return most / sqrt(squares / (double)n);
}

/* The same numbers to a share of themselves: another order of sums. */
static void assert_close(const ZeroResult *a, const ZeroResult *b, const ZeroCase *c,
                         double tolerance, const char *what)
{
    for (int i = 0; i < c->steps; i++) {
        double loss = fabs(a->loss[i] / b->loss[i] - 1),
               norm = fabs(a->sq_norm[i] / b->sq_norm[i] - 1);
        if (!(loss <= tolerance && norm <= tolerance))
            fail_msg("%s: step %d: loss off by %g, norm by %g", what, i, loss, norm);
    }
    double d = distance(a->gradients, b->gradients, c->shape.grad_dtype, a->elements);
    if (!(d <= 100 * tolerance)) fail_msg("%s: gradients off by %g", what, d);
    d = distance(a->weights, b->weights, c->shape.dtype, a->elements);
    if (c->shape.dtype == F64 && !(d <= tolerance)) fail_msg("%s: weights off by %g", what, d);
}

static GptShape odd_shape(void)
{
    GptShape s = fixture_shape();
    s.C = 13; /* no unit is a whole number of shards, and there are shards of padding alone */
    s.H = s.G = 1;
    s.D = 13;
    s.F = 7;
    s.V = 11;
    s.Vp = 16;
    s.P = 5;
    return s;
}

static GptShape shape_of(int i)
{
    GptShape s = i == 0 ? fixture_shape() : i == 1 ? fixture_llama_shape() : odd_shape();
    return s;
}
enum { SHAPES = 3 };

/* Ranks x micro-batches are one rank's micro-batches, whatever the shape. */
static void test_many_ranks_equal_one(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        for (int w = 1; w < WORLDS; w++) {
            ZeroCase many = zero_case(shape_of(i), worlds[w], 0), one = many;
            char what[64];
            snprintf(what, sizeof what, "shape %d, %d ranks", i, worlds[w]);
            one.ranks = 1;
            one.micros = worlds[w];
            ZeroResult a = zero_run(&one), b = zero_run(&many);
            assert_memory_equal(a.first, b.first, a.weight_bytes);
            assert_close(&a, &b, &many, 1e-12, what);
            zero_result_free(&a);
            zero_result_free(&b);
        }
    }
}

/* Bug 35, 36: every weight is updated by somebody: all have moved after a step, with decay on. */
static void test_bug_36_every_weight_moves(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        for (int stage = 0; stage <= 1; stage++) {
            ZeroCase c = zero_case(shape_of(i), 3, stage);
            c.shape.decay_on = DECAY_ON_ALL;
            c.steps = 1;
            ZeroResult r = zero_run(&c);
            for (int64_t e = 0; e < r.elements; e++)
                if (element(r.first, F64, e) == element(r.weights, F64, e))
                    fail_msg("shape %d, stage %d: weight %lld stands still", i, stage,
                             (long long)e);
            zero_result_free(&r);
        }
    }
}

static void test_stages_0_and_1_have_the_same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        for (int w = 0; w < WORLDS; w++) {
            for (int dtype = 0; dtype < 2; dtype++) {
                ZeroCase c = zero_case(shape_of(i), worlds[w], 0);
                char what[64];
                snprintf(what, sizeof what, "shape %d, %d ranks", i, worlds[w]);
                c.micros = 2;
                if (dtype) c.shape = fixture_with_dtype(c.shape, F32);
                ZeroResult a = zero_run(&c);
                c.zero.stage = 1;
                ZeroResult b = zero_run(&c);
                assert_same_bits(&a, &b, what);
                c.zero.all_reduce = true;
                ZeroResult d = zero_run(&c);
                assert_same_bits(&a, &d, what);
                zero_result_free(&a);
                zero_result_free(&b);
                zero_result_free(&d);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_ranks_equal_one),
        cmocka_unit_test(test_bug_36_every_weight_moves),
        cmocka_unit_test(test_stages_0_and_1_have_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
