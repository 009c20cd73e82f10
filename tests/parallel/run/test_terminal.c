/* test_terminal.c -- tests of a run's output in a terminal: its lines fit, messages are folded and
 * coloured, the live line is erased at the end, and long work shows its progress. */
#include "model/core/log.h"
#include "tests/parallel/run/slow_rank.h"
#include "tests/support/trainer/run_fixture.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { COLUMNS = 80, MOST_LINES = 400, CELLS = 2048 };

/* The text on the screen, including the lines that have scrolled off it. */
typedef struct {
    char line[MOST_LINES][CELLS];
    int lines;   /* number of finished lines; the cursor is in line[lines] */
    int redrawn; /* how many times a line was overwritten from its start */
} Screen;

/* Interprets the output of the program: carriage returns, line feeds, "erase to end of line" and
 * colours. */
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

/* Returns the text on the screen with single spaces instead of the folds; the caller frees. */
static char *unfolded(const Screen *s)
{
    char *text = calloc(MOST_LINES, CELLS), *to = text;
    assert_non_null(text);
    for (int i = 0; i <= s->lines; i++)
        for (const char *p = s->line[i] + strspn(s->line[i], " "); *p || p[-1] != ' '; p++) {
            *to++ = *p ? *p : ' ';
            if (*p == '\0') break;
        }
    return text;
}

/* Returns whether the text is on the screen, possibly folded. */
static bool screen_says(const Screen *s, const char *text)
{
    char *all = unfolded(s);
    bool found = strstr(all, text) != NULL;
    free(all);
    return found;
}

/* Fails unless every line is narrower than the terminal. */
static void fits(const Screen *s)
{
    for (int i = 0; i <= s->lines; i++)
        if (strlen(s->line[i]) >= (size_t)disturbance.columns)
            fail_msg("%zu columns: %s", strlen(s->line[i]), s->line[i]);
}

/* Runs the program in a terminal and returns the final screen. Sets *sent to its raw output. The
 * caller frees both. */
static Screen *watch_run(const char *run, const char *const *sets, int code, char **sent)
{
    Screen *s = calloc(1, sizeof *s);
    assert_non_null(s);
    if (disturbance.columns == 0) disturbance.columns = COLUMNS;
    *sent = run_expecting(run, sets, code);
    screen_show(s, *sent);
    return s;
}

static void test_the_lines_of_a_run_fit_a_terminal_of_80_columns(void **state)
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
    assert_true(screen_has(s, "       6 ") && screen_has(s, " seen/checkpoints/step_00000006"));
    free(sent);
    free(s);
}

/* What a command prints for a run, with the labels of lines that are folded. */
static void test_the_lines_of_commands_fit_a_terminal_of_80_columns(void **state)
{
    (void)state;
    static const struct {
        const char *const arguments[4];
        const char *label, *next; /* the beginnings of a folded line and of the line after it */
    } cases[] = {{{"ckpt", "inspect", "seen"}, "machine     {", "            "},
                 {{"data", "corpora"}, "1 prepared text in ", "    "},
                 {{"doctor"}, "ok  ranks         threads", "                  "},
                 {{"--help", "exit-codes"}, "  76  a peer ", "      "}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Screen *s = calloc(1, sizeof *s);
        assert_non_null(s);
        disturbance = (Disturbance){.columns = COLUMNS};
        char *sent = command_expecting(cases[i].arguments, 0);
        screen_show(s, sent);
        fits(s);
        int at = 0;
        while (at < s->lines && strncmp(s->line[at], cases[i].label, strlen(cases[i].label)) != 0)
            at++;
        assert_memory_equal(s->line[at + 1], cases[i].next, strlen(cases[i].next));
        assert_int_not_equal(s->line[at + 1][strlen(cases[i].next)], ' ');
        free(sent);
        free(s);
    }
}

static void count(void)
{
    Progress p = progress_begin();
    progress_print(&p, "too early");
    p.every = 0;
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

static void work_long(void)
{
    enum { MICROSECONDS = 1700000 };
    Progress p = progress_begin();
    progress_print(&p, "reading all");
    usleep(MICROSECONDS); /* as if one call took so long */
    log_notice("a file is empty");
    usleep(MICROSECONDS / 2);
    error_print(EXIT_BUG, "a file is damaged");
    usleep(MICROSECONDS / 2);
    progress_end(&p);
    exit(0);
}

/* The line is drawn again, with the time so far, while the work is busy, and after a message. It is
 * not drawn after an error message, which may be the last line of the program. */
static void test_the_live_line_goes_on_while_the_work_is_busy(void **state)
{
    (void)state;
    char *sent;
    disturbance = (Disturbance){.first = work_long, .dry = true};
    Screen *s = watch_run("long", NULL, 0, &sent);
    const char *notice = strstr(sent, "notice: a file is empty"),
               *error = strstr(sent, "error[70] a file is damaged");
    const char *drawn = strstr(sent, "  reading all, 0:0");
    if (!drawn || !notice || !error || drawn > notice || strstr(notice, "reading all") == NULL ||
        strstr(error, "reading all") != NULL)
        fail_msg("%s", sent);
    assert_string_equal(s->line[0], "notice: a file is empty");
    assert_string_equal(s->line[1], "error[70] a file is damaged");
    assert_string_equal(s->line[2], "");
    free(sent);
    free(s);
    /* In a pipe so short a work shows nothing. */
    disturbance.columns = 0;
    sent = run_expecting("long", NULL, 0);
    assert_null(strstr(sent, "reading all"));
    free(sent);
}

/* Progress is printed on a terminal when it is due, only by rank 0. At the end of the work its line
 * is erased, whatever is printed next. */
static void test_progress_is_printed_when_due_and_its_line_is_erased(void **state)
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
    run->work.progress.every = 0;
}

/* The progress of long work is shown in the live line, which the next result replaces. */
static void test_progress_of_long_work_uses_the_live_line_only_on_a_terminal(void **state)
{
    (void)state;
    static const struct {
        WorkKind kind;
        int64_t at;
        const char *words;
    } works[] = {{WORK_STEP, 1, "  step 1: micro-batch 2 of 2, "},
                 {WORK_EVALUATION, 3, "  evaluating micro-batch 4 of 5, "},
                 {WORK_SAMPLE, 4, "  sampling token 5 of 6, "}};
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
        /* In a pipe progress is at most a line in 30 seconds. So this short run prints none, and no
         * control characters for a terminal. */
        disturbance.columns = 0;
        disturbance.act = NULL;
        snprintf(run, sizeof run, "pipe-%d", i);
        sent = run_expecting(run, NULL, 0);
        assert_null(strstr(sent, " left"));
        assert_null(strpbrk(sent, "\r\033"));
        free(sent);
    }
}

static void take_minutes(void)
{
    slow_rank = 0;
}

/* Where a command shows its progress. ONCE: on a terminal; it cannot be repeated in a pipe. */
typedef enum { EVERYWHERE, ON_A_TERMINAL, ONCE } Where;

/* Runs the command as if everything took minutes, on a terminal and then in a pipe, and fails
 * unless its progress has all of the texts where it should be shown, and none elsewhere. No live
 * line stays. */
static void shows(const char *const *arguments, Where where, const char *const *texts)
{
    disturbance.first = take_minutes;
    for (disturbance.columns = COLUMNS;; disturbance.columns = 0) {
        bool terminal = disturbance.columns > 0;
        char *sent = command_expecting(arguments, 0);
        for (int i = 0; texts[i]; i++)
            if ((strstr(sent, texts[i]) != NULL) != (terminal || where == EVERYWHERE))
                fail_msg("%s on a %s: \"%s\" in:\n%s", arguments[0], terminal ? "terminal" : "pipe",
                         texts[i], sent);
        Screen *s = calloc(1, sizeof *s);
        assert_non_null(s);
        if (terminal) screen_show(s, sent);
        assert_false(terminal && (screen_has(s, " so far") || screen_has(s, " left")));
        if (!terminal) assert_null(strpbrk(sent, "\r\033"));
        free(s);
        free(sent);
        if (!terminal || where == ONCE) return;
    }
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_all_long_work_says_what_it_does(void **state)
{
    (void)state;
    disturbance = (Disturbance){0};
    shows(LIST("tiny.json", "--resume", "never", "--set", "data.cache=fresh"), EVERYWHERE,
          LIST("  reading the text", "  preparing the text",
               "  allocating memory and initializing the weights", "  step 1: micro-batch 1 of 2",
               "  step 3: micro-batch 2 of 2, last loss ", "  saving step 2",
               "  evaluating micro-batch 5 of 5, ", "  sampling token 1 of 6"));
    shows(LIST("tiny.json", "--resume", "out/tiny/checkpoints/step_00000004", "--out", "on"), ONCE,
          LIST("  reading the checkpoint", "  step 5: micro-batch 1 of 2"));
    shows(LIST("tiny.json", "--dry-run"), EVERYWHERE, LIST("  dry run: a step of 2 x 16 tokens,"));
    shows(LIST("eval", "out/tiny"), EVERYWHERE,
          LIST("  reading the checkpoint", "  evaluating micro-batch 1 of ", " left"));
    shows(LIST("ckpt", "verify", "out/tiny"), EVERYWHERE, LIST("  verifying checkpoint 2 of 4, "));
    shows(LIST("generate", "out/tiny", "--prompt", "light", "--tokens", "3"), ON_A_TERMINAL,
          LIST("  reading the checkpoint", "  reading the prompt"));
    shows(LIST("verify", "tiny.json", "--ranks", "2", "--set", "parallel.timeout=1e8"), EVERYWHERE,
          LIST("  preparing the grid", "  preparing a single rank",
               "  step 3 of 3 on the grid: micro-batch 2 of 2",
               "  step 1 of 3 on a single rank: micro-batch 4 of 4"));
}

/* A user who waits for the first step sees at once what it does, and only on a terminal. */
static void test_the_first_step_is_shown_at_once(void **state)
{
    (void)state;
    char *sent;
    disturbance = (Disturbance){0};
    free(watch_run("first", NULL, 0, &sent));
    assert_non_null(strstr(sent, "  step 1: micro-batch 1 of 2\033[K"));
    assert_null(strstr(sent, "  step 2: micro-batch 1 of 2"));
    free(sent);
}

static void interrupt(Run *run)
{
    be_due(run);
    run_watch(run, &(Work){.kind = WORK_EVALUATION, .done = 3, .all = 5}); /* draws the live line */
    raise(SIGINT);
}

/* The reply to Ctrl-C is on its own line, although the live line was drawn there before; a narrow
 * terminal folds it. */
static void test_the_reply_to_ctrl_c_is_printed_on_its_own_line(void **state)
{
    (void)state;
    static const struct {
        int columns;
        const char *run, *first, *second;
    } cases[] = {{80, "answer", "ending this evaluation; Ctrl-C again quits at once", NULL},
                 {40, "narrow", "ending this evaluation; Ctrl-C again", "    quits at once"}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char *sent;
        disturbance = (Disturbance){.kind = WORK_EVALUATION, .round = 1, .at = 3};
        disturbance.act = interrupt;
        disturbance.columns = cases[c].columns;
        Screen *s = watch_run(cases[c].run, NULL, EXIT_REQUEUE, &sent);
        int found = 0;
        for (int i = 0; i < s->lines; i++)
            if (strcmp(s->line[i], cases[c].first) == 0) {
                found++;
                if (cases[c].second) assert_string_equal(s->line[i + 1], cases[c].second);
            }
        assert_int_equal(found, 1);
        assert_false(screen_has(s, " left"));
        if (cases[c].columns >= COLUMNS) fits(s);
        free(sent);
        free(s);
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Runs the program with a mistake in its command line, in a terminal with so many columns. Returns
 * the screen; sets *sent to its raw output. The caller frees both. */
static Screen *watch_mistake(int columns, char **sent)
{
    Screen *s = calloc(1, sizeof *s);
    assert_non_null(s);
    disturbance = (Disturbance){.columns = columns};
    *sent =
        command_expecting((const char *[]){"generate", "--tokens", "--prompt", NULL}, EXIT_USAGE);
    screen_show(s, *sent);
    return s;
}

/* A message is folded to the terminal's width, at least 40 and at most 140 columns; further lines
 * are indented. Without its folds it is the text that a pipe gets. */
static void test_messages_are_folded_to_the_width_of_the_terminal(void **state)
{
    (void)state;
    static const struct {
        int columns, lines, first; /* lines on the screen, and the length of the first one */
    } cases[] = {{30, 4, 32}, {40, 4, 32}, {80, 2, 69}, {140, 1, 110}, {1000, 1, 110}};
    char *sent, *piped;
    Screen *s = watch_mistake(0, &piped);
    assert_int_equal(s->lines, 1);
    free(s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        s = watch_mistake(cases[i].columns, &sent);
        char *text = unfolded(s);
        assert_memory_equal(text, piped, strlen(piped) - 1);
        assert_int_equal(strlen(s->line[0]), cases[i].first);
        assert_int_equal(s->lines, cases[i].lines);
        for (int k = 1; k < s->lines; k++)
            assert_int_equal(strspn(s->line[k], " "), 4);
        if (cases[i].columns >= 40) fits(s);
        free(text);
        free(sent);
        free(s);
    }
    free(piped);
}

static void test_only_a_terminal_that_shows_colours_gets_them(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value;
        bool colour;
        int columns;
    } cases[] = {{"TERM", "xterm", true, 80},
                 {"NO_COLOR", "", true, 80},
                 {"NO_COLOR", "1", false, 80},
                 {"TERM", "dumb", false, 80},
                 {"TERM", "xterm", false, 0}}; /* the last row leaves TERM as it was */
    char *sent;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv(cases[i].name, cases[i].value, 1);
        free(watch_mistake(cases[i].columns, &sent));
        assert_int_equal(strncmp(sent, "\033[1;31merror[64]", 16) == 0, cases[i].colour);
        assert_int_equal(strchr(sent, '\033') != NULL, cases[i].colour);
        free(sent);
        unsetenv("NO_COLOR");
    }
}

/* ---- the plan -------------------------------------------------------------------------------- */

static void test_a_dry_run_prints_the_passes_over_the_data_and_the_speed(void **state)
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
    assert_true(screen_says(s, "fewer train_steps (ten passes end with step "));
    free(sent);
    free(s);
}

/* Returns the loss that a dry run of four ranks prints, as text; the caller frees it. */
static char *dry_loss(const char *rows, const char *grid, const char *words)
{
    char *sent = command_expecting(LIST("tiny.json", "--dry-run", "--ranks", "4", "--set", rows,
                                        "--set", "model.num_layers=2", "--set", grid),
                                   0);
    char *loss = strstr(sent, "loss ");
    if (strstr(sent, words) == NULL || loss == NULL) fail_msg("not \"%s\" in:\n%s", words, sent);
    loss = strndup(loss, strcspn(loss, "("));
    free(sent);
    return loss;
}

/* On the CPU, each rank of a dry run trains its share of a micro-batch, and the same as if its
 * micro-batch were that small. */
static void test_the_ranks_of_a_dry_run_train_their_share_of_a_micro_batch(void **state)
{
    (void)state;
    static const char *const grids[] = {"parallel.data=4", "parallel={\"tensor\":2,\"pipeline\":2}",
                                        "parallel={\"tensor\":2,\"sequence_parallel\":true}"};
    disturbance = (Disturbance){0};
    for (int i = 0; i < 3; i++) {
        char *share =
                 dry_loss("train_micro_batch_size_per_gpu=5", grids[i], ", 1 of its 5 sequences"),
             *whole = dry_loss("train_micro_batch_size_per_gpu=1", grids[i], ", loss ");
        assert_string_equal(share, whole);
        free(share);
        free(whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_lines_of_a_run_fit_a_terminal_of_80_columns),
        cmocka_unit_test(test_the_lines_of_commands_fit_a_terminal_of_80_columns),
        cmocka_unit_test(test_progress_of_long_work_uses_the_live_line_only_on_a_terminal),
        cmocka_unit_test(test_progress_is_printed_when_due_and_its_line_is_erased),
        cmocka_unit_test(test_the_live_line_goes_on_while_the_work_is_busy),
        cmocka_unit_test(test_all_long_work_says_what_it_does),
        cmocka_unit_test(test_the_first_step_is_shown_at_once),
        cmocka_unit_test(test_the_reply_to_ctrl_c_is_printed_on_its_own_line),
        cmocka_unit_test(test_messages_are_folded_to_the_width_of_the_terminal),
        cmocka_unit_test(test_only_a_terminal_that_shows_colours_gets_them),
        cmocka_unit_test(test_a_dry_run_prints_the_passes_over_the_data_and_the_speed),
        cmocka_unit_test(test_the_ranks_of_a_dry_run_train_their_share_of_a_micro_batch),
    };
    unsetenv("NO_COLOR");
    setenv("TERM", "xterm", 1);
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
