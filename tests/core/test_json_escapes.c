/* test_json_escapes.c -- tests which escape sequences the two strict JSON readers accept and
 * refuse. */
#include "model/core/check.h"
#include "model/core/json.h"
#include "model/core/json_cursor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Configs and checkpoints are read by different readers. Both must accept the same escapes and
 * refuse the same ones, each with its own error message. */
static void test_both_json_readers_accept_and_refuse_the_same_escapes(void **state)
{
    (void)state;
    static const char none[] = "there is no such escape in JSON", half[] = "half of a surrogate";
    static const struct {
        const char *text, *means; /* the JSON text, and its value or NULL if it must be refused */
        const char *cursor;       /* error message of the reader for checkpoints */
        const char *scan;         /* error message of the reader for configs */
    } cases[] = {
        {"\\\"\\\\\\/\\b\\f\\n\\r\\t", "\"\\/\b\f\n\r\t", NULL, NULL},
        {"\\u0041\\u00e9\\u20AC", "A\xc3\xa9\xe2\x82\xac", NULL, NULL},
        {"\\u007f\\ud7ff\\ue000\\uFFFF", "\x7f\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf", NULL, NULL},
        {"\\ud800\\udc00\\uDBFF\\uDFFF!", "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf!", NULL, NULL},
        {"\\ud83d\\ude00\\u0031",
         "\xf0\x9f\x98\x80"
         "1",
         NULL, NULL},
        {"a\\x", NULL, "byte 2: there is no such escape", none},
        {"\\U0041", NULL, "byte 1: there is no such escape", none},
        {"\\u12", NULL, "byte 5: four hexadecimal digits are needed after \\u", none},
        {"\\u00g0", NULL, "byte 5: four hexadecimal digits are needed after \\u", none},
        {"\\u", NULL, "byte 3: four hexadecimal digits are needed after \\u", none},
        {"\\u0000", NULL, "byte 7: a NUL character in a string", "a NUL character has no place"},
        {"\\udc00", NULL, "byte 7: half of a surrogate pair", half},
        {"\\ud800", NULL, "byte 7: half of a surrogate pair", half},
        {"\\ud800x\\udc00", NULL, "byte 7: half of a surrogate pair", half},
        {"\\ud800\\n", NULL, "byte 7: half of a surrogate pair", half},
        {"\\ud800\\ud800", NULL, "byte 13: half of a surrogate pair", half},
        {"\\ud800\\ue000", NULL, "byte 13: half of a surrogate pair", half},
        {"\\ud800\\u0041", NULL, "byte 13: half of a surrogate pair", half},
        {"\\ud800\\udc0", NULL, "byte 12: four hexadecimal digits are needed after \\u", half},
        {"\\ud800\\udcg0", NULL, "byte 11: four hexadecimal digits are needed after \\u", half},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = text_format("\"%s\"", cases[i].text), err[200] = "", why[200] = "";
        JsonCursor j = {text, text, text + strlen(text), false, err, sizeof err};
        char *taken = json_take_string(&j);
        Json json;
        size_t at;
        bool good = json_parse(&json, text, strlen(text), why, sizeof why, &at);
        if (good != (taken != NULL)) fail_msg("%s: %s, but %s", text, why, err);
        if (cases[i].means != NULL) {
            if (!good) fail_msg("%s: %s", text, why);
            assert_string_equal(taken, cases[i].means);
            assert_string_equal(json.root->valuestring, cases[i].means);
        } else {
            assert_string_equal(err, cases[i].cursor);
            if (strstr(why, cases[i].scan) != why) fail_msg("%s: %s", text, why);
            assert_int_equal(at, i == 5 ? 2 : 1); /* offset at which the escape begins */
        }
        json_free(&json);
        free(taken);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_json_readers_accept_and_refuse_the_same_escapes),
    };
    return cmocka_run_group_tests_name("json_escapes", tests, NULL, NULL);
}
