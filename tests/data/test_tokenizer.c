/* test_tokenizer.c -- tests byte-pair encoding: splitting into words, training and encoding against
 * naive implementations, and round trips. */
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/vocabulary.h"
#include "data/tokenizer/words.h"
#include "model/core/check.h"
#include "tests/support/files/data_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Tokenizer *train(const char *text, int64_t vocab)
{
    char err[512];
    Tokenizer *t;
    if (!tokenizer_train((const uint8_t *)text, (int64_t)strlen(text), vocab, &t, NULL, NULL, err,
                         sizeof err))
        fail_msg("%s", err);
    return t;
}

static TokenBuffer encode(const Tokenizer *t, const void *text, int64_t size)
{
    TokenBuffer ids = {0};
    Encoder *e = encoder_create(t);
    encoder_encode(e, text, size, &ids);
    encoder_free(e);
    return ids;
}

static void check_ids(const char *what, const TokenBuffer *got, const int32_t *want, int64_t n)
{
    for (int64_t i = 0; i < got->count && i < n; i++)
        if (got->id[i] != want[i])
            fail_msg("%s: id %lld is %d, want %d", what, (long long)i, got->id[i], want[i]);
    if (got->count != n)
        fail_msg("%s: %lld ids, want %lld", what, (long long)got->count, (long long)n);
}

/* ---- splitting into words -------------------------------------------------------------------- */

/* Word lengths in bytes, computed from GPT-2's pattern by a regular-expression engine. */
static const struct {
    const char *text;
    int length[16];
} splits[] = {
    {"Hello world", {5, 6}},
    {"In the beginning God created the heaven and the earth.", {2, 4, 10, 4, 8, 4, 7, 4, 4, 6, 1}},
    {"  two  spaces, then\n\n\nthree lines\n", {1, 4, 1, 7, 1, 5, 2, 1, 5, 6, 1}},
    {"it's we'll I'M don't 'tis they've", {2, 2, 3, 3, 2, 1, 1, 4, 2, 2, 3, 5, 3}},
    {"na\303\257ve fa\303\247ade \342\200\224 Gr\303\266\303\237e, 12345 and \302\275",
     {6, 8, 4, 8, 1, 6, 4, 3}},
    {"\346\227\245\346\234\254\350\252\236\343\201\256 \354\225\210\353\205\225", {12, 7}},
    {"tabs\t\tand\r\nreturns   ", {4, 1, 1, 3, 1, 1, 7, 3}},
    {"<|endoftext|>", {2, 9, 2}},
    {"\302\240no-break\343\200\200wide\342\200\203em", {2, 2, 1, 5, 3, 4, 3, 2}},
    {"\360\237\231\202\360\237\231\203 emoji \360\237\221\251\342\200\215\360\237\221\251",
     {8, 6, 12}},
};

static void test_words_are_split_as_by_gpt2s_regular_expression(void **state)
{
    (void)state;
    Splitter splitter;
    splitter_init(&splitter, SPLIT_GPT2);
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        const char *text = splits[i].text;
        int64_t n = (int64_t)strlen(text), at = 0;
        for (int k = 0; at < n; k++) {
            int64_t got = word_length(&splitter, (const uint8_t *)text + at, n - at);
            if (got != splits[i].length[k])
                fail_msg("\"%s\": word %d has %lld bytes, want %d", text, k, (long long)got,
                         splits[i].length[k]);
            at += got;
        }
    }
    splitter_free(&splitter);
}

/* ---- against naive implementations ----------------------------------------------------------- */

enum { NAIVE_WORDS = 4000, NAIVE_VOCAB = 400 };

typedef struct {
    int32_t id[64];
    int n;
} NaiveWord;

/* The bytes of all ids that exist so far. */
typedef struct {
    char *bytes[NAIVE_VOCAB];
    int size[NAIVE_VOCAB], n;
} NaiveVocab;

static void naive_add(NaiveVocab *v, const char *a, int n_a, const char *b, int n_b)
{
    char *joined = must_alloc((size_t)(n_a + n_b) + 1);
    memcpy(joined, a, (size_t)n_a);
    memcpy(joined + n_a, b, (size_t)n_b);
    v->bytes[v->n] = joined;
    v->size[v->n++] = n_a + n_b;
}

static void naive_merge(NaiveWord *w, int32_t l, int32_t r, int32_t id)
{
    int kept = 0;
    for (int i = 0; i < w->n; i++) {
        bool joins = i + 1 < w->n && w->id[i] == l && w->id[i + 1] == r;
        w->id[kept++] = joins ? id : w->id[i];
        i += joins;
    }
    w->n = kept;
}

/* Counts all pairs again and searches all of them for the best one; returns false if there is
 * none. */
static bool naive_best(const NaiveWord *word, int n_words, const NaiveVocab *v, int32_t *left,
                       int32_t *right)
{
    int *count = must_calloc(NAIVE_VOCAB * NAIVE_VOCAB, sizeof *count), best = 0;
    for (int w = 0; w < n_words; w++)
        for (int i = 0; i + 1 < word[w].n; i++)
            count[word[w].id[i] * NAIVE_VOCAB + word[w].id[i + 1]]++;
    for (int32_t l = 0; l < v->n; l++)
        for (int32_t r = 0; r < v->n; r++)
            if (count[l * NAIVE_VOCAB + r] > best) {
                best = count[l * NAIVE_VOCAB + r];
                *left = l;
                *right = r;
            }
    free(count);
    return best > 0;
}

static int naive_split(const char *text, const Tokenizer *t, NaiveWord *word)
{
    int64_t at = 0, n = (int64_t)strlen(text);
    int n_words = 0;
    for (; at < n && n_words < NAIVE_WORDS; n_words++) {
        int64_t length = word_length(&t->splitter, (const uint8_t *)text + at, n - at);
        word[n_words].n = 0;
        for (int64_t i = 0; i < length; i++)
            for (int32_t id = 0; id < 256; id++) {
                int64_t size;
                const uint8_t *byte = tokenizer_token(t, id, &size);
                if (*byte == (uint8_t)text[at + i]) word[n_words].id[word[n_words].n++] = id;
            }
        at += length;
    }
    return n_words;
}

static void check_training(const char *text, int vocab)
{
    Tokenizer *t = train(text, vocab);
    NaiveWord *word = must_alloc(NAIVE_WORDS * sizeof *word);
    NaiveVocab v = {0};
    int n_words = naive_split(text, t, word);
    for (int32_t id = 0; id < 256; id++) {
        int64_t size;
        const uint8_t *byte = tokenizer_token(t, id, &size);
        assert_int_equal(size, 1);
        naive_add(&v, (const char *)byte, 1, "", 0);
    }
    for (int32_t id = 256; id < vocab - 1; id++) {
        int32_t l = 0, r = 0;
        int64_t size;
        const uint8_t *got = tokenizer_token(t, id, &size);
        assert_true(naive_best(word, n_words, &v, &l, &r));
        naive_add(&v, v.bytes[l], v.size[l], v.bytes[r], v.size[r]);
        for (int w = 0; w < n_words; w++)
            naive_merge(&word[w], l, r, id);
        if (size != v.size[id] || memcmp(got, v.bytes[id], (size_t)size) != 0)
            fail_msg("id %d is \"%.*s\", want \"%.*s\"", id, (int)size, (const char *)got,
                     v.size[id], v.bytes[id]);
    }
    for (int i = 0; i < v.n; i++)
        free(v.bytes[i]);
    free(word);
    tokenizer_free(t);
}

static void test_training_gives_the_same_merges_as_naive_training(void **state)
{
    (void)state;
    for (uint64_t stream = 0; stream < 3; stream++) {
        char *text = drawn_text(stream, 600);
        check_training(text, 300);
        free(text);
    }
    check_training("aaaa aaaaa aa aaaaaaa abababab babab aabb aaabbb", 266);
    check_training("mississippi mississippi miss issip ppi sip", 272);
}

static void test_training_reports_the_largest_possible_vocabulary(void **state)
{
    (void)state;
    char err[256];
    Tokenizer *t;
    int64_t most;
    assert_false(
        tokenizer_train((const uint8_t *)"abcd", 4, 300, &t, NULL, &most, err, sizeof err));
    assert_int_equal(most, 260);
    assert_string_equal(err, "the text has pairs for a vocabulary of at most 260 ids, not 300");
    assert_false(tokenizer_train((const uint8_t *)"a", 1, 300, &t, NULL, &most, err, sizeof err));
    assert_int_equal(most, 0);
    assert_false(tokenizer_train((const uint8_t *)"abcd", 4, 257, &t, NULL, NULL, err, sizeof err));
    t = train("abcd", 260);
    assert_int_equal(tokenizer_end_of_text(t), 259);
    tokenizer_free(t);
}

/* With an upper limit, the last merge is that of the last pair that occurs at least twice. */
static void test_training_up_to_a_limit_ends_before_pairs_that_occur_once(void **state)
{
    (void)state;
    static const uint8_t text[] = "the cat the cat sat";
    const int64_t size = sizeof text - 1;
    char err[256];
    Tokenizer *t;
    assert_true(tokenizer_train_up_to(text, size, 5000, &t, NULL, err, sizeof err));
    Tokenizer *same = train((const char *)text, tokenizer_vocab_size(t));
    assert_true(tokenizer_hash(t) == tokenizer_hash(same));
    assert_int_equal(tokenizer_vocab_size(t), 257 + 5); /* "at", "he", "t" + "he", " c", " cat" */
    tokenizer_free(same);
    tokenizer_free(t);
    assert_true(tokenizer_train_up_to(text, size, 259, &t, NULL, err, sizeof err));
    assert_int_equal(tokenizer_vocab_size(t), 259);
    tokenizer_free(t);
    assert_false(tokenizer_train_up_to(text, 4, 5000, &t, NULL, err, sizeof err));
    assert_string_equal(err, "no two neighbouring bytes of the text occur twice");
}

/* Applies all merges in order of rank, each from left to right, in a naive loop, and compares the
 * ids of random words of `letters` with the encoder's. */
static void check_encoding(const char *text, int64_t vocab, const char *letters)
{
    Tokenizer *t = train(text, vocab);
    uint64_t n_letters = strlen(letters);
    char word[61];
    for (uint64_t round = 0; round < 200; round++) {
        int n = 1 + (int)(drawn(11, round) % 60);
        for (int i = 0; i < n; i++)
            word[i] = letters[drawn(12 + round, (uint64_t)i) % n_letters];
        word[n] = 0;
        NaiveWord naive;
        naive_split(word, t, &naive);
        for (int32_t m = 0; m < t->n_merges; m++)
            naive_merge(&naive, t->merge[m].left, t->merge[m].right, t->merged[m]);
        TokenBuffer ids = encode(t, word, n);
        check_ids(word, &ids, naive.id, naive.n);
        token_buffer_free(&ids);
    }
    tokenizer_free(t);
}

static void test_encoding_gives_the_same_ids_as_naive_encoding(void **state)
{
    (void)state;
    char *text = drawn_text(7, 2000);
    check_encoding(text, 340, "theandofrgi");
    check_encoding("aaaa aaaaa aa aaaaaaa abababab babab aabb aaabbb", 266,
                   "aaab"); /* in a run of one letter, the leftmost pair is merged first */
    free(text);
}

/* ---- round trips ----------------------------------------------------------------------------- */

static void test_decoding_gives_back_any_encoded_bytes(void **state)
{
    (void)state;
    char *text = drawn_text(3, 500);
    Tokenizer *t = train(text, 290);
    uint8_t bytes[400];
    for (uint64_t round = 0; round < 500; round++) {
        int64_t n = (int64_t)(drawn(4, round) % sizeof bytes), back_size, total = 0;
        for (int64_t i = 0; i < n; i++) {
            uint64_t r = drawn(5 + round, (uint64_t)i);
            bytes[i] = r >> 60 < 8 ? (uint8_t)text[r % 200] : (uint8_t)r;
        }
        TokenBuffer ids = encode(t, bytes, n);
        char *back = tokenizer_decode(t, ids.id, ids.count, true, &back_size);
        for (int64_t i = 0; i < ids.count; i++)
            total += tokenizer_token_bytes(t)[ids.id[i]];
        if (back_size != n || memcmp(back, bytes, (size_t)n) != 0)
            fail_msg("round %d: %lld bytes came back as %lld", (int)round, (long long)n,
                     (long long)back_size);
        assert_int_equal(total, n);
        free(back);
        token_buffer_free(&ids);
    }
    free(text);
    tokenizer_free(t);
}

static void test_encoding_a_text_again_from_the_word_cache_gives_the_same_ids(void **state)
{
    (void)state;
    char *text = drawn_text(8, 3000);
    Tokenizer *t = train(text, 300);
    Encoder *e = encoder_create(t);
    TokenBuffer first = {0}, second = {0};
    encoder_encode(e, (const uint8_t *)text, (int64_t)strlen(text), &first);
    encoder_encode(e, (const uint8_t *)text, (int64_t)strlen(text), &second);
    check_ids("again", &second, first.id, first.count);
    token_buffer_free(&first);
    token_buffer_free(&second);
    encoder_free(e);
    free(text);
    tokenizer_free(t);
}

static void test_encoding_in_parts_gives_the_same_ids_as_encoding_at_once(void **state)
{
    (void)state;
    char *text = drawn_text(9, 2000);
    int64_t size = (int64_t)strlen(text);
    for (int64_t i = 40; i < size; i += 97) /* white space, whose split depends on what follows */
        memset(text + i, "  \n "[i % 4], (size_t)(i % 3 + 1));
    Tokenizer *t = train(text, 300);
    TokenBuffer whole = encode(t, text, size);
    for (int64_t most = 1; most < 400; most += most / 3 + 1) {
        Encoder *e = encoder_create(t);
        TokenBuffer parts = {0};
        int64_t n_parts = 0;
        for (int64_t at = 0, end; at < size; at = end, n_parts++) {
            end = encoder_cut(e, (uint8_t *)text, size, at + most);
            assert_true(end >= at + most || end == size);
            encoder_encode_part(e, (uint8_t *)text, at, end, &parts);
        }
        assert_true(n_parts > size / (most + 40));
        check_ids("parts", &parts, whole.id, whole.count);
        token_buffer_free(&parts);
        encoder_free(e);
    }
    token_buffer_free(&whole);
    free(text);
    tokenizer_free(t);
}

static void test_a_word_of_a_million_letters_is_encoded_and_decoded(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    Tokenizer *t = train("aaaaaaaaaaaaaaaa aaaaaaaa", 260);
    char *text = must_alloc(N);
    int64_t size;
    memset(text, 'a', N);
    TokenBuffer ids = encode(t, text, N);
    char *back = tokenizer_decode(t, ids.id, ids.count, false, &size);
    assert_int_equal(size, N);
    assert_true(ids.count <= N / 8);
    free(back);
    token_buffer_free(&ids);
    free(text);
    tokenizer_free(t);
}

static void test_text_is_never_encoded_as_a_special_token(void **state)
{
    (void)state;
    Tokenizer *t = train("<|endoftext|> <|endoftext|> endoftext", 262);
    TokenBuffer ids = encode(t, END_OF_TEXT, (int64_t)strlen(END_OF_TEXT));
    int32_t end = tokenizer_end_of_text(t);
    assert_int_equal(end, tokenizer_vocab_size(t) - 1);
    for (int64_t i = 0; i < ids.count; i++)
        assert_int_not_equal(ids.id[i], end);
    char *with = tokenizer_decode(t, &end, 1, true, NULL),
         *without = tokenizer_decode(t, &end, 1, false, NULL);
    assert_string_equal(with, END_OF_TEXT);
    assert_string_equal(without, "");
    assert_int_equal(tokenizer_token_bytes(t)[end], 0);
    free(with);
    free(without);
    token_buffer_free(&ids);
    tokenizer_free(t);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_words_are_split_as_by_gpt2s_regular_expression),
    cmocka_unit_test(test_training_gives_the_same_merges_as_naive_training),
    cmocka_unit_test(test_training_reports_the_largest_possible_vocabulary),
    cmocka_unit_test(test_training_up_to_a_limit_ends_before_pairs_that_occur_once),
    cmocka_unit_test(test_encoding_gives_the_same_ids_as_naive_encoding),
    cmocka_unit_test(test_decoding_gives_back_any_encoded_bytes),
    cmocka_unit_test(test_encoding_a_text_again_from_the_word_cache_gives_the_same_ids),
    cmocka_unit_test(test_encoding_in_parts_gives_the_same_ids_as_encoding_at_once),
    cmocka_unit_test(test_a_word_of_a_million_letters_is_encoded_and_decoded),
    cmocka_unit_test(test_text_is_never_encoded_as_a_special_token),
};

int main(void)
{
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
