/* test_run_skips.c -- what a run says whose updates are skipped: of its checkpoints, and at its
 * end.
 */
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

/* A loss scale that no gradient fits, at these steps; else one that all do. */
static const bool *too_large;

static void scale_up(Run *run)
{
    run->trainer.state->state.loss_scale = too_large[run->trainer.steps] ? 0x1p60 : 1;
    run->trainer.state->state.loss_seed =
        run->trainer.state->state.loss_scale / run->trainer.constants.nominal_targets;
}

/* What a run of fp16 says whose updates are skipped at these steps. */
static char *skip_updates(const char *run, const bool *at, const char *keep, const char *save)
{
    too_large = at;
    disturbance = (Disturbance){.kind = WORK_STEP, .act = scale_up, .each = true};
    return run_expecting(run, (const char *[]){"fp16.enabled=true", keep, save, NULL}, 0);
}

/* A warning that older checkpoints stay is printed once until the numbers are good again, and only
 * if one would have been removed. */
static void test_keeping_is_warned_of_once(void **state)
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
    said = skip_updates("keep-twice", twice, "checkpoint.keep=1", each);
    says(said, "step 2: updates");
    says(said, "step 6: updates");
    assert_int_equal(count_of(said, kept), 2);
    free(said);
}

/* Such a run ends with exit code 0, but prints a warning. */
static void test_skipped_updates_are_warned_of_at_the_end(void **state)
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
        cmocka_unit_test(test_keeping_is_warned_of_once),
        cmocka_unit_test(test_skipped_updates_are_warned_of_at_the_end),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
