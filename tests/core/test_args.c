/* test_args.c -- tests command lines: options with values in both forms, help, error messages, and
 * suggestions for misspelt names. */
#include "model/core/args.h"
#include "model/core/check.h"
#include "model/core/nearest.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    const char *name, *text, *word;
    ArgList words, set, names;
    int64_t count;
    double real;
    char own;
    bool flag;
} Values;

static bool parse_own(const char *text, void *field, char *err, size_t n)
{
    if (text[0] == '\0' || text[1] != '\0') return error_set(err, n, "--own %s: one letter", text);
    *(char *)field = *text;
    return true;
}

static void show_something(const ArgCommand *command)
{
    printf("something of %s\n", command->call);
}

static const ArgOption options[] = {
    {.name = "--name", .value = "N", .help = "h", .kind = ARG_NAME, .at = offsetof(Values, name)},
    {.name = "--name", .value = "M", .help = "another\nvalue", .kind = ARG_ALSO},
    {.name = "--text", .value = "N", .help = "h", .kind = ARG_TEXT, .at = offsetof(Values, text)},
    {.name = "--set",
     .value = "K=V",
     .help = "h",
     .kind = ARG_SETTINGS,
     .at = offsetof(Values, set)},
    {.name = "--each", .value = "N", .help = "h", .kind = ARG_NAMES, .at = offsetof(Values, names)},
    {.name = "--flag",
     .short_name = "-f",
     .help = "h",
     .kind = ARG_FLAG,
     .at = offsetof(Values, flag)},
    {.name = "--count",
     .value = "N",
     .help = "h",
     .kind = ARG_INTEGER,
     .at = offsetof(Values, count),
     .least = 1,
     .most = 1e9},
    {.name = "--real", .value = "N", .help = "h", .kind = ARG_REAL, .at = offsetof(Values, real)},
    {.name = "--own",
     .value = "C",
     .help = "h",
     .kind = ARG_OWN,
     .at = offsetof(Values, own),
     .parse = parse_own},
    {.name = "--show", .help = "h", .kind = ARG_SHOW, .show = show_something},
};

static const Values defaults = {.count = 7, .real = 0.5, .own = 'x'};

static int print_values(const void *values)
{
    const Values *v = values;
    printf("name=%s text=%s count=%lld real=%g own=%c flag=%d", v->name ? v->name : "-",
           v->text ? v->text : "-", (long long)v->count, v->real, v->own ? v->own : '-', v->flag);
    for (int i = 0; i < v->set.count; i++)
        printf(" set %s", v->set.item[i]);
    for (int i = 0; i < v->names.count; i++)
        printf(" each %s", v->names.item[i]);
    for (int i = 0; i < v->words.count; i++)
        printf(" word %s", v->words.item[i]);
    if (v->word) printf(" word %s", v->word);
    return EXIT_OK;
}

static const ArgCommand many = {.name = "many",
                                .call = "./x many",
                                .usage = "WORD...",
                                .summary = "does this\nand that",
                                .options = options,
                                .n_options = ARG_ROWS(options),
                                .size = sizeof(Values),
                                .defaults = &defaults,
                                .run = print_values,
                                .words = {.most = ARGS_ANY, .at = offsetof(Values, words)}};
static const ArgOption required[] = {
    {.name = "--name",
     .value = "N",
     .help = "h",
     .kind = ARG_NAME,
     .required = true,
     .at = offsetof(Values, name)},
    {.name = "--a-name-that-is-long",
     .also = "--brief",
     .value = "N",
     .help = "h",
     .kind = ARG_NAME,
     .at = offsetof(Values, text)},
};
static const ArgCommand one = {.name = "one",
                               .call = "./x one",
                               .see = "./x --help one",
                               .usage = "WORD",
                               .summary = "does",
                               .about = "It does.",
                               .notes = "Notes.",
                               .options = required,
                               .n_options = ARG_ROWS(required),
                               .size = sizeof(Values),
                               .run = print_values,
                               .words = {.least = 1,
                                         .most = 1,
                                         .at = offsetof(Values, word),
                                         .missing = "which word?",
                                         .plural = "words",
                                         .advice = ", please"}};
static const ArgCommand plain = {.name = "plain",
                                 .call = "./x plain",
                                 .summary = "nothing",
                                 .run = print_values,
                                 .size = sizeof(Values)};
static const ArgCommand only_options = {.name = "only",
                                        .call = "./x only",
                                        .summary = "options",
                                        .run = print_values,
                                        .options = options,
                                        .n_options = 1,
                                        .size = sizeof(Values)};
static const ArgCommand *const commands[] = {&many, &one, &plain, &only_options};
static const ArgCommand group = {.name = "x",
                                 .call = "./x",
                                 .notes = "Notes.",
                                 .commands = commands,
                                 .n_commands = ARG_ROWS(commands)};

/* The result of a command line: stdout, and after "! " the error messages. */
typedef struct {
    int code;
    char text[2048];
} Outcome;

static Outcome run_line(const char *const *words, int count)
{
    Outcome o;
    char *argv[16] = {"x"}, *out = NULL, *err = NULL;
    size_t out_bytes, err_bytes;
    FILE *kept[2] = {stdout, stderr};
    for (int i = 0; i < count; i++)
        argv[i + 1] = (char *)(uintptr_t)words[i];
    stdout = open_memstream(&out, &out_bytes);
    stderr = open_memstream(&err, &err_bytes);
    o.code = args_run(&group, count + 1, argv);
    fclose(stdout);
    fclose(stderr);
    stdout = kept[0];
    stderr = kept[1];
    if (err_bytes > 0) {
        static const char prefix[] = "error[64] ";
        assert_memory_equal(err, prefix, sizeof prefix - 1);
        err[err_bytes - 1] = '\0'; /* cuts off the line feed */
        snprintf(o.text, sizeof o.text, "%s! %s", out, err + sizeof prefix - 1);
    } else {
        snprintf(o.text, sizeof o.text, "%s", out);
    }
    free(out);
    free(err);
    return o;
}

#define REST "count=7 real=0.5 own=x flag=0"
#define HELP "help of many"

static const struct {
    const char *line[7], *result;
} lines[] = {
    {{"many"}, "name=- text=- " REST},
    {{"many", "--name", "a", "b"}, "name=a text=- " REST " word b"},
    {{"many", "--name=a", "b"}, "name=a text=- " REST " word b"},
    {{"many", "b", "--name=a", "c"}, "name=a text=- " REST " word b word c"},
    {{"many", "--name=", "b"}, "! --name: its value is empty"},
    {{"many", "--name", ""}, "! --name: its value is empty"},
    {{"many", "--name"}, "! --name: its value is missing; see ./x many --help"},
    {{"many", "--name", "--flag"},
     "! --name: its value is missing, an option follows: --flag (--name=--flag if that is the "
     "value)"},
    {{"many", "--name", "--"},
     "! --name: its value is missing, an option follows: -- (--name=-- if that is the value)"},
    {{"many", "--name=--flag"}, "name=--flag text=- " REST},
    {{"many", "--name", "-1"}, "name=-1 text=- " REST},
    {{"many", "--name", "-"}, "name=- text=- " REST},
    {{"many", "--name", "-h"}, "name=-h text=- " REST},
    {{"many", "--text="}, "name=- text= " REST},
    {{"many", "--text", ""}, "name=- text= " REST},
    {{"many", "--text=a=b"}, "name=- text=a=b " REST},
    {{"many", "--set", "a.b=c=d", "--set=a=", "-"},
     "name=- text=- " REST " set a.b=c=d set a= word -"},
    {{"many", "--set", "a"},
     "! --set a: this is not key=value; write for example --set optimizer.params.lr=6e-4"},
    {{"many", "--set==a"},
     "! --set =a: this is not key=value; write for example --set optimizer.params.lr=6e-4"},
    {{"many", "--each", "a=b", "--each=c", "d"}, "name=- text=- " REST " each a=b each c word d"},
    {{"many", "--each", "a", "--each="}, "! --each: its value is empty"},
    {{"many", "--flag", "-", "--flag"}, "name=- text=- count=7 real=0.5 own=x flag=1 word -"},
    {{"many", "-f"}, "name=- text=- count=7 real=0.5 own=x flag=1"},
    {{"many", "--flag=1"}, "! --flag=1: --flag takes no value"},
    {{"many", "--count", "1e3", "--real=-0.25", "--own=y"},
     "name=- text=- count=1000 real=-0.25 own=y flag=0"},
    {{"many", "--count", "0"}, "! --count 0: give a whole number from 1 to 1000000000"},
    {{"many", "--count=1000000001"},
     "! --count 1000000001: give a whole number from 1 to 1000000000"},
    {{"many", "--count", "2.5"}, "! --count 2.5: give a whole number from 1 to 1000000000"},
    {{"many", "--count="}, "! --count : give a whole number from 1 to 1000000000"},
    {{"many", "--count", "3x"}, "! --count 3x: give a whole number from 1 to 1000000000"},
    {{"many", "--real", "nan"}, "! --real: \"nan\" is not a number"},
    {{"many", "--real", "1,5"}, "! --real: \"1,5\" is not a number"},
    {{"many", "--own", "yy"}, "! --own yy: one letter"},
    {{"many", "--show", "--count", "x"}, "something of ./x many\n"},
    {{"many", "--", "--name", "-h"}, "name=- text=- " REST " word --name word -h"},
    {{"many", "--flag", "--", "--"}, "name=- text=- count=7 real=0.5 own=x flag=1 word --"},
    {{"many", "a", "-h"}, HELP},
    {{"many", "--help", "--count", "x"}, HELP},
    {{"many", "--count", "x", "--help"}, HELP},
    {{"many", "--name", "--help"}, HELP},
    {{"many", "--nonsense", "--", "--help"},
     "! --nonsense: ./x many has no such option; see ./x many --help"},
    {{"many", "--help=1"}, "! --help=1: --help takes no value"},
    {{"many", "--nmae", "x"}, "! --nmae: ./x many has no such option; did you mean \"--name\"?"},
    {{"many", "--nam=x"}, "! --nam: ./x many has no such option; did you mean \"--name\"?"},
    {{"many", "--halp"}, "! --halp: ./x many has no such option; did you mean \"--help\"?"},
    {{"many", "-name", "x"}, "! -name: ./x many has no such option; did you mean \"--name\"?"},
    {{"many", "-v"}, "! -v: ./x many has no such option; see ./x many --help"},
    {{"one"}, "! which word?"},
    {{"one", "a"}, "! ./x one needs --name N"},
    {{"one", "a", "b"}, "! two words, a and b: give one, please"},
    {{"one", "--name=c", "a"}, "name=c text=- count=0 real=0 own=- flag=0 word a"},
    {{"one", "--name", "n", "--brief", "t", "x"},
     "name=n text=t count=0 real=0 own=- flag=0 word x"},
    {{"one", "--name", "n", "--brief=t", "x"}, "name=n text=t count=0 real=0 own=- flag=0 word x"},
    {{"one", "--brief"}, "! --a-name-that-is-long: its value is missing; see ./x --help one"},
    {{"one", "--brie", "x"}, "! --brie: ./x one has no such option; see ./x --help one"},
    {{"one", "--nonsense"}, "! --nonsense: ./x one has no such option; see ./x --help one"},
    {{"one", "--help"},
     "usage: ./x one WORD\n\nIt does.\n\n"
     "  --name N                 h\n"
     "  --a-name-that-is-long N  h\n\nNotes.\n"},
    {{"plain", "a"}, "! ./x plain takes no argument, not \"a\""},
    {{"plain", "--help"}, "usage: ./x plain\n\nNothing.\n"},
    {{"only", "a"}, "! ./x only takes options only, not \"a\"; see ./x only --help"},
    {{NULL}, "! ./x needs a command: many, one, plain or only"},
    {{"mny"}, "! ./x has no command \"mny\"; did you mean \"many\"?"},
    {{"--flag"}, "! ./x has no command \"--flag\"; it has many, one, plain and only"},
    {{"-h"},
     "usage:\n  ./x many WORD...\n      does this and that\n  ./x one WORD\n      does\n"
     "  ./x plain\n      nothing\n  ./x only\n      options\nNotes.\n"},
};

static void test_each_command_line_gives_the_expected_values_help_or_error(void **state)
{
    (void)state;
    static const char many_help[] =
        "usage: ./x many WORD...\n\nDoes this\nand that.\n\n"
        "  --name N           h\n  --name M           another value\n"
        "  --text N           h\n  --set K=V          h\n  --each N           h\n  --flag          "
        "   h\n"
        "  --count N          h\n  --real N           h\n  --own C            h\n"
        "  --show             h\n";
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const char *result = lines[i].result;
        int count = 0;
        while (lines[i].line[count])
            count++;
        Outcome o = run_line(lines[i].line, count);
        assert_string_equal(o.text, strcmp(result, HELP) == 0 ? many_help : result);
        assert_int_equal(o.code, result[0] == '!' ? EXIT_USAGE : EXIT_OK);
    }
}

static void test_misspelt_names_get_a_suggestion_and_distant_ones_none(void **state)
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

/* Returns whether the text is an argument of the line or the part of one after its '='. */
static bool of_line(const char *text, char *const *line, int count)
{
    for (int i = 1; i < count; i++) {
        const char *equals = strchr(line[i], '=');
        if (text == line[i] || (equals && text == equals + 1)) return true;
    }
    return false;
}

/* Checks that every value of an accepted line comes from the line, and that its words are in
 * order. */
static void check_taken(const Values *v, char *const *line, int count)
{
    assert_true(v->name == NULL || of_line(v->name, line, count));
    assert_true(v->text == NULL || of_line(v->text, line, count));
    for (int i = 0; i < v->set.count; i++)
        assert_true(of_line(v->set.item[i], line, count) && strchr(v->set.item[i], '='));
    int at = 0;
    for (int i = 0; i < v->words.count; i++) {
        do
            at++;
        while (at < count && line[at] != v->words.item[i]);
        assert_true(at < count);
    }
}

/* Builds random lines from known words: each must be accepted, print help, or be refused with an
 * error message. */
static void test_each_random_command_line_gives_values_help_or_an_error(void **state)
{
    (void)state;
    static const char *const piece[] = {"--",   "-", "=", "name", "text", "set", "flag",
                                        "help", "h", "x", "\n",   "\xff", " ",   "count"};
    enum { LINES = 20000, PIECES = sizeof piece / sizeof *piece, WORDS = 5, MOST = 4 };
    char word[WORDS][64], *line[WORDS + 1] = {"x"}, longest[900], *printed;
    int draws = 0, taken = 0, wrong = 0;
    size_t bytes;
    FILE *kept[2] = {stdout, stderr};
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
        int code = -1;
        Values v;
        stdout = stderr = open_memstream(&printed, &bytes);
        bool good = args_read(&many, WORDS + 1, line, &v, &code);
        fclose(stdout);
        stdout = kept[0];
        stderr = kept[1];
        assert_true(good ? bytes == 0 : bytes > 10 && (code == EXIT_OK || code == EXIT_USAGE));
        if (good) {
            check_taken(&v, line, WORDS + 1);
            args_free(&many, &v);
        }
        taken += good;
        wrong += code == EXIT_USAGE;
        free(printed);
    }
    assert_in_range(taken, LINES / 20, LINES); /* both outcomes must be frequent */
    assert_in_range(wrong, LINES / 20, LINES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_command_line_gives_the_expected_values_help_or_error),
        cmocka_unit_test(test_each_random_command_line_gives_values_help_or_an_error),
        cmocka_unit_test(test_misspelt_names_get_a_suggestion_and_distant_ones_none),
    };
    return cmocka_run_group_tests_name("args", tests, NULL, NULL);
}
