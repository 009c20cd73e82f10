/* test_run_health.c -- tests of a whole run whose loss or gradients go wrong at a chosen place of
 * its data on a chosen rank: what each health.policy does, on several grids. */
#include "model/core/check.h"
#include "parallel/run/health.h"
#include "tests/support/trainer/planted_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- tests ----------------------------------------------------------------------------------- */

/* Under the policy "warn" a spike is reported and counted, and changes nothing: all later losses
 * have the bits of a run without the spike. */
static void test_the_policy_warn_counts_a_spike_and_changes_no_loss(void **state)
{
    (void)state;
    for (int g = 0; g < PLANTED_GRIDS; g++) {
        free(planted_run_on(g, "calm", 0, 0, false, "warn", 0));
        char *said = planted_run_on(g, "warn", 20, 1, false, "warn", 0);
        says(said, "warning: step 20: loss ");
        says(said, " deviations above ");
        says(said, "health  1 spike\n");
        free(said);
        char *a = planted_name(g, "calm"), *b = planted_name(g, "warn");
        planted_same_losses(a, b, 21);
        char *lines = events(b, "train");
        says(lines, "\"spike\": true, \"spikes\": 1");
        free(lines);
        free(a);
        free(b);
    }
}

/* Under the policy "skip" a spike has the effect of gradients that are not finite. */
static void test_a_skipped_spike_has_the_effect_of_non_finite_gradients(void **state)
{
    (void)state;
    for (int g = 0; g < PLANTED_GRIDS; g++) {
        if (strcmp(planted_grids[g].name, "fp16") == 0)
            continue; /* there, non-finite gradients also change the loss scale */
        char *said = planted_run_on(g, "skip", 20, 2, false, "skip", 0);
        says(said, "update skipped (1 in a row)\n");
        says(said, "update skipped (2 in a row)\n");
        says(said, "health  2 updates skipped (128 tokens), 2 spikes\n");
        free(said);
        free(planted_run_on(g, "nan", 20, 2, true, "warn", 0));
        char *a = planted_name(g, "skip"), *b = planted_name(g, "nan");
        planted_same_losses(a, b, 22);
        char *lines = events(a, "train");
        says(lines, "\"spike\": true, \"applied\": false, \"skipped_tokens\": 64, \"spikes\": 1");
        free(lines);
        free(a);
        free(b);
    }
}

/* In fp16 a skipped spike does not change the loss scale. In every precision
 * max_consecutive_skipped_steps skipped spikes in a row end the run. */
static void test_too_many_skipped_spikes_in_a_row_end_a_run(void **state)
{
    (void)state;
    static const char *const type[] = {"fp64.enabled=true", "fp16.enabled=true"};
    for (int i = 0; i < 2; i++) {
        char *name = text_format("many-%d", i);
        plant_fault(18, 3, false, 0, 0);
        char *said = planted_run(name, "health.policy=skip", "max_consecutive_skipped_steps=3",
                                 type[i], NULL, EXIT_DIVERGED);
        says(said, "error[88] step 20: 3 updates in a row were skipped, 3 of them because of a");
        free(said);
        char *lines = events(name, "train");
        assert_null(strstr(lines, "\"step\": 21,"));
        free(lines);
        free(name);
    }
}

/* Under the policy "stop" a spike ends the run on all ranks. Its update is not applied, and the
 * checkpoints before it stay; nothing is saved after it. */
static void test_the_stop_policy_exits_with_code_88_and_keeps_the_last_checkpoint(void **state)
{
    (void)state;
    for (int g = 0; g < PLANTED_GRIDS; g++) {
        char *said = planted_run_on(g, "stop", 20, 1, false, "stop", EXIT_DIVERGED);
        says(said, "error[88] step 20: loss ");
        says(said, "--set health.policy=skip --allow-config-change");
        free(said);
        char *name = planted_name(g, "stop"),
             *kept = text_format("%s/checkpoints/step_00000015", name),
             *none = text_format("%s/checkpoints/step_00000020", name);
        assert_true(is_there(kept) && !is_there(none));
        /* The same command ends at the same step; another policy goes on. */
        free(planted_run_on(g, "stop", 20, 1, false, "stop", EXIT_DIVERGED));
        free(kept);
        free(none);
        free(name);
    }
    plant_fault(20, 1, false, 1, 0);
    const char *const go_on[] = {"one-stop", "--set", "health.policy=skip", "--allow-config-change",
                                 NULL};
    char *said = command_expecting(go_on, 0);
    says(said, "update skipped (1 in a row)\n");
    free(said);
}

/* Also tests runs that have already made more rollbacks than max_rollbacks: a later start may have
 * lowered it. */
static void test_a_run_makes_at_most_max_rollbacks_rollbacks(void **state)
{
    (void)state;
    static Config config = {.health = {.policy = HEALTH_ROLLBACK, .max_rollbacks = 2}};
    static Run run = {.config = &config};
    for (int64_t made = 0; made < 5; made++) {
        run.records.event = (StepRecord){.step = 18, .spike = true, .rollbacks = made};
        assert_int_equal(health_goes_back(&run), made < 2);
    }
    config.health.policy = HEALTH_SKIP;
    run.records.event.rollbacks = 0;
    assert_false(health_goes_back(&run));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_policy_warn_counts_a_spike_and_changes_no_loss),
        cmocka_unit_test(test_a_skipped_spike_has_the_effect_of_non_finite_gradients),
        cmocka_unit_test(test_too_many_skipped_spikes_in_a_row_end_a_run),
        cmocka_unit_test(test_the_stop_policy_exits_with_code_88_and_keeps_the_last_checkpoint),
        cmocka_unit_test(test_a_run_makes_at_most_max_rollbacks_rollbacks),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
