/* test_run_ranks.c -- tests of runs on three ranks, one of which is stopped or fails at a chosen
 * point of its work: all ranks end in the same way at the same step, and the same command resumes
 * the run to the results of an undisturbed one. Slow builds (TEST_SAMPLE) try only some of the
 * points; which ones depends on the commit (turns.h). */
#include "tests/support/trainer/run_fixture.h"
#include "tests/support/turns.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 3 };
/* An evaluation has five micro-batches on each rank. */
static const char *const sets[] = {"eval.steps=15", NULL};

/* Arranges that `act` is called on a rank, before piece `at` (a micro-batch or a token) of the work
 * of this kind in round `round`, counted from 0. */
static void disturb(int rank, WorkKind kind, int64_t round, int64_t at, void (*act)(Run *))
{
    disturbance = (Disturbance){
        .kind = kind, .round = round, .at = at, .act = act, .ranks = RANKS, .rank = rank};
}

/* Fails unless the same command, now undisturbed, resumes the run to the results of run "whole". */
static void goes_on(const char *run)
{
    disturbance.act = NULL;
    free(run_expecting(run, sets, 0));
    same_runs("whole", run);
}

static void test_an_undisturbed_run_on_three_ranks_makes_all_its_steps(void **state)
{
    (void)state;
    disturbance = (Disturbance){.ranks = RANKS};
    free(run_expecting("whole", sets, 0));
    assert_int_equal(lines_of("whole", "train"), 7);
    assert_int_equal(lines_of("whole", "val"), 4);
    assert_int_equal(lines_of("whole", "sample"), 4);
}

/* ---- stops ----------------------------------------------------------------------------------- */

/* Sends SIGTERM to the process from any thread; the main thread handles it. */
static void ask_the_process(Run *run)
{
    (void)run;
    kill(getpid(), SIGTERM);
}

/* A stop is requested during any kind of work, on any rank. All ranks stop after the same step,
 * whatever they have begun meanwhile, and the next start repeats the interrupted work. */
static void test_bug_50_a_stop_on_any_rank_ends_all_ranks_after_the_same_step(void **state)
{
    (void)state;
    static const struct {
        int rank;
        WorkKind kind;
        int64_t round, at;
        void (*act)(Run *);
        int64_t saved; /* 0: depends on when the main thread handles the signal */
    } stops[] = {{0, WORK_STEP, 2, 1, ask_by_signal, 3},
                 {0, WORK_STEP, 2, 0, ask_by_file, 3},
                 {0, WORK_EVALUATION, 0, 0, ask_by_signal, 2},
                 {0, WORK_EVALUATION, 1, 3, ask_by_file, 4},
                 {0, WORK_SAMPLE, 1, 2, ask_by_signal, 4},
                 {0, WORK_EVALUATION, 3, 4, ask_by_signal, 7},
                 {1, WORK_STEP, 2, 1, ask_the_process, 0},
                 {2, WORK_EVALUATION, 1, 1, ask_the_process, 0},
                 {1, WORK_SAMPLE, 2, 3, ask_the_process, 0}};
    const size_t every = (size_t)turns_every(4);
    for (size_t i = (size_t)turns_first((int64_t)every); i < sizeof stops / sizeof *stops;
         i += every) {
        char run[32];
        snprintf(run, sizeof run, "stop-%zu", i);
        disturb(stops[i].rank, stops[i].kind, stops[i].round, stops[i].at, stops[i].act);
        char *said = run_expecting(run, sets, EXIT_REQUEUE);
        if (stops[i].saved > 0) assert_int_equal(lines_of(run, "train"), stops[i].saved);
        says(said, "; the same command ");
        free(said);
        goes_on(run);
    }
}

static void test_a_second_signal_ends_all_ranks_at_once(void **state)
{
    (void)state;
    disturb(0, WORK_STEP, 3, 1, interrupt_twice);
    free(run_expecting("twice", sets, 128 + SIGINT));
    goes_on("twice");
}

/* ---- which thread accepts signals ------------------------------------------------------------ */

static void test_only_the_main_thread_on_rank_0_accepts_signals(void **state)
{
    (void)state;
    disturb(0, WORK_STEP, 1, 1, count_who_hears);
    char *said = run_expecting("hearing", sets, 0);
    says(said, "more than 3 other threads: yes; 0 hear\n");
    free(said);
}

/* ---- failures -------------------------------------------------------------------------------- */

static void die(Run *run)
{
    (void)run;
    kill(getpid(), SIGKILL);
}

static void find_damage(Run *run)
{
    (void)run;
    (fail)(EXIT_DAMAGED, "a shard is torn");
}

static void break_a_check(Run *run)
{
    CHECK(run->trainer.steps < 0, "step %lld", (long long)run->trainer.steps);
}

/* A rank fails during any kind of work. The program ends with its exit code and prints only its
 * error message, with its place in the grid. The same command then resumes from the last save. */
static void test_a_failing_rank_ends_all_ranks_with_one_error_message(void **state)
{
    (void)state;
    static const struct {
        int rank;
        WorkKind kind;
        int64_t round, at;
        void (*act)(Run *);
        int code;
        const char *told;
    } ends[] = {
        {1, WORK_STEP, 3, 1, find_damage, EXIT_DAMAGED, "error[65] rank 1 dp 1: a shard is torn\n"},
        {0, WORK_STEP, 0, 0, find_damage, EXIT_DAMAGED, "error[65] rank 0 dp 0: a shard is torn\n"},
        {2, WORK_EVALUATION, 1, 2, find_damage, EXIT_DAMAGED, "error[65] rank 2 dp 2: a shard"},
        {2, WORK_SAMPLE, 0, 3, break_a_check, EXIT_BUG, "bug[70] rank 2 dp 2: step 2\n"},
        {1, WORK_EVALUATION, 3, 4, break_a_check, EXIT_BUG, "bug[70] rank 1 dp 1: step 7\n"},
        {2, WORK_STEP, 4, 1, die, 128 + SIGKILL, ""}};
    const size_t every = (size_t)turns_every(3);
    for (size_t i = (size_t)turns_first((int64_t)every); i < sizeof ends / sizeof *ends;
         i += every) {
        char run[32];
        snprintf(run, sizeof run, "end-%zu", i);
        disturb(ends[i].rank, ends[i].kind, ends[i].round, ends[i].at, ends[i].act);
        char *said = run_expecting(run, sets, ends[i].code);
        says(said, ends[i].told);
        int sentences = 0;
        for (const char *at = said; (at = strstr(at, "] rank ")) != NULL; at++)
            sentences++;
        assert_int_equal(sentences, ends[i].told[0] != '\0');
        free(said);
        goes_on(run);
    }
}

static void hang(Run *run)
{
    (void)run;
    for (;;)
        pause();
}

/* The other ranks wait parallel.timeout seconds for a hanging rank. Then they end with an error
 * message that names it. */
static void test_the_error_names_a_rank_that_hangs(void **state)
{
    (void)state;
    const int every = (int)turns_every(3);
    for (int kind = (int)turns_first(every); kind < 3; kind += every) {
        char run[32];
        snprintf(run, sizeof run, "hang-%d", kind);
        disturb(1, (WorkKind)kind, 1, 1, hang);
        char *said = run_expecting(
            run, (const char *const[]){"eval.steps=15", "parallel.timeout=0.5", NULL}, EXIT_HANG);
        says(said, "error[86] rank ");
        says(said, "rank 1");
        free(said);
        goes_on(run);
    }
}

/* Stops the run, and makes every further save fail: replaces the folder checkpoints by a file. */
static void stop_and_block(Run *run)
{
    (void)run;
    CHECK(rename("blocked/checkpoints", "blocked/aside") == 0, "no checkpoints of %s", "blocked");
    put_text("blocked/checkpoints", "");
    raise(SIGTERM);
}

/* If a save fails on one rank, no rank treats it as complete. */
static void test_a_failed_save_on_one_rank_fails_on_all_ranks(void **state)
{
    (void)state;
    disturb(0, WORK_STEP, 4, 1, stop_and_block);
    char *said = run_expecting("blocked", sets, EXIT_INPUT_OUTPUT);
    says(said, "warning: step 5 is not saved: ");
    says(said, "stopped after step 5, which is not saved; the same command goes on from the "
               "checkpoint before it\n");
    free(said);
    assert_int_equal(remove("blocked/checkpoints"), 0);
    assert_int_equal(rename("blocked/aside", "blocked/checkpoints"), 0);
    goes_on("blocked");
}

/* Redirects metrics.jsonl to /dev/full, so further writes to it fail. */
static void fill_the_metrics(Run *run)
{
    char path[64], target[512];
    int full = open("/dev/full", O_WRONLY);
    CHECK(full >= 0, "no /dev/full for %s", run->folder.path);
    for (int fd = 3; fd < 100; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, target, sizeof target - 1);
        if (n <= 0) continue;
        target[n] = '\0';
        if (strstr(target, "/metrics.jsonl") != NULL) dup2(full, fd);
    }
    close(full);
}

/* Only rank 0 notices that the metrics cannot be written. The other ranks must not begin a save. */
static void test_no_rank_saves_if_the_metrics_cannot_be_written(void **state)
{
    (void)state;
    disturb(0, WORK_STEP, 2, 1, fill_the_metrics);
    char *said = run_expecting("full", sets, EXIT_INPUT_OUTPUT);
    says(said, "warning: step 4 is not saved: ");
    says(said, "error[74] the run reached its goal, but its last checkpoint is not written");
    assert_true(is_there("full/checkpoints/step_00000002"));
    assert_false(is_there("full/checkpoints/step_00000004"));
    free(said);
    goes_on("full");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_undisturbed_run_on_three_ranks_makes_all_its_steps),
        cmocka_unit_test(test_bug_50_a_stop_on_any_rank_ends_all_ranks_after_the_same_step),
        cmocka_unit_test(test_a_second_signal_ends_all_ranks_at_once),
        cmocka_unit_test(test_only_the_main_thread_on_rank_0_accepts_signals),
        cmocka_unit_test(test_a_failing_rank_ends_all_ranks_with_one_error_message),
        cmocka_unit_test(test_the_error_names_a_rank_that_hangs),
        cmocka_unit_test(test_a_failed_save_on_one_rank_fails_on_all_ranks),
        cmocka_unit_test(test_no_rank_saves_if_the_metrics_cannot_be_written),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
