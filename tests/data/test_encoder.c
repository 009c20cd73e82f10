/* test_encoder.c -- tests an encoder whose word cache overflows, on a text with more distinct words
 * than the cache holds, and the ids of a prompt. */
#include "data/tokenizer/vocabulary.h"
#include "model/core/check.h"
#include "tests/support/files/data_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* More than twice as many words as an encoder's cache holds. Some of the first words and of the
 * last ones occur again later. */
enum { DISTINCT = 540000, AGAIN = 10000, ALL = DISTINCT + 2 * AGAIN, FEW = 10000 };

/* Writes word `i`: a space and `size` - 1 letters, six of which make the words distinct: they are
 * the digits of i in base 26, mixed so that consecutive words have little in common. */
static void distinct_word(char *to, int64_t i, int size)
{
    to[0] = ' ';
    for (int k = 1, turn = 0; k < size; k++, i /= 26) {
        turn += (int)(i % 26);
        to[k] = (char)('a' + (turn + 7 * k) % 26);
    }
}

/* One encoder over all words of `size` bytes must give the same ids as many fresh encoders that
 * each see a few of these words. */
static void check_overflow(const Tokenizer *t, int size)
{
    char *text = must_alloc((size_t)size * ALL);
    TokenBuffer whole = {0}, parts = {0};
    for (int64_t i = 0; i < ALL; i++)
        distinct_word(text + size * i,
                      i < DISTINCT           ? i
                      : i < DISTINCT + AGAIN ? i - DISTINCT
                                             : i - 2 * AGAIN,
                      size);
    Encoder *one = encoder_create(t);
    encoder_encode(one, (const uint8_t *)text, size * ALL, &whole);
    encoder_free(one);
    for (int64_t at = 0; at < ALL; at += FEW) {
        Encoder *fresh = encoder_create_small(t);
        encoder_encode(fresh, (const uint8_t *)text + size * at, size * FEW, &parts);
        encoder_free(fresh);
    }
    assert_true(whole.count > ALL); /* words have more than one id */
    assert_int_equal(whole.count, parts.count);
    for (int64_t i = 0; i < whole.count; i++)
        if (whole.id[i] != parts.id[i])
            fail_msg("id %lld is %d, not %d", (long long)i, whole.id[i], parts.id[i]);
    token_buffer_free(&whole);
    token_buffer_free(&parts);
    free(text);
}

static Tokenizer *of_prose(void)
{
    char *prose = drawn_text(9, 2000), err[512];
    Tokenizer *t;
    if (!tokenizer_train((const uint8_t *)prose, (int64_t)strlen(prose), 300, &t, NULL, NULL, err,
                         sizeof err))
        fail_msg("%s", err);
    free(prose);
    return t;
}

/* Short words (up to 15 bytes) have a cache of their own, so both caches are tested. */
static void test_ids_stay_the_same_when_the_word_cache_overflows(void **state)
{
    (void)state;
    Tokenizer *t = of_prose();
    check_overflow(t, 7);
    check_overflow(t, 17);
    tokenizer_free(t);
}

static void check_prompt(const Tokenizer *t, const char *prompt, const int32_t *ids, int64_t n)
{
    TokenBuffer got = {0};
    token_buffer_add(&got, 7); /* ids that are already there must stay */
    tokenizer_encode_prompt(t, prompt, &got);
    assert_int_equal(got.count, 1 + n);
    assert_int_equal(got.id[0], 7);
    assert_memory_equal(got.id + 1, ids, (size_t)n * sizeof *ids);
    token_buffer_free(&got);
}

static void test_an_empty_prompt_gives_the_end_of_text_token(void **state)
{
    (void)state;
    const Merge merge = {.left = 64, .right = 65}; /* ids of "a" and "b" */
    char err[512];
    Tokenizer *t;
    if (!tokenizer_from_merges(&merge, 1, &t, err, sizeof err)) fail_msg("%s", err);
    check_prompt(t, "abb", (const int32_t[]){256, 65}, 2);
    check_prompt(t, "", (const int32_t[]){257}, 1);
    t->end_of_text = -1;
    check_prompt(t, "", (const int32_t[]){0}, 1);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids_stay_the_same_when_the_word_cache_overflows),
        cmocka_unit_test(test_an_empty_prompt_gives_the_end_of_text_token),
    };
    return cmocka_run_group_tests_name("encoder", tests, NULL, NULL);
}
