/* test_run_rollback.c -- tests of health.policy "rollback": where a run goes back to, which data it
 * leaves out, how its files change, and that a run which was stopped or killed has the same
 * results. */
#include "model/core/check.h"
#include "model/core/files.h"
#include "tests/support/trainer/planted_run.h"
#include "tests/support/turns.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { EVENT = 18, BACK = 15 }; /* the step of the spike; the checkpoint before it */

/* ---- a run that never had the data ----------------------------------------------------------- */

/* Leaves out the data of the steps after BACK up to the event, as a rollback would, without a
 * planted fault. */
static void leave_out(Run *run)
{
    Trainer *t = &run->trainer;
    StepState *s = &t->state->state;
    if (t->steps != BACK || s->data_offset > 0) return;
    s->data_offset = (EVENT - BACK) * PLANTED_SAMPLES;
    s->rollbacks = 1;
    t->position += s->data_offset;
}

static bool has(const char *run, const char *file)
{
    char *path = text_format("%s/%s", run, file);
    bool there = is_there(path);
    free(path);
    return there;
}

/* Fails unless metrics.jsonl has each step once. */
static void each_step_once(const char *run)
{
    char *losses = planted_losses(run, 1), *line = strtok(losses, "\n");
    for (int64_t step = 1; step <= PLANTED_STEPS; step++, line = strtok(NULL, "\n")) {
        assert_non_null(line);
        assert_int_equal(strtoll(line, NULL, 10), step);
    }
    assert_null(line);
    free(losses);
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* On every grid the run goes back to the checkpoint before the spike, leaves out the data since,
 * and has the bits of a run that never had these data. */
static void test_a_rollback_gives_the_same_bits_as_a_run_without_the_skipped_data(void **state)
{
    (void)state;
    for (int g = 0; g < PLANTED_GRIDS; g++) {
        planted_act = NULL;
        char *said = planted_run_on(g, "back", EVENT, 1, false, "rollback", 0);
        says(said, "warning: step 18: loss ");
        says(said, "; going back to step 15 without the data since (rollback 1 of at most 3)\n");
        says(said, "health  1 rollback (12 samples left out)\n");
        free(said);
        planted_act = leave_out;
        free(planted_run_on(g, "without", 0, 0, false, "rollback", 0));
        planted_act = NULL;
        char *a = planted_name(g, "back"), *b = planted_name(g, "without");
        same_runs(a, b);
        each_step_once(a);
        char *note = events(a, "rollback");
        says(note, "\"step\": 16,");
        free(note);
        char *aside = text_format("%s/metrics.rollback-1.jsonl", a), *text = take_text(aside);
        assert_non_null(text);
        for (int step = 16; step <= EVENT; step++) {
            char key[64];
            snprintf(key, sizeof key, "{\"event\": \"train\", \"step\": %d,", step);
            says(text, key);
        }
        assert_null(strstr(text, "\"step\": 15,"));
        free(text);
        free(aside);
        free(a);
        free(b);
    }
}

/* The child process gets end_signal, which stops or kills it, when it begins step end_step for the
 * end_time-th time; end_times counts how often it has begun that step. */
static int64_t end_step, end_time, end_times;
static int end_signal;

static void end_there(Run *run)
{
    if (run->world->rank != 0 || run->trainer.steps + 1 != end_step) return;
    if (++end_times == end_time) raise(end_signal);
}

/* Starts a run with the spike on the grid, ends it by a signal, and continues it to the end with
 * the same command. Fails unless its results equal those of the run "back". `keep` sets
 * checkpoint.keep; NULL: the default. */
static void end_and_go_on(int grid, const char *what, int signal_number, int64_t step, int64_t time,
                          const char *keep)
{
    const PlantedGrid *g = &planted_grids[grid];
    char *name = planted_name(grid, what);
    end_signal = signal_number;
    end_step = step;
    end_time = time;
    end_times = 0; /* counted in the child */
    plant_fault(EVENT, 1, false, g->ranks, g->rank);
    planted_act = end_there;
    free(planted_run(name, g->set[0], g->set[1], "health.policy=rollback", keep,
                     signal_number == SIGKILL ? 128 + SIGKILL : EXIT_REQUEUE));
    planted_act = NULL;
    free(planted_run(name, g->set[0], g->set[1], "health.policy=rollback", keep, 0));
    char *whole = planted_name(grid, "back");
    same_runs(whole, name);
    each_step_once(name);
    /* A checkpoint of the steps that the run went back over is removed. */
    if (signal_number == SIGTERM && step < EVENT && time == 1)
        assert_false(has(name, "checkpoints/step_00000017"));
    free(whole);
    free(name);
}

/* On every grid, a run that is stopped or killed before the spike, after it, or after the next save
 * has the same results as a run that is neither. This also holds if the stop saves an additional
 * step, and if only one checkpoint is kept. Slow builds (TEST_SAMPLE) try a fifth of the cases;
 * which fifth depends on the commit (turns.h). */
static void test_a_run_stopped_or_killed_near_a_rollback_resumes_to_the_same_bits(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        int signal;
        int64_t step, time;
    } ends[] = {{"stopped-before", SIGTERM, 17, 1}, {"killed-before", SIGKILL, 17, 1},
                {"stopped-after", SIGTERM, 17, 2},  {"killed-after", SIGKILL, 17, 2},
                {"killed-at-once", SIGKILL, 16, 2}, {"killed-saved", SIGKILL, 22, 1},
                {"stopped-saved", SIGTERM, 23, 1}};
    enum { ENDS = sizeof ends / sizeof *ends };
    const int every = (int)turns_every(5);
    /* The last round is on the first grid, with one checkpoint to keep. */
    for (int i = (int)turns_first(every); i < (PLANTED_GRIDS + 1) * ENDS; i += every) {
        const bool one = i >= PLANTED_GRIDS * ENDS;
        char *what = text_format("%s%s", ends[i % ENDS].what, one ? "-1" : "");
        end_and_go_on(one ? 0 : i / ENDS, what, ends[i % ENDS].signal, ends[i % ENDS].step,
                      ends[i % ENDS].time, one ? "checkpoint.keep=1" : NULL);
        free(what);
    }
}

/* After health.max_rollbacks the next event ends the run; with 0 the first one does. */
static void test_the_next_spike_after_max_rollbacks_ends_the_run(void **state)
{
    (void)state;
    for (int g = 0; g < PLANTED_GRIDS; g++) {
        const PlantedGrid *grid = &planted_grids[g];
        char *name = planted_name(g, "often");
        plant_fault(EVENT, 100, false, grid->ranks, grid->rank);
        char *said = planted_run(name, grid->set[0], grid->set[1], "health.policy=rollback",
                                 "health.max_rollbacks=2", EXIT_DIVERGED);
        says(said, "(rollback 1 of at most 2)\n");
        says(said, "(rollback 2 of at most 2)\n");
        says(said, "the run has gone back 2 times (health.max_rollbacks); lower "
                   "optimizer.params.lr, or start again from an older checkpoint in ");
        free(said);
        assert_true(has(name, "metrics.rollback-2.jsonl") &&
                    !has(name, "metrics.rollback-3.jsonl") &&
                    has(name, "checkpoints/step_00000015"));
        free(name);
    }
    plant_fault(EVENT, 100, false, 1, 0);
    char *said = planted_run("once", "health.policy=rollback", "health.max_rollbacks=1", NULL, NULL,
                             EXIT_DIVERGED);
    says(said, "the run has gone back 1 time (health.max_rollbacks); lower ");
    free(said);
    plant_fault(EVENT, 1, false, 1, 0);
    said = planted_run("never", "health.policy=rollback", "health.max_rollbacks=0", NULL, NULL,
                       EXIT_DIVERGED);
    says(said, "error[88] step 18: loss ");
    says(said, "the losses before it; lower optimizer.params.lr, or start again from an older ");
    free(said);
    assert_false(has("never", "metrics.rollback-1.jsonl"));
}

/* A second and a third rollback to the same checkpoint leave out the data that the first one did,
 * and more. A run that is killed between them has the same results. */
static void test_each_further_rollback_to_the_same_checkpoint_skips_more_data(void **state)
{
    (void)state;
    plant_fault(22, 3, false, 1, 0);
    char *said = planted_run("thrice", "health.policy=rollback", NULL, NULL, NULL, 0);
    says(said, "health  3 rollbacks (16 samples left out)\n");
    free(said);
    each_step_once("thrice");
    end_signal = SIGKILL;
    end_step = 21;
    end_time = 3; /* before the step is repeated for the second time */
    end_times = 0;
    planted_act = end_there;
    free(planted_run("thrice-killed", "health.policy=rollback", NULL, NULL, NULL, 128 + SIGKILL));
    planted_act = NULL;
    free(planted_run("thrice-killed", "health.policy=rollback", NULL, NULL, NULL, 0));
    same_runs("thrice", "thrice-killed");
    for (int n = 1; n <= 3; n++) {
        char *file = text_format("metrics.rollback-%d.jsonl", n);
        assert_true(has("thrice", file) && has("thrice-killed", file));
        free(file);
    }
}

/* A run without a checkpoint before the event ends. */
static void test_a_spike_before_the_first_checkpoint_ends_the_run(void **state)
{
    (void)state;
    plant_fault(EVENT, 1, false, 1, 0);
    char *said = planted_run("none", "health.policy=rollback", "checkpoint.save_interval=20", NULL,
                             NULL, EXIT_DIVERGED);
    says(said, "there is no checkpoint before it to go back to; lower optimizer.params.lr; --set ");
    free(said);
    said = planted_run("none-stop", "health.policy=stop", "checkpoint.save_interval=20", NULL, NULL,
                       EXIT_DIVERGED);
    says(said, "the losses before it; lower optimizer.params.lr; --set health.policy=skip ");
    free(said);
}

static void damage_the_newest(Run *run)
{
    if (run->trainer.steps + 1 == EVENT && run->world->rank == 0)
        CHECK(truncate("damaged/checkpoints/step_00000015/model.safetensors", 100) == 0, "no file");
}

/* If the checkpoint before the event is damaged, the run goes back to the one before that, on all
 * ranks. */
static void test_a_rollback_skips_a_damaged_checkpoint(void **state)
{
    (void)state;
    plant_fault(EVENT, 1, false, 2, 1);
    planted_act = damage_the_newest;
    char *said = planted_run("damaged", "health.policy=rollback", "checkpoint.async=false",
                             "train_batch_size=4", "gradient_accumulation_steps=1", 0);
    planted_act = NULL;
    says(said, "step_00000015/model.safetensors is damaged");
    says(said, "; going back to step 10 without the data since (rollback 1 of at most 3)\n");
    says(said, "health  1 rollback (32 samples left out)\n");
    free(said);
    each_step_once("damaged");
}

/* Too many updates in a row that were skipped, and an overflow at the smallest loss scale, make the
 * run go back to a checkpoint before the first skipped update. */
static void test_too_many_skipped_updates_in_a_row_cause_a_rollback(void **state)
{
    (void)state;
    plant_fault(14, 3, true, 1, 0);
    char *said = planted_run("skips", "health.policy=rollback", "max_consecutive_skipped_steps=3",
                             NULL, NULL, 0);
    says(said,
         "step 16: 3 steps in a row had gradients that are not finite; going back to step 10 ");
    says(said, "health  1 rollback (24 samples left out)\n");
    free(said);
    each_step_once("skips");
    plant_fault(14, 1, true, 1, 0);
    said = planted_run("scale", "health.policy=rollback",
                       "fp16={\"enabled\": true, \"initial_scale_power\": 4, \"hysteresis\": 1, "
                       "\"min_loss_scale\": 16}",
                       NULL, NULL, 0);
    says(said,
         "step 14: gradients overflow at the smallest loss scale (16); going back to step 10 ");
    free(said);
    each_step_once("scale");
}

/* The evaluations, the samples and the best checkpoint of the steps that the run repeats are
 * forgotten. */
static void test_a_rollback_also_resets_evaluations_and_the_best_checkpoint(void **state)
{
    (void)state;
    const char *const sets[] = {"train_steps=26",
                                "eval.interval=2",
                                "eval.sample_interval=2",
                                "eval.sample_tokens=3",
                                "checkpoint.save_interval=5",
                                "checkpoint.keep=2",
                                "health.policy=rollback",
                                "tensorboard.enabled=true",
                                NULL};
    planted_act = NULL;
    plant_fault(EVENT, 1, false, 1, 0);
    char *said = run_expecting("judged", sets, 0);
    assert_null(strstr(said, "chosen anew"));
    free(said);
    planted_act = leave_out;
    plant_fault(0, 0, false, 1, 0);
    free(run_expecting("judged-without", sets, 0));
    planted_act = NULL;
    same_runs("judged", "judged-without");
    char *a = events("judged", "best"), *b = events("judged-without", "best");
    assert_string_equal(a, b);
    free(a);
    free(b);
}

/* A run that continues on another grid after its rollback reads the same data. */
static void test_a_rollback_on_another_grid_skips_the_same_data(void **state)
{
    (void)state;
    const char *precise = "fp64.enabled=true", *policy = "health.policy=rollback";
    const char *batch = "train_batch_size=4";
    plant_fault(EVENT, 1, false, 1, 0);
    free(planted_run("whole", precise, policy, batch, "gradient_accumulation_steps=null", 0));
    plant_fault(EVENT, 1, false, 2, 1);
    end_signal = SIGTERM;
    end_step = 22;
    end_time = 1;
    end_times = 0;
    planted_act = end_there;
    free(planted_run("moved", precise, policy, batch, "gradient_accumulation_steps=null",
                     EXIT_REQUEUE));
    planted_act = NULL;
    plant_fault(EVENT, 1, false, 1, 0);
    free(planted_run("moved", precise, policy, batch, "gradient_accumulation_steps=null", 0));
    char *x = planted_losses("whole", 1), *y = planted_losses("moved", 1), *p = x, *q = y;
    for (int64_t step = 1; step <= PLANTED_STEPS; step++) {
        p = strstr(p, "\"loss\": ") + 8;
        q = strstr(q, "\"loss\": ") + 8;
        assert_true(fabs(strtod(p, NULL) / strtod(q, NULL) - 1) < 1e-10);
    }
    free(x);
    free(y);
}

/* Ranks that are processes read their records at different times, but go back together. No fault is
 * planted; the limits are so low that noise counts as a spike. */
static void test_ranks_that_are_processes_roll_back_like_threads(void **state)
{
    (void)state;
    static const char *const kinds[] = {"--no-processes", "--processes"};
    planted_act = NULL;
    disturbance = (Disturbance){0};
    for (int i = 0; i < 2; i++) {
        char *out = text_format("noise%s", kinds[i]);
        const char *const arguments[] = {"tiny.json", "--out",
                                         out,         "--ranks",
                                         "2",         kinds[i],
                                         "--set",     "train_steps=120",
                                         "--set",     "eval.interval=0",
                                         "--set",     "eval.sample_interval=0",
                                         "--set",     "eval.sample_tokens=1",
                                         "--set",     "steps_per_print=50",
                                         "--set",     "checkpoint.save_interval=5",
                                         "--set",     "health.policy=rollback",
                                         "--set",     "health.spike_deviations=0.6",
                                         "--set",     "health.max_rollbacks=99",
                                         "--set",     "optimizer.params.lr=0.03",
                                         NULL};
        char *said = command_expecting(arguments, 0);
        says(said, "rollback 1 of at most 99)\n");
        says(said, "rollback 2 of at most 99)\n");
        free(said);
        free(out);
    }
    same_runs("noise--no-processes", "noise--processes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rollback_gives_the_same_bits_as_a_run_without_the_skipped_data),
        cmocka_unit_test(test_a_run_stopped_or_killed_near_a_rollback_resumes_to_the_same_bits),
        cmocka_unit_test(test_the_next_spike_after_max_rollbacks_ends_the_run),
        cmocka_unit_test(test_each_further_rollback_to_the_same_checkpoint_skips_more_data),
        cmocka_unit_test(test_a_spike_before_the_first_checkpoint_ends_the_run),
        cmocka_unit_test(test_a_rollback_skips_a_damaged_checkpoint),
        cmocka_unit_test(test_too_many_skipped_updates_in_a_row_cause_a_rollback),
        cmocka_unit_test(test_a_rollback_also_resets_evaluations_and_the_best_checkpoint),
        cmocka_unit_test(test_a_rollback_on_another_grid_skips_the_same_data),
        cmocka_unit_test(test_ranks_that_are_processes_roll_back_like_threads),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
