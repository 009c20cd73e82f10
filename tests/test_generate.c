/* test_generate.c -- decoding: the cache of keys and values against the full forward pass, and
 * sampling. */
#include "model/core/check.h"
#include "model/generate.h"
#include "tests/model_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- the cache of keys and values ------------------------------------------------------------ */

static void check_cache(GptShape s, double tolerance)
{
    Fixture f;
    int64_t T = 13;
    fixture_open(&f, &s, 1, T, 1, 2, 0);
    Tensor logits =
        tensor_2d(must_calloc((size_t)(T * s.Vp), dtype_size(s.dtype)), s.dtype, T, s.Vp);
    fixture_logits(&f, 0, logits);
    f.params->step_begin(f.params, NULL, 0);
    Decoder *d = decoder_create(&f.dev, &f.layers, f.params, &f.tp, s.P);
    double scale = 0, worst = 0;
    for (int64_t at = 0, n; at < T; at += n) {
        n = at == 0 ? 4 : at == 4 ? 2 : 1; /* a prompt, two tokens at once, then one by one */
        Tensor got = decoder_feed(d, f.tokens + at, n);
        int64_t best_full = 0, best_cached = 0;
        for (int64_t v = 0; v < s.V; v++) {
            double x = dtype_get(s.dtype, tensor_row(logits, at + n - 1), v),
                   y = dtype_get(got.dtype, got.data, v);
            scale = fmax(scale, fabs(x));
            worst = fmax(worst, fabs(x - y));
            if (x > dtype_get(s.dtype, tensor_row(logits, at + n - 1), best_full)) best_full = v;
            if (y > dtype_get(got.dtype, got.data, best_cached)) best_cached = v;
        }
        assert_int_equal(best_full, best_cached);
    }
    if (worst > tolerance * scale)
        fail_msg("%s: logits differ by %g of %g with the cache", dtype_name(s.dtype), worst, scale);
    decoder_destroy(d);
    free(logits.data);
    fixture_close(&f);
}

static void test_cache_equals_full_forward(void **state)
{
    (void)state;
    GptShape shapes[] = {fixture_shape(), fixture_llama_shape(), fixture_mqa_shape()};
    for (int i = 0; i < 3; i++) {
        check_cache(shapes[i], 1e-12);
        check_cache(fixture_with_dtype(shapes[i], F32), 2e-5);
    }
}

typedef struct {
    int32_t token[64];
    int n;
} Written;

static bool write_token(void *context, int32_t token)
{
    Written *w = context;
    w->token[w->n++] = token;
    return true;
}

/* Text goes on past the end of the context, and equal seeds write equal text. */
static void test_generate_past_the_context(void **state)
{
    (void)state;
    Fixture f;
    GptShape s = fixture_llama_shape();
    Written a = {0}, b = {0};
    int32_t prompt[] = {1, 2, 3};
    Sampling sampling = {.temperature = 1.0, .top_k = 20, .top_p = 0.95, .seed = 5};
    fixture_open(&f, &s, 1, 7, 1, 1, 0);
    f.params->step_begin(f.params, NULL, 0);
    Decoder *d = decoder_create(&f.dev, &f.layers, f.params, &f.tp, 8);
    generate(d, &sampling, prompt, 3, 40, write_token, &a);
    generate(d, &sampling, prompt, 3, 40, write_token, &b);
    assert_int_equal(a.n, 40);
    assert_memory_equal(&a, &b, sizeof a);
    decoder_destroy(d);
    fixture_close(&f);
}

static void test_sampling_rules(void **state)
{
    (void)state;
    double logits[] = {0.0, 3.0, 1.0, 2.0, -5.0};
    int32_t order[5];
    int seen[5] = {0};
    Tensor t = tensor_1d(logits, F64, 5);
    for (uint64_t i = 0; i < 2000; i++) {
        assert_int_equal(sample_token(&(Sampling){.temperature = 0, .top_p = 1}, t, i, order), 1);
        assert_int_equal(
            sample_token(&(Sampling){.temperature = 1, .top_k = 1, .top_p = 1}, t, i, order), 1);
        int32_t k2 =
            sample_token(&(Sampling){.temperature = 1, .top_k = 2, .top_p = 1}, t, i, order);
        assert_true(k2 == 1 || k2 == 3);
        int32_t p = sample_token(&(Sampling){.temperature = 1, .top_p = 0.6}, t, i, order);
        assert_int_equal(p, 1); /* its mass is 0.64 */
        seen[sample_token(&(Sampling){.temperature = 1, .top_p = 1, .seed = 9}, t, i, order)]++;
    }
    double total = 0;
    for (int i = 0; i < 5; i++)
        total += exp(logits[i]);
    for (int i = 0; i < 5; i++) { /* five standard deviations */
        double p = exp(logits[i]) / total;
        assert_true(fabs(seen[i] - 2000 * p) <= 5 * sqrt(2000 * p * (1 - p)) + 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cache_equals_full_forward),
        cmocka_unit_test(test_generate_past_the_context),
        cmocka_unit_test(test_sampling_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
