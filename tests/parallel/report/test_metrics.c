/* test_metrics.c -- metrics.jsonl keeps all digits and can be cut back, and the console prints
 * plain lines to a pipe. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/json.h"
#include "parallel/report/metrics_file.h"
#include "tests/support/files/scratch.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

/* A new folder for a run's files, and a console that writes to memory. */
typedef struct {
    char folder[64];
    FILE *to;
    char *shown;
    size_t n;
    Metrics *metrics;
} Bench;

static char *read_file(const char *folder, const char *name)
{
    char *path = text_format("%s/%s", folder, name);
    char *text = take_text(path);
    assert_non_null(text);
    free(path);
    return text;
}

static void write_file(const char *folder, const char *name, const char *text)
{
    char *path = text_format("%s/%s", folder, name);
    put_text(path, text);
    free(path);
}

static void bench_open(Bench *b)
{
    *b = (Bench){.folder = "/tmp/test-metrics-XXXXXX"};
    assert_non_null(mkdtemp(b->folder));
    b->to = open_memstream(&b->shown, &b->n);
}

static void bench_metrics(Bench *b, MetricsOptions options)
{
    char err[512] = "";
    options.run_folder = b->folder;
    options.to = b->to;
    if (!metrics_open(&b->metrics, &options, err, sizeof err)) fail_msg("%s", err);
}

static void bench_close(Bench *b)
{
    metrics_close(b->metrics);
    fclose(b->to);
    free(b->shown);
    char *command = text_format("rm -rf %s", b->folder);
    assert_int_equal(system(command), 0);
    free(command);
}

static StepRecord step_record(int64_t step, double loss)
{
    return (StepRecord){.step = step,
                        .updates = step - 1,
                        .samples = 16 * step,
                        .tokens = 512 * step,
                        .skipped = 1,
                        .loss = loss,
                        .lr = 1e-3 / 3,
                        .grad_norm = 0.1,
                        .loss_scale = 1,
                        .applied = true};
}

static int count_of(const char *text, const char *pattern)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, pattern)) != NULL; at++)
        n++;
    return n;
}

/* Returns the number after a key in the first line that has it. */
static double number_after(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    assert_non_null(at);
    return strtod(at + strlen(key), NULL);
}

static void metrics_lines_keep_all_digits_of_a_loss(void **unused)
{
    (void)unused;
    Bench b;
    bench_open(&b);
    bench_metrics(&b, (MetricsOptions){.pace.train_steps = 10, .resumed_step = -1, .attempt = 3});
    const double losses[] = {1.0 / 3, 5.7147180531173944,   DBL_MIN,
                             DBL_MAX, 0x1.fffffffffffffp-1, 5e-324};
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) {
        StepRecord r = step_record((int64_t)i + 1, losses[i]);
        metrics_step(b.metrics, &r);
    }
    char *text = read_file(b.folder, "metrics.jsonl"), *line = text;
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) {
        double got = number_after(line, "\"loss\": ");
        if (memcmp(&got, &losses[i], sizeof got) != 0)
            fail_msg("loss %zu: %a written, %a read", i, losses[i], got);
        assert_true(number_after(line, "\"step\": ") == (double)(i + 1));
        assert_true(number_after(line, "\"samples\": ") == 16.0 * (double)(i + 1));
        assert_true(number_after(line, "\"attempt\": ") == 3);
        assert_true(fabs(number_after(line, "\"t\": ") - wall_seconds_now()) < 100);
        line = strchr(line, '\n') + 1;
    }
    assert_string_equal(line, "");
    free(text);
    bench_close(&b);
}

static void a_number_that_json_cannot_express_is_null_and_flagged(void **unused)
{
    (void)unused;
    const double odd[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        Bench b;
        bench_open(&b);
        bench_metrics(&b, (MetricsOptions){.pace.train_steps = 10, .resumed_step = -1});
        StepRecord r = step_record(1, odd[i]);
        metrics_step(b.metrics, &r);
        char *text = read_file(b.folder, "metrics.jsonl");
        assert_non_null(strstr(text, "\"loss\": null"));
        assert_non_null(strstr(text, "\"nonfinite\": true"));
        assert_null(strstr(text, "nan"));
        assert_null(strstr(text, "inf,"));
        free(text);
        bench_close(&b);
    }
}

/* Reports every event of a run, with text that tries to break out of its line. */
static void all_events(Metrics *m)
{
    SpeedRecord speed = {
        .seconds = 0.5, .steps = 5, .tokens = 2560, .flops_per_token = 1e6, .forward = -1};
    EvalRecord eval = {.step = 6,
                       .targets = 100,
                       .bytes = 300,
                       .loss = 2.5,
                       .bits_per_byte = 1.25,
                       .seconds = 0.1};
    metrics_start(m, "\"name\": \"x\"");
    for (int i = 1; i <= 6; i++) {
        StepRecord r = step_record(i, 3.0);
        metrics_step(m, &r);
        metrics_live(m, &r, 0.1);
    }
    metrics_report(m, &speed);
    EvalRecord sets[] = {
        {.set = "code", .step = 6, .targets = 1234, .loss = 1.75, .bits_per_byte = -1},
        {.set = "news", .step = 6, .targets = 7, .bytes = 9, .loss = NAN, .bits_per_byte = 0.5}};
    metrics_eval(m, &eval, sets, 2);
    metrics_sample(m, 6, 0, "a \"b\"\n",
                   "\x1b[31mred\r\xff\xc3\xa9\x07\xc2\x9b {}\n\"step\": 99, \xe2\x82");
    metrics_saved(m, &(SaveRecord){.at = {.step = 6},
                                   .seconds = 0.25,
                                   .stall = 0.25,
                                   .path = "out/x/checkpoints/step_00000006"});
    metrics_note(m, "end", 6, "done \\ \t");
}

static void every_line_is_an_object(const char *text, int lines)
{
    int n = 0;
    for (const char *line = text; *line; n++) {
        const char *end = strchr(line, '\n');
        assert_non_null(end);
        char err[256] = "";
        Json json;
        size_t at;
        char *copy = strndup(line, (size_t)(end - line));
        if (!json_parse(&json, copy, strlen(copy), err, sizeof err, &at))
            fail_msg("%s: %s", err, copy);
        json_free(&json);
        free(copy);
        line = end + 1;
    }
    assert_int_equal(n, lines);
}

static void hostile_text_cannot_break_out_of_its_json_line(void **unused)
{
    (void)unused;
    Bench b;
    bench_open(&b);
    bench_metrics(&b, (MetricsOptions){.pace.train_steps = 10, .resumed_step = -1});
    all_events(b.metrics);
    char *text = read_file(b.folder, "metrics.jsonl");
    every_line_is_an_object(text, 14);
    /* The lines of the sets come first, so a step that has the line "val" has the lines of all
     * sets. */
    const char *code = strstr(text,
                              "\"set\": \"code\", \"loss\": 1.75, \"targets\": 1234, \"bytes\": 0"),
               *news = strstr(text, "\"set\": \"news\", \"loss\": null, \"bits_per_byte\": 0.5"),
               *val = strstr(text, "{\"event\": \"val\", ");
    assert_true(code && news && val && code < news && news < val);
    assert_non_null(strstr(text, "\\u001b[31mred\\r\xEF\xBF\xBD\xc3\xa9"));
    free(text);
    bench_close(&b);
}

static void a_pipe_gets_plain_lines_without_escape_codes(void **unused)
{
    (void)unused;
    Bench b;
    bench_open(&b);
    bench_metrics(&b, (MetricsOptions){.pace.train_steps = 10, .resumed_step = -1});
    all_events(b.metrics);
    fflush(b.to);
    assert_null(strchr(b.shown, '\r'));
    assert_null(strchr(b.shown, '\033'));
    assert_non_null(strstr(b.shown, "\\x1b[31mred\\x0d\\xff\xc3\xa9\\x07\\xc2\\x9b"));
    assert_non_null(strstr(b.shown, "1.2500 bits per byte"));
    const char *val = strstr(b.shown, "     val   2.5000   1.2500 bits per byte   (0.1 s)\n");
    assert_non_null(val);
    assert_non_null(strstr(val, "\n       6     code   1.7500   1,234 targets\n"
                                "       6     news      nan   0.5000 bits per byte   7 targets"));
    assert_non_null(strstr(b.shown, "5,120"));
    bench_close(&b);
}

static void a_terminal_gets_a_live_line_and_colours_unless_no_color(void **unused)
{
    (void)unused;
    Bench b;
    bench_open(&b);
    unsetenv("NO_COLOR");
    setenv("TERM", "xterm", 1);
    bench_metrics(&b,
                  (MetricsOptions){.pace.train_steps = 10, .resumed_step = -1, .terminal = true});
    all_events(b.metrics);
    fflush(b.to);
    assert_true(count_of(b.shown, "\r") >= 6);
    assert_non_null(strstr(b.shown, "step 6 of 10 (60 %)"));
    assert_int_equal(count_of(b.shown, "\033[1m"), 4);
    bench_close(&b);
    bench_open(&b);
    setenv("NO_COLOR", "1", 1);
    bench_metrics(&b,
                  (MetricsOptions){.pace.train_steps = 10, .resumed_step = -1, .terminal = true});
    all_events(b.metrics);
    fflush(b.to);
    assert_int_equal(count_of(b.shown, "\033[1m"), 0);
    unsetenv("NO_COLOR");
    bench_close(&b);
}

static void in_json_mode_the_console_prints_only_json_lines(void **unused)
{
    (void)unused;
    Bench b;
    bench_open(&b);
    bench_metrics(&b, (MetricsOptions){.pace.train_steps = 10, .resumed_step = -1, .json = true});
    all_events(b.metrics);
    fflush(b.to);
    every_line_is_an_object(b.shown, 9);
    bench_close(&b);
}

/* A file of ten steps is truncated at many positions and resumed at step 6: the complete lines up
 * to step 6 remain, and the totals continue from them. */
static void a_resumed_run_cuts_a_truncated_metrics_file_back_to_its_checkpoint(void **unused)
{
    (void)unused;
    Bench b;
    bench_open(&b);
    bench_metrics(&b, (MetricsOptions){.pace.train_steps = 10, .resumed_step = -1});
    for (int i = 1; i <= 10; i++) {
        StepRecord r = step_record(i, 1.0 / i);
        metrics_step(b.metrics, &r);
    }
    metrics_close(b.metrics);
    char *whole = read_file(b.folder, "metrics.jsonl");
    size_t bytes = strlen(whole);
    for (size_t cut = 0; cut <= bytes; cut++) {
        if (cut % 53 != 0 && whole[cut] != '\n')
            continue; /* positions include those right before a line feed */
        char *torn = strndup(whole, cut);
        write_file(b.folder, "metrics.jsonl", torn);
        bench_metrics(&b, (MetricsOptions){.pace.train_steps = 10, .resumed_step = 6});
        metrics_note(b.metrics, "resume", 6, "here");
        metrics_close(b.metrics);
        char *text = read_file(b.folder, "metrics.jsonl");
        int lines = count_of(torn, "\n"), kept = count_of(text, "\"event\": \"train\"");
        if (kept != (lines < 6 ? lines : 6))
            fail_msg("cut at %zu: %d whole lines, %d kept", cut, lines, kept);
        const char *last = strstr(text, "\"resume\"");
        assert_non_null(last);
        assert_true(number_after(last, "\"tokens\": ") == 512.0 * kept);
        free(text);
        free(torn);
    }
    b.metrics = NULL;
    free(whole);
    bench_close(&b);
}

static void a_resumed_run_drops_lines_that_cannot_be_parsed(void **unused)
{
    (void)unused;
    Bench b;
    bench_open(&b);
    write_file(b.folder, "metrics.jsonl",
               "\n{}\nrubbish\n{\"step\": }\n{\"event\": \"train\", \"step\": "
               "99999999999999999999, \"updates\": 1}\n"
               "{\"event\": \"train\", \"step\": 2, \"updates\": 2, \"samples\": 3, \"tokens\": 4, "
               "\"skipped\": 5}\n");
    bench_metrics(&b, (MetricsOptions){.pace.train_steps = 10, .resumed_step = 2});
    char *text = read_file(b.folder, "metrics.jsonl");
    assert_string_equal(text, "{\"event\": \"train\", \"step\": 2, \"updates\": 2, \"samples\": 3, "
                              "\"tokens\": 4, \"skipped\": 5}\n");
    free(text);
    bench_close(&b);
}

/* While writing fails, metrics_flush reports it; when there is room again, no line is missing. */
static void a_full_disk_leaves_no_gap_in_metrics(void **unused)
{
    (void)unused;
    Bench b;
    char err[512] = "";
    struct rlimit old;
    bench_open(&b);
    bench_metrics(&b, (MetricsOptions){.pace.train_steps = 5000, .resumed_step = -1});
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    struct rlimit small = {.rlim_cur = 1000, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (int i = 1; i <= 1000; i++) {
        StepRecord r = step_record(i, 2.0);
        metrics_step(b.metrics, &r);
    }
    bool flushed = metrics_flush(b.metrics, err, sizeof err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_false(flushed);
    assert_non_null(strstr(err, "metrics.jsonl"));
    assert_true(metrics_flush(b.metrics, err, sizeof err));
    char *text = read_file(b.folder, "metrics.jsonl");
    every_line_is_an_object(text, 1000);
    free(text);
    bench_close(&b);
}

static void opening_metrics_in_a_missing_folder_is_an_error(void **unused)
{
    (void)unused;
    char err[512] = "";
    Metrics *m = NULL;
    MetricsOptions options = {.run_folder = "/nonexistent/run", .resumed_step = -1};
    assert_false(metrics_open(&m, &options, err, sizeof err));
    assert_non_null(strstr(err, "/nonexistent/run/metrics.jsonl"));
    assert_null(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metrics_lines_keep_all_digits_of_a_loss),
        cmocka_unit_test(a_number_that_json_cannot_express_is_null_and_flagged),
        cmocka_unit_test(hostile_text_cannot_break_out_of_its_json_line),
        cmocka_unit_test(a_pipe_gets_plain_lines_without_escape_codes),
        cmocka_unit_test(a_terminal_gets_a_live_line_and_colours_unless_no_color),
        cmocka_unit_test(in_json_mode_the_console_prints_only_json_lines),
        cmocka_unit_test(a_resumed_run_cuts_a_truncated_metrics_file_back_to_its_checkpoint),
        cmocka_unit_test(a_resumed_run_drops_lines_that_cannot_be_parsed),
        cmocka_unit_test(a_full_disk_leaves_no_gap_in_metrics),
        cmocka_unit_test(opening_metrics_in_a_missing_folder_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
