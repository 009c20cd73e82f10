/* test_run_loop.c -- tests of evaluations, samples and saves between steps. Each runs the program
 * in a child process and stops or kills it before a certain micro-batch of a certain evaluation, or
 * a certain token of a sample. */
#include "tests/support/trainer/run_fixture.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void die(Run *run)
{
    (void)run;
    raise(SIGKILL);
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* The reference run: the runs of the other tests must have the same final results. */
static void test_an_undisturbed_run_makes_its_steps_evaluations_samples_and_saves(void **state)
{
    (void)state;
    disturbance.act = NULL;
    const char *sets[] = {"checkpoint.async=false", NULL};
    char *said = run_expecting("whole", sets, 0);
    assert_int_equal(lines_of("whole", "train"), 7);
    assert_int_equal(lines_of("whole", "val"), 4);
    assert_int_equal(lines_of("whole", "sample"), 4);
    /* Each evaluation, including the last one, has eval.steps micro-batches. */
    char *val = events("whole", "val");
    int n = 0;
    for (const char *at = val; (at = strstr(at, "\"targets\": 160,")) != NULL; at++)
        n++;
    assert_int_equal(n, 4);
    free(val);
    /* The checkpoint of a step is saved before its evaluation begins. */
    char *saved = strstr(said, "saved   step 2"), *bits = strstr(said, "bits per byte");
    assert_true(saved != NULL && bits != NULL && saved < bits);
    saved = strstr(said, "saved   step 7");
    bits = strstr(said, "bits per byte");
    for (char *next = bits; next && next < strstr(said, "done ");
         next = strstr(next + 1, "bits per"))
        bits = next;
    assert_true(saved != NULL && saved < bits);
    free(said);
}

/* A stop during an evaluation or a sample, at an interval or after the last step. The run ends with
 * exit code 85, its step is saved, and the unfinished work leaves no result. The next start repeats
 * that work, and its results equal those of the undisturbed run. */
static void test_a_run_stopped_in_an_evaluation_or_sample_resumes_to_equal_results(void **state)
{
    (void)state;
    static const struct {
        WorkKind kind;
        int64_t round, at;
        void (*act)(Run *);
        int64_t saved;
        int evaluations, samples; /* number of finished ones */
    } stops[] = {{WORK_EVALUATION, 0, 0, ask_by_signal, 2, 0, 0},
                 {WORK_EVALUATION, 1, 3, ask_by_signal, 4, 1, 1},
                 {WORK_EVALUATION, 1, 4, ask_by_file, 4, 1, 1},
                 {WORK_SAMPLE, 1, 2, ask_by_file, 4, 2, 1},
                 {WORK_EVALUATION, 3, 2, ask_by_file, 7, 3, 3},
                 {WORK_EVALUATION, 3, 4, ask_by_signal, 7, 3, 3}};
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        char run[32], checkpoint[64], result[64];
        snprintf(run, sizeof run, "stop-%zu", i);
        snprintf(checkpoint, sizeof checkpoint, "%s/checkpoints/step_%08d", run,
                 (int)stops[i].saved);
        snprintf(result, sizeof result, "%s/result.json", run);
        disturbance.kind = stops[i].kind;
        disturbance.round = stops[i].round;
        disturbance.at = stops[i].at;
        disturbance.act = stops[i].act;
        free(run_expecting(run, NULL, EXIT_REQUEUE));
        assert_true(is_there(checkpoint));
        assert_false(is_there(result));
        assert_int_equal(lines_of(run, "train"), stops[i].saved);
        assert_int_equal(lines_of(run, "val"), stops[i].evaluations);
        assert_int_equal(lines_of(run, "sample"), stops[i].samples);
        disturbance.act = NULL;
        free(run_expecting(run, NULL, 0));
        assert_true(is_there(result));
        if (stops[i].kind == WORK_EVALUATION) same_runs("whole", run);
    }
}

/* A start first repeats the evaluation or the sample that an earlier stop interrupted. If this
 * start is stopped during that work, too, it makes no step. In the end the run has the results of
 * the undisturbed one. */
static void test_a_resume_stopped_in_its_first_evaluation_or_sample_makes_no_step(void **state)
{
    (void)state;
    static const struct {
        const char *run;
        WorkKind kind;
        int64_t steps;
    } stops[] = {{"again-evaluation", WORK_EVALUATION, 4}, {"again-sample", WORK_SAMPLE, 4}};
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        const char *run = stops[i].run;
        disturbance.kind = stops[i].kind;
        disturbance.round = 1;
        disturbance.at = 2;
        disturbance.act = ask_by_signal;
        free(run_expecting(run, NULL, EXIT_REQUEUE));
        assert_int_equal(lines_of(run, "train"), stops[i].steps);
        disturbance.round = 0;
        for (int again = 0; again < 2; again++) {
            disturbance.act = again ? ask_by_file : ask_by_signal;
            free(run_expecting(run, NULL, EXIT_REQUEUE));
            assert_int_equal(lines_of(run, "train"), stops[i].steps);
        }
        disturbance.act = NULL;
        free(run_expecting(run, NULL, 0));
        same_runs("whole", run);
    }
}

/* If the program is killed during an evaluation, nothing is lost: the step before it is saved.
 * Saves are synchronous here, because an asynchronous one could still be pending then. */
static void test_a_run_killed_in_an_evaluation_resumes_from_the_step_before_it(void **state)
{
    (void)state;
    for (int64_t round = 0; round < 4; round += 3) {
        char *run = text_format("death-%d", (int)round);
        disturbance.kind = WORK_EVALUATION;
        disturbance.round = round;
        disturbance.at = 3;
        disturbance.act = die;
        const char *sets[] = {"checkpoint.async=false", NULL};
        free(run_expecting(run, sets, 128 + SIGKILL));
        disturbance.act = NULL;
        char *said = run_expecting(run, NULL, 0);
        char *from = text_format("resume  step %d from", round == 0 ? 2 : 7);
        if (strstr(said, from) == NULL) fail_msg("not \"%s\" in:\n%s", from, said);
        same_runs("whole", run);
        free(from);
        free(said);
        free(run);
    }
}

/* Returns the text from the last `begin` up to the next `end`, and fails if it is not found; the
 * caller frees it. */
static char *between(const char *text, const char *begin, const char *end)
{
    const char *from = NULL, *next = text;
    while ((next = strstr(next, begin)) != NULL)
        from = next++;
    const char *to = from ? strstr(from, end) : NULL;
    if (to == NULL) fail_msg("no %s ... %s in:\n%s", begin, end, text);
    return strndup(from, (size_t)(to - from));
}

/* Started again, a finished run prints its sample as it did the first time, including bytes that
 * are not UTF-8. */
static void test_a_finished_run_prints_the_same_sample_again(void **state)
{
    (void)state;
    static const char *const sets[] = {"eval.sample_tokens=60", "model.max_position_embeddings=128",
                                       "train_steps=1", NULL};
    disturbance.act = NULL;
    char *first = run_expecting("shown", sets, 0), *again = run_expecting("shown", sets, 0);
    char *sample = between(first, "  sample  ", "done  "),
         *same = between(again, "  sample  ", "done  ");
    assert_non_null(strstr(sample, "\\x"));
    assert_string_equal(sample, same);
    free(first);
    free(again);
    free(sample);
    free(same);
}

/* The command that a finished run suggests next has no --prompt if the prompt is empty or would
 * fill the screen. */
static void test_the_suggested_command_omits_an_empty_or_very_long_prompt(void **state)
{
    (void)state;
    static const char begin[] = "eval.sample_prompt=";
    char set[sizeof begin + 401];
    for (int i = 0; i < 3; i++) {
        char run[16], *line;
        int length = i == 0 ? 0 : 399 + i;
        snprintf(run, sizeof run, "next-%d", i);
        strcpy(set, begin);
        memset(set + sizeof begin - 1, 'x', (size_t)length);
        set[sizeof begin - 1 + (size_t)length] = '\0';
        char *said = run_expecting(run, (const char *[]){"train_steps=1", set, NULL}, 0);
        line = between(said, "next    ", "\n");
        if (i == 1) {
            assert_non_null(strstr(line, "next-1 --prompt xxx"));
        } else {
            assert_null(strstr(line, " --"));
        }
        free(line);
        free(said);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_undisturbed_run_makes_its_steps_evaluations_samples_and_saves),
        cmocka_unit_test(test_a_run_stopped_in_an_evaluation_or_sample_resumes_to_equal_results),
        cmocka_unit_test(test_a_resume_stopped_in_its_first_evaluation_or_sample_makes_no_step),
        cmocka_unit_test(test_a_run_killed_in_an_evaluation_resumes_from_the_step_before_it),
        cmocka_unit_test(test_a_finished_run_prints_the_same_sample_again),
        cmocka_unit_test(test_the_suggested_command_omits_an_empty_or_very_long_prompt),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
