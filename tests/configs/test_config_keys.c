/* test_config_keys.c -- compares the program with golden/config_keys.txt, which lists every key,
 * its default, the effect of changing it in a resumed run, and how every DeepSpeed key is treated.
 *
 * That file was checked by a person, row by row. Comparing the option table only with itself would
 * accept any row. */
#include "configs/reader/options.h"
#include "model/core/check.h"
#include "tests/support/files/config_support.h"
#include "tests/support/trainer/option_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char golden[] = "tests/golden/config_keys.txt";
static const char *const effects[] = {[EFFECT_NONE] = "harmless",
                                      [EFFECT_ROUNDING] = "rounding",
                                      [EFFECT_NUMBERS] = "numbers",
                                      [EFFECT_IMPOSSIBLE] = "impossible"};

/* ---- this program's own keys ----------------------------------------------------------------- */

typedef struct {
    unsigned bit;
    const char *name;
} Bit;

static void print_bits(FILE *to, unsigned set, const Bit *bit, int n)
{
    const char *between = "";
    for (int i = 0; i < n; i++) {
        if ((set & bit[i].bit) == 0) continue;
        fprintf(to, "%s%s", between, bit[i].name);
        between = " ";
    }
    fprintf(to, "%s", set == 0 ? "-" : "");
}

static void print_option(FILE *to, const Option *option)
{
    static const Bit flags[] = {
        {OPTION_AUTO, "auto"},       {OPTION_BOOL_INT, "true_is_1"}, {OPTION_QUOTED, "quoted"},
        {OPTION_CLAMPED, "clamped"}, {OPTION_FOLLOWS, "follows"},    {OPTION_GRID, "grid"},
        {OPTION_STATE, "state"},     {OPTION_MACHINE, "machine"},    {OPTION_DEVICE, "device"}};
    static const Bit changes[] = {{CHANGES_LOSSES, "losses"}, {CHANGES_SAMPLES, "samples"},
                                  {CHANGES_PLAN, "plan"},     {CHANGES_FILES, "files"},
                                  {CHANGES_WIRE, "wire"},     {CHANGES_CONSOLE, "console"}};
    char expects[512];
    option_expects(option, expects, sizeof expects);
    fprintf(to, "%s | %s | %s | %s | ", option->key, effects[option->effect],
            option->derived ? option->derived : option->fallback, expects);
    print_bits(to, option->flags & ~(unsigned)(OPTION_ABOVE | OPTION_BELOW), flags, 9);
    fprintf(to, " | ");
    print_bits(to, option->changes, changes, 6);
    fprintf(to, "\n");
}

/* ---- DeepSpeed's keys ------------------------------------------------------------------------ */

/* The rest of the config, chosen so that it gives no notice itself. */
static const char rest[] =
    "\"data\": {\"text\": \"x\"}, \"train_batch_size\": 8, \"gradient_clipping\": 1";

/* Returns a notice or error without its position and key, with "VALUE" instead of the quoted
 * value. */
static char *sentence_of(const char *finding, const char *key, const char *value)
{
    static const char notice[] = "notice: ";
    char *after = text_format("%s: ", key);
    const char *from = strstr(finding, after), *sentence;
    from = from ? from + strlen(after) : strstr(finding, ": ") + 2;
    if (strncmp(from, notice, strlen(notice)) == 0) from += strlen(notice);
    /* If the error is about another key, the message begins with that key's name, or with this
     * key's name and, in brackets, the option that it is another name of. */
    sentence = strstr(from, ": ");
    sentence = strncmp(from, value, strlen(value)) != 0 && sentence ? sentence + 2 : from;
    bool quotes = strncmp(sentence, value, strlen(value)) == 0;
    char *out =
        quotes ? text_format("%.*sVALUE%s", (int)(sentence - from), from, sentence + strlen(value))
               : must_strdup(from);
    free(after);
    return out;
}

/* Returns the notice about the key, or NULL if there is none. */
static const char *notice_of(const ConfigReport *report, const char *key)
{
    for (int i = 0; i < report->n_notices; i++)
        if (strstr(report->notice[i], key) != NULL) return report->notice[i];
    return NULL;
}

/* Returns how the program treats a config with this key: which of its own keys gets another value,
 * or the notice or error about the key. */
static char *outcome(const Config *base, const char *key, const char *value)
{
    char *said = NULL, *text = text_format("{%s, \"%s\": %s}", rest, key, value);
    ConfigReport report;
    ConfigDifference *d;
    const Config *c = config_parse(NULL, "c.json", text, strlen(text), 0, NULL, &report);
    const char *finding = c == NULL ? report.error[0] : notice_of(&report, key);
    int n = c ? config_diff(base, c, &d) : 0;
    char *sentence = finding ? sentence_of(finding, key, value) : NULL;
    if (n > 0)
        said = text_format("is %s", d[0].key);
    else if (finding)
        said = text_format("%s: %s", c ? "noticed" : "refused", sentence);
    else
        said = must_strdup("passes");
    if (c) config_diff_free(d, n);
    free(sentence);
    config_free(c);
    config_report_free(&report);
    free(text);
    return said;
}

/* Prints the error about a key that is given together with the key it is another name of, with a
 * different value. */
static void print_other_name(FILE *to, const KnownKey *known)
{
    static const char *const values[][2] = {
        {"false", "true"}, {"1", "2"}, {"\"fp32\"", "\"fp16\""}};
    for (int i = 0; i < 3; i++) {
        char *text = text_format("{%s, \"%s\": %s, \"%s\": %s}", rest, known->stands_for,
                                 values[i][0], known->key, values[i][1]);
        ConfigReport report;
        const Config *c = config_parse(NULL, "c.json", text, strlen(text), 0, NULL, &report);
        const char *said = c ? NULL : strstr(report.error[0], "another name of");
        if (said != NULL)
            fprintf(to, "%s | beside it | refused: %.*s\n", known->key, (int)strcspn(said, ","),
                    said);
        config_free(c);
        config_report_free(&report);
        free(text);
    }
}

/* Prints how values of every type are treated; values that are treated the same share one line. */
static void print_known(FILE *to, const Config *base, const KnownKey *known)
{
    static const char *const values[] = {"null",
                                         "false",
                                         "true",
                                         "0",
                                         "1",
                                         "-1",
                                         "2",
                                         "1000000000",
                                         "\"auto\"",
                                         "\"none\"",
                                         "\"warn\"",
                                         "\"fp32\"",
                                         "{\"enabled\":false}",
                                         "{\"enabled\":true}"};
    enum { VALUES = sizeof values / sizeof *values, MANY = VALUES / 2 };
    char *said[VALUES];
    for (int i = 0; i < VALUES; i++)
        said[i] = outcome(base, known->key, values[i]);
    for (int i = 0; i < VALUES; i++) {
        int first = i, times = 0;
        for (int j = VALUES - 1; j >= 0; j--) {
            if (strcmp(said[j], said[i]) != 0) continue;
            first = j;
            times++;
        }
        if (first < i) continue;
        fprintf(to, "%s |", known->key);
        for (int j = i; j < VALUES && times <= MANY; j++)
            if (strcmp(said[j], said[i]) == 0) fprintf(to, " %s", values[j]);
        if (times > MANY) fprintf(to, times == VALUES ? " anything" : " else");
        fprintf(to, " | %s\n", said[i]);
    }
    for (int i = 0; i < VALUES; i++)
        free(said[i]);
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Compares two texts line by line and prints the first lines that differ. */
static void assert_same_lines(char *is, char *wanted)
{
    enum { MOST = 20 };
    int wrong = 0;
    for (char *a, *b; is != NULL || wanted != NULL;) {
        a = strsep(&is, "\n");
        b = strsep(&wanted, "\n");
        if (a != NULL && b != NULL && strcmp(a, b) == 0) continue;
        print_error("the program: %s\n%s: %s\n", a ? a : "(nothing)", golden, b ? b : "(nothing)");
        if (++wrong == MOST) break;
    }
    assert_int_equal(wrong, 0);
}

static void every_key_is_treated_as_listed_in_the_golden_file(void **state)
{
    (void)state;
    char *text, *wanted = config_test_file(golden), *rows = strstr(wanted, "\n\n");
    size_t size;
    FILE *to = text_stream(&text, &size);
    for (int i = 0; i < option_count; i++)
        print_option(to, &option_table[i]);
    fprintf(to, "\n");
    char *plain = text_format("{%s}", rest);
    const Config *base = config_test_parse(plain, 0, NULL);
    for (int i = 0; i < known_count; i++) {
        print_known(to, base, &known_table[i]);
        if (known_table[i].stands_for != NULL) print_other_name(to, &known_table[i]);
    }
    config_free(base);
    free(plain);
    fclose(to);
    assert_non_null(rows); /* the file's introduction ends with an empty line */
    assert_same_lines(text, rows + 2);
    free(text);
    free(wanted);
}

/* Returns the effect on a resumed run that the golden file gives for a key. */
static const char *golden_effect(const char *text, const char *key, char *out, size_t n)
{
    char *begin = text_format("\n%s | ", key);
    const char *row = strstr(text, begin);
    if (row == NULL) fail_msg("%s has no row", key);
    row += strlen(begin);
    snprintf(out, n, "%.*s", (int)strcspn(row, " "), row);
    free(begin);
    return out;
}

static const Config *read_case(const OptionCase *c, bool changed)
{
    static const char text[] =
        "{\"data\": {\"text\": \"x\"}, \"train_micro_batch_size_per_gpu\": 2}";
    const char *set[16];
    int n = 0;
    for (; c->set[n] != NULL; n++)
        set[n] = c->set[n];
    char *last = text_format("%s=%s", c->key, c->value);
    if (changed) set[n++] = last;
    if (changed && c->beside != NULL) set[n++] = c->beside;
    ConfigReport report;
    const ConfigContext context = {.world = c->ranks > 0 ? c->ranks : 1};
    const Config *config = config_parse(&context, "c.json", text, strlen(text), n, set, &report);
    config_report_free(&report);
    free(last);
    return config;
}

/* `config diff` and resuming must report, for a changed key, the effect given in the golden
 * file. */
static void a_changed_key_has_the_resume_effect_listed_in_the_golden_file(void **state)
{
    (void)state;
    char *text = config_test_file(golden), want[32];
    int seen = 0;
    for (int i = 0; i < option_case_count; i++) {
        const OptionCase *c = &option_cases[i];
        const Config *was = read_case(c, false), *now = c->value ? read_case(c, true) : NULL;
        ConfigDifference *d = NULL;
        int n = was && now ? config_diff(was, now, &d) : 0;
        for (int k = 0; k < n; k++) {
            golden_effect(text, d[k].key, want, sizeof want);
            if (c->impossible) snprintf(want, sizeof want, "impossible");
            if (strcmp(want, effects[d[k].effect]) != 0)
                fail_msg("%s: %s instead of %s", d[k].key, effects[d[k].effect], want);
            seen += strcmp(d[k].key, c->key) == 0;
        }
        if (d) config_diff_free(d, n);
        config_free(was);
        config_free(now);
    }
    assert_true(seen > 100);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_is_treated_as_listed_in_the_golden_file),
        cmocka_unit_test(a_changed_key_has_the_resume_effect_listed_in_the_golden_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
