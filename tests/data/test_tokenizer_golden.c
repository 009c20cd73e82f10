/* test_tokenizer_golden.c -- tests that each kind of tokenizer gives the same ids as Hugging Face's
 * library `tokenizers` (and tiktoken, see scripts/make_tokenizer_golden.py): for whole texts and
 * for texts encoded in parts, before and after the tokenizer is written and read back. Also tests
 * damaged files. */
#include "data/tokenizer/tiktoken.h"
#include "data/tokenizer/vocabulary.h"
#include "model/core/check.h"
#include "model/core/files.h"
#include "tests/support/files/data_support.h"
#include "tests/support/support.h"
#include "tests/support/turns.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char folder[] = "tests/fuzz/corpus/tokenizer";
static const char *const kinds[] = {"gpt2", "llama3", "qwen2", "smollm", "llama2", "mistral"};
enum { KINDS = sizeof kinds / sizeof *kinds };

static Tokenizer *load(const char *name)
{
    char *path = text_format("%s/%s", folder, name), err[512];
    Tokenizer *t;
    if (!tokenizer_load(path, &t, NULL, err, sizeof err)) fail_msg("%s", err);
    free(path);
    return t;
}

/* Writes `t` as a tokenizer.json, frees it, and returns the tokenizer that is read back. */
static Tokenizer *written(Tokenizer *t)
{
    char *json = tokenizer_to_json(t), err[512];
    Tokenizer *again;
    if (!tokenizer_parse("written", json, strlen(json), &again, err, sizeof err))
        fail_msg("%s", err);
    assert_true(tokenizer_hash(t) == tokenizer_hash(again));
    free(json);
    tokenizer_free(t);
    return again;
}

/* ---- the stored ids -------------------------------------------------------------------------- */

/* A line of the file: one text and its ids. */
typedef struct {
    char kind[16], mode[16];
    uint8_t *text;
    int64_t size;
    TokenBuffer ids;
} GoldenText;

static void parse_line(char *line, GoldenText *g)
{
    static const char blank[] = " \n";
    char *rest = NULL, *kind = strtok_r(line, blank, &rest), *mode = strtok_r(NULL, blank, &rest);
    char *hex = strtok_r(NULL, blank, &rest), *ids = strtok_r(NULL, blank, &rest);
    assert_non_null(ids);
    snprintf(g->kind, sizeof g->kind, "%s", kind);
    snprintf(g->mode, sizeof g->mode, "%s", mode);
    g->text = must_alloc(strlen(hex) / 2 + 1);
    g->size = 0;
    for (const char *p = hex; *p != '-' && *p; p += 2) {
        char pair[3] = {p[0], p[1], 0};
        g->text[g->size++] = (uint8_t)strtoul(pair, NULL, 16);
    }
    g->ids = (TokenBuffer){0};
    for (char *p = ids; *p != '-' && *p; p += *p == ',')
        token_buffer_add(&g->ids, (int32_t)strtol(p, &p, 10));
}

static void check_ids(const GoldenText *g, const char *how, const TokenBuffer *got)
{
    for (int64_t i = 0; i < got->count && i < g->ids.count; i++)
        if (got->id[i] != g->ids.id[i])
            fail_msg("%s, %s, %s: id %lld of \"%.*s\" is %d, want %d", g->kind, g->mode, how,
                     (long long)i, (int)g->size, (char *)g->text, got->id[i], g->ids.id[i]);
    if (got->count != g->ids.count)
        fail_msg("%s, %s, %s: \"%.*s\" has %lld ids, want %lld", g->kind, g->mode, how,
                 (int)g->size, (char *)g->text, (long long)got->count, (long long)g->ids.count);
}

static void check_text(const Tokenizer *t, const GoldenText *g)
{
    Encoder *e = encoder_create(t);
    if (strcmp(g->mode, "special") == 0) encoder_allow_specials(e);
    for (int64_t part = 0; part < 8; part++) { /* 0: at once */
        TokenBuffer ids = {0};
        for (int64_t at = 0, end; at < g->size; at = end) {
            end = part == 0 ? g->size : encoder_cut(e, g->text, g->size, at + part);
            encoder_encode_part(e, g->text, at, end, &ids);
        }
        check_ids(g, part == 0 ? "at once" : "in parts", &ids);
        token_buffer_free(&ids);
    }
    encoder_free(e);
}

/* Compares the lengths of all words with the stored ones. They are stored because the ids of a
 * small vocabulary do not show where every word ends. */
static void check_split(const Tokenizer *t, const GoldenText *g)
{
    TokenBuffer sizes = {0};
    for (int64_t at = 0; at < g->size; at += sizes.id[sizes.count - 1])
        token_buffer_add(&sizes, (int32_t)word_length(&t->splitter, g->text + at, g->size - at));
    check_ids(g, "words", &sizes);
    token_buffer_free(&sizes);
}

/* Checks all stored ids with the tokenizers of the files or, with `rewrite`, with the same
 * tokenizers after they are written and read back. */
static void check_golden(bool rewrite)
{
    char err[512], *contents, *rest = NULL;
    size_t size;
    Tokenizer *of_kind[KINDS];
    int checked[KINDS] = {0};
    if (!file_read("tests/golden/tokenizer_ids.txt", &contents, &size, NULL, err, sizeof err))
        fail_msg("%s", err);
    for (int k = 0; k < KINDS; k++) {
        char *name = text_format("%s.json", kinds[k]);
        of_kind[k] = load(name);
        if (rewrite) of_kind[k] = written(of_kind[k]);
        free(name);
    }
    for (char *line = strtok_r(contents, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        GoldenText g;
        parse_line(line, &g);
        for (int k = 0; k < KINDS; k++)
            if (strcmp(g.kind, kinds[k]) == 0) {
                if (strcmp(g.mode, "split") == 0)
                    check_split(of_kind[k], &g);
                else
                    check_text(of_kind[k], &g);
                checked[k]++;
            }
        free(g.text);
        token_buffer_free(&g.ids);
    }
    for (int k = 0; k < KINDS; k++) {
        assert_in_range(checked[k], 80, 200);
        tokenizer_free(of_kind[k]);
    }
    free(contents);
}

static void test_each_kind_of_tokenizer_gives_the_same_ids_as_the_reference(void **state)
{
    (void)state;
    check_golden(false);
}

static void test_a_tokenizer_that_was_written_and_read_back_gives_the_same_ids(void **state)
{
    (void)state;
    check_golden(true);
}

/* ---- .tiktoken files ------------------------------------------------------------------------- */

/* The merges that are computed from the ranks must be those of the tokenizer.json, by which the
 * tokens were made. */
static void test_a_tiktoken_file_gives_the_same_ids_as_its_tokenizer_json(void **state)
{
    (void)state;
    char *path = text_format("%s/llama3.tiktoken", folder), err[512], *text;
    size_t size;
    Tokenizer *json = load("llama3.json"), *ranks;
    const TokenizerRules rules = {.split = SPLIT_LLAMA3};
    if (!file_read(path, &text, &size, NULL, err, sizeof err)) fail_msg("%s", err);
    assert_true(tiktoken_recognised(text, size));
    const SpecialName end = {END_OF_TEXT, 600};
    if (!tiktoken_parse_as(path, text, size, rules, &end, 1, &ranks, err, sizeof err))
        fail_msg("%s", err);
    assert_int_equal(tokenizer_vocab_size(ranks), 601);
    assert_int_equal(tokenizer_end_of_text(ranks), 600);
    assert_int_equal(tokenizer_kind(ranks, 550), TOKEN_UNUSED);
    assert_int_equal(ranks->n_merges, json->n_merges);
    for (int32_t m = 0; m < json->n_merges; m++)
        assert_memory_equal(&ranks->merge[m], &json->merge[m], sizeof *json->merge);
    ranks = written(ranks);
    assert_int_equal(tokenizer_vocab_size(ranks), 601);
    tokenizer_free(ranks);
    /* The file alone gives neither the pattern nor the special tokens, and no known file has 501
     * tokens. */
    assert_false(tokenizer_load(path, &ranks, NULL, err, sizeof err));
    assert_non_null(strstr(err, "does not say by which pattern it splits text"));
    tokenizer_free(json);
    free(text);
    free(path);
}

static void test_the_error_names_the_damaged_line_of_a_tiktoken_file(void **state)
{
    (void)state;
    static const char *const bad[] = {"YWI 256",      "YWJ= 256",         "YW== 256", "=WI= 256",
                                      "YWI= -1",      "YWI= 12345678901", "YWI=",     "YWI= 255",
                                      "YWI= 256 257", "YQ== 256"};
    const TokenizerRules rules = {.split = SPLIT_GPT2};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char err[512], line[64];
        size_t size;
        Tokenizer *t;
        char *text;
        FILE *to = text_stream(&text, &size);
        for (int b = 0; b < N_BYTES; b++) {
            static const char digits[] =
                "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
            fprintf(to, "%c%c== %d\n", digits[b >> 2], digits[(b & 3) << 4], b);
        }
        fprintf(to, "%s\n", bad[i]);
        fclose(to);
        if (tiktoken_parse_as("t", text, size, rules, NULL, 0, &t, err, sizeof err))
            fail_msg("accepted: %s", bad[i]);
        snprintf(line, sizeof line, "t:257: not a new token in base64 and its rank");
        assert_string_equal(err, line);
        free(text);
    }
}

/* ---- rules that are refused, and what changes the hash ----------------------------------------
 */

/* Returns a file's contents with the first occurrence of `from` replaced by `to`. */
static char *changed_file(const char *name, const char *from, const char *to)
{
    char *path = text_format("%s/%s", folder, name), err[512], *text;
    size_t size;
    if (!file_read(path, &text, &size, NULL, err, sizeof err)) fail_msg("%s", err);
    const char *at = strstr(text, from);
    if (at == NULL) fail_msg("\"%s\" is not in %s", from, path);
    char *changed = text_format("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    free(text);
    free(path);
    return changed;
}

static void test_the_error_names_a_tokenizer_feature_that_would_change_the_ids(void **state)
{
    (void)state;
    static const char *const change[][4] = {
        {"llama3.json", "{1,3}", "{1,4}", "splits text by another pattern than those of GPT-2"},
        {"llama3.json", "\\\\p{L}", "\\\\p{Lu}", "the pattern of o200k_base"},
        {"llama3.json", "\"Isolated\"", "\"MergedWithNext\"", "splits text by another pattern"},
        {"llama3.json", "\"single_word\":false", "\"single_word\":true",
         "the added token \"<|end|>\" is only found as a whole word (single_word)"},
        {"smollm.json", "\"individual_digits\":true", "\"individual_digits\":false",
         "the pre_tokenizer Digits is not supported"},
        {"smollm.json", "\"Digits\"", "\"Punctuation\"",
         "the pre_tokenizer Punctuation is not supported"},
        {"qwen2.json", "\"NFC\"", "\"Lowercase\"", "(normalizer: Lowercase)"},
        {"llama2.json", "\"byte_fallback\":true", "\"byte_fallback\":false",
         "neither bytes as symbols (ByteLevel) nor byte_fallback"},
        {"llama2.json", "\"ignore_merges\":false", "\"ignore_merges\":true", "ignore_merges"},
        {"llama2.json", "\"<0x41>\":68", "\"<0x4>\":68", "no token for the byte 0x41"},
        {"llama2.json", "\"normalizers\":[", "\"normalizers\":[{\"type\":\"NFC\"},",
         "(normalizer: NFC)"},
        {"mistral.json", "\"split\":false", "\"split\":true", "Metaspace"},
        {"mistral.json", "\"replacement\":\"\342\226\201\"", "\"replacement\":\"_\"", "Metaspace"},
        {"gpt2.json", "\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"",
         "model.end_of_word_suffix is not empty"},
        {"gpt2.json", "\"BPE\"", "\"WordPiece\"", "model.type is \"WordPiece\""},
    };
    for (size_t i = 0; i < sizeof change / sizeof *change; i++) {
        char *text = changed_file(change[i][0], change[i][1], change[i][2]), err[512] = "";
        Tokenizer *t;
        if (tokenizer_parse("t.json", text, strlen(text), &t, err, sizeof err))
            fail_msg("accepted, want: %s", change[i][3]);
        if (strstr(err, change[i][3]) == NULL) fail_msg("\"%s\", want \"%s\"", err, change[i][3]);
        free(text);
    }
}

/* A run resumes with a tokenizer of the same hash, so each of these must change it. */
static void test_the_hash_changes_with_everything_that_determines_the_ids(void **state)
{
    (void)state;
    static const char *const change[][3] = {
        {"llama3.json", "{1,3}", ""},
        {"llama3.json", "\"ignore_merges\":true", "\"ignore_merges\":false"},
        {"qwen2.json", "\"normalizer\":{\"type\":\"NFC\"}", "\"normalizer\":null"},
        {"gpt2.json", "\"content\":\"        \"", "\"content\":\"       \""},
        {"mistral.json", "\"prepend_scheme\":\"first\"", "\"prepend_scheme\":\"always\""},
        {"gpt2.json", "\"<|end|>\"", "\"<|End|>\""},
    };
    for (size_t i = 0; i < sizeof change / sizeof *change; i++) {
        char *text = changed_file(change[i][0], change[i][1], change[i][2]), err[512];
        Tokenizer *other, *t = load(change[i][0]);
        if (!tokenizer_parse("t.json", text, strlen(text), &other, err, sizeof err))
            fail_msg("%s", err);
        if (tokenizer_hash(t) == tokenizer_hash(other)) fail_msg("%s: the same hash", change[i][1]);
        tokenizer_free(other);
        tokenizer_free(t);
        free(text);
    }
}

/* Existing runs store this hash: it must never change for GPT-2's pattern. */
static void test_the_hash_of_a_tokenizer_with_gpt2s_rules_never_changes(void **state)
{
    (void)state;
    Tokenizer *json = load("small.json"), *bpe = load("vocab.bpe");
    assert_true(tokenizer_hash(json) == UINT64_C(0x1da8bdb8f1ae6335));
    assert_true(tokenizer_hash(bpe) == UINT64_C(0xf0cac3ae6b94e720));
    tokenizer_free(json);
    tokenizer_free(bpe);
}

/* If no added token is searched for after NFC, the parts of a text are normalized to NFC
 * separately. So a part must not begin with a mark that changes the character before it. */
static void test_text_normalized_in_parts_gives_the_same_ids_as_at_once(void **state)
{
    (void)state;
    char *json = changed_file("qwen2.json", "\"normalized\":true", "\"normalized\":false"),
         err[512];
    static const char text[] =
        "plain words, e\314\201te\314\201 a\314\212\314\243o x\314\201 \340\245\230\340\245\244 "
        "\341\204\222\341\205\241\341\206\253. a,b\314\201";
    const int64_t size = sizeof text - 1;
    Tokenizer *t;
    if (!tokenizer_parse("t", json, strlen(json), &t, err, sizeof err)) fail_msg("%s", err);
    GoldenText g = {
        .kind = "qwen2", .mode = "text", .text = (uint8_t *)(uintptr_t)text, .size = size};
    Encoder *e = encoder_create(t);
    encoder_encode(e, g.text, size, &g.ids);
    check_text(t, &g);
    assert_true(encoder_cut(e, g.text, size, 1) < size);
    encoder_free(e);
    token_buffer_free(&g.ids);
    tokenizer_free(t);
    free(json);
}

/* ---- damaged files --------------------------------------------------------------------------- */

/* Cuts the file at every byte, and flips each bit of its beginning and of its end. Slow builds
 * (TEST_SAMPLE) try a fifth of the cuts and bits, by turns. */
static void check_damaged(const char *name)
{
    enum { HEADER = 48 };
    char *path = text_format("%s/%s", folder, name), err[512], *text;
    size_t size;
    if (!file_read(path, &text, &size, NULL, err, sizeof err)) fail_msg("%s", err);
    const size_t every = (size_t)turns_every(5), first = (size_t)turns_first((int64_t)every);
    for (size_t cut = first; cut <= size; cut += every) {
        uint8_t *exact = must_alloc(cut + 1);
        memcpy(exact, text, cut);
        fuzz_tokenizer(exact, cut);
        free(exact);
    }
    for (size_t bit = first; bit < 8 * 2 * HEADER; bit += every) {
        size_t at = bit / 8 < HEADER ? bit / 8 : size - 2 * HEADER + bit / 8;
        if (at >= size) continue;
        text[at] ^= (char)(1 << bit % 8);
        fuzz_tokenizer((const uint8_t *)text, size);
        text[at] ^= (char)(1 << bit % 8);
    }
    free(text);
    free(path);
}

static void test_truncated_or_altered_tokenizer_files_never_cause_a_crash(void **state)
{
    (void)state;
    check_damaged("llama3.json");
    check_damaged("llama2.json");
    check_damaged("llama3.tiktoken");
    check_damaged("vocab.bpe");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_kind_of_tokenizer_gives_the_same_ids_as_the_reference),
        cmocka_unit_test(test_a_tokenizer_that_was_written_and_read_back_gives_the_same_ids),
        cmocka_unit_test(test_a_tiktoken_file_gives_the_same_ids_as_its_tokenizer_json),
        cmocka_unit_test(test_the_error_names_the_damaged_line_of_a_tiktoken_file),
        cmocka_unit_test(test_the_error_names_a_tokenizer_feature_that_would_change_the_ids),
        cmocka_unit_test(test_the_hash_changes_with_everything_that_determines_the_ids),
        cmocka_unit_test(test_the_hash_of_a_tokenizer_with_gpt2s_rules_never_changes),
        cmocka_unit_test(test_text_normalized_in_parts_gives_the_same_ids_as_at_once),
        cmocka_unit_test(test_truncated_or_altered_tokenizer_files_never_cause_a_crash),
    };
    return cmocka_run_group_tests_name("tokenizer golden", tests, NULL, NULL);
}
