/* test_generate.c -- tests decoding: the cache of keys and values against the full forward pass,
 * whole texts against a loop without a cache, and sampling. */
#include "model/core/check.h"
#include "model/generate.h"
#include "tests/support/model/model_fixture.h"
#include "tests/support/model/plain_sampling.h"
#include "tests/support/support.h"

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
    Decoder *d = decoder_create(&f.dev, &f.layers, f.params, &f.tp, NULL, s.P);
    double scale = 0, worst = 0;
    for (int64_t at = 0, n; at < T; at += n) {
        /* A prompt of 4 tokens, then 2 at once, then one at a time. */
        n = at == 0 ? 4 : at == 4 ? 2 : 1;
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

static void test_logits_with_the_cache_equal_a_full_forward_pass(void **state)
{
    (void)state;
    GptShape shapes[] = {fixture_shape(), fixture_llama_shape(), fixture_mqa_shape()};
    for (int i = 0; i < 3; i++) {
        check_cache(shapes[i], 1e-12);
        check_cache(fixture_with_dtype(shapes[i], F32), 2e-5);
    }
}

/* ---- comparison with a loop without a cache -------------------------------------------------- */

enum { TOKENS = 24, NO_END = -1 };

typedef struct {
    int32_t token[TOKENS + 1];
    int n;
    int32_t end; /* this token ends the text and is not part of it */
} Written;

static bool write_token(void *context, int32_t token)
{
    Written *w = context;
    if (token == w->end) return false;
    assert_true(w->n < TOKENS);
    w->token[w->n++] = token;
    return true;
}

/* Computes the logits (V) after the last of `length` tokens with the whole model and without a
 * cache. The model does not see later tokens. */
static void forward_anew(Fixture *f, const int32_t *seen, int64_t length, double *logits)
{
    const GptShape *s = &f->layers.shape;
    Tensor all = tensor_2d(must_calloc((size_t)(f->T * s->Vp), sizeof(double)), F64, f->T, s->Vp);
    memset(f->tokens, 0, (size_t)f->T * sizeof *f->tokens);
    memcpy(f->tokens, seen, (size_t)length * sizeof *seen);
    fixture_logits(f, 0, all);
    memcpy(logits, tensor_row(all, length - 1), (size_t)s->V * sizeof *logits);
    free(all.data);
}

/* Generates the text after a prompt of n tokens, in a context of f->T tokens, without a cache. Only
 * the end of a longer prompt is used. When the context is full, its last half is kept and continues
 * from position 0. */
static void plain_text(Fixture *f, const Sampling *sampling, const int32_t *prompt, int64_t n,
                       Written *out)
{
    int32_t seen[64];
    double logits[64];
    int64_t capacity = f->T, length = n < capacity ? n : capacity;
    memcpy(seen, prompt + n - length, (size_t)length * sizeof *seen);
    for (uint64_t i = 0; i < TOKENS; i++) {
        forward_anew(f, seen, length, logits);
        int32_t token = plain_sample(sampling, logits, f->layers.shape.V, i);
        if (token == out->end) return;
        out->token[out->n++] = token;
        if (length == capacity) {
            length = capacity / 2;
            memmove(seen, seen + capacity - length, (size_t)length * sizeof *seen);
        }
        seen[length++] = token;
    }
}

static const Sampling samplings[] = {{.temperature = 0, .top_p = 1},
                                     {.temperature = 1, .top_p = 1, .seed = 5},
                                     {.temperature = 1, .top_p = 1, .seed = 6},
                                     {.temperature = 0.7, .top_k = 5, .top_p = 1, .seed = 5},
                                     {.temperature = 1.3, .top_p = 0.6, .seed = 7},
                                     {.temperature = 1.5, .top_k = 6, .top_p = 0.7, .seed = 8}};
enum { SAMPLINGS = sizeof samplings / sizeof *samplings, LONGEST = 21 };

/* Checks the decoder's text after a prompt of n tokens, which ends before the token `end`, and
 * returns it. */
static Written check_text(Fixture *f, Decoder *d, const Sampling *sampling, const int32_t *prompt,
                          int64_t n, int32_t end)
{
    Written want = {.end = end}, got = want;
    plain_text(f, sampling, prompt, n, &want);
    f->params->step_begin(f->params, NULL, 0);
    generate(d, sampling, prompt, n, TOKENS, write_token, &got);
    if (got.n != want.n || memcmp(got.token, want.token, sizeof got.token) != 0)
        fail_msg("%lld tokens of context, a prompt of %lld, temperature %g, top_k %lld, top_p %g: "
                 "%d tokens, not %d, or others",
                 (long long)f->T, (long long)n, sampling->temperature, (long long)sampling->top_k,
                 sampling->top_p, got.n, want.n);
    return want;
}

/* Checks prompts shorter than the context, as long as it, and longer; for each, a text of full
 * length and one that ends early, at one of its first six tokens. */
static void check_texts(Fixture *f, Decoder *d, const Sampling *sampling)
{
    const int64_t length[] = {1, 3, f->T, LONGEST};
    int32_t prompt[LONGEST];
    for (int i = 0; i < LONGEST; i++)
        prompt[i] = (int32_t)(drawn_uniform(91, i) * (double)f->layers.shape.V);
    for (int i = 0; i < 4; i++) {
        Written whole = check_text(f, d, sampling, prompt, length[i], NO_END);
        assert_int_equal(whole.n, TOKENS);
        Written ended = check_text(f, d, sampling, prompt, length[i], whole.token[5]);
        assert_true(ended.n <= 5);
    }
}

/* The text must also be equal after the context is full. */
static void test_generated_text_equals_that_of_a_loop_without_cache(void **state)
{
    (void)state;
    static const int64_t context[] = {1, 2, 7, 16};
    GptShape shapes[] = {fixture_shape(), fixture_llama_shape()};
    for (int k = 0; k < 8; k++) {
        Fixture f;
        fixture_open(&f, &shapes[k % 2], 1, context[k / 2], 1, 1, 0);
        Decoder *d = decoder_create(&f.dev, &f.layers, f.params, &f.tp, NULL, f.T);
        for (int i = 0; i < SAMPLINGS; i++)
            check_texts(&f, d, &samplings[i]);
        decoder_destroy(d);
        fixture_close(&f);
    }
}

/* Two seeds must give two different texts. */
static void test_two_seeds_generate_different_texts(void **state)
{
    (void)state;
    Fixture f;
    GptShape s = fixture_llama_shape();
    Written a = {.end = NO_END}, b = a;
    int32_t prompt[] = {1, 2, 3};
    fixture_open(&f, &s, 1, 8, 1, 1, 0);
    f.params->step_begin(f.params, NULL, 0);
    Decoder *d = decoder_create(&f.dev, &f.layers, f.params, &f.tp, NULL, 8);
    generate(d, &samplings[1], prompt, 3, TOKENS, write_token, &a);
    generate(d, &samplings[2], prompt, 3, TOKENS, write_token, &b);
    assert_int_equal(a.n, TOKENS);
    assert_memory_not_equal(a.token, b.token, sizeof a.token);
    decoder_destroy(d);
    fixture_close(&f);
}

/* ---- sampling -------------------------------------------------------------------------------- */

/* With both top_k and top_p, the nucleus must be taken from the top k tokens, not from all tokens.
 * The first three of 0.45, 0.3, 0.15 and 0.1 have shares of 0.5, 0.33 and 0.17, so a nucleus of
 * 0.49 is the first token alone. Taken from all four tokens, it would be the first two. */
static void test_top_p_is_applied_to_the_top_k_tokens_only(void **state)
{
    (void)state;
    double logits[] = {log(0.15), log(0.45), log(0.1), log(0.3)};
    int32_t order[4];
    Tensor t = tensor_1d(logits, F64, 4);
    Sampling both = {.temperature = 1, .top_k = 3, .top_p = 0.49, .seed = 3};
    int seen[4] = {0};
    for (uint64_t i = 0; i < 400; i++) {
        assert_int_equal(sample_token(&both, t, i, order), 1);
        Sampling two = both, wide = both;
        two.top_k = 0;
        wide.top_p = 0.84;
        seen[sample_token(&two, t, i, order)]++;
        assert_int_equal(sample_token(&wide, t, i, order), plain_sample(&wide, logits, 4, i));
        assert_true(plain_sample(&wide, logits, 4, i) != 2);
    }
    assert_true(seen[3] > 100 && seen[0] == 0 && seen[2] == 0);
}

static void test_temperature_top_k_and_top_p_choose_the_expected_tokens(void **state)
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
        assert_int_equal(p, 1); /* its probability is 0.64 */
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
        cmocka_unit_test(test_logits_with_the_cache_equal_a_full_forward_pass),
        cmocka_unit_test(test_generated_text_equals_that_of_a_loop_without_cache),
        cmocka_unit_test(test_two_seeds_generate_different_texts),
        cmocka_unit_test(test_top_p_is_applied_to_the_top_k_tokens_only),
        cmocka_unit_test(test_temperature_top_k_and_top_p_choose_the_expected_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
