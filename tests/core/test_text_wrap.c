/* test_text_wrap.c -- tests how text is folded into lines: words, commands and quotes stay whole,
 * nothing is lost, and characters are as wide as a terminal shows them. */
#include "model/core/text_wrap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Wraps texts whose words are from 1 character to longer than a line: lines must not be too long,
 * and no character may be lost. */
static void test_wrapped_lines_fit_and_lose_no_character(void **state)
{
    (void)state;
    char *lines = text_wrap("model of 4 layers, with a head  of its own", 60, 8, WRAP_FIGURES);
    assert_string_equal(lines, "model of 4 layers,\n        with a head  of its own");
    free(lines);
    lines = text_wrap("model of 4 layers, with a head  of its own", 60, 8, WRAP_PROSE);
    assert_string_equal(lines, "model of 4 layers,\n        with a head  of its own");
    free(lines);
    lines = text_wrap("a, b c d e f g", 68, 2, WRAP_FIGURES);
    assert_string_equal(lines, "a,\n  b c d e f g");
    free(lines);
    lines = text_wrap("a, b c d e f g", 68, 2, WRAP_PROSE);
    assert_string_equal(lines, "a, b c d e\n  f g");
    free(lines);
    lines = text_wrap("\xc3\xa9\xc3\xa9 \xc3\xa9\xc3\xa9\nx", 74, 1, WRAP_PROSE);
    assert_string_equal(lines, "\xc3\xa9\xc3\xa9 \xc3\xa9\xc3\xa9\n x");
    free(lines);
    for (int length = 1; length < 200; length++) {
        char text[2048] = "";
        for (int i = 0; i < 400; i++)
            text[i] = i % (length % 23 + 2) == 0 && i > 0 ? ' ' : (char)('a' + (i * length) % 26);
        memset(text + 400, 'x', (size_t)length); /* a word that may be longer than a line */
        lines = text_wrap(text, 8, 8, WRAP_PROSE);
        size_t at = 0;
        for (char *line = strtok(lines, "\n"); line; line = strtok(NULL, "\n")) {
            size_t n = strlen(line), skip = at == 0 ? 0 : 8;
            if (n + 8 - skip > LINE_COLUMNS && strchr(line + skip, ' ')) fail_msg("long: %s", line);
            at += text[at] == ' ';
            assert_memory_equal(line + skip, text + at, n - skip);
            at += n - skip;
        }
        assert_int_equal(at, strlen(text));
        free(lines);
    }
}

/* Folds `text` as a message and compares the result. */
static void folds(int columns, int used, const char *text, const char *want)
{
    char *lines = text_wrap_to(columns, text, used, 4, WRAP_MESSAGE);
    assert_string_equal(lines, want);
    free(lines);
}

static void test_a_message_keeps_its_commands_whole(void **state)
{
    (void)state;
    folds(30, 0, "the run stops here; go on with ./train out/d --ranks 2 or stay",
          "the run stops here; go on with\n    ./train out/d --ranks 2 or\n    stay");
    folds(30, 0, "see the list (./train ckpt list RUN), or use the run's last",
          "see the list\n    (./train ckpt list RUN),\n    or use the run's last");
    folds(24, 0, "which? ./train eval out/demo", "which?\n    ./train eval \\\n    out/demo");
    folds(34, 0, "no OpenBLAS: it is slow; apt-get install libopenblas0-pthread",
          "no OpenBLAS: it is slow;\n    apt-get install \\\n    libopenblas0-pthread");
    folds(30, 0, "./trainer is not a command, as anybody can see",
          "./trainer is not a command, as\n    anybody can see");
}

/* A command that is longer than a line is folded with backslashes, before options if possible, and
 * never in quotes. */
static void test_a_long_command_is_folded_so_that_it_can_be_pasted(void **state)
{
    (void)state;
    folds(40, 8, "./train generate out/demo --prompt \"In the beginning\" --tokens 3",
          "./train generate out/demo \\\n    --prompt \"In the beginning\" \\\n    --tokens 3");
    folds(40, 0,
          "now: ./train a.json --set data.text='my own  text.txt' --set name=it\\'s --out b; then",
          "now:\n    ./train a.json \\\n    --set data.text='my own  text.txt' \\\n"
          "    --set name=it\\'s --out b; then");
    folds(40, 0, "./train a.json --set data.text=$'it\\'s a \\n' --out folder/of/the/run --ranks 2",
          "./train a.json \\\n    --set data.text=$'it\\'s a \\n' \\\n"
          "    --out folder/of/the/run --ranks 2");
    folds(48, 8, "./train my.json --set data.text=my.txt   # your own text",
          "./train my.json --set data.text=my.txt\n    # your own text");
    folds(26, 0, "./train configs/a_rather_long_name.json --out x",
          "./train \\\n    configs/a_rather_long_name.json \\\n    --out x");
    folds(20, 0, "a/word/that/is/longer/than/a/line: and a sentence after it",
          "a/word/that/is/longer/than/a/line:\n    and a sentence\n    after it");
}

/* é as one character and as two, Chinese, a zero-width space, an emoji, an invalid byte. */
static void test_the_width_of_text_is_counted_in_terminal_columns(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int columns;
    } cases[] = {{"", 0},
                 {"abc", 3},
                 {"\xc3\xa9", 1},
                 {"e\xcc\x81", 1},
                 {"\xe6\xbc\xa2\xe5\xad\x97", 4},
                 {"a\xe2\x80\x8b", 1},
                 {"\xf0\x9f\x98\x80", 2},
                 {"\xff\xc3", 2},
                 {"\xef\xbd\xb1", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(text_columns(cases[i].text, strlen(cases[i].text)), cases[i].columns);
    assert_int_equal(text_cut("ab\xe6\xbc\xa2z", 3), 2);
    assert_int_equal(text_cut("ab\xe6\xbc\xa2z", 4), 5);
    assert_int_equal(text_cut("e\xcc\x81z", 1), 3);
    folds(8, 0, "\xe6\xbc\xa2\xe6\xbc\xa2 \xe6\xbc\xa2\xe6\xbc\xa2",
          "\xe6\xbc\xa2\xe6\xbc\xa2\n    \xe6\xbc\xa2\xe6\xbc\xa2");
}

/* Removes spaces, line feeds and backslashes. */
static void flatten(char *text)
{
    char *to = text;
    for (const char *p = text; *p; p++)
        if (strchr(" \n\\", *p) == NULL) *to++ = *p;
    *to = '\0';
}

/* Folds random texts to random widths: nothing may be lost or added but folds, the length must be
 * right, and a line may only be too long if it is a single word or quoted. */
static void test_wrapped_random_messages_fit_and_lose_no_character(void **state)
{
    (void)state;
    static const char *const part[] = {
        " ",        " ",       "  ",  "a", "word", "\n",       "\"",           "'",    "$'", "\\",
        "./train ", " --set ", "x=1", "(", ",",    "\xc3\xa9", "\xe6\xbc\xa2", "\xff", "# ", "7"};
    enum { PARTS = sizeof part / sizeof *part };
    uint32_t seed = 7;
    for (int i = 0; i < 20000; i++) {
        char text[256] = "", lines[2048], cut[64];
        for (int k = 0; k < i % 40; k++) {
            seed = seed * 1664525u + 1013904223u;
            strcat(text, part[(seed >> 16) % PARTS]);
        }
        Fold fold = {.columns = i % 61, .used = i % 9, .indent = i % 5, .wrap = (Wrap)(i % 4)};
        size_t n = text_fold(lines, sizeof lines, text, fold);
        assert_true(n < sizeof lines && strlen(lines) == n);
        assert_int_equal(text_fold(cut, sizeof cut, text, fold), n);
        assert_memory_equal(cut, lines, n < sizeof cut ? n + 1 : sizeof cut - 1);
        int used = fold.used;
        for (const char *line = lines; *line;) {
            size_t length = strcspn(line, "\n"), blank = strspn(line, " ");
            bool plain = strpbrk(line, "\"'") == NULL && strstr(text, "./train") == NULL;
            bool fits = used + text_columns(line, length) <= fold.columns;
            const char *space = memchr(line + blank, ' ', blank < length ? length - blank : 0);
            if (plain && !fits && space && used + (space - line) <= fold.columns)
                fail_msg("columns %d used %d indent %d: %s", fold.columns, fold.used, fold.indent,
                         lines);
            line += length + (line[length] == '\n');
            used = 0;
        }
        flatten(lines);
        flatten(text);
        assert_string_equal(lines, text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrapped_lines_fit_and_lose_no_character),
        cmocka_unit_test(test_a_message_keeps_its_commands_whole),
        cmocka_unit_test(test_a_long_command_is_folded_so_that_it_can_be_pasted),
        cmocka_unit_test(test_the_width_of_text_is_counted_in_terminal_columns),
        cmocka_unit_test(test_wrapped_random_messages_fit_and_lose_no_character),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
