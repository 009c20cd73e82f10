/* test_shell_text.c -- tests quoting: a shell must read quoted text back unchanged. */
#include "model/core/check.h"
#include "model/core/shell_text.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Returns what bash prints for these words, each followed by a zero byte. */
static char *say_by_shell(char *const *words, int count, size_t *bytes)
{
    char path[] = "/tmp/args.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *script = fdopen(fd, "w");
    for (int i = 0; i < count; i++)
        fprintf(script, "printf '%%s\\0' %s\n", words[i]);
    fclose(script);
    char *command = text_format("LC_ALL=C bash --norc --noprofile %s", path);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    char *out = must_calloc(1, 1 << 16);
    *bytes = fread(out, 1, (1 << 16) - 1, f);
    assert_int_equal(pclose(f), 0);
    remove(path);
    free(command);
    return out;
}

/* Checks that the quoted words contain no control characters and that a shell reads the original
 * texts from them. */
static void words_read_back(const char *const *texts, char *const *words, int count)
{
    size_t bytes, at = 0;
    char *said = say_by_shell(words, count, &bytes);
    for (int i = 0; i < count; i++) {
        for (const char *p = words[i]; *p; p++)
            assert_true((unsigned char)*p >= 32 && *p != 127);
        assert_true(at < bytes);
        assert_string_equal(said + at, texts[i]);
        at += strlen(texts[i]) + 1;
    }
    assert_int_equal(at, bytes);
    free(said);
}

/* Quotes random texts, made mostly of characters that are special in a shell. */
static void test_a_shell_reads_random_quoted_texts_back(void **state)
{
    (void)state;
    static const char some[] = "'\"$`\\!\n\t {}[]()<>|&;#~*?=-ax0\xc3\xa9\xe2\x82\xac\xff\x1b";
    enum { TEXTS = 300, LONGEST = 12 };
    char text[TEXTS][LONGEST + 1], *word[TEXTS];
    const char *texts[TEXTS];
    for (int i = 0; i < TEXTS; i++) {
        int n = (int)(drawn_uniform(2, i) * (LONGEST + 1));
        for (int k = 0; k < n; k++)
            text[i][k] = some[(int)(drawn_uniform(3, i * LONGEST + k) * (double)(sizeof some - 1))];
        text[i][n] = '\0';
        texts[i] = text[i];
        word[i] = shell_quoted(text[i]);
    }
    words_read_back(texts, word, TEXTS);
    for (int i = 0; i < TEXTS; i++)
        free(word[i]);
}

static void test_a_shell_reads_special_characters_back_from_quotes(void **state)
{
    (void)state;
    static const struct {
        const char *text, *quoted; /* quoted is NULL: any quoting that reads back is right */
    } list[] = {
        {"out/demo-2_a.b:c,d+e@f%g=h", "out/demo-2_a.b:c,d+e@f%g=h"},
        {"In the beginning", "\"In the beginning\""},
        {"", "\"\""},
        {"it's", "\"it's\""},
        {"say \"hi\"", "'say \"hi\"'"},
        {"well!", "'well!'"}, /* history expansion at a prompt */
        {"$HOME `id` \\n !!", "'$HOME `id` \\n !!'"},
        {"it's \"$5\"", "'it'\\''s \"$5\"'"},
        {"two\nlines", "$'two\\nlines'"},
        {"\x1b[2J\t'\\!", "$'\\033[2J\\t\\047\\134\\041'"},
        {"\xe9t\xc3\xa9", "$'\\351t\xc3\xa9'"},
        {"\xc3\xa9t\xc3\xa9", "\"\xc3\xa9t\xc3\xa9\""},
        {"\xc2\x9b"
         "1m",
         "$'\\302\\2331m'"}, /* an 8-bit terminal control character */
        {"~", "\"~\""},
        {"~root/x", NULL},
        {"*", NULL},
        {"{a,b}", NULL},
        {"a;b&c|d>e<f(g)h#i", NULL},
        {"# no comment", NULL},
        {"--out", "--out"},
        {"\n", NULL},
        {"\\\n'\"$x`\n", NULL},
        {"1\n23", NULL}, /* a digit right after a line feed */
        {"\x01"
         "23",
         NULL},
    };
    enum { TEXTS = sizeof list / sizeof *list };
    const char *texts[TEXTS];
    char *word[TEXTS];
    for (int i = 0; i < TEXTS; i++) {
        texts[i] = list[i].text;
        word[i] = shell_quoted(list[i].text);
        if (list[i].quoted) assert_string_equal(word[i], list[i].quoted);
    }
    words_read_back(texts, word, TEXTS);
    for (int i = 0; i < TEXTS; i++)
        free(word[i]);
    char *path = shell_quoted_path("-x y");
    assert_string_equal(path, "\"./-x y\"");
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_shell_reads_special_characters_back_from_quotes),
        cmocka_unit_test(test_a_shell_reads_random_quoted_texts_back),
    };
    return cmocka_run_group_tests_name("shell_text", tests, NULL, NULL);
}
