/* test_model.c -- tests the whole model on one rank: gradients against finite differences,
 * accumulation, padding, memory reuse. Bug numbers are those of tests/README.md. */
#include "model/core/check.h"
#include "optim/grad_norm.h"
#include "tests/support/model/model_fixture.h"
#include "tests/support/support.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- gradients against finite differences ---------------------------------------------------- */

/* Returns the loss at weights + step * direction, where only parameter `p` moves. */
static double loss_along(Fixture *f, int p, double step)
{
    Tensor w = fixture_weight(f, p);
    int64_t n = tensor_count(w);
    double *values = w.data, *kept = must_alloc((size_t)n * sizeof *kept);
    memcpy(kept, values, (size_t)n * sizeof *kept);
    for (int64_t i = 0; i < n; i++)
        values[i] += step * drawn_normal((uint64_t)p + 500, i);
    double loss = fixture_loss(f);
    memcpy(values, kept, (size_t)n * sizeof *kept);
    free(kept);
    return loss;
}

static void check_gradients(const GptShape *shape, int64_t micros)
{
    Fixture f;
    fixture_open(&f, shape, 2, 7, micros, 2, 0);
    f.targets[3] = -1; /* a masked target has no gradient */
    fixture_backward(&f);
    for (int p = 0; p < f.table.n_params; p++) {
        Tensor g = fixture_grad(&f, p);
        double exact = 0, size = 0, h = 1e-5;
        for (int64_t i = 0; i < tensor_count(g); i++) {
            double d = drawn_normal((uint64_t)p + 500, i), x = dtype_get(g.dtype, g.data, i);
            exact += x * d;
            size += x * x;
        }
        /* A fourth-order formula, because the error of the two-point formula would hide small
         * gradients. */
        double measured = (8 * (loss_along(&f, p, h) - loss_along(&f, p, -h)) -
                           (loss_along(&f, p, 2 * h) - loss_along(&f, p, -2 * h))) /
                          (12 * h);
        double bound = 1e-7 * (sqrt(size) + fabs(exact)) + 1e-10;
        if (fabs(measured - exact) > bound)
            fail_msg("%s: gradient %.12g along a direction, differences say %.12g",
                     f.table.param[p].name, exact, measured);
    }
    fixture_close(&f);
}

static void test_gradients_of_gpt2_match_finite_differences(void **state)
{
    (void)state;
    GptShape s = fixture_shape();
    check_gradients(&s, 1);
}

static void test_gradients_of_llama_match_finite_differences(void **state)
{
    (void)state;
    GptShape s = fixture_llama_shape();
    check_gradients(&s, 1);
}

static void test_gradients_with_mqa_relu2_and_chunked_head_match_finite_differences(void **state)
{
    (void)state;
    GptShape s = fixture_mqa_shape();
    check_gradients(&s, 1);
}

static void test_accumulated_and_recomputed_gradients_match_finite_differences(void **state)
{
    (void)state;
    GptShape s = fixture_llama_shape();
    s.recompute = RECOMPUTE_FULL;
    check_gradients(&s, 3);
    s.recompute = RECOMPUTE_SELECTIVE;
    check_gradients(&s, 3);
}

static void test_gradients_of_one_biased_swiglu_layer_match_finite_differences(void **state)
{
    (void)state;
    GptShape s = fixture_shape();
    s.L = 1;
    s.activation = ACTIVATION_SWIGLU;
    s.qk_norm = true;
    check_gradients(&s, 1);
}

/* ---- results that must be equal -------------------------------------------------------------- */

/* Runs one backward pass with `shape` and returns a copy of all gradients. */
static unsigned char *all_gradients(const GptShape *shape, int64_t B, int64_t micros, int threads,
                                    double *loss, size_t *bytes)
{
    Fixture f;
    fixture_open(&f, shape, B, 7, micros, threads, 0);
    *loss = fixture_backward(&f);
    unsigned char *out = fixture_gradients(&f, bytes);
    fixture_close(&f);
    return out;
}

static const DType all_dtypes[] = {F64, F32, BF16, F16};

/* Bug 12: a second run with the same input must give the same bits. */
static void test_bug_12_a_rerun_gives_the_same_bits(void **state)
{
    (void)state;
    for (int t = 0; t < 4; t++) {
        GptShape s = fixture_with_dtype(fixture_llama_shape(), all_dtypes[t]);
        double loss[2];
        size_t bytes[2];
        unsigned char *x = all_gradients(&s, 3, 2, 2, &loss[0], &bytes[0]);
        unsigned char *y = all_gradients(&s, 3, 2, 2, &loss[1], &bytes[1]);
        assert_int_equal(bytes[0], bytes[1]);
        assert_true(loss[0] == loss[1]);
        assert_memory_equal(x, y, bytes[0]);
        free(x);
        free(y);
    }
}

/* The head's chunks change only the order in which the table's gradient is added up: a sum over N
 * rows, whose error is at most N roundings of its largest element. */
static void test_head_chunks_change_loss_and_gradients_only_by_rounding(void **state)
{
    (void)state;
    enum { BATCH = 80, N = 7 * BATCH };
    static const int64_t chunk[] = {0, 5, 256, N - 1}; /* 0: all rows at once */
    double loss[4], most = 0;
    double *gradients[4];
    size_t bytes[4];
    GptShape s = fixture_shape();
    for (int i = 0; i < 4; i++) {
        s.head_chunk = chunk[i];
        gradients[i] = (double *)(void *)all_gradients(&s, BATCH, 1, 1, &loss[i], &bytes[i]);
    }
    size_t n = bytes[0] / sizeof(double);
    for (size_t k = 0; k < n; k++)
        most = fmax(most, fabs(gradients[0][k]));
    for (int i = 1; i < 4; i++) {
        assert_int_equal(bytes[i], bytes[0]);
        assert_true(fabs(loss[i] - loss[0]) <= N * DBL_EPSILON * fabs(loss[0]));
        for (size_t k = 0; k < n; k++)
            if (!(fabs(gradients[i][k] - gradients[0][k]) <= N * DBL_EPSILON * most))
                fail_msg("gradient %zu is %.17g in chunks of %lld rows, %.17g in one", k,
                         gradients[i][k], (long long)chunk[i], gradients[0][k]);
    }
    for (int i = 0; i < 4; i++)
        free(gradients[i]);
}

/* fused_gelu applies GELU to the unrounded sum. Full recompute must not change a bit. In f32 and
 * f64 the sum is not rounded before GELU anyway, so fused_gelu must equal the unfused GELU, and
 * selective recompute is allowed. In 16-bit types it must be close. */
static void test_fused_gelu_equals_gelu_in_f32_and_is_close_in_16_bits(void **state)
{
    (void)state;
    for (int t = 0; t < 4; t++) {
        bool rounds = dtype_size(all_dtypes[t]) == 2;
        GptShape s = fixture_with_dtype(fixture_shape(), all_dtypes[t]);
        static const RecomputePolicy policy[] = {RECOMPUTE_NONE, RECOMPUTE_NONE, RECOMPUTE_FULL,
                                                 RECOMPUTE_SELECTIVE};
        int shards = rounds ? 3 : 4;
        double loss[4];
        size_t bytes;
        unsigned char *gradients[4];
        for (int i = 0; i < shards; i++) {
            s.fused_gelu = i > 0;
            s.recompute = policy[i];
            gradients[i] = all_gradients(&s, 3, 2, 3, &loss[i], &bytes);
        }
        for (int i = 2; i < shards; i++) {
            assert_true(loss[1] == loss[i]);
            assert_memory_equal(gradients[1], gradients[i], bytes);
        }
        assert_true((memcmp(gradients[0], gradients[1], bytes) != 0) == rounds);
        assert_true(fabs(loss[0] - loss[1]) <=
                    (rounds ? dtype_info[all_dtypes[t]].roundoff : 0) * loss[0]);
        for (int i = 0; i < shards; i++)
            free(gradients[i]);
    }
}

/* Bugs 1 and 3: k micro-batches of B rows must equal one batch of k B rows, also with masked
 * targets. */
static void test_bug_1_3_several_micro_batches_equal_one_large_batch(void **state)
{
    (void)state;
    GptShape s = fixture_llama_shape();
    double one, many;
    size_t bytes, same;
    unsigned char *a = all_gradients(&s, 6, 1, 2, &one, &bytes),
                  *b = all_gradients(&s, 1, 6, 2, &many, &same);
    double *x = (double *)a, *y = (double *)b, scale = 0;
    assert_true(fabs(one - many) < 1e-13 * fabs(one));
    for (size_t i = 0; i < bytes / 8; i++)
        scale = fmax(scale, fabs(x[i]));
    for (size_t i = 0; i < bytes / 8; i++)
        if (!(fabs(x[i] - y[i]) <= 1e-13 * scale))
            fail_msg("element %zu: %.17g and %.17g", i, x[i], y[i]);
    free(a);
    free(b);
}

/* Bug 23: padding rows of the vocabulary must not affect loss or gradients. */
static void test_bug_23_vocabulary_padding_does_not_change_loss_or_gradients(void **state)
{
    (void)state;
    int64_t vocab[] = {17, 127, 128, 129};
    for (int i = 0; i < 4; i++) {
        double loss[2];
        GptShape s = fixture_shape();
        s.V = vocab[i];
        for (int k = 0; k < 2; k++) {
            Fixture f;
            s.Vp = (s.V + 127) / 128 * 128 + 256 * k;
            fixture_open(&f, &s, 2, 7, 1, 1, 0);
            loss[k] = fixture_backward(&f);
            const Param *p = &f.table.param[0];
            Tensor g = fixture_grad(&f, 0);
            for (int64_t e = p->dim[0] * p->dim[1]; e < p->padded[0] * p->padded[1]; e++)
                if (((double *)g.data)[e] != 0)
                    fail_msg("V %lld: padding gradient %lld is not zero", (long long)s.V,
                             (long long)e);
            fixture_close(&f);
        }
        if (loss[0] != loss[1])
            fail_msg("V %lld: loss %.17g, with more padding %.17g", (long long)s.V, loss[0],
                     loss[1]);
    }
}

/* Bug 31: nothing from an earlier micro-batch or step may be read. With activations and scratch
 * filled with NaN before every micro-batch, losses and gradients must have the same bits. */
static void test_bug_31_stale_activations_and_scratch_are_never_read(void **state)
{
    (void)state;
    GptShape shapes[] = {fixture_shape(), fixture_llama_shape(), fixture_mqa_shape()};
    for (int i = 0; i < 3 * 4 * 3; i++) {
        Fixture f;
        GptShape s = fixture_with_dtype(shapes[i % 3], all_dtypes[i / 9]);
        s.recompute = (RecomputePolicy)(i / 3 % 3);
        size_t bytes;
        fixture_open(&f, &s, 3, 7, 2, 2, 0);
        double evaluated = fixture_loss(&f), loss = fixture_backward(&f);
        unsigned char *clean = fixture_gradients(&f, &bytes);
        f.poison = true;
        double again = fixture_backward(&f), evaluated_again = fixture_loss(&f);
        unsigned char *poisoned = fixture_gradients(&f, &bytes);
        if (loss != again || evaluated != evaluated_again)
            fail_msg("shape %d: losses %.17g and %.17g, evaluated %.17g and %.17g", i, loss, again,
                     evaluated, evaluated_again);
        for (size_t b = 0; b < bytes; b++)
            if (clean[b] != poisoned[b])
                fail_msg("shape %d: gradients differ from byte %zu of %zu", i, b, bytes);
        free(clean);
        free(poisoned);
        fixture_close(&f);
    }
}

/* Every step must set gaps between packs to zero, whatever they contained. */
static void test_gaps_between_packs_are_zero_after_backward(void **state)
{
    (void)state;
    Fixture f;
    GptShape s = fixture_shape();
    Shard shards[512];
    fixture_open(&f, &s, 2, 7, 2, 1, 0);
    int n = f.params->shards(f.params, PURPOSE_COUNT, shards, 512);
    for (int i = 0; i < n; i++)
        memset(shards[i].grad.data, 0xff, tensor_bytes(shards[i].grad));
    fixture_backward(&f);
    for (int i = 0; i < n; i++)
        for (int64_t e = 0; e < shards[i].count; e++)
            if (isnan(((double *)shards[i].grad.data)[e]))
                fail_msg("unit %d, element %lld was left as poison", shards[i].unit,
                         (long long)(shards[i].offset + e));
    fixture_close(&f);
}

/* Bugs 13 and 14: the norm must count every parameter once, also a tied embedding and the weights
 * of norms. */
static void test_bug_13_14_the_norm_counts_each_parameter_once(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        Fixture f;
        GptShape s = i == 0 ? fixture_shape() : fixture_llama_shape();
        StepStats stats = {0};
        double sum = 0;
        fixture_open(&f, &s, 2, 7, 2, 1, 0);
        fixture_backward(&f);
        GradNorm norm = grad_norm_create(f.params);
        grad_norm_add(&norm, &f.dev, &stats);
        for (int p = 0; p < f.table.n_params; p++) {
            Tensor g = fixture_grad(&f, p);
            for (int64_t e = 0; e < tensor_count(g); e++)
                sum += ((double *)g.data)[e] * ((double *)g.data)[e];
        }
        if (!(fabs(stats.sq_norm - sum) <= 1e-12 * sum))
            fail_msg("shape %d: the norm squared is %.17g, not %.17g", i, stats.sq_norm, sum);
        grad_norm_free(&norm);
        fixture_close(&f);
    }
}

/* ---- floating-point operations per token ----------------------------------------------------- */

/* Six operations for each weight in a product, including the head's padding rows, and six per block
 * for each pair of a head column and a key. GFLOP/s in reports are computed from this number. */
static void test_flops_per_token_equal_a_separate_count(void **state)
{
    (void)state;
    GptShape gpt2 = fixture_gpt2_shape();
    double block = 768.0 * 2304 + 768.0 * 768 + 2 * 768.0 * 3072;
    assert_true(gpt_flops_per_token(&gpt2, 1024) ==
                6 * (12 * block + 50304.0 * 768) + 6.0 * 12 * 768 * 1024);
    /* Two kv heads for eight heads, heads wider than the hidden size, three MLP products, an untied
     * head. The embedding is a lookup, not a product. */
    GptShape llama = {.L = 3,
                      .C = 256,
                      .H = 8,
                      .G = 2,
                      .D = 48,
                      .F = 704,
                      .V = 1000,
                      .Vp = 1024,
                      .position = POSITION_ROPE,
                      .activation = ACTIVATION_SWIGLU,
                      .tied = false};
    block = 256.0 * (384 + 96 + 96) + 384.0 * 256 + 3 * 256.0 * 704;
    assert_true(gpt_flops_per_token(&llama, 100) ==
                6 * (3 * block + 1024.0 * 256) + 6.0 * 3 * 384 * 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bug_13_14_the_norm_counts_each_parameter_once),
        cmocka_unit_test(test_gradients_of_gpt2_match_finite_differences),
        cmocka_unit_test(test_gradients_of_llama_match_finite_differences),
        cmocka_unit_test(test_gradients_with_mqa_relu2_and_chunked_head_match_finite_differences),
        cmocka_unit_test(test_accumulated_and_recomputed_gradients_match_finite_differences),
        cmocka_unit_test(test_gradients_of_one_biased_swiglu_layer_match_finite_differences),
        cmocka_unit_test(test_bug_12_a_rerun_gives_the_same_bits),
        cmocka_unit_test(test_head_chunks_change_loss_and_gradients_only_by_rounding),
        cmocka_unit_test(test_fused_gelu_equals_gelu_in_f32_and_is_close_in_16_bits),
        cmocka_unit_test(test_bug_1_3_several_micro_batches_equal_one_large_batch),
        cmocka_unit_test(test_bug_23_vocabulary_padding_does_not_change_loss_or_gradients),
        cmocka_unit_test(test_bug_31_stale_activations_and_scratch_are_never_read),
        cmocka_unit_test(test_gaps_between_packs_are_zero_after_backward),
        cmocka_unit_test(test_flops_per_token_equal_a_separate_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
