/* test_documents.c -- tests a text with several documents: the border between training and
 * validation, the end-of-text tokens between documents, and windows that span two documents. */
#include "data/dataset.h"
#include "data/loader.h"
#include "model/core/check.h"
#include "tests/support/files/data_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DOCUMENTS = 40, BYTES = 25, T = 4, VOCABULARY = 300 };
static const char end_of_text[] = "<|endoftext|>";

/* Returns document i, which has BYTES bytes and no newline; the caller frees it. */
static char *document_of(int i)
{
    char *text = text_format("%02d the people cried to %02d", i, 3 * i % 100);
    assert_int_equal(strlen(text), BYTES);
    return text;
}

/* Returns documents [from, to), each followed by end-of-text. The first document lacks its first
 * `skip` bytes. If `left` is not 0, the last one is cut after `left` bytes and has no
 * end-of-text. */
static char *documents(int from, int to, size_t skip, size_t left)
{
    char *text = must_calloc(DOCUMENTS, BYTES + sizeof end_of_text);
    for (int i = from; i < to; i++) {
        char *one = document_of(i);
        bool cut = i + 1 == to && left > 0;
        strncat(text, one + (i == from ? skip : 0), cut ? left : BYTES);
        if (!cut) strcat(text, end_of_text);
        free(one);
    }
    return text;
}

static char *text_file(const char *folder)
{
    char text[DOCUMENTS * (BYTES + 20)] = "";
    for (int i = 0; i < DOCUMENTS; i++) {
        char *one = document_of(i);
        sprintf(text + strlen(text), "{\"text\": \"%s\"}\n", one);
        free(one);
    }
    return text_file_new(folder, "documents.jsonl", text);
}

/* Reads all token ids of a set. */
static int32_t *tokens_of(const DataSet *d, const TokenSet *s)
{
    char err[512];
    int32_t *ids = must_alloc((size_t)s->n_tokens * sizeof *ids);
    if (!token_set_read(s, 0, s->n_tokens, d->vocab_size, ids, err, sizeof err))
        fail_msg("%s", err);
    return ids;
}

static void check_text(const DataSet *d, const TokenSet *s, char *want)
{
    int32_t *ids = tokens_of(d, s);
    char *got = tokenizer_decode(d->tokenizer, ids, s->n_tokens, true, NULL);
    assert_string_equal(got, want);
    free(got);
    free(want);
    free(ids);
}

/* Checks that window w is tokens wT ... wT + T, whatever documents they belong to. */
static void check_windows(const DataSet *d, Split split, const TokenSet *s)
{
    char err[512];
    Loader *l;
    LoaderOptions o = {
        .split = split, .B = 1, .T = T, .vocab_size = VOCABULARY, .dp_size = 1, .micros = 1};
    int32_t *ids = tokens_of(d, s);
    if (!loader_create(&l, d, &o, err, sizeof err)) fail_msg("%s", err);
    assert_int_equal(loader_windows(l), (s->n_tokens - 1) / T);
    for (int64_t w = 0; w < loader_windows(l); w++) {
        Batch b;
        if (!loader_next(l, w, 0, &b, err, sizeof err)) fail_msg("%s", err);
        assert_memory_equal(b.tokens.data, ids + w * T, T * sizeof *ids);
        assert_memory_equal(b.targets.data, ids + w * T + 1, T * sizeof *ids);
    }
    loader_free(l);
    free(ids);
}

/* Splits the text with val_fraction `fraction`, and checks that the training text ends after
 * `whole` documents and `left` more bytes. */
static void check_split(const char *folder, char *path, double fraction, int whole, size_t left)
{
    char err[512], *cache = text_format("%s/cache", folder);
    ExitCode code;
    DataSet d;
    Config c = {.data = {.text = {1, &path},
                         .text_key = "text",
                         .tokenizer_vocab_size = VOCABULARY,
                         .val_fraction = fraction,
                         .seq_length = T,
                         .cache = cache}};
    if (!data_open(&c, &d, err, sizeof err, &code)) fail_msg("%s", err);
    assert_int_equal(d.preparation.documents, DOCUMENTS);
    assert_int_equal(d.preparation.train_bytes, (size_t)whole * BYTES + left);
    assert_int_equal(d.preparation.train_bytes + d.preparation.val_bytes, DOCUMENTS * BYTES);
    check_text(&d, &d.train, documents(0, whole + (left > 0), 0, left));
    check_text(&d, &d.val, documents(whole, DOCUMENTS, left, 0));
    check_windows(&d, SPLIT_TRAIN, &d.train);
    check_windows(&d, SPLIT_VAL, &d.val);
    data_close(&d);
    free(cache);
}

static void test_validation_begins_at_a_document_border_or_in_the_last_document(void **state)
{
    (void)state;
    char *folder = folder_new(), *path = text_file(folder);
    check_split(folder, path, 0.2, 32, 0);    /* byte 800 is the end of a document */
    check_split(folder, path, 0.2005, 32, 0); /* byte 799 moves to the end of its document */
    check_split(folder, path, 0.1985, 33, 0); /* byte 801 moves to the end of its document */
    /* byte 985 is within the last document, which is cut there */
    check_split(folder, path, 0.015, 39, 10);
    free(path);
    folder_drop(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_validation_begins_at_a_document_border_or_in_the_last_document),
    };
    return cmocka_run_group_tests_name("documents", tests, NULL, NULL);
}
