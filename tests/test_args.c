/* test_args.c -- command lines: options and their values in both forms, sentences on what is wrong,
 * what somebody may have meant, and words that a shell reads back. */
#include "model/core/args.h"
#include "model/core/check.h"
#include "model/core/nearest.h"
#include "parallel/shell_text.h"

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

/* What bash makes of `printf %s WORD`. */
static void say_by_shell(const char *word, char *out, size_t n)
{
    char path[] = "/tmp/args.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *script = fdopen(fd, "w");
    fprintf(script, "printf %%s %s\n", word);
    fclose(script);
    char *command = text_format("LC_ALL=C bash --norc --noprofile %s", path);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    size_t got = fread(out, 1, n - 1, f);
    out[got] = '\0';
    assert_int_equal(pclose(f), 0);
    remove(path);
    free(command);
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
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        char said[256], *quoted = shell_quoted(list[i].text);
        if (list[i].quoted) assert_string_equal(quoted, list[i].quoted);
        for (const char *p = quoted; *p; p++) /* printed as it is */
            assert_true((unsigned char)*p >= 32 && *p != 127);
        say_by_shell(quoted, said, sizeof said);
        assert_string_equal(said, list[i].text);
        free(quoted);
    }
    char *path = shell_quoted_path("-x y");
    assert_string_equal(path, "\"./-x y\"");
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_and_values),
        cmocka_unit_test(what_may_be_meant),
        cmocka_unit_test(a_shell_reads_words_back),
    };
    return cmocka_run_group_tests_name("args", tests, NULL, NULL);
}
