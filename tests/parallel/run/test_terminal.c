/* test_terminal.c -- tests of a run's output in a terminal: its lines fit, messages are folded and
 * coloured, a reply to a signal has its own line; and what a dry run prints. */
#include "tests/support/trainer/run_fixture.h"
#include "tests/support/trainer/screen.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_the_lines_of_a_run_fit_a_terminal_of_80_columns(void **state)
{
    (void)state;
    disturbance = (Disturbance){0};
    char *sent;
    Screen *s = screen_of_run("seen",
                              (const char *[]){"wall_clock_breakdown=true", "fp16.enabled=true",
                                               "memory_breakdown=true", NULL},
                              0, &sent);
    screen_fits(s);
    assert_true(screen_has(s, "    step   tokens     loss       lr    gnorm   scale    tok/s"));
    assert_true(screen_has(s, "       2      val   "));
    assert_true(screen_has(s, "next    ./train generate seen --prompt"));
    assert_non_null(strstr(sent, "\033[1m")); /* a terminal has colours */
    free(sent);
    memset(s, 0, sizeof *s);
    sent = command_expecting((const char *[]){"ckpt", "list", "seen", NULL}, 0);
    screen_show(s, sent);
    screen_fits(s);
    assert_true(screen_has(s, "in seen/checkpoints:") && screen_has(s, "step_00000006   "));
    free(sent);
    free(s);
}

/* Tests the output of several commands. In each case the line that begins with `label` is
 * folded. */
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
        screen_fits(s);
        int at = 0;
        while (at < s->lines && strncmp(s->line[at], cases[i].label, strlen(cases[i].label)) != 0)
            at++;
        assert_memory_equal(s->line[at + 1], cases[i].next, strlen(cases[i].next));
        assert_int_not_equal(s->line[at + 1][strlen(cases[i].next)], ' ');
        free(sent);
        free(s);
    }
}

static void interrupt(Run *run)
{
    run->work.progress.every = 0; /* each text is printed */
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
        Screen *s = screen_of_run(cases[c].run, NULL, EXIT_REQUEUE, &sent);
        int found = 0;
        for (int i = 0; i < s->lines; i++)
            if (strcmp(s->line[i], cases[c].first) == 0) {
                found++;
                if (cases[c].second) assert_string_equal(s->line[i + 1], cases[c].second);
            }
        assert_int_equal(found, 1);
        assert_false(screen_has(s, " left"));
        if (cases[c].columns >= COLUMNS) screen_fits(s);
        free(sent);
        free(s);
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Runs the program with a mistake in its command line, in a terminal with `columns` columns.
 * Returns the screen; sets *sent to its raw output. The caller frees both. */
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
        char *text = screen_unfolded(s);
        assert_memory_equal(text, piped, strlen(piped) - 1);
        assert_int_equal(strlen(s->line[0]), cases[i].first);
        assert_int_equal(s->lines, cases[i].lines);
        for (int k = 1; k < s->lines; k++)
            assert_int_equal(strspn(s->line[k], " "), 4);
        if (cases[i].columns >= 40) screen_fits(s);
        free(text);
        free(sent);
        free(s);
    }
    free(piped);
}

static void test_colours_are_printed_only_on_a_terminal_that_shows_them(void **state)
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
    Screen *s = screen_of_run("dry", NULL, 0, &sent);
    screen_fits(s);
    assert_true(screen_has(s, "batch   2 x 16 tokens x 2 accumulation = 64 tokens a step"));
    assert_true(screen_has(s, "        7 steps = 448 tokens = 0."));
    assert_true(screen_has(s, " passes over "));
    assert_true(screen_has(s, "speed   about "));
    assert_true(screen_has(s, "7 steps and their evaluations take about "));
    assert_false(screen_has(s, "warning"));
    assert_false(is_there("dry"));
    free(sent);
    free(s);
    s = screen_of_run("dry", (const char *[]){"train_steps=1000000", NULL}, 0, &sent);
    screen_fits(s);
    assert_true(screen_has(s, "        1,000,000 steps = 64.00 M tokens = "));
    assert_true(screen_has(s, "warning: the run reads its "));
    assert_true(screen_says(s, "fewer train_steps (ten passes end with step "));
    free(sent);
    free(s);
}

/* Returns the loss that a dry run of four ranks prints, as text; the caller frees it. */
static char *dry_loss(const char *rows, const char *grid, const char *words)
{
    char *sent =
        command_expecting((const char *[]){"tiny.json", "--dry-run", "--ranks", "4", "--set", rows,
                                           "--set", "model.num_layers=2", "--set", grid, NULL},
                          0);
    char *loss = strstr(sent, "loss ");
    if (strstr(sent, words) == NULL || loss == NULL) fail_msg("not \"%s\" in:\n%s", words, sent);
    loss = strndup(loss, strcspn(loss, "("));
    free(sent);
    return loss;
}

/* On the CPU, each rank of a dry run trains only its share of a micro-batch. The printed loss is
 * that of a config whose micro-batch has the size of the share. */
static void test_each_rank_of_a_dry_run_trains_its_share_of_a_micro_batch(void **state)
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
        cmocka_unit_test(test_the_reply_to_ctrl_c_is_printed_on_its_own_line),
        cmocka_unit_test(test_messages_are_folded_to_the_width_of_the_terminal),
        cmocka_unit_test(test_colours_are_printed_only_on_a_terminal_that_shows_them),
        cmocka_unit_test(test_a_dry_run_prints_the_passes_over_the_data_and_the_speed),
        cmocka_unit_test(test_each_rank_of_a_dry_run_trains_its_share_of_a_micro_batch),
    };
    unsetenv("NO_COLOR");
    setenv("TERM", "xterm", 1);
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
