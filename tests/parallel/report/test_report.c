/* test_report.c -- `./train report`: which lines of metrics.jsonl count, the table in CSV, and the
 * page: its size, its gaps, and text that must be escaped. */
#include "model/core/check.h"
#include "parallel/report/plot.h"
#include "parallel/report/report_csv.h"
#include "parallel/report/report_page.h"
#include "tests/support/files/data_support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

int fuzz_metrics(const uint8_t *data, size_t size);

#define HEAD(event, step, skipped)                                                                 \
    "{\"event\": \"" event "\", \"step\": " step ", \"updates\": 1, \"samples\": 16, \"tokens\": " \
    "1024, \"skipped\": " skipped ", \"attempt\": 0, \"t\": 1.5"
#define START(step) HEAD("start", step, "0") ", \"train_steps\": 9}\n"
#define TRAIN(step, loss)                                                                          \
    HEAD("train", step, "0")                                                                       \
    ", \"loss\": " loss ", \"lr\": 0.0040000000000000001, \"grad_norm\": 0.5, "                    \
    "\"loss_scale\": 1}\n"
#define VAL(step, loss) HEAD("val", step, "0") ", \"loss\": " loss ", \"seconds\": 1}\n"
#define SET(step, name, loss)                                                                      \
    HEAD("val_set", step, "0")                                                                     \
    ", \"set\": \"" name "\", \"loss\": " loss ", \"bits_per_byte\": 2}\n"
#define SPEED(step, rate)                                                                          \
    HEAD("speed", step, "0") ", \"seconds\": 2, \"tokens_per_second\": " rate "}\n"
#define SAMPLE(step, text)                                                                         \
    HEAD("sample", step, "0") ", \"prompt\": \"p\", \"text\": \"" text "\"}\n"

static History read_text(const char *text)
{
    History h;
    FILE *from = fmemopen((void *)text, strlen(text), "r");
    history_read_stream(&h, from);
    fclose(from);
    return h;
}

static void assert_table(const char *text, const char *expected)
{
    char *table;
    size_t bytes;
    History h = read_text(text);
    FILE *to = text_stream(&table, &bytes);
    report_csv_run(to, "r", &h, &(StringList){0});
    fclose(to);
    assert_string_equal(table, expected);
    free(table);
    history_free(&h);
}

static void the_table_has_all_figures_of_a_step_in_one_row(void **unused)
{
    (void)unused;
    assert_table(START("0") TRAIN("1", "2.5") TRAIN("2", "0.10000000000000001") SPEED("2", "99.5")
                     VAL("2", "1.3333333333333333") VAL("3", "7"),
                 "r,1,16,1024,2.5,0.004,0.5,1,,,,\n"
                 "r,2,16,1024,0.1,0.004,0.5,1,1.3333333333333333,,99.5,\n"
                 "r,3,,,,,,,7,,,\n");
    assert_table(TRAIN("1", "null"), "r,1,16,1024,,0.004,0.5,1,,,,\n");
}

static void each_evaluation_set_has_its_own_columns_and_plot(void **unused)
{
    (void)unused;
    char *table, *page;
    size_t bytes;
    StringList sets = {0};
    History h[] = {read_text(TRAIN("1", "3") SET("1", "code", "4") VAL("1", "5") TRAIN("2", "2")
                                 SET("2", "code", "3") SET("2", "a-b", "7") VAL("2", "4")
                                     TRAIN("3", "1") SET("3", "code", "1") START("2")),
                   read_text(TRAIN("1", "3") SET("1", "a-b", "6") VAL("1", "5") SET("1", "", "6")
                                 SET("1", "<i>", "null"))};
    assert_int_equal(h[0].bad_lines, 0);
    assert_int_equal(h[1].bad_lines, 1);
    for (int r = 0; r < 2; r++)
        report_csv_sets(&h[r], &sets);
    FILE *to = text_stream(&table, &bytes);
    report_csv_head(to, &sets);
    for (int r = 0; r < 2; r++)
        report_csv_run(to, "r", &h[r], &sets);
    fclose(to);
    char *line = strchr(table, '\n');
    assert_non_null(strstr(table, ",exposed_communication,val_loss_code,val_bits_per_byte_code,"
                                  "val_loss_a-b,val_bits_per_byte_a-b,val_loss_<i>,"
                                  "val_bits_per_byte_<i>\n"));
    assert_string_equal(line, "\n"
                              "r,1,16,1024,3,0.004,0.5,1,5,,,,4,2,,,,\n"
                              "r,2,16,1024,2,0.004,0.5,1,4,,,,3,2,7,2,,\n"
                              "r,1,16,1024,3,0.004,0.5,1,5,,,,,,6,2,,2\n");
    to = text_stream(&page, &bytes);
    report_page_print(to, (const PageRun[]){{"r", h[0]}, {"s", h[1]}}, 2);
    fclose(to);
    assert_non_null(strstr(page, ", validation 4.0000, code 3.0000, a-b 7.0000</li>"));
    assert_non_null(strstr(page, "a-b 6.0000, &#60;i&#62; not finite</li>"));
    assert_non_null(strstr(page, ">Validation loss, code "));
    assert_null(strstr(page, "<i>"));
    for (int r = 0; r < 2; r++)
        history_free(&h[r]);
    string_list_free(&sets);
    free(table);
    free(page);
}

static void a_run_name_with_commas_or_quotes_is_quoted_in_csv(void **unused)
{
    (void)unused;
    char *table;
    size_t bytes;
    History h = read_text(VAL("3", "7"));
    FILE *to = text_stream(&table, &bytes);
    report_csv_run(to, "a,\"b\"", &h, &(StringList){0});
    fclose(to);
    assert_string_equal(table, "\"a,\"\"b\"\"\",3,,,,,,,7,,,\n");
    free(table);
    history_free(&h);
}

static void the_last_of_several_lines_about_a_step_is_used(void **unused)
{
    (void)unused;
    /* repeated without a start */
    assert_table(TRAIN("1", "1") TRAIN("2", "2") VAL("2", "5") TRAIN("3", "3") TRAIN("2", "4"),
                 "r,1,16,1024,1,0.004,0.5,1,,,,\n"
                 "r,2,16,1024,4,0.004,0.5,1,,,,\n");
    /* an evaluation is repeated at the step from which a run resumes */
    assert_table(TRAIN("1", "1") VAL("1", "5") START("1") VAL("1", "6"),
                 "r,1,16,1024,1,0.004,0.5,1,6,,,\n");
    /* a start drops the later steps of the attempt before it */
    assert_table(TRAIN("1", "1") TRAIN("2", "2") TRAIN("3", "3") SPEED("3", "8") START("1"),
                 "r,1,16,1024,1,0.004,0.5,1,,,,\n");
}

static void lines_that_cannot_be_read_are_counted(void **unused)
{
    (void)unused;
    History h = read_text("\n[]\n{\"event\": \"train\"}\n" HEAD("train", "1.5", "0") "}\n" //
                          TRAIN("1", "2") HEAD("comms", "1", "0") ", \"comms\": []}\n"     //
                          HEAD("train", "2", "0"));
    assert_int_equal(h.bad_lines, 4); /* the last line is not complete, which is no error */
    assert_int_equal(h.n_train, 1);
    history_free(&h);
}

static void exposed_communication_is_read_as_a_part_of_the_time(void **unused)
{
    (void)unused;
    History h = read_text(
        HEAD("speed", "1", "0") ", \"seconds\": 4, \"ranks\": 2, \"communication\": 0.5, "
                                "\"exposed_dp\": 0.25, \"exposed_pp\": 0.25, \"bubble\": 1}\n" //
        HEAD("speed", "2", "0") ", \"seconds\": 4, \"ranks\": 2}\n"                            //
        HEAD("speed", "3", "0") ", \"seconds\": 4}\n");
    assert_true(h.speed[0].exposed == 0.25);
    assert_true(h.speed[1].exposed == 0);
    assert_true(isnan(h.speed[2].exposed)); /* one rank */
    history_free(&h);
}

/* ---- the page ---------------------------------------------------------------------------------
 */

static char *page_of(const PageRun *run, int n)
{
    char *page;
    size_t bytes;
    FILE *to = text_stream(&page, &bytes);
    report_page_print(to, run, n);
    fclose(to);
    assert_int_equal(strlen(page), bytes);
    return page;
}

static int count(const char *page, const char *words)
{
    int n = 0;
    for (; (page = strstr(page, words)) != NULL; page++)
        n++;
    return n;
}

static void a_page_escapes_every_text_of_a_run(void **unused)
{
    (void)unused;
    PageRun run = {.name = "<i>\"'&\x1b\xff",
                   .history =
                       read_text(TRAIN("1", "2") SAMPLE("1", "<script>\\u001b\\u202e</pre>"))};
    char *page = page_of(&run, 1);
    assert_int_equal(count(page, "&#60;i&#62;&#34;&#39;&#38;\\x1b\\xff"), 2);
    assert_int_equal(count(page, "&#60;script&#62;\\x1b"), 1);
    assert_int_equal(count(page, "<i>") + count(page, "<script") + count(page, "\x1b"), 0);
    assert_int_equal(count(page, "</pre>"), 1);
    free(page);
    history_free(&run.history);
}

static void a_plot_has_a_gap_where_a_loss_is_not_finite(void **unused)
{
    (void)unused;
    PageRun run = {
        .name = "r",
        .history = read_text(TRAIN("1", "4") TRAIN("2", "3") TRAIN("3", "null") TRAIN("4", "2"))};
    char *page = page_of(&run, 1);
    /* steps 1 and 2 are a line, and step 4 alone is a dot at the right end of the axis */
    assert_non_null(
        strstr(page, "<path class=\"line\" d=\"M56.0 8.0L166.7 100.0M388.0 192.0h0\"/>"));
    assert_null(strstr(page, "Validation loss")); /* no plot without a value */
    assert_null(strstr(page, "Samples"));
    free(page);
    history_free(&run.history);
}

/* The ticks of an axis have as many decimals as the distance between them needs. */
static void axis_labels_have_no_more_decimals_than_the_tick_distance_needs(void **unused)
{
    (void)unused;
    static const struct {
        const char *text, *label[2];
    } cases[] = {
        {TRAIN("1", "3.1") TRAIN("5", "3.4"), {">3.2</text>", ">4</text>"}},
        {TRAIN("1", "2") TRAIN("60", "3"), {">2.5</text>", ">40</text>"}},
        {TRAIN("1", "2") TRAIN("6000", "3"), {">2.5</text>", ">4,000</text>"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        PageRun run = {.name = "r", .history = read_text(cases[i].text)};
        char *page = page_of(&run, 1);
        for (int k = 0; k < 2; k++)
            if (count(page, cases[i].label[k]) == 0) fail_msg("%s: %s", cases[i].label[k], page);
        free(page);
        history_free(&run.history);
    }
}

/* Returns the metrics of `steps` noisy steps with gaps, and long samples full of characters that
 * must be escaped. */
static History long_run(int64_t steps)
{
    char *text, *sample = must_calloc(1, 6001);
    size_t bytes;
    memset(sample, '<', 6000);
    FILE *to = text_stream(&text, &bytes);
    for (int64_t s = 1; s <= steps; s++) {
        double loss = 1 + (double)(drawn(7, (uint64_t)s) % 1000) / 300;
        fprintf(to, HEAD("train", "%lld", "3") ", ", (long long)s);
        if (s % 3 == 0)
            fputs("\"loss\": null, \"grad_norm\": null, \"lr\": 1}\n", to);
        else
            fprintf(to, "\"loss\": %g, \"grad_norm\": %g, \"lr\": %g}\n", loss, loss, loss);
        fprintf(to,
                HEAD("speed", "%lld", "3") ", \"seconds\": 1, \"tokens_per_second\": %g, "
                                           "\"ranks\": 2, \"communication\": %g}\n",
                (long long)s, loss, loss / 5);
        fprintf(to, VAL("%lld", "%g"), (long long)s, loss);
        if (s % 100 == 0) fprintf(to, SAMPLE("%lld", "%s"), (long long)s, sample);
    }
    fclose(to);
    History h = read_text(text);
    free(text);
    free(sample);
    return h;
}

static void a_page_stays_within_its_size_limit_however_long_the_runs_are(void **unused)
{
    (void)unused;
    char name[4096];
    PageRun run[PAGE_RUNS_MOST];
    memset(name, '&', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    History h = long_run(1500);
    assert_int_equal(h.n_sample, 15);
    for (int n = 1; n <= PAGE_RUNS_MOST; n += n == 1 ? 2 : 13) {
        for (int r = 0; r < n; r++)
            run[r] = (PageRun){.name = name, .history = h};
        char *page = page_of(run, n);
        if (strlen(page) >= PAGE_BYTES_MOST) fail_msg("%d runs: %zu bytes", n, strlen(page));
        assert_int_equal(count(page, "<figure>"), 6);
        assert_int_equal(count(page, "<g class"), 6 * n);
        free(page);
    }
    history_free(&h);
}

/* A step that no run can have is not drawn: near 2^53, its axis would have no two ticks. */
static void a_line_with_a_step_above_the_limit_counts_as_bad(void **unused)
{
    (void)unused;
    History h =
        read_text(TRAIN("1000000000", "2") TRAIN("1000000001", "2") TRAIN("9007199254740992", "2"));
    assert_int_equal(h.n_train, 1);
    assert_int_equal(h.bad_lines, 2);
    history_free(&h);
}

/* At step 2^53 a double cannot represent the next step, so a loop over the ticks might not end. */
static void a_plot_with_the_largest_step_numbers_terminates(void **unused)
{
    (void)unused;
    TrainPoint point = {.step = (int64_t)1 << 53, .loss = 2};
    Curve curve = {&point, 1, sizeof point, offsetof(TrainPoint, loss)};
    Plot plot = {.title = "t",
                 .unit = "u",
                 .curve = &curve,
                 .n_curves = 1,
                 .most = 10,
                 .first_step = point.step,
                 .last_step = point.step};
    char *text;
    size_t bytes;
    FILE *to = text_stream(&text, &bytes);
    assert_true(plot_print(to, &plot));
    fclose(to);
    assert_true(bytes < 10000);
    free(text);
}

/* A line of 64 MiB is skipped, and is never held in memory as a whole. */
static void a_very_long_line_takes_no_memory(void **unused)
{
    (void)unused;
    struct rusage before, after;
    FILE *file = tmpfile();
    assert_non_null(file);
    assert_int_equal(ftruncate(fileno(file), 64 << 20), 0);
    fseek(file, 0, SEEK_END);
    fputs("\n" TRAIN("1", "2"), file);
    rewind(file);
    getrusage(RUSAGE_SELF, &before);
    History h;
    history_read_stream(&h, file);
    getrusage(RUSAGE_SELF, &after);
    assert_int_equal(h.bad_lines, 1);
    assert_int_equal(h.n_train, 1);
    assert_true(after.ru_maxrss - before.ru_maxrss < 32 << 10); /* in KiB */
    history_free(&h);
    fclose(file);
}

static void randomly_changed_metrics_never_crash_the_reader_or_the_page(void **unused)
{
    (void)unused;
    static const char valid[] = START("0") TRAIN("1", "2.5") SPEED("1", "10") VAL("1", "3")
        SAMPLE("1", "a") START("1") TRAIN("2", "1e9") TRAIN("3", "null");
    fuzz_replay(fuzz_metrics, valid, sizeof valid - 1, 71, 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_very_long_line_takes_no_memory), /* first, because getrusage reports the
                                                               maximum so far */
        cmocka_unit_test(a_line_with_a_step_above_the_limit_counts_as_bad),
        cmocka_unit_test(a_plot_with_the_largest_step_numbers_terminates),
        cmocka_unit_test(the_table_has_all_figures_of_a_step_in_one_row),
        cmocka_unit_test(each_evaluation_set_has_its_own_columns_and_plot),
        cmocka_unit_test(a_run_name_with_commas_or_quotes_is_quoted_in_csv),
        cmocka_unit_test(the_last_of_several_lines_about_a_step_is_used),
        cmocka_unit_test(lines_that_cannot_be_read_are_counted),
        cmocka_unit_test(exposed_communication_is_read_as_a_part_of_the_time),
        cmocka_unit_test(a_page_escapes_every_text_of_a_run),
        cmocka_unit_test(axis_labels_have_no_more_decimals_than_the_tick_distance_needs),
        cmocka_unit_test(a_plot_has_a_gap_where_a_loss_is_not_finite),
        cmocka_unit_test(a_page_stays_within_its_size_limit_however_long_the_runs_are),
        cmocka_unit_test(randomly_changed_metrics_never_crash_the_reader_or_the_page),
    };
    return cmocka_run_group_tests_name("report", tests, NULL, NULL);
}
