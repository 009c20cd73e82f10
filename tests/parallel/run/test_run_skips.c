/* test_run_skips.c -- tests of the warnings of a run with skipped updates: about its checkpoints,
 * and at its end. */
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

/* Returns the output of an fp16 run in which these steps are skipped; `keep` and `save` are
 * --set options. */
static char *skip_updates(const char *run, const bool *at, const char *keep, const char *save)
{
    too_large = at;
    disturbance = (Disturbance){.kind = WORK_STEP, .act = scale_up, .each = true};
    return run_expecting(run, (const char *[]){"fp16.enabled=true", keep, save, NULL}, 0);
}

/* The warning that older checkpoints are kept is printed once until an update is applied again, and
 * only if a checkpoint would otherwise have been removed. */
static void test_the_warning_that_old_checkpoints_stay_is_printed_once(void **state)
{
    (void)state;
    static const bool all[7] = {1, 1, 1, 1, 1, 1, 1}, twice[7] = {0, 1, 1, 0, 0, 1, 1};
    static const char kept[] = "so no older checkpoint is removed\n",
                      each[] = "checkpoint.save_interval=1";
    char *said = skip_updates("keep-1", all, "checkpoint.keep=1", each);
    says(said, "step 2: updates are being skipped, so no older checkpoint is removed\n");
    assert_int_equal(count_of(said, kept), 1);
    free(said);
    said = skip_updates("keep-7", all, "checkpoint.keep=7", each);
    assert_int_equal(count_of(said, kept), 0);
    free(said);
    said = skip_updates("keep-all", all, "checkpoint.keep=0", each); /* removes none in any case */
    assert_int_equal(count_of(said, kept), 0);
    free(said);
    said = skip_updates("keep-twice", twice, "checkpoint.keep=1", each);
    says(said, "step 2: updates");
    says(said, "step 6: updates");
    assert_int_equal(count_of(said, kept), 2);
    free(said);
}

/* A run with skipped updates ends with exit code 0. It prints a warning if most of its updates or
 * the last ones were skipped. */
static void test_the_end_of_a_run_warns_of_skipped_updates(void **state)
{
    (void)state;
    static const struct {
        bool at[7];
        const char *says;
    } cases[] = {
        {{1, 1, 1, 1, 1, 1, 1},
         "warning: no update was applied: all 7 were skipped, and the weights are those of "
         "the start\n"},
        {{0, 0, 0, 0, 0, 1, 1}, "warning: the last 2 updates were skipped\n"},
        {{0, 0, 0, 0, 0, 0, 1}, "warning: the last update was skipped\n"},
        {{1, 1, 1, 1, 0, 0, 0}, "warning: 4 of 7 updates were skipped\n"},
        {{1, 1, 1, 0, 0, 0, 0}, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char run[16];
        snprintf(run, sizeof run, "skips-%zu", i);
        char *said =
            skip_updates(run, cases[i].at, "checkpoint.keep=0", "checkpoint.save_interval=7");
        if (cases[i].says)
            says(said, cases[i].says);
        else
            assert_null(strstr(said, "skipped\n"));
        assert_non_null(strstr(said, "done    7 steps"));
        free(said);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_warning_that_old_checkpoints_stay_is_printed_once),
        cmocka_unit_test(test_the_end_of_a_run_warns_of_skipped_updates),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
