/* test_args.c -- command lines: options and their values in both forms, sentences on what is wrong,
 * what somebody may have meant, and words that a shell reads back. */
#include "model/core/args.h"
#include "model/core/check.h"
#include "model/core/nearest.h"
#include "model/core/shell_text.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { NAME, TEXT, KEY, FLAG, N_OPTIONS };
static const ArgOption options[N_OPTIONS] = {[NAME] = {"--name", ARG_VALUE},
                                             [TEXT] = {"--text", ARG_TEXT},
                                             [KEY] = {"--set", ARG_SETTING},
                                             [FLAG] = {"--flag", ARG_FLAG}};

/* What args_next makes of a line, as text: "name=value;" for options, "word;" for words, and the
 * sentence of the first error. */
static void read_line(char *out, size_t n, char **words, int count)
{
    Args args = {
        .command = "./x", .options = options, .count = N_OPTIONS, .argc = count, .argv = words};
    size_t at = 0;
    out[0] = '\0';
    for (;;) {
        switch (args_next(&args)) {
        case ARGS_OPTION:
            at += (size_t)snprintf(out + at, n - at, "%s=%s;", options[args.option].name,
                                   args.value ? args.value : "(flag)");
            break;
        case ARGS_WORD: at += (size_t)snprintf(out + at, n - at, "%s;", args.value); break;
        case ARGS_HELP: at += (size_t)snprintf(out + at, n - at, "help;"); break;
        case ARGS_WRONG: snprintf(out + at, n - at, "! %s", args.error); return;
        case ARGS_END: return;
        }
    }
}

static void options_and_values(void **state)
{
    (void)state;
    static const struct {
        const char *line[5], *read;
    } list[] = {
        {{"--name", "a", "b"}, "--name=a;b;"},
        {{"--name=a", "b"}, "--name=a;b;"},
        {{"--name=", "b"}, "! --name: its value is empty"},
        {{"--name", ""}, "! --name: its value is empty"},
        {{"--name"}, "! --name: its value is missing; see ./x --help"},
        {{"--name", "--flag"},
         "! --name: its value is missing, an option follows: --flag (--name=--flag if that is the "
         "value)"},
        {{"--name", "--"},
         "! --name: its value is missing, an option follows: -- (--name=-- if that is the value)"},
        {{"--name=--flag"}, "--name=--flag;"},
        {{"--name", "-1"}, "--name=-1;"},
        {{"--name", "-"}, "--name=-;"},
        {{"--text="}, "--text=;"},
        {{"--text", ""}, "--text=;"},
        {{"--text=a=b"}, "--text=a=b;"},
        {{"--set", "a.b=c=d"}, "--set=a.b=c=d;"},
        {{"--set=a="}, "--set=a=;"},
        {{"--set", "a"},
         "! --set a: this is not key=value; write for example --set optimizer.params.lr=6e-4"},
        {{"--set==a"},
         "! --set =a: this is not key=value; write for example --set optimizer.params.lr=6e-4"},
        {{"--flag", "-", "--flag"}, "--flag=(flag);-;--flag=(flag);"},
        {{"--flag=1"}, "! --flag=1: --flag takes no value"},
        {{"-h", "--help"}, "help;help;"},
        {{"--nmae", "x"}, "! --nmae: ./x has no such option; did you mean \"--name\"?"},
        {{"--nam=x"}, "! --nam: ./x has no such option; did you mean \"--name\"?"},
        {{"--halp"}, "! --halp: ./x has no such option; did you mean \"--help\"?"},
        {{"--nonsense"}, "! --nonsense: ./x has no such option; see ./x --help"},
        {{"-name", "x"}, "! -name: ./x has no such option; did you mean \"--name\"?"},
        {{"-v"}, "! -v: ./x has no such option; see ./x --help"},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        char *words[6] = {"x"}, read[1024];
        int count = 1;
        while (list[i].line[count - 1]) {
            words[count] = (char *)list[i].line[count - 1];
            count++;
        }
        read_line(read, sizeof read, words, count);
        assert_string_equal(read, list[i].read);
    }
}

static void what_may_be_meant(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int other;
    } rows[] = {{"config", 1}, {"data", 2}, {"generate", 3}, {"eval", 4}};
    static const struct {
        const char *word, *near;
    } list[] = {
        {"genrate", "generate"}, {"gnereate", "generate"}, {"confgi", "config"}, {"dat", "data"},
        {"evla", "eval"},        {"trian", NULL},          {"ev", NULL},         {"", NULL},
        {"generating", NULL}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const char *near = nearest_name(list[i].word, rows, 4, sizeof *rows);
        if (list[i].near == NULL)
            assert_null(near);
        else
            assert_string_equal(near, list[i].near);
    }
    char end[64], longest[200];
    assert_string_equal(did_you_mean(end, sizeof end, "a", "b"), "; did you mean \"a\"?");
    assert_string_equal(did_you_mean(end, sizeof end, NULL, "b"), "; b");
    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    assert_null(nearest_name(longest, rows, 4, sizeof *rows));
}

/* Lines drawn from pieces of what is known: every argument is told of once, and what is wrong has
 * its sentence. */
static void drawn_lines(void **state)
{
    (void)state;
    static const char *const piece[] = {"--",   "-", "=", "name", "text", "set", "flag",
                                        "help", "h", "x", "\n",   "\xff", " "};
    enum { LINES = 20000, PIECES = sizeof piece / sizeof *piece, WORDS = 5, MOST = 4 };
    char word[WORDS][64], *line[WORDS + 1] = {"x"}, longest[900];
    int draws = 0, wrong = 0;
    memset(longest, 'n', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    for (int l = 0; l < LINES; l++) {
        for (int w = 0; w < WORDS; w++) {
            word[w][0] = '\0';
            for (int k = (int)(drawn_uniform(1, draws++) * (MOST + 1)); k > 0; k--)
                strcat(word[w], piece[(int)(drawn_uniform(1, draws++) * PIECES)]);
            line[w + 1] = l % 50 == w ? longest : word[w];
        }
        memcpy(longest, "--", l % 2 ? 2 : 0);
        Args args = {.command = "./x",
                     .options = options,
                     .count = N_OPTIONS,
                     .argc = WORDS + 1,
                     .argv = line};
        int told = 0, taken = 0;
        ArgsNext next = args_next(&args);
        while (next != ARGS_END && next != ARGS_WRONG) {
            bool value = next == ARGS_OPTION && args.value && args.value == line[args.at];
            told++;
            taken += value;
            if (next == ARGS_WORD) assert_ptr_equal(args.value, line[args.at]);
            assert_int_equal(args.at, told + taken);
            next = args_next(&args);
        }
        if (next == ARGS_END) assert_int_equal(told + taken, WORDS);
        if (next == ARGS_WRONG) assert_true(strlen(args.error) > 10);
        wrong += next == ARGS_WRONG;
    }
    assert_in_range(wrong, LINES / 10, LINES * 9 / 10); /* the drawing reaches both */
}

/* What bash makes of these words, each with the zero byte behind it. */
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

/* The quoted words are printable as they stand, and a shell reads the texts. */
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

/* Texts of drawn bytes, most of which mean something to a shell. */
static void drawn_words(void **state)
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

static void a_shell_reads_words_back(void **state)
{
    (void)state;
    static const struct {
        const char *text, *quoted; /* NULL: whatever reads back */
    } list[] = {
        {"out/demo-2_a.b:c,d+e@f%g=h", "out/demo-2_a.b:c,d+e@f%g=h"},
        {"In the beginning", "\"In the beginning\""},
        {"", "\"\""},
        {"it's", "\"it's\""},
        {"say \"hi\"", "'say \"hi\"'"},
        {"well!", "'well!'"}, /* history, at a prompt */
        {"$HOME `id` \\n !!", "'$HOME `id` \\n !!'"},
        {"it's \"$5\"", "'it'\\''s \"$5\"'"},
        {"two\nlines", "$'two\\nlines'"},
        {"\x1b[2J\t'\\!", "$'\\033[2J\\t\\047\\134\\041'"},
        {"\xe9t\xc3\xa9", "$'\\351t\xc3\xa9'"},
        {"\xc3\xa9t\xc3\xa9", "\"\xc3\xa9t\xc3\xa9\""},
        {"\xc2\x9b"
         "1m",
         "$'\\302\\2331m'"}, /* a terminal's control character, in UTF-8 */
        {"~", "\"~\""},
        {"~root/x", NULL},
        {"*", NULL},
        {"{a,b}", NULL},
        {"a;b&c|d>e<f(g)h#i", NULL},
        {"# no comment", NULL},
        {"--out", "--out"},
        {"\n", NULL},
        {"\\\n'\"$x`\n", NULL},
        {"1\n23", NULL}, /* a digit behind an escape */
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
        cmocka_unit_test(options_and_values), cmocka_unit_test(drawn_lines),
        cmocka_unit_test(what_may_be_meant),  cmocka_unit_test(a_shell_reads_words_back),
        cmocka_unit_test(drawn_words),
    };
    return cmocka_run_group_tests_name("args", tests, NULL, NULL);
}
