/* test_run_rollback_kills.c -- a run that is killed in the middle of a rollback, before each of the
 * renames by which its files go back, or whose file system fails there, loses no step. */
#include "model/core/check.h"
#include "parallel/report/metrics_inside.h"
#include "tests/support/trainer/planted_run.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { EVENT = 19, BACK = 16 }; /* the step of the spike; the checkpoint before it */

/* ---- renames that fail ----------------------------------------------------------------------- */

/* Used in the child. Rename number fails_at (from 1; 0: none) of the run's first rollback fails or,
 * if `kills`, the run is killed before it. `renames` counts the renames. */
static int renames, fails_at;
static bool kills;

static int failing_rename(void *self, int from_folder, const char *from, int to_folder,
                          const char *to)
{
    (void)self;
    if (++renames == fails_at) {
        if (kills) raise(SIGKILL);
        errno = EIO;
        return -1;
    }
    return renameat(from_folder, from, to_folder, to);
}

static FsOps failing;

/* Rank 0 gets the failing file system before the step of the spike, and the intact one again after
 * the rollback. */
static void fail_in_the_rollback(Run *run)
{
    int64_t step = run->trainer.steps + 1;
    bool first = run->records.last.rollbacks == 0;
    failing = fs_system;
    failing.rename = failing_rename;
    if (!run->lead || (step != EVENT && first)) return;
    run->trainer.io.fs = first ? &failing : &fs_system;
    run->output.metrics->file.fs = first ? &failing : &fs_system;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* The grid of the runs. */
static const PlantedGrid *grid;

/* Runs with an evaluation after each step, so that some steps between BACK and EVENT are saved as
 * the best, and saves nothing in the background. */
static char *run_to_the_end(const char *name, const char *policy, int code)
{
    char *set = text_format("health.policy=%s", policy), *ranks = text_format("%d", grid->ranks);
    const char *const arguments[] = {"tiny.json", "--out",
                                     name,        "--allow-config-change",
                                     "--set",     "train_steps=26",
                                     "--set",     "eval.interval=1",
                                     "--set",     "eval.sample_interval=0",
                                     "--set",     "eval.sample_tokens=1",
                                     "--set",     "checkpoint.save_interval=4",
                                     "--set",     "checkpoint.keep=0",
                                     "--set",     "checkpoint.async=false",
                                     "--set",     set,
                                     "--ranks",   ranks,
                                     "--set",     grid->set[0] ? grid->set[0] : "seed=1",
                                     "--set",     grid->set[1] ? grid->set[1] : "seed=1",
                                     NULL};
    char *said = command_expecting(arguments, code);
    free(set);
    free(ranks);
    return said;
}

/* Runs with the spike; in its rollback the rename number `at` (0: none) fails or kills the run. */
static char *run_with_fault(const char *name, int at, bool by_signal, int code)
{
    fails_at = at;
    kills = by_signal;
    renames = 0; /* counted in the child */
    plant_fault(EVENT, 1, false, grid->ranks, grid->rank);
    planted_act = fail_in_the_rollback;
    return run_to_the_end(name, "rollback", code);
}

/* Fails unless metrics.jsonl has each step up to the last once. */
static void each_step_once(const char *run)
{
    char *losses = planted_losses(run, 1), *line = strtok(losses, "\n");
    for (int64_t step = 1; step <= PLANTED_STEPS; step++, line = strtok(NULL, "\n")) {
        if (line == NULL || strtoll(line, NULL, 10) != step)
            fail_msg("%s: step %lld is missing", run, (long long)step);
    }
    assert_null(line);
    free(losses);
}

static bool is_there_in(const char *run, const char *file)
{
    char *path = text_format("%s/%s", run, file);
    bool there = is_there(path);
    free(path);
    return there;
}

/* Fails unless metrics.rollback-1.jsonl has all steps that the run went back over. */
static void has_the_steps_aside(const char *run)
{
    char *path = text_format("%s/metrics.rollback-1.jsonl", run), *text = take_text(path);
    if (text == NULL) fail_msg("%s is not there", path);
    for (int step = BACK + 1; step <= EVENT; step++) {
        char key[64];
        snprintf(key, sizeof key, "{\"event\": \"train\", \"step\": %d,", step);
        says(text, key);
    }
    free(text);
    free(path);
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Continues the run after the fault, under this policy and without another fault. */
static void go_on(const char *name, const char *policy)
{
    planted_act = NULL;
    free(run_to_the_end(name, policy, 0));
    each_step_once(name);
    if (strcmp(policy, "rollback") != 0) return;
    char *whole = planted_name((int)(grid - planted_grids), "whole");
    same_runs(whole, name);
    free(whole);
    has_the_steps_aside(name);
}

enum { RENAMES = 4 };

/* In the rollback of a run on this grid rename number `at` fails, or the run is killed before it;
 * then the run is continued. */
static void fault_on(int g, int at, bool by_signal, const char *policy)
{
    grid = &planted_grids[g];
    char *what = text_format("%s-%d-%s", by_signal ? "kill" : "error", at, policy),
         *name = planted_name(g, what);
    char *said = run_with_fault(name, at, by_signal, by_signal ? 128 + SIGKILL : EXIT_INPUT_OUTPUT);
    if (!by_signal) says(said, strerror(EIO));
    free(said);
    /* The newest checkpoint is removed first: that of step 18 by rename 1, that of step 17 by
     * rename 2. */
    assert_int_equal(is_there_in(name, "checkpoints/step_00000018"), at == 1);
    assert_int_equal(is_there_in(name, "checkpoints/step_00000017"), at <= 2);
    go_on(name, policy);
    free(name);
    free(what);
}

static void whole_run_on(int g)
{
    char *name = planted_name(g, "whole");
    grid = &planted_grids[g];
    free(run_with_fault(name, RENAMES + 1, true, 0));
    each_step_once(name);
    has_the_steps_aside(name);
    free(name);
}

/* The rollback renames the checkpoints of steps 17 and 18, metrics.rollback-1.jsonl and
 * metrics.jsonl, each once. A run that is killed before any of these renames, or whose file system
 * refuses it, has the same results when it is started again. Its metrics.jsonl has each step once,
 * even if it is started again under another policy. */
static void a_fault_in_the_middle_of_a_rollback_loses_no_step(void **state)
{
    static const char *const policies[] = {"rollback", "warn"};
    (void)state;
    whole_run_on(0);
    for (int at = 1; at <= RENAMES; at++)
        for (int by_signal = 0; by_signal < 2; by_signal++)
            for (int p = 0; p < 2; p++)
                fault_on(0, at, by_signal, policies[p]);
}

/* Only rank 0 renames files. If it fails or is killed, all ranks end; the next start continues on
 * all of them. */
static void a_fault_on_one_of_several_ranks_in_a_rollback_loses_no_step(void **state)
{
    (void)state;
    for (int g = 1; g < 3; g++) { /* dp, tp */
        assert_int_equal(planted_grids[g].ranks, 2);
        whole_run_on(g);
        fault_on(g, 2, true, "rollback");
        fault_on(g, RENAMES, false, "rollback");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fault_in_the_middle_of_a_rollback_loses_no_step),
        cmocka_unit_test(a_fault_on_one_of_several_ranks_in_a_rollback_loses_no_step),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
