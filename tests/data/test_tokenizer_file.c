/* test_tokenizer_file.c -- tests tokenizer files: tokenizer.json with both forms of merges, and
 * files that are refused. */
#include "data/tokenizer/tokenizer.h"
#include "model/core/check.h"
#include "model/core/files.h"
#include "tests/support/files/data_support.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Returns `text` with the first occurrence of `from` replaced by `to`; the caller frees it. */
static char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    if (at == NULL) fail_msg("\"%s\" is not in the file", from);
    return text_format("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

static char *small_json(void)
{
    char err[256];
    Tokenizer *t;
    const char text[] = "the cat \"the\" back\\slash the heath";
    if (!tokenizer_train((const uint8_t *)text, sizeof text - 1, 262, &t, NULL, NULL, err,
                         sizeof err))
        fail_msg("%s", err);
    char *json = tokenizer_to_json(t);
    tokenizer_free(t);
    return json;
}

static void check_refused(const char *json, const char *sentence)
{
    char err[512] = "";
    Tokenizer *t;
    if (tokenizer_parse("t.json", json, strlen(json), &t, err, sizeof err))
        fail_msg("accepted, want: %s", sentence);
    if (strstr(err, sentence) == NULL) fail_msg("\"%s\", want \"%s\"", err, sentence);
}

static void test_a_saved_tokenizer_json_loads_as_the_same_tokenizer(void **state)
{
    (void)state;
    char *json = small_json(), *folder = folder_new(), err[512];
    char *path = text_format("%s/tokenizer.json", folder);
    Tokenizer *first, *second;
    bool missing;
    assert_true(tokenizer_parse("t", json, strlen(json), &first, err, sizeof err));
    assert_true(tokenizer_save(first, &fs_system, path, err, sizeof err));
    assert_true(tokenizer_load(path, &second, &missing, err, sizeof err));
    assert_true(tokenizer_hash(first) == tokenizer_hash(second));
    assert_int_equal(tokenizer_vocab_size(second), 262);
    assert_int_equal(tokenizer_merge_count(second), 5);
    assert_int_equal(tokenizer_end_of_text(second), 261);
    tokenizer_free(first);
    tokenizer_free(second);
    unlink(path);
    assert_false(tokenizer_load(path, &second, &missing, err, sizeof err));
    assert_true(missing);
    free(path);
    free(json);
    folder_drop(folder);
}

static void write_text(const char *folder, const char *name, const char *text)
{
    char *path = text_format("%s/%s", folder, name), err[512];
    if (!file_write(&fs_system, path, text, strlen(text), err, sizeof err)) fail_msg("%s", err);
    free(path);
}

/* If a folder has no tokenizer.json, GPT-2's files are read, under either of their names. */
static void test_in_a_folder_tokenizer_json_is_preferred_to_gpt2s_files(void **state)
{
    (void)state;
    char *json = small_json(), *folder = folder_new(), err[512];
    Tokenizer *t;
    bool missing;
    assert_false(tokenizer_load(folder, &t, &missing, err, sizeof err));
    assert_true(missing);
    assert_non_null(strstr(err, "has no tokenizer.json, vocab.bpe, merges.txt"));
    write_text(folder, "merges.txt", "#version: 0.2\nt h\nth e\n");
    if (!tokenizer_load(folder, &t, &missing, err, sizeof err)) fail_msg("%s", err);
    assert_int_equal(tokenizer_merge_count(t), 2);
    assert_int_equal(tokenizer_merged(t, 1), 257);
    assert_int_equal(tokenizer_merge(t, 1).left, 256);
    assert_string_equal(tokenizer_pattern_name(t), "gpt-2");
    assert_int_equal(tokenizer_kind(t, 257), TOKEN_TEXT);
    assert_int_equal(tokenizer_kind(t, 258), TOKEN_SPECIAL);
    assert_int_equal(tokenizer_kind(t, 259), TOKEN_UNUSED);
    tokenizer_free(t);
    write_text(folder, "vocab.json", "{\"!\": 0}");
    assert_false(tokenizer_load(folder, &t, &missing, err, sizeof err));
    assert_false(missing);
    assert_non_null(strstr(err, "vocab.json has 1 tokens, the merges make 259"));
    write_text(folder, "vocab.bpe", "#version: 0.2\nt h\n");
    write_text(folder, "encoder.json", "{\"!\": 0}");
    assert_false(tokenizer_load(folder, &t, &missing, err, sizeof err));
    assert_non_null(strstr(err, "encoder.json has 1 tokens, the merges make 258"));
    write_text(folder, "tokenizer.json", json);
    if (!tokenizer_load(folder, &t, &missing, err, sizeof err)) fail_msg("%s", err);
    assert_int_equal(tokenizer_vocab_size(t), 262);
    char *space = tokenizer_spelling(t, 220), *end = tokenizer_spelling(t, 261);
    assert_string_equal(space, "\304\240");
    assert_string_equal(end, END_OF_TEXT);
    free(space);
    free(end);
    tokenizer_free(t);
    folder_drop(folder);
    free(json);
}

static void test_merges_as_strings_and_as_pairs_give_the_same_tokenizer(void **state)
{
    (void)state;
    char *json = small_json(), err[512];
    char *merges = strstr(json, "\"merges\": ["), *pairs = must_alloc(4 * strlen(json)),
         *to = pairs;
    Tokenizer *strings_read, *pairs_read;
    memcpy(pairs, json, (size_t)(merges - json));
    to += merges - json;
    /* Turn "a b" into ["a", "b"]; no token of this text contains a space or a quote. */
    to += sprintf(to, "\"merges\": [");
    for (char *p = merges + 11; *p; p++) {
        if (*p == '"' && p[-1] == ' ')
            to += sprintf(to, "[\"");
        else if (*p == '"')
            to += sprintf(to, "\"]");
        else if (*p == ' ' && p[1] != ' ' && p[1] != '"' && p[-1] != ' ')
            to += sprintf(to, "\", \"");
        else
            *to++ = *p;
    }
    *to = 0;
    assert_true(tokenizer_parse("strings", json, strlen(json), &strings_read, err, sizeof err));
    if (!tokenizer_parse("pairs", pairs, strlen(pairs), &pairs_read, err, sizeof err))
        fail_msg("%s", err);
    assert_true(tokenizer_hash(strings_read) == tokenizer_hash(pairs_read));
    tokenizer_free(strings_read);
    tokenizer_free(pairs_read);
    free(pairs);
    free(json);
}

static void test_tokenizer_files_that_would_encode_differently_are_refused(void **state)
{
    (void)state;
    char *json = small_json();
    static const char *const change[][3] = {
        {"\"BPE\"", "\"Unigram\"", "model.type is \"Unigram\", not \"BPE\""},
        {"\"dropout\": null", "\"dropout\": 0.1", "dropout"},
        {"\"add_prefix_space\": false", "\"add_prefix_space\": true", "add_prefix_space"},
        {"\"normalizer\": null", "\"normalizer\": {\"type\": \"NFKC\"}", "normalizer: NFKC"},
        {"\"pre_tokenizer\": {\"type\": \"ByteLevel\"",
         "\"pre_tokenizer\": {\"type\": \"Whitespace\"", "byte-level"},
        {"\"h e\"", "\"h q\"", "a token that the vocabulary lacks"},
        {"\"h e\"", "7", "merge 0 is neither"},
        {"\"!\": 0", "\"!\": 1", "two tokens have the id 1"},
        {"\"!\": 0", "\"!\": 0.5", "the id of \"!\" is not a number"},
        {"\"!\": 0", "\"!\": 99999999", "the id of \"!\" is not a number"},
        {"\"!\": 0", "\"!\": 9999", "t.json has the id 9999, but only 263 tokens"},
        {"\"!\": 0,", "", "t.json has no token for the byte 0x21"},
        {"\"h e\",", "", "merges for 4 of the 5 tokens that are longer than a symbol"},
        {"\"!\": 0", "\"!!\": 0", "no token for the byte 0x21"},
        {"\"!\": 0", "\"\347\214\253\": 0", "does not stand for bytes of its own"},
        {"{", "{{", "not valid JSON"},
    };
    for (size_t i = 0; i < sizeof change / sizeof *change; i++) {
        char *changed = replaced(json, change[i][0], change[i][1]);
        check_refused(changed, change[i][2]);
        free(changed);
    }
    check_refused("", "has no merges");
    check_refused("#version: 0.2\n", "has no merges");
    check_refused("#version: 0.2\na b\nx\n", "t.json:3: not a merge of two known tokens");
    check_refused("#version: 0.2\na b\na b\n", "t.json:3: not a merge");
    free(json);
}

#define TEMPLATE(single, specials)                                                                 \
    "{\"type\": \"TemplateProcessing\", \"single\": [" single "], \"special_tokens\": {" specials  \
    "}}"
#define TEXT_ITSELF    "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}"
#define NAMED(name)    "{\"SpecialToken\": {\"id\": \"" name "\", \"type_id\": 0}}"
#define IDS(name, ids) "\"" name "\": {\"id\": \"" name "\", \"ids\": [" ids "], \"tokens\": []}"

/* The template of post_processor determines the token before a text: prompts begin with it, and
 * files that are written keep it. */
static void test_the_token_before_a_text_is_taken_from_the_post_processor(void **state)
{
    static const char level[] = "{\"type\": \"ByteLevel\", \"trim_offsets\": false}";
    static const struct {
        const char *post;
        int32_t begin;
    } cases[] = {
        {level, -1},
        {TEMPLATE(NAMED("<b>") ", " TEXT_ITSELF, IDS("<b>", "261")), 261},
        {TEMPLATE(TEXT_ITSELF ", " NAMED("<b>"), IDS("<b>", "261")), -1},
        {"{\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"}, " TEMPLATE(
             NAMED("<b>") ", " TEXT_ITSELF, IDS("<b>", "7")) "]}",
         7},
        {"{\"type\": \"RobertaProcessing\", \"sep\": [\"</s>\", 2], \"cls\": [\"<s>\", 9]}", 9},
    };
    (void)state;
    char *json = small_json(), err[512];
    Tokenizer *plain;
    assert_true(tokenizer_parse("t", json, strlen(json), &plain, err, sizeof err));
    assert_int_equal(tokenizer_begin_of_text(plain), -1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *post = text_format("\"post_processor\": %s", cases[i].post);
        char *text = replaced(json, "\"post_processor\": null", post);
        Tokenizer *first, *second;
        if (!tokenizer_parse("t", text, strlen(text), &first, err, sizeof err)) fail_msg("%s", err);
        char *again = tokenizer_to_json(first);
        assert_true(tokenizer_parse("again", again, strlen(again), &second, err, sizeof err));
        assert_int_equal(tokenizer_begin_of_text(first), cases[i].begin);
        assert_int_equal(tokenizer_begin_of_text(second), cases[i].begin);
        assert_true(tokenizer_hash(first) == tokenizer_hash(second));
        assert_int_equal(tokenizer_hash(first) == tokenizer_hash(plain), cases[i].begin < 0);
        TokenBuffer ids = {0};
        tokenizer_encode_prompt(first, "x", &ids);
        assert_int_equal(ids.count, 1 + (cases[i].begin >= 0));
        assert_int_equal(ids.id[0], cases[i].begin >= 0 ? cases[i].begin : ids.id[ids.count - 1]);
        ids.count = 0;
        tokenizer_encode_prompt(first, "", &ids);
        assert_int_equal(ids.count, 1);
        assert_int_equal(ids.id[0], cases[i].begin >= 0 ? cases[i].begin : 261);
        token_buffer_free(&ids);
        tokenizer_free(first);
        tokenizer_free(second);
        free(again);
        free(text);
        free(post);
    }
    tokenizer_free(plain);
    free(json);
}

static void test_a_post_processor_that_is_not_supported_is_refused(void **state)
{
    static const struct {
        const char *post, *sentence;
    } cases[] = {
        {"{\"type\": \"Prefix\"}", "t.json: post_processor \"Prefix\" is not supported"},
        {"7", "t.json: post_processor \"\" is not supported"},
        {TEMPLATE(NAMED("<b>") ", " NAMED("<b>") ", " TEXT_ITSELF, IDS("<b>", "261")),
         "t.json: post_processor puts several tokens before a text"},
        {TEMPLATE(NAMED("<b>") ", " TEXT_ITSELF, IDS("<b>", "7, 8")),
         "several tokens before a text"},
        {TEMPLATE(NAMED("<b>") ", " TEXT_ITSELF, IDS("<c>", "7")), "special_tokens does not list"},
        {TEMPLATE(NAMED("<b>") ", " TEXT_ITSELF, IDS("<b>", "")), "special_tokens does not list"},
        {TEMPLATE(NAMED("<b>") ", " TEXT_ITSELF, IDS("<b>", "262")), "that the vocabulary lacks"},
        {TEMPLATE(NAMED("<b>") ", " TEXT_ITSELF, IDS("<b>", "-1")), "that the vocabulary lacks"},
        {"{\"type\": \"BertProcessing\"}", "that the vocabulary lacks"},
    };
    (void)state;
    char *json = small_json();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *post = text_format("\"post_processor\": %s", cases[i].post);
        char *text = replaced(json, "\"post_processor\": null", post);
        check_refused(text, cases[i].sentence);
        free(text);
        free(post);
    }
    /* id 262 is below the largest id, 263, but no token has it */
    char *moved = replaced(json, "\"id\": 261", "\"id\": 263");
    char *again = replaced(moved, "<|endoftext|>\": 261", "<|endoftext|>\": 263");
    char *text =
        replaced(again, "\"post_processor\": null",
                 "\"post_processor\": {\"type\": \"BertProcessing\", \"cls\": [\"x\", 262]}");
    check_refused(text, "that the vocabulary lacks");
    free(text);
    free(again);
    free(moved);
    free(json);
}

static void test_a_tokenizer_json_without_merges_is_refused(void **state)
{
    (void)state;
    char *json = small_json(), *merges = strstr(json, "\"merges\": [");
    char *none = text_format("%.*s\"merges\": []}}", (int)(merges - json), json);
    check_refused(none, "t.json has no merges");
    free(none);
    free(json);
}

/* Names of special tokens are written into JSON files, so they must be valid text. */
static void test_special_tokens_that_are_not_text_are_refused(void **state)
{
    (void)state;
    static const char *const bad[][2] = {{"<|end\xFF|>", " (0xff) is not valid UTF-8"},
                                         {"<|end\xED\xA0\x80|>", " (0xed) is not valid UTF-8"},
                                         {"<|end\\u0000|>", "t.json has the escape \\u0000"},
                                         {"<|end\\ud800|>", "t.json is not valid JSON"}};
    char *json = small_json(), err[512];
    Tokenizer *t;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *changed = replaced(json, "<|endoftext|>", bad[i][0]);
        check_refused(changed, bad[i][1]);
        free(changed);
    }
    char *named = replaced(json, "{\"id\": 261, \"content\": \"<|endoftext|>\"",
                           "{\"id\": 261, \"content\": \"<|caf\\u00e9 \\\"1\\\"|>\"");
    char *good = replaced(named, "\"<|endoftext|>\": 261", "\"<|caf\303\251 \\\"1\\\"|>\": 261");
    if (!tokenizer_parse("t", good, strlen(good), &t, err, sizeof err)) fail_msg("%s", err);
    assert_string_equal(tokenizer_special(t, 261), "<|caf\303\251 \"1\"|>");
    tokenizer_free(t);
    free(named);
    free(good);
    free(json);
}

/* ---- damaged and malicious files ------------------------------------------------------------- */

static void test_mutated_tokenizer_files_are_accepted_or_refused_without_a_crash(void **state)
{
    (void)state;
    char *json = small_json(), *merges = strstr(json, "\"model\"");
    const char *bpe = "#version: 0.2\nt h\nth e\n\304\240 a\n\304\240a n\nb e\n";
    fuzz_replay(fuzz_tokenizer, json, strlen(json), 21, 1500);
    fuzz_replay(fuzz_tokenizer, bpe, strlen(bpe), 22, 1500);
    assert_non_null(merges);
    free(json);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_a_saved_tokenizer_json_loads_as_the_same_tokenizer),
    cmocka_unit_test(test_in_a_folder_tokenizer_json_is_preferred_to_gpt2s_files),
    cmocka_unit_test(test_merges_as_strings_and_as_pairs_give_the_same_tokenizer),
    cmocka_unit_test(test_tokenizer_files_that_would_encode_differently_are_refused),
    cmocka_unit_test(test_the_token_before_a_text_is_taken_from_the_post_processor),
    cmocka_unit_test(test_a_post_processor_that_is_not_supported_is_refused),
    cmocka_unit_test(test_a_tokenizer_json_without_merges_is_refused),
    cmocka_unit_test(test_special_tokens_that_are_not_text_are_refused),
    cmocka_unit_test(test_mutated_tokenizer_files_are_accepted_or_refused_without_a_crash),
};

int main(void)
{
    return cmocka_run_group_tests_name("tokenizer files", tests, NULL, NULL);
}
