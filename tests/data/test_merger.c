/* test_merger.c -- tests the merging of long words against a naive loop, training and encoding on
 * several threads against one, and how long a word of a megabyte takes. */
#include "data/text/prepare.h"
#include "data/text/shards.h"
#include "data/tokenizer/vocabulary.h"
#include "data/tokens/token_file.h"
#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/files.h"
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
    if (!tokenizer_train_up_to((const uint8_t *)text, (int64_t)strlen(text), vocab, &t, NULL, err,
                               sizeof err))
        fail_msg("%s", err);
    return t;
}

/* ---- against a naive loop -------------------------------------------------------------------- */

/* Repeatedly merges the pair with the lowest rank, and of several such pairs the leftmost, until no
 * pair can be merged. Returns the number of ids that are left. */
static int64_t merge_naively(const Tokenizer *t, int32_t *id, int64_t count)
{
    for (;;) {
        int32_t best = INT32_MAX;
        int64_t at = 0;
        for (int64_t i = 0; i + 1 < count; i++) {
            int32_t rank = pair_table_get(&t->rank, id[i], id[i + 1]);
            if (rank >= 0 && rank < best) {
                best = rank;
                at = i;
            }
        }
        if (best == INT32_MAX) return count;
        id[at] = t->merged[best];
        memmove(id + at + 1, id + at + 2, (size_t)(count - at - 2) * sizeof *id);
        count--;
    }
}

static void check_word(const Tokenizer *t, Encoder *e, const char *word, int64_t size)
{
    int32_t *want = must_alloc((size_t)size * sizeof *want);
    TokenBuffer got = {0};
    for (int64_t i = 0; i < size; i++)
        want[i] = t->byte_id[(uint8_t)word[i]];
    int64_t count = merge_naively(t, want, size);
    encoder_encode(e, (const uint8_t *)word, size, &got);
    for (int64_t i = 0; i < count && i < got.count; i++)
        if (got.id[i] != want[i])
            fail_msg("\"%.*s\": id %lld is %d, want %d", (int)size, word, (long long)i, got.id[i],
                     want[i]);
    assert_int_equal(got.count, count);
    token_buffer_free(&got);
    free(want);
}

static void check_words(const Tokenizer *t, const char *letters)
{
    uint64_t n_letters = strlen(letters);
    char word[1000];
    Encoder *e = encoder_create(t);
    for (uint64_t round = 0; round < 60; round++) {
        int n = 1 + (int)(drawn(21, round) % sizeof word);
        for (int i = 0; i < n; i++)
            word[i] = letters[drawn(22 + round, (uint64_t)i) % n_letters];
        check_word(t, e, word, n);
    }
    encoder_free(e);
}

static void test_merging_long_words_gives_the_same_ids_as_a_naive_loop(void **state)
{
    (void)state;
    char *text = drawn_text(7, 2000);
    Tokenizer *prose = train(text, 340);
    check_words(prose, "theandofrgi");
    check_words(prose, "theqzx"); /* with pairs of bytes that no token has */
    tokenizer_free(prose);
    Tokenizer *runs =
        train("aaaa aaaaa aa aaaaaaa abababab babab aabb aaabbb aaaa aaaaa babab", 270);
    check_words(runs, "aaab");
    check_words(runs, "a");
    tokenizer_free(runs);
    free(text);
}

/* Makes a tokenizer of strings of "a" and "b" of at most eight letters. Its merges are in no order,
 * and several may make the same token, as in files that list all pairs which make a token. */
static Tokenizer *drawn_tokenizer(uint64_t stream)
{
    enum { TOKENS = 40, MERGES = 120, MOST = 8 };
    Tokenizer *t = vocabulary_create(N_BYTES + TOKENS, MERGES);
    int32_t n = N_BYTES, id[2 + TOKENS] = {'a', 'b'};
    for (int b = 0; b < N_BYTES; b++)
        vocabulary_set_token(t, b, TOKEN_TEXT, &(uint8_t){(uint8_t)b}, 1);
    for (uint64_t k = 0; t->n_merges < MERGES && k < 1000; k++) {
        /* all pairs of letters first, so that a word is never cut */
        int known = n - N_BYTES + 2;
        int32_t left = k < 4 ? id[k / 2] : id[drawn(stream, 2 * k) % (uint64_t)known];
        int32_t right = k < 4 ? id[k % 2] : id[drawn(stream, 2 * k + 1) % (uint64_t)known],
                made = -1;
        int32_t size = t->length[left] + t->length[right];
        uint8_t joined[2 * MOST];
        if (size > MOST) continue;
        memcpy(joined, t->bytes + t->start[left], (size_t)t->length[left]);
        memcpy(joined + t->length[left], t->bytes + t->start[right], (size_t)t->length[right]);
        for (int32_t i = N_BYTES; i < n; i++)
            if (t->length[i] == size && memcmp(t->bytes + t->start[i], joined, (size_t)size) == 0)
                made = i;
        if (made < 0 && n == N_BYTES + TOKENS) continue;
        if (made < 0) {
            made = id[known] = n++;
            vocabulary_set_token(t, made, TOKEN_TEXT, joined, size);
        }
        vocabulary_add_merge(t, left, right, made);
    }
    /* exchange the ranks of merges */
    for (int32_t i = t->n_merges - 1; i > 0; i--) {
        int32_t j = (int32_t)(drawn(stream + 1000, (uint64_t)i) % (uint64_t)(i + 1));
        Merge m = t->merge[i];
        int32_t merged = t->merged[i];
        t->merge[i] = t->merge[j];
        t->merged[i] = t->merged[j];
        t->merge[j] = m;
        t->merged[j] = merged;
    }
    for (int32_t i = 0; i < t->n_merges; i++)
        pair_table_set_both(&t->rank, t->merge[i].left, t->merge[i].right, i, t->merged[i]);
    vocabulary_finish(t);
    return t;
}

/* In files, a merge may come before the merges of its parts. It then makes pairs of a lower rank
 * than its own, which must be merged next, before the other pairs of its own rank. Even so, pairs
 * of the same two tokens must be merged from left to right. */
static void test_merges_in_shuffled_order_give_the_same_ids_as_a_naive_loop(void **state)
{
    (void)state;
    for (uint64_t stream = 100; stream < 160; stream++) {
        Tokenizer *t = drawn_tokenizer(stream);
        Encoder *e = encoder_create(t);
        char word[500];
        for (uint64_t round = 0; round < 8; round++) {
            /* letters at random, and a few letters again and again with one now and then changed */
            for (size_t i = 0; i < sizeof word; i++) {
                uint64_t r = drawn(200 + stream, round * sizeof word + i);
                word[i] = i <= round || (r >> 30) % 11 == 0 ? "ab"[r >> 20 & 1] : word[i - round];
            }
            check_word(t, e, word, sizeof word);
            /* up to 64 letters, which are merged in another way */
            for (int64_t size = 1; size <= 66; size++)
                check_word(t, e, word + size, size);
        }
        encoder_free(e);
        tokenizer_free(t);
    }
}

/* ---- threads --------------------------------------------------------------------------------- */

/* Returns a text of about four megabytes, with documents of very different sizes. One of the long
 * ones is a single word, so that a part of the text can only end where this document ends. */
static Text long_text(void)
{
    Text text = {0};
    char err[512], *prose = drawn_text(63, 600000);
    int64_t size = (int64_t)strlen(prose);
    for (int64_t at = 0, k = 0; at < size; k++) {
        int64_t some = k % 7 == 0 ? size / 4 : 1 + (int64_t)(drawn(64, (uint64_t)k) % 3000);
        if (some > size - at) some = size - at;
        if (k == 7) memset(prose + at, 'x', (size_t)some);
        if (!text_add_document(&text, "t", 0, (uint8_t *)prose + at, some, err, sizeof err))
            fail_msg("%s", err);
        at += some;
    }
    free(prose);
    return text;
}

static void test_training_on_several_threads_gives_the_same_tokenizer_as_on_one(void **state)
{
    (void)state;
    Text text = long_text();
    char err[512];
    for (SplitPattern split = SPLIT_GPT2; split <= SPLIT_SMOLLM; split++) {
        BpeRequest r = {.text = text.bytes,
                        .size = text.size,
                        .vocab_size = 400,
                        .at_most = true,
                        .split = split};
        Tokenizer *one, *many;
        assert_true(tokenizer_learn(&r, &one, NULL, err, sizeof err));
        r.pool = pool_create(3);
        assert_true(tokenizer_learn(&r, &many, NULL, err, sizeof err));
        assert_true(tokenizer_hash(one) == tokenizer_hash(many));
        pool_destroy(r.pool);
        tokenizer_free(one);
        tokenizer_free(many);
    }
    text_free(&text);
}

/* Writes the shards of both ranges on `threads` threads, and compares them with the ids in
 * `want`. */
static void check_shards(int threads, const Tokenizer *t, const TextRange range[SPLITS],
                         const TokenBuffer want[SPLITS])
{
    char *folder = folder_new(), err[512];
    Meta meta = {.key = 1};
    const ShardOptions options = {.threads = threads};
    if (!shards_write(t, range, &fs_system, folder, &meta, &options, err, sizeof err))
        fail_msg("%s", err);
    for (Split k = 0; k < SPLITS; k++) {
        char *path = split_shard_path(folder, k, 0);
        TokenFile f;
        if (!token_file_open(&f, path, err, sizeof err)) fail_msg("%s", err);
        assert_int_equal(f.n_tokens, want[k].count);
        int32_t *ids = must_alloc((size_t)f.n_tokens * sizeof *ids);
        assert_true(token_file_read(&f, 0, f.n_tokens, ids, err, sizeof err));
        for (int64_t i = 0; i < f.n_tokens; i++)
            if (ids[i] != want[k].id[i])
                fail_msg("%d threads: token %lld of %s is %d, not %d", threads, (long long)i, path,
                         ids[i], want[k].id[i]);
        free(ids);
        token_file_close(&f);
        free(path);
    }
    meta_free(&meta);
    folder_drop(folder);
}

/* Encodes the documents of a range one by one, each at once. */
static TokenBuffer ids_of_range(const Tokenizer *t, const TextRange *range)
{
    TokenBuffer ids = {0};
    Encoder *e = encoder_create(t);
    for (int64_t d = 0, begin = 0; d < range->text->n_documents; d++) {
        int64_t end = range->text->document_end[d], from = begin, to = end;
        if (from < range->from) from = range->from;
        if (to > range->to) to = range->to;
        if (to > from && from == begin && t->begin >= 0) token_buffer_add(&ids, t->begin);
        if (to > from) encoder_encode(e, range->text->bytes + from, to - from, &ids);
        if (to > from && to == end) token_buffer_add(&ids, tokenizer_end_of_text(t));
        begin = end;
    }
    encoder_free(e);
    return ids;
}

static void test_shards_do_not_depend_on_the_number_of_threads(void **state)
{
    (void)state;
    Text text = long_text();
    char err[512];
    BpeRequest r = {.text = text.bytes, .size = text.size, .vocab_size = 600, .at_most = true};
    Tokenizer *t;
    assert_true(tokenizer_learn(&r, &t, NULL, err, sizeof err));
    int64_t cut = text.document_end[text.n_documents / 2] + 100;
    assert_true(cut > 1 << 20); /* less text would be encoded on a single thread */
    const TextRange range[SPLITS] = {[SPLIT_TRAIN] = {.text = &text, .to = cut},
                                     [SPLIT_VAL] = {.text = &text, .from = cut, .to = text.size}};
    /* without and with a token before each document */
    for (int32_t begin = -1; begin < t->vocab_size; begin += t->vocab_size) {
        t->begin = begin;
        TokenBuffer want[SPLITS] = {ids_of_range(t, &range[0]), ids_of_range(t, &range[1])};
        for (int threads = 1; threads <= 5; threads++)
            check_shards(threads, t, range, want);
        for (Split k = 0; k < SPLITS; k++)
            token_buffer_free(&want[k]);
    }
    tokenizer_free(t);
    text_free(&text);
}

/* ---- time ------------------------------------------------------------------------------------ */

static double seconds_for(const Tokenizer *t, const char *text, int64_t size)
{
    double least = 1e9;
    for (int round = 0; round < 3; round++) {
        Encoder *e = encoder_create(t);
        TokenBuffer ids = {0};
        double start = seconds_now();
        encoder_encode(e, (const uint8_t *)text, size, &ids);
        double seconds = seconds_now() - start;
        if (seconds < least) least = seconds;
        token_buffer_free(&ids);
        encoder_free(e);
    }
    return least;
}

/* A quadratic loop would take minutes. The bound is a hundred times the time that as much prose
 * takes; it is so wide because other tests run on the machine at the same time. */
static void test_encoding_a_megabyte_without_word_borders_is_not_quadratic(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    char *prose = drawn_text(65, 100000), *word = must_alloc(N);
    Tokenizer *t = train(prose, 2000);
    double normal = seconds_for(t, prose, (int64_t)strlen(prose)) * N / (double)strlen(prose);
    static const char *const letters[] = {"a", " ", "the", "etaoinshrdlu"};
    for (size_t k = 0; k < sizeof letters / sizeof *letters; k++) {
        for (int i = 0; i < N; i++)
            word[i] = letters[k][drawn(66 + k, (uint64_t)i) % strlen(letters[k])];
        double seconds = seconds_for(t, word, N);
        print_message("\"%s\": %.1f times prose\n", letters[k], seconds / normal);
        if (seconds > 100 * normal + 0.2)
            fail_msg("a megabyte of \"%s\" takes %.2f s, of prose %.2f s", letters[k], seconds,
                     normal);
    }
    free(word);
    free(prose);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merging_long_words_gives_the_same_ids_as_a_naive_loop),
        cmocka_unit_test(test_merges_in_shuffled_order_give_the_same_ids_as_a_naive_loop),
        cmocka_unit_test(test_training_on_several_threads_gives_the_same_tokenizer_as_on_one),
        cmocka_unit_test(test_shards_do_not_depend_on_the_number_of_threads),
        cmocka_unit_test(test_encoding_a_megabyte_without_word_borders_is_not_quadratic),
    };
    return cmocka_run_group_tests_name("merger", tests, NULL, NULL);
}
