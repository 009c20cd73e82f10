/* test_json.c -- tests the strict JSON reader (what it accepts and refuses, and the positions it
 * reports), the reader of JSON trees, and the writer. */
#include "model/core/json.h"
#include "model/core/json_tree.h"
#include "model/core/json_write.h"
#include "model/core/utf8.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Parses text that must be accepted; the caller frees the result. */
static Json read_good(const char *text, size_t length)
{
    Json json;
    char err[200];
    size_t at;
    if (!json_parse(&json, text, length, err, sizeof err, &at))
        fail_msg("%.60s: at %zu: %s", text, at, err);
    return json;
}

static void test_comments_and_trailing_commas_are_accepted(void **state)
{
    (void)state;
    const char *text =
        "# one\n{ // two\n \"a\": [1, 2,], /* three\n */ \"b\": \"# // /* no */\", }\n# end";
    Json json = read_good(text, strlen(text));
    assert_int_equal(json.n_nodes, 5);
    assert_string_equal(json.node[1].item->string, "a");
    assert_int_equal(json.node[1].end, 4);
    assert_string_equal(json.node[4].item->valuestring, "# // /* no */");
    assert_int_equal(json.length, strlen(text));
    int line, column;
    json_place(&json, json.node[4].key_at, &line, &column);
    assert_int_equal(line, 4);
    assert_int_equal(column, 5);
    json_place(&json, json.node[3].value_at, &line, &column);
    assert_int_equal(line, 3);
    assert_int_equal(column, 11);
    json_free(&json);
}

/* Each node's end must be the first node after its own children, whatever precedes the node. */
static void test_each_node_ends_after_its_own_children(void **state)
{
    (void)state;
    static const struct {
        const char *text, *ends;
    } cases[] = {
        {"{\"a\":[1],\"b\":[2]}", "5 3 3 5 5"},
        {"[[],[]]", "3 2 3"},
        {"{\"a\":[],\"b\":{},\"c\":[{}],\"d\":1}", "6 2 3 5 5 6"},
        {"{\"a\":[[1,2],[3]],\"b\":[{\"c\":[4]},{\"c\":[5,6]}],\"d\":[7]}",
         "17 7 5 4 5 7 7 15 11 11 11 15 15 14 15 17 17"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Json json = read_good(cases[i].text, strlen(cases[i].text));
        char ends[100] = "";
        for (int k = 0; k < json.n_nodes; k++)
            sprintf(ends + strlen(ends), k ? " %d" : "%d", json.node[k].end);
        assert_string_equal(ends, cases[i].ends);
        json_free(&json);
    }
    /* Also for many siblings: they are at the same depth, so the depth limit does not apply. */
    char many[4 * JSON_MAX_DEPTH] = "[[]";
    for (int i = 0; i < JSON_MAX_DEPTH; i++)
        strcat(many, i % 2 ? ",{}" : ",[]");
    strcat(many, "]");
    Json row = read_good(many, strlen(many));
    assert_int_equal(row.n_nodes, JSON_MAX_DEPTH + 2);
    json_free(&row);
    /* The members that follow an array, and their values, must be found. */
    const char *text = cases[0].text;
    Json json = read_good(text, strlen(text));
    int b = json.node[1].end;
    int64_t two = 0;
    assert_string_equal(json.node[b].item->string, "b");
    assert_int_equal(json.node[b].key_at, 9);
    assert_int_equal(json.node[b].value_at, 13);
    assert_true(json_integer(&json, b + 1, &two) && two == 2);
    assert_false(json_duplicate(&json, 0, b));
    json_free(&json);
    /* A key inside a sibling's value is not a duplicate. */
    const char *inner = "{\"a\":[{\"b\":1}],\"b\":2,\"a\":3}";
    json = read_good(inner, strlen(inner));
    b = json.node[1].end;
    assert_false(json_duplicate(&json, 0, b));
    assert_true(json_duplicate(&json, 0, json.node[b].end));
    json_free(&json);
}

static void test_columns_count_characters_and_not_bytes(void **state)
{
    (void)state;
    const char *text = "\xef\xbb\xbf{\"\xc3\xa4\xe2\x82\xac\": 1,\r\n\t\"b\": 2}";
    Json json = read_good(text, strlen(text));
    int line, column;
    json_place(&json, json.node[1].key_at, &line, &column);
    assert_int_equal(column, 2);
    json_place(&json, json.node[1].value_at, &line, &column);
    assert_int_equal(column, 8);
    json_place(&json, json.node[2].value_at, &line, &column);
    assert_int_equal(line, 2);
    assert_int_equal(column, 7);
    json_free(&json);
}

static void test_numbers_that_are_not_exact_integers_are_not_read_as_integers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool good;
        int64_t value;
    } cases[] = {
        {"0", true, 0},
        {"-0", true, 0},
        {"5e8", true, 500000000},
        {"1.0", true, 1},
        {"1.50e1", true, 15},
        {"9007199254740992", true, 9007199254740992},
        {"3e9", true, 3000000000},
        {"-9007199254740992", true, -9007199254740992},
        {"1.5", false, 0},
        {"1e-1", false, 0},
        {"9007199254740993", false, 0},
        {"1e16", false, 0},
        {"18446744073709551616", false, 0},
        {"\"1\"", false, 0},
        {"true", false, 0},
        {"1e308", false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Json json = read_good(cases[i].text, strlen(cases[i].text));
        int64_t value = 0;
        bool good = json_integer(&json, 0, &value);
        if (good != cases[i].good || (good && value != cases[i].value))
            fail_msg("%s: %d, %lld", cases[i].text, good, (long long)value);
        json_free(&json);
    }
}

static void test_duplicate_keys_are_found_even_if_written_with_escapes(void **state)
{
    (void)state;
    const char *text = "{\"lr\": 1, \"LR\": 2, \"l\\u0072\": 3}";
    Json json = read_good(text, strlen(text));
    assert_false(json_duplicate(&json, 0, 1));
    assert_false(json_duplicate(&json, 0, 2));
    assert_true(json_duplicate(&json, 0, 3));
    json_free(&json);
}

static void test_invalid_bytes_are_refused_with_their_offset(void **state)
{
    (void)state;
#define BYTES(text) text, sizeof text - 1
    static const struct {
        const char *text;
        size_t length, at;
        const char *says;
    } cases[] = {
        {BYTES(""), 0, "the text is empty"},
        {BYTES("\xef\xbb\xbf"), 0, "the text is empty"},
        {BYTES("{\"a\": \xff}"), 6, "the byte 0xff here is not UTF-8"},
        {BYTES("{\"a\": \"\xc3(\"}"), 7, "the byte 0xc3 here is not UTF-8"},
        {BYTES("{\"a\": \"\xed\xa0\x80\"}"), 7, "the byte 0xed here is not UTF-8"},
        {BYTES("{\"a\": \"\xc0\xaf\"}"), 7, "the byte 0xc0 here is not UTF-8"},
        {BYTES("{\"a\": \"\xf0\x80\x80\x80\"}"), 7, "the byte 0xf0 here is not UTF-8"},
        {BYTES("{\"a\": \"\xf4\x90\x80\x80\"}"), 7, "the byte 0xf4 here is not UTF-8"},
        {BYTES("{} # \xe2\x82"), 5, "the byte 0xe2 here is not UTF-8"},
        {BYTES("{\"a\": 1\0}"), 7, "a NUL byte"},
        {BYTES("{} \0"), 3, "a NUL byte"},
        {BYTES("{\"a\": \"x\ny\"}"), 6, "this string is not closed on its line"},
        {BYTES("{\"a\": \"x\ty\"}"), 8, "a raw control character"},
        {BYTES("{\"a\":\v1}"), 5, "a value is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Json json;
        char err[200] = "accepted";
        size_t at = 999;
        bool good = json_parse(&json, cases[i].text, cases[i].length, err, sizeof err, &at);
        if (good || at != cases[i].at || strncmp(err, cases[i].says, strlen(cases[i].says)) != 0)
            fail_msg("case %zu: at %zu: %s", i, at, err);
        json_free(&json);
    }
}

static void test_texts_beyond_the_limits_of_size_depth_or_keys_are_refused(void **state)
{
    (void)state;
    Json json;
    char err[200];
    size_t at, n = JSON_MAX_BYTES + 1;
    char *text = malloc(n + 1);
    memset(text, ' ', n + 1);
    text[0] = '0';
    assert_false(json_parse(&json, text, n, err, sizeof err, &at));
    assert_non_null(strstr(err, "larger than 1 MiB"));
    json_free(&json);
    assert_true(json_parse(&json, text, n - 1, err, sizeof err, &at));
    json_free(&json);
    for (size_t depth = JSON_MAX_DEPTH; depth <= JSON_MAX_DEPTH + 1; depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        assert_int_equal(json_parse(&json, text, 2 * depth, err, sizeof err, &at),
                         depth == JSON_MAX_DEPTH);
        json_free(&json);
    }
    for (int keys = JSON_MAX_KEYS; keys <= JSON_MAX_KEYS + 1; keys++) {
        size_t length = 0;
        for (int i = 0; i < keys; i++)
            length += (size_t)sprintf(text + length, "%c\"%d\":1", i ? ',' : '{', i);
        text[length++] = '}';
        assert_int_equal(json_parse(&json, text, length, err, sizeof err, &at),
                         keys == JSON_MAX_KEYS);
        json_free(&json);
    }
    free(text);
}

static void test_a_quoted_string_reads_back_and_a_cut_one_is_valid_json(void **state)
{
    (void)state;
    const char *text = "a\"b\\c\n\t\x01\x7f\xe2\x82\xac/";
    char quoted[100], cut[20];
    json_quote(quoted, sizeof quoted, text);
    Json json = read_good(quoted, strlen(quoted));
    assert_string_equal(json.root->valuestring, text);
    json_free(&json);
    /* Cut to any length, the string must still be valid JSON and fit. */
    for (size_t n = 8; n <= sizeof cut; n++) {
        memset(cut, 'x', sizeof cut);
        json_quote(cut, n,
                   "\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac");
        assert_true(strnlen(cut, n) < n);
        json = read_good(cut, strlen(cut));
        json_free(&json);
    }
}

/* Whole and truncated texts use the same escapes. Invalid UTF-8 bytes become U+FFFD, so that the
 * strict reader accepts the result. */
static void test_strings_with_invalid_bytes_are_written_as_valid_json(void **state)
{
    (void)state;
    const char *text = "a\"b\\c\n\r\t\b\f\x01\x1b\x7f\xe2\x82\xac/";
    char quoted[100], *written = json_string(text);
    assert_string_equal(written,
                        "\"a\\\"b\\\\c\\n\\r\\t\\b\\f\\u0001\\u001b\\u007f\xe2\x82\xac/\"");
    assert_string_equal(json_quote(quoted, sizeof quoted, text), written);
    free(written);
    written = json_string("\xe2\x82");
    Json json = read_good(written, strlen(written));
    assert_string_equal(json.root->valuestring, "\xef\xbf\xbd\xef\xbf\xbd");
    json_free(&json);
    free(written);
}

/* cJSON alone would return the first of two values, and would end a string at its NUL. */
static void test_a_tree_with_two_values_or_a_nul_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool good;
    } cases[] = {
        {" {\"a\": 1}\r\n\t ", true},
        {"{} {}", false},
        {"1,", false},
        {"\"\\\\u0000\"", true},
        {"\"a\\u0000\"", false},
        {"{\"a\\u0000\": 1}", false},
        {"", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cJSON *tree = json_tree_parse(cases[i].text, strlen(cases[i].text));
        if ((tree != NULL) != cases[i].good) fail_msg("%s", cases[i].text);
        cJSON_Delete(tree);
    }
}

/* Encodes code points of every length (all below 0x1000, then every 97th) and decodes them. */
static void test_encoded_characters_decode_to_the_same_code_points(void **state)
{
    (void)state;
    for (uint32_t code = 1; code <= 0x10FFFF; code += code < 0x1000 ? 1 : 97) {
        if (code >= 0xD800 && code < 0xE000) continue;
        char bytes[4];
        uint32_t back = 0;
        int length = utf8_encode(code, bytes);
        assert_int_equal(utf8_decode((const uint8_t *)bytes, length, &back), length);
        assert_int_equal(back, code);
    }
}

static void test_numbers_are_printed_short_and_read_back_exactly(void **state)
{
    (void)state;
    static const struct {
        double x;
        const char *text;
    } cases[] = {{0.1, "0.1"},
                 {6e-4, "0.0006"},
                 {1e-5, "1e-05"},
                 {500000, "500000"},
                 {1.0 / 3.0, "0.3333333333333333"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[40];
        json_number(cases[i].x, text, sizeof text);
        assert_string_equal(text, cases[i].text);
        assert_true(strtod(text, NULL) == cases[i].x);
    }
    char *text;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    bool good = json_print_number(to, 0.1), bad = json_print_number(to, NAN);
    fclose(to);
    assert_true(good && !bad);
    assert_string_equal(text, "0.10000000000000001null");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comments_and_trailing_commas_are_accepted),
        cmocka_unit_test(test_each_node_ends_after_its_own_children),
        cmocka_unit_test(test_columns_count_characters_and_not_bytes),
        cmocka_unit_test(test_numbers_that_are_not_exact_integers_are_not_read_as_integers),
        cmocka_unit_test(test_duplicate_keys_are_found_even_if_written_with_escapes),
        cmocka_unit_test(test_invalid_bytes_are_refused_with_their_offset),
        cmocka_unit_test(test_texts_beyond_the_limits_of_size_depth_or_keys_are_refused),
        cmocka_unit_test(test_a_quoted_string_reads_back_and_a_cut_one_is_valid_json),
        cmocka_unit_test(test_strings_with_invalid_bytes_are_written_as_valid_json),
        cmocka_unit_test(test_a_tree_with_two_values_or_a_nul_is_refused),
        cmocka_unit_test(test_encoded_characters_decode_to_the_same_code_points),
        cmocka_unit_test(test_numbers_are_printed_short_and_read_back_exactly),
    };
    return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
