/* test_terminal.c -- what a person sees of a run in a terminal of 80 columns: rows that fit it, one
 * live line that leaves nothing behind, and words about work that takes long. */
#include "model/core/log.h"
#include "tests/support/run_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Steps, what is due before the last one, and all of it once at the end. */
static void the_time_left_counts_what_is_due(void **unused)
{
    (void)unused;
    Pace p = {.train_steps = 100,
              .eval_interval = 10,
              .sample_interval = 25,
              .save_interval = 40,
              .eval_seconds = -1,
              .sample_seconds = -1,
              .save_seconds = -1,
              .eval_steps = 3};
    /* Evaluations at 10, 20, ... 90 and 100, of 3 steps of 2 seconds each. */
    assert_true(pace_seconds_left(&p, 0, 2) == 200 + 10 * 6);
    p.eval_seconds = 5;
    p.sample_seconds = 7;
    p.save_seconds = 11;
    assert_true(pace_seconds_left(&p, 0, 2) == 200 + 10 * 5 + 4 * 7 + 3 * 11);
    /* What is due at this step is still to come: it has just been made. */
    assert_true(pace_seconds_left(&p, 50, 2) == 100 + 6 * 5 + 3 * 7 + 2 * 11);
    assert_true(pace_seconds_left(&p, 51, 2) == 98 + 5 * 5 + 2 * 7 + 2 * 11);
    assert_true(pace_seconds_left(&p, 100, 2) == 5 + 7 + 11);
    p.eval_interval = p.sample_interval = p.save_interval = 0;
    assert_true(pace_seconds_left(&p, 50, 2) == 100 + 5 + 7 + 11);
}

/* Of four micro-batches: the update comes once, and up to stage 1 communication does. */
static void test_a_step_from_one_micro_batch(void **state)
{
    (void)state;
    const StepTimes one = {.micro_batch = 8, .update = 1, .communication = 3};
    for (int64_t stage = 0; stage <= 3; stage++)
        assert_true(pace_step_seconds(&one, 4, stage) == 32 + 1 + (stage < 2 ? 3 : 12));
    assert_true(pace_step_seconds(&one, 1, 3) == 12);
}

/* After five steps, or as many as take five seconds, or when there is none left. */
static void the_time_left_is_known_soon(void **unused)
{
    (void)unused;
    static const struct {
        int64_t made, all;
        double seconds; /* a step */
        const char *eta;
    } cases[] = {{4, 5, 0.4, "-"},    {4, 104, 1.2, "-"}, {5, 15, 0.4, "0:04"},
                 {1, 101, 4.9, "-"},  {1, 11, 5, "0:50"}, {2, 12, 2.5, "0:25"},
                 {1, 1, 0.1, "0:00"}, {5, 5, 0.1, "0:00"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *shown = NULL, err[256];
        size_t n = 0;
        Metrics *m = NULL;
        MetricsOptions options = {.pace = {.train_steps = 100 + cases[i].all,
                                           .eval_seconds = -1,
                                           .sample_seconds = -1,
                                           .save_seconds = -1},
                                  .resumed_step = 100,
                                  .to = open_memstream(&shown, &n)};
        assert_true(metrics_open(&m, &options, err, sizeof err));
        StepRecord r = {.step = 100 + cases[i].made};
        SpeedRecord s = {.seconds = cases[i].seconds, .steps = 1, .forward = -1};
        metrics_step(m, &r);
        metrics_report(m, &s);
        fflush(options.to);
        char *eta = strrchr(shown, ' ') + 1;
        eta[strcspn(eta, "\n")] = '\0';
        if (strcmp(eta, cases[i].eta) != 0)
            fail_msg("case %zu: \"%s\", not \"%s\"", i, eta, cases[i].eta);
        metrics_close(m);
        fclose(options.to);
        free(shown);
    }
}

/* Of four ranks: each has a quarter of the tokens a second and of the operations behind them; work
 * is told a step. */
static void a_rank_has_its_share_of_the_rate(void **unused)
{
    (void)unused;
    char *shown = NULL, err[256];
    size_t n = 0;
    Metrics *m = NULL;
    StepRecord row = {.step = 2, .loss = 5.5, .lr = 4e-3};
    MetricsOptions options = {
        .pace = {.train_steps = 10}, .resumed_step = -1, .to = open_memstream(&shown, &n)};
    assert_true(metrics_open(&m, &options, err, sizeof err));
    SpeedRecord speed = {.seconds = 2,
                         .steps = 2,
                         .tokens = 4000,
                         .flops_per_token = 6e6,
                         .forward = 1,
                         .ranks = 4,
                         .slowest = 3,
                         .mean_work = 0.5,
                         .most_work = 0.75};
    metrics_step(m, &row);
    metrics_report(m, &speed);
    fflush(options.to);
    if (strstr(shown, "a rank:  500 tok/s  3.0 G FLOP/s  work 250.00 ms a step,") == NULL ||
        strstr(shown, "most on rank 3: 375.00") == NULL)
        fail_msg("%s", shown);
    metrics_close(m);
    fclose(options.to);
    free(shown);
}

/* Header and rows, of small figures and of absurd ones, with and without a column for the scale. */
static void rows_fit_eighty_columns(void **unused)
{
    (void)unused;
    StepRecord rows[] = {{.step = 1, .loss = 5.5, .lr = 4e-3, .loss_scale = 65536},
                         {.step = 99999999, .loss = 2e13},
                         {.step = 7, .loss = -NAN, .grad_norm = -NAN}};
    rows[1].tokens = 999999999999999;
    rows[1].lr = 1.234e-30;
    rows[1].grad_norm = 1.234e+30;
    rows[1].loss_scale = 0x1p120;
    rows[2].loss_scale = 65537.5;
    for (int scale = 0; scale < 2; scale++) {
        char *shown = NULL, err[256];
        size_t n = 0;
        Metrics *m = NULL;
        MetricsOptions options = {.pace = {.train_steps = 100000000},
                                  .resumed_step = -1,
                                  .loss_scale_shown = scale,
                                  .to = open_memstream(&shown, &n)};
        assert_true(metrics_open(&m, &options, err, sizeof err));
        SpeedRecord speed = {.seconds = 1e-5,
                             .steps = 1,
                             .tokens = 123456789,
                             .flops_per_token = 6e6,
                             .forward = 1234.5,
                             .backward = 2345.6,
                             .optimizer = 345.6,
                             .data = 45.6};
        for (int i = 0; i < 3; i++) {
            metrics_step(m, &rows[i]);
            metrics_report(m, &speed);
            EvalRecord eval = {
                .step = rows[i].step, .loss = rows[i].loss, .bits_per_byte = 1.5, .seconds = 12345};
            metrics_eval(m, &eval);
        }
        metrics_sample(m, 7, 0, "In the beginning",
                       " was the word and the word was with "
                       "the other words of the same line");
        char unbroken[401] = "";
        memset(unbroken, 'x', sizeof unbroken - 1);
        metrics_sample(m, 7, 0, "", unbroken);
        metrics_sample(m, 7, 0, "word ", unbroken);
        metrics_saved(m, 7, 0.01, "out/a-name-that-is-long/checkpoints/step_00000007-more");
        fflush(options.to);
        assert_non_null(strstr(shown, "2.00e+13"));
        assert_int_equal(scale, strstr(shown, "2^120") != NULL);
        assert_non_null(strstr(shown, "     nan "));
        assert_null(strstr(shown, "-nan"));
        for (char *line = strtok(shown, "\n"); line; line = strtok(NULL, "\n"))
            if (strlen(line) >= 80) fail_msg("%zu columns: %s", strlen(line), line);
        metrics_close(m);
        fclose(options.to);
        free(shown);
    }
}

/* ---- a terminal ------------------------------------------------------------------------------ */

enum { COLUMNS = 80, MOST_LINES = 400, CELLS = 512 };

/* What the screen and all that scrolled off it hold in the end. */
typedef struct {
    char line[MOST_LINES][CELLS];
    int lines;   /* so many and the one of the cursor */
    int redrawn; /* how often a line was begun anew */
} Screen;

/* Understands what the program sends: returns, line feeds, "erase to the end", colours. */
static void screen_show(Screen *s, const char *text)
{
    int column = 0;
    for (const char *p = text; *p; p++) {
        char *line = s->line[s->lines];
        if (*p == '\r') {
            s->redrawn += p[1] != '\n' && p[1] != '\r';
            column = 0;
        } else if (*p == '\n') {
            assert_true(++s->lines < MOST_LINES);
        } else if (strncmp(p, "\033[K", 3) == 0) {
            line[column] = '\0';
            p += 2;
        } else if (*p == '\033') {
            p += strcspn(p, "m");
            assert_int_equal(*p, 'm');
        } else {
            assert_true((unsigned char)*p >= 32 && column + 1 < CELLS);
            if (line[column] == '\0') line[column + 1] = '\0';
            line[column++] = *p;
        }
    }
}

static bool screen_has(const Screen *s, const char *text)
{
    for (int i = 0; i <= s->lines; i++)
        if (strstr(s->line[i], text)) return true;
    return false;
}

/* Every line but warnings, which are sentences, is narrower than the terminal. */
static void fits(const Screen *s)
{
    for (int i = 0; i <= s->lines; i++)
        if (strlen(s->line[i]) >= COLUMNS && strncmp(s->line[i], "warning: ", 9) != 0)
            fail_msg("%zu columns: %s", strlen(s->line[i]), s->line[i]);
}

/* A run in a terminal; *sent is all it sent, which the caller frees. */
static Screen *watch_run(const char *run, const char *const *sets, int code, char **sent)
{
    Screen *s = calloc(1, sizeof *s);
    assert_non_null(s);
    disturbance.columns = COLUMNS;
    *sent = run_expecting(run, sets, code);
    screen_show(s, *sent);
    return s;
}

static void test_a_run_fits_the_terminal(void **state)
{
    (void)state;
    disturbance = (Disturbance){0};
    char *sent;
    Screen *s = watch_run("seen",
                          (const char *[]){"wall_clock_breakdown=true", "fp16.enabled=true",
                                           "memory_breakdown=true", NULL},
                          0, &sent);
    fits(s);
    assert_true(screen_has(s, "    step   tokens     loss       lr    gnorm   scale    tok/s"));
    assert_true(screen_has(s, "       2      val   "));
    assert_true(screen_has(s, "next    ./train generate seen --prompt"));
    assert_non_null(strstr(sent, "\033[1m")); /* a terminal has colours */
    free(sent);
    memset(s, 0, sizeof *s);
    sent = command_expecting((const char *[]){"ckpt", "list", "seen", NULL}, 0);
    screen_show(s, sent);
    fits(s);
    assert_true(screen_has(s, "       6 ") &&
                screen_has(s, " KiB  seen/checkpoints/step_00000006"));
    free(sent);
    free(s);
}

static void count(void)
{
    Progress p = progress_begin();
    p.next = 1e300;
    progress_print(&p, "too early");
    p.next = 0;
    log_set_level(LOG_NOTICE);
    progress_print(&p, "too quiet");
    log_set_level(LOG_INFO);
    log_set_rank(1, NULL);
    progress_print(&p, "another rank");
    log_set_rank(0, NULL);
    progress_print(&p, "counting %d of %d", 7, 9);
    progress_end(&p);
    puts("over");
}

/* Work is told when it is time, to who listens, by rank 0; its end takes its line away, whatever
 * comes next. */
static void test_progress_ends(void **state)
{
    (void)state;
    char *sent;
    disturbance = (Disturbance){.first = count, .dry = true};
    Screen *s = watch_run("counted", NULL, 0, &sent);
    assert_non_null(strstr(sent, "  counting 7 of 9\033[K"));
    assert_null(strstr(sent, "too "));
    assert_null(strstr(sent, "another rank"));
    assert_string_equal(s->line[0], "over");
    free(sent);
    free(s);
}

static void be_due(Run *run)
{
    run->progress.next = 0;
}

/* Long work is told in the live line, which the next result takes away. */
static void test_work_is_told_and_leaves_nothing(void **state)
{
    (void)state;
    static const struct {
        WorkKind kind;
        int64_t at;
        const char *words;
    } works[] = {{WORK_STEP, 1, "  step 1: micro-batch 1 of 2, "},
                 {WORK_EVALUATION, 3, "  evaluating 3 of 5, "},
                 {WORK_SAMPLE, 4, "  sampling 4 of 6 tokens, "}};
    for (int i = 0; i < 3; i++) {
        char run[32], *sent;
        snprintf(run, sizeof run, "work-%d", i);
        disturbance =
            (Disturbance){.kind = works[i].kind, .at = works[i].at, .act = be_due, .each = true};
        Screen *s = watch_run(run, NULL, 0, &sent);
        if (strstr(sent, works[i].words) == NULL)
            fail_msg("not \"%s\" in:\n%s", works[i].words, sent);
        assert_non_null(strstr(sent, " left\033[K"));
        assert_false(screen_has(s, " left"));
        assert_false(screen_has(s, " of 7 ("));
        assert_true(s->redrawn > 0);
        fits(s);
        free(sent);
        free(s);
        /* In a pipe it is a line a minute: none here, and nothing that only a terminal takes. */
        disturbance.columns = 0;
        disturbance.act = NULL;
        snprintf(run, sizeof run, "pipe-%d", i);
        sent = run_expecting(run, NULL, 0);
        assert_null(strstr(sent, " left"));
        assert_null(strpbrk(sent, "\r\033"));
        free(sent);
    }
}

static void interrupt(Run *run)
{
    be_due(run);
    run_watch(run,
              &(Work){.kind = WORK_EVALUATION, .done = 3, .all = 5}); /* the live line stands */
    raise(SIGINT);
}

/* The answer to Ctrl-C stands in a line of its own, whatever stood there. */
static void test_the_answer_has_its_own_line(void **state)
{
    (void)state;
    char *sent;
    disturbance = (Disturbance){.kind = WORK_EVALUATION, .round = 1, .at = 3, .act = interrupt};
    Screen *s = watch_run("answer", NULL, EXIT_REQUEUE, &sent);
    int found = 0;
    for (int i = 0; i <= s->lines; i++)
        found += strcmp(s->line[i], "ending this evaluation; Ctrl-C again quits at once") == 0;
    assert_int_equal(found, 1);
    assert_false(screen_has(s, " left"));
    fits(s);
    free(sent);
    free(s);
}

/* ---- the plan -------------------------------------------------------------------------------- */

static void test_the_plan_tells_passes_and_speed(void **state)
{
    (void)state;
    char *sent;
    disturbance = (Disturbance){.dry = true};
    Screen *s = watch_run("dry", NULL, 0, &sent);
    fits(s);
    assert_true(screen_has(s, "batch   2 x 16 tokens x 2 accumulation = 64 tokens a step"));
    assert_true(screen_has(s, "        7 steps = 448 tokens = 0."));
    assert_true(screen_has(s, " passes over "));
    assert_true(screen_has(s, "speed   about "));
    assert_true(screen_has(s, "7 steps and their evaluations take about "));
    assert_false(screen_has(s, "warning"));
    assert_false(is_there("dry"));
    free(sent);
    free(s);
    s = watch_run("dry", (const char *[]){"train_steps=1000000", NULL}, 0, &sent);
    fits(s);
    assert_true(screen_has(s, "        1,000,000 steps = 64.00 M tokens = "));
    assert_true(screen_has(s, "warning: the run reads its "));
    assert_true(screen_has(s, "fewer train_steps (ten passes end with step "));
    free(sent);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_step_from_one_micro_batch),
        cmocka_unit_test(the_time_left_counts_what_is_due),
        cmocka_unit_test(the_time_left_is_known_soon),
        cmocka_unit_test(rows_fit_eighty_columns),
        cmocka_unit_test(a_rank_has_its_share_of_the_rate),
        cmocka_unit_test(test_a_run_fits_the_terminal),
        cmocka_unit_test(test_work_is_told_and_leaves_nothing),
        cmocka_unit_test(test_progress_ends),
        cmocka_unit_test(test_the_answer_has_its_own_line),
        cmocka_unit_test(test_the_plan_tells_passes_and_speed),
    };
    unsetenv("NO_COLOR");
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
