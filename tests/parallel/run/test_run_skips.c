/* test_run_skips.c -- tests of a run with skipped updates: the warning about its checkpoints, and
 * how it ends. */
#include "tests/support/trainer/run_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int count_of(const char *text, const char *pattern)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, pattern)) != NULL; at++)
        n++;
    return n;
}

/* The steps at which the loss scale is so large that all gradients overflow; else it is 1. */
static const bool *too_large;

static void scale_up(Run *run)
{
    run->trainer.state->state.loss_scale = too_large[run->trainer.steps] ? 0x1p60 : 1;
    run->trainer.state->state.loss_seed =
        run->trainer.state->state.loss_scale / run->trainer.constants.nominal_targets;
}

/* Returns the output of an fp16 run in which these steps are skipped and that ends with `code`;
 * `set` are --set options. */
static char *skip_updates(const char *run, const bool *at, const char *const set[2], int code)
{
    too_large = at;
    disturbance = (Disturbance){.kind = WORK_STEP, .act = scale_up, .each = true};
    return run_expecting(run, (const char *[]){"fp16.enabled=true", set[0], set[1], NULL}, code);
}

/* The warning that older checkpoints are kept is printed once until an update is applied again, and
 * only if a checkpoint would otherwise have been removed. */
static void test_the_warning_that_old_checkpoints_stay_is_printed_once(void **state)
{
    (void)state;
    static const bool all[7] = {1, 1, 1, 1, 1, 1, 1}, twice[7] = {0, 1, 1, 0, 0, 1, 1};
    static const char kept[] = "so no older checkpoint is removed\n",
                      each[] = "checkpoint.save_interval=1";
    char *said =
        skip_updates("keep-1", all, (const char *[]){"checkpoint.keep=1", each}, EXIT_DIVERGED);
    says(said, "step 2: updates are being skipped, so no older checkpoint is removed\n");
    assert_int_equal(count_of(said, kept), 1);
    free(said);
    said = skip_updates("keep-7", all, (const char *[]){"checkpoint.keep=7", each}, EXIT_DIVERGED);
    assert_int_equal(count_of(said, kept), 0);
    free(said);
    /* Here no checkpoint is removed in any case. */
    said =
        skip_updates("keep-all", all, (const char *[]){"checkpoint.keep=0", each}, EXIT_DIVERGED);
    assert_int_equal(count_of(said, kept), 0);
    free(said);
    said = skip_updates("keep-twice", twice, (const char *[]){"checkpoint.keep=1", each}, 0);
    says(said, "step 2: updates");
    says(said, "step 6: updates");
    assert_int_equal(count_of(said, kept), 2);
    free(said);
}

/* A run has diverged if its last updates or more than half of all updates were skipped. Started
 * again, it ends with the same error. The skips by which a dynamic loss scale finds its value only
 * cause a warning. */
static void test_a_run_whose_last_or_most_updates_were_skipped_has_diverged(void **state)
{
    (void)state;
    static const char fixed[] = "fp16.loss_scale=1", short_search[] = "fp16.initial_scale_power=2";
    static const struct {
        bool at[7];
        const char *set, *says;
        bool diverged;
    } cases[] = {
        {{1, 1, 1, 1, 1, 1, 1}, fixed, "all 7 updates were skipped", true},
        {{1, 1, 1, 1, 1, 1, 1}, "fp16.hysteresis=9", "all 7 updates were skipped", true},
        {{0, 0, 0, 0, 0, 1, 1}, fixed, "the last 2 updates were skipped", true},
        {{0, 0, 0, 0, 0, 1, 1}, "fp16.hysteresis=1", "the last 2 updates were skipped", true},
        {{0, 0, 0, 0, 0, 1, 1}, "fp16.hysteresis=2", "the last 2 updates were skipped", false},
        {{0, 0, 0, 0, 0, 0, 1}, fixed, "the last update was skipped", true},
        {{0, 0, 0, 0, 0, 0, 1}, "fp16.hysteresis=1", "the last update was skipped", false},
        {{1, 1, 1, 1, 0, 0, 0}, fixed, "4 of 7 updates were skipped", true},
        {{1, 1, 1, 1, 0, 0, 0}, "fp16.hysteresis=2", "4 of 7 updates were skipped", false},
        {{1, 1, 1, 0, 1, 1, 0}, short_search, "5 of 7 updates were skipped", false},
        {{1, 1, 1, 1, 1, 1, 0}, short_search, "6 of 7 updates were skipped", true},
        {{1, 1, 1, 0, 0, 0, 0}, fixed, NULL, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char run[16], text[128];
        snprintf(run, sizeof run, "skips-%zu", i);
        const char *set[2] = {"checkpoint.save_interval=7", cases[i].set};
        char *said = skip_updates(run, cases[i].at, set, cases[i].diverged ? EXIT_DIVERGED : 0);
        snprintf(text, sizeof text,
                 cases[i].diverged ? "step 7 is the last, and %s: " : "warning: %s\n",
                 cases[i].says ? cases[i].says : "");
        if (cases[i].says)
            says(said, text);
        else
            assert_null(strstr(said, "skipped\n"));
        assert_int_equal(strstr(said, "done    7 steps") != NULL, !cases[i].diverged);
        free(said);
        if (i > 0) continue;
        disturbance = (Disturbance){0}; /* nothing is left to train */
        said = run_expecting(run, (const char *[]){"fp16.enabled=true", set[0], set[1], NULL},
                             EXIT_DIVERGED);
        says(said, text);
        free(said);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_warning_that_old_checkpoints_stay_is_printed_once),
        cmocka_unit_test(test_a_run_whose_last_or_most_updates_were_skipped_has_diverged),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
