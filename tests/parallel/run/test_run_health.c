/* test_run_health.c -- tests of a whole run whose loss or gradients go wrong at a chosen place of
 * its data on a chosen rank: what each health.policy does, on several grids. */
#include "model/core/check.h"
#include "tests/support/trainer/run_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- planted faults ----------------------------------------------------------------------------
 */

enum { SAMPLES = 4, STEPS = 26 }; /* samples of a step; steps of a run */

/* What goes wrong in the steps that begin at samples from .. to - 1 of the data. */
static struct {
    bool gradients; /* not finite; otherwise the loss is far too large */
    int64_t from, to;
} plant;

static void spoil(Run *run)
{
    int64_t at = run->trainer.position;
    if (at < plant.from || at >= plant.to) return;
    StepStats *sums = &run->trainer.state->stats; /* to which the step adds its own */
    if (plant.gradients)
        sums->sq_norm = (double)NAN;
    else
        sums->nats += 1e4;
}

/* Plants a fault in `count` steps, of which the first is `step` if none is left out. */
static void plant_at(int64_t step, int64_t count, bool gradients, int ranks, int rank)
{
    plant.from = (step - 1) * SAMPLES;
    plant.to = plant.from + count * SAMPLES;
    plant.gradients = gradients;
    disturbance =
        (Disturbance){.kind = WORK_STEP, .act = spoil, .each = true, .ranks = ranks, .rank = rank};
}

#define CALM                                                                                       \
    "train_steps=26", "eval.interval=0", "eval.sample_interval=0", "eval.sample_tokens=1",         \
        "checkpoint.save_interval=5", "checkpoint.keep=0"

/* Runs with these further settings (up to three, NULL: none). */
static char *run_with(const char *run, const char *a, const char *b, const char *c, int code)
{
    const char *sets[10] = {CALM};
    int n = 6;
    const char *const more[] = {a, b, c};
    for (int i = 0; i < 3; i++)
        if (more[i]) sets[n++] = more[i];
    return run_expecting(run, sets, code);
}

/* Returns the lines of training of a run from step `first` on, without what the account of spikes
 * adds to them; the caller frees it. */
static char *losses_from(const char *run, int64_t first)
{
    char *text = events(run, "train"), *out = text, key[32];
    snprintf(key, sizeof key, "\"step\": %lld,", (long long)first);
    char *line = strstr(text, key);
    assert_non_null(line);
    for (line = strtok(line, "\n"); line; line = strtok(NULL, "\n")) {
        char *step = strstr(line, "\"step\""), *loss = strstr(line, "\"loss\""),
             *end = strstr(line, ", \"grad_norm\"");
        assert_true(step && loss && end);
        char number[32];
        snprintf(number, sizeof number, "%lld ", strtoll(step + 8, NULL, 10));
        memmove(out + strlen(number), loss, (size_t)(end - loss));
        memcpy(out, number, strlen(number));
        out += strlen(number) + (size_t)(end - loss);
        *out++ = '\n';
    }
    *out = '\0';
    return text;
}

static void same_losses(const char *a, const char *b, int64_t first)
{
    char *x = losses_from(a, first), *y = losses_from(b, first);
    assert_string_equal(x, y);
    free(x);
    free(y);
}

/* ---- grids --------------------------------------------------------------------------------------
 */

static const struct {
    const char *name, *set, *more;
    int ranks, rank; /* the rank on which the fault is planted */
} grids[] = {
    {"one", NULL, NULL, 1, 0},
    {"dp", "train_batch_size=4", "gradient_accumulation_steps=1", 2, 1},
    {"tp", "parallel.tensor=2", NULL, 2, 0},
    {"pp", "parallel.pipeline=2", "model.num_layers=2", 2, 1},
    {"zero3", "zero_optimization.stage=3", "gradient_accumulation_steps=1", 2, 1},
    {"fp16", "fp16.enabled=true", NULL, 1, 0},
};
enum { GRIDS = sizeof grids / sizeof *grids };

static char *name_of(int grid, const char *what)
{
    return text_format("%s-%s", grids[grid].name, what);
}

/* Runs on a grid with a fault in `count` steps from `step` on (0: none), under a policy. */
static char *run_on(int grid, const char *what, int64_t step, int64_t count, bool gradients,
                    const char *policy, int code)
{
    char *name = name_of(grid, what), *set = text_format("health.policy=%s", policy);
    plant_at(step, count, gradients, grids[grid].ranks, grids[grid].rank);
    char *said = run_with(name, grids[grid].set, grids[grid].more, set, code);
    free(set);
    free(name);
    return said;
}

/* ---- tests --------------------------------------------------------------------------------------
 */

/* Under the policy "warn" a spike is told and counted, and no weight differs: all later losses have
 * the bits of a run without the spike. */
static void test_a_spike_changes_nothing_unless_a_policy_says_so(void **state)
{
    (void)state;
    for (int g = 0; g < GRIDS; g++) {
        free(run_on(g, "calm", 0, 0, false, "warn", 0));
        char *said = run_on(g, "warn", 20, 1, false, "warn", 0);
        says(said, "warning: step 20: loss ");
        says(said, " deviations above ");
        says(said, "health  0 updates skipped (0 tokens), 1 spike\n");
        free(said);
        char *a = name_of(g, "calm"), *b = name_of(g, "warn");
        same_losses(a, b, 21);
        char *lines = events(b, "train");
        says(lines, "\"spike\": true, \"spikes\": 1");
        free(lines);
        free(a);
        free(b);
    }
}

/* Under the policy "skip" a spike has the effect of gradients that are not finite. */
static void test_a_skipped_spike_is_like_gradients_that_are_not_finite(void **state)
{
    (void)state;
    for (int g = 0; g < GRIDS; g++) {
        if (strcmp(grids[g].name, "fp16") == 0) continue; /* where these move the loss scale */
        char *said = run_on(g, "skip", 20, 2, false, "skip", 0);
        says(said, "update skipped (1 in a row)\n");
        says(said, "update skipped (2 in a row)\n");
        says(said, "health  2 updates skipped (128 tokens), 2 spikes\n");
        free(said);
        free(run_on(g, "nan", 20, 2, true, "warn", 0));
        char *a = name_of(g, "skip"), *b = name_of(g, "nan");
        same_losses(a, b, 22);
        char *lines = events(a, "train");
        says(lines, "\"spike\": true, \"applied\": false, \"skipped_tokens\": 64, \"spikes\": 1");
        free(lines);
        free(a);
        free(b);
    }
}

/* In fp16 a skipped spike leaves the loss scale alone, and in no precision do more of them in a row
 * pass than max_consecutive_skipped_steps. */
static void test_skipped_spikes_end_a_run_when_there_are_too_many(void **state)
{
    (void)state;
    static const char *const type[] = {"fp64.enabled=true", "fp16.enabled=true"};
    for (int i = 0; i < 2; i++) {
        char *name = text_format("many-%d", i);
        plant_at(18, 3, false, 0, 0);
        char *said = run_with(name, "health.policy=skip", "max_consecutive_skipped_steps=3",
                              type[i], EXIT_DIVERGED);
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
static void test_stop_ends_with_88_and_keeps_the_last_checkpoint(void **state)
{
    (void)state;
    for (int g = 0; g < GRIDS; g++) {
        char *said = run_on(g, "stop", 20, 1, false, "stop", EXIT_DIVERGED);
        says(said, "error[88] step 20: loss ");
        says(said, "--set health.policy=skip --allow-config-change");
        free(said);
        char *name = name_of(g, "stop"), *kept = text_format("%s/checkpoints/step_00000015", name),
             *none = text_format("%s/checkpoints/step_00000020", name);
        assert_true(is_there(kept) && !is_there(none));
        /* The same command ends at the same step; another policy goes on. */
        free(run_on(g, "stop", 20, 1, false, "stop", EXIT_DIVERGED));
        free(kept);
        free(none);
        free(name);
    }
    plant_at(20, 1, false, 1, 0);
    const char *const go_on[] = {"one-stop", "--set", "health.policy=skip", "--allow-config-change",
                                 NULL};
    char *said = command_expecting(go_on, 0);
    says(said, "update skipped (1 in a row)\n");
    free(said);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_spike_changes_nothing_unless_a_policy_says_so),
        cmocka_unit_test(test_a_skipped_spike_is_like_gradients_that_are_not_finite),
        cmocka_unit_test(test_skipped_spikes_end_a_run_when_there_are_too_many),
        cmocka_unit_test(test_stop_ends_with_88_and_keeps_the_last_checkpoint),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
