/* test_run_saves.c -- runs on a disk that is slow or fails: what happens to a save that is pending,
 * and what is printed about saves. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "tests/support/trainer/flipped_bit.h"
#include "tests/support/trainer/planted_run.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { RANKS = 3, ODD = 1 };
#define KEEP1 "checkpoint.keep=1"
#define BARE  "eval.interval=0", "eval.sample_interval=0"

/* ---- disks ----------------------------------------------------------------------------------- */

/* Milliseconds that each sync of a slow disk takes. */
static long sync_pause;

static int slow_sync(void *self, int fd)
{
    struct timespec pause = {.tv_nsec = sync_pause * 1000000};
    nanosleep(&pause, NULL);
    return fs_system.sync(self, fd);
}

static int no_folder(void *self, int folder, const char *name, mode_t mode)
{
    int64_t *left = self;
    if (*left == 0) return fs_system.make_folder(NULL, folder, name, mode);
    --*left;
    errno = EIO;
    return -1;
}

/* The disk of all ranks; a failing disk refuses to create rank 0's folders `failures` times. */
static FsOps disk;
static int64_t failures;

static void on_this_disk(Run *run)
{
    run->trainer.io.fs = &disk;
}

static void take_slow_disk(void)
{
    sync_pause = 50;
    disk = fs_system;
    disk.sync = slow_sync;
}

static void take_failing_disk(int64_t times)
{
    disk = fs_system;
    disk.make_folder = no_folder;
    disk.self = &failures;
    failures = times;
}

/* ---- what a run says ------------------------------------------------------------------------- */

static int times_in(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)) != NULL; text++)
        n++;
    return n;
}

/* Makes each run of white space a single space, in place: lines are wrapped. */
static void unwrap(char *text)
{
    char *to = text;
    for (const char *c = text; *c; c++)
        if (!isspace((unsigned char)*c))
            *to++ = *c;
        else if (to > text && to[-1] != ' ')
            *to++ = ' ';
    *to = '\0';
}

/* Fails unless the save of step `saved` was pending after step `step`. */
static void was_pending(const char *run, int64_t saved, int64_t step)
{
    char *name = text_format("%s/metrics.jsonl", run), *text = take_text(name);
    char *a = text_format("{\"event\": \"ckpt\", \"step\": %lld,", (long long)saved),
         *b = text_format("{\"event\": \"train\", \"step\": %lld,", (long long)step);
    char *ckpt = strstr(text, a), *train = strstr(text, b);
    if (ckpt == NULL || train == NULL || ckpt < train) fail_msg("%s: not pending:\n%s", run, text);
    free(a);
    free(b);
    free(text);
    free(name);
}

/* ---- replicas -------------------------------------------------------------------------------- */

static void flip_in_step_5(Run *run)
{
    on_this_disk(run);
    if (run->world->rank == ODD && run->trainer.steps == 4)
        flip_held_bit(&run->trainer, "token.weight", -1, 5, 20);
}

/* Fails unless RUN/checkpoints has nothing but the checkpoint of this step. */
static void only_entry(const char *run, int64_t step)
{
    char *path = text_format("%s/checkpoints", run),
         *name = text_format("step_%08lld", (long long)step);
    DIR *folder = opendir(path);
    assert_non_null(folder);
    for (struct dirent *e; (e = readdir(folder)) != NULL;)
        if (e->d_name[0] != '.' && strcmp(e->d_name, name) != 0 &&
            strcmp(e->d_name, "best.json") != 0)
            fail_msg("%s has %s, not %s alone", path, e->d_name, name);
    closedir(folder);
    only_checkpoint(run, step);
    free(name);
    free(path);
}

/* The replicas become unequal in step 5, while the save of step 4 is pending. That save is
 * committed, because the replicas were equal when it began. The difference is found after step 5
 * (compare_interval 1) or before the save of step 6; then nothing of step 6 is written, and no
 * older checkpoint is removed for it. The ranks are threads or processes. */
static void test_a_pending_save_is_committed_before_unequal_replicas_end_the_run(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        bool processes = i % 2, between = i / 2;
        char *run = text_format("pending-%d", i);
        const char *arguments[] = {"tiny.json",
                                   "--out",
                                   run,
                                   "--ranks",
                                   "3",
                                   "--set",
                                   KEEP1,
                                   "--set",
                                   "eval.interval=0",
                                   "--set",
                                   "eval.sample_interval=0",
                                   "--set",
                                   between ? "checkpoint.compare_interval=1" : "seed=1",
                                   processes ? "--processes" : NULL,
                                   NULL};
        take_slow_disk();
        disturbance = (Disturbance){.kind = WORK_STEP, .act = flip_in_step_5, .rank = -1};
        char *said = command_expecting(arguments, EXIT_REPLICAS);
        says(said, between ? "error[89] step 5: " : "error[89] step 6: ");
        says(said, "This step is not saved");
        if (strstr(strstr(said, "error[") + 1, "error[")) fail_msg("two errors in:\n%s", said);
        free(said);
        was_pending(run, 4, 5);
        only_entry(run, 4);
        free(run);
    }
}

static void test_the_times_of_all_comparisons_of_replicas_are_printed(void **state)
{
    static const char *const sets[] = {KEEP1, BARE, "checkpoint.compare_interval=1",
                                       "checkpoint.save_interval=4", NULL};
    (void)state;
    take_slow_disk();
    disturbance = (Disturbance){.kind = WORK_STEP, .act = on_this_disk, .ranks = RANKS, .rank = -1};
    char *said = run_expecting("cost", sets, 0);
    was_pending("cost", 4, 5);
    assert_int_equal(times_in(said, "replicas compared in 0."), 2);
    /* Steps 1, 2, 3, 5 and 6 are compared by interval, the last two while step 4 is saved. */
    int n = 0;
    unwrap(said);
    for (const char *at = said; (at = strstr(at, ", and ")) != NULL; at++) {
        const char *after = strstr(at, " time");
        if (after != NULL && strstr(after, "by interval in 0.") - after <= 7)
            n += (int)strtol(at + strlen(", and "), NULL, 10);
    }
    assert_int_equal(n, 5);
    free(said);
}

static void test_replicas_are_compared_once_if_a_save_cannot_begin(void **state)
{
    static const char *const sets[] = {BARE, NULL};
    (void)state;
    take_failing_disk(1);
    disturbance = (Disturbance){.kind = WORK_STEP, .act = on_this_disk, .ranks = RANKS, .rank = -1};
    free(run_expecting("once", sets, 0));
    assert_int_equal(lines_of("once", "ckpt"), 4);
    assert_int_equal(lines_of("once", "replicas"), 4);
}

/* ---- health ---------------------------------------------------------------------------------- */

/* First run: the loss of step 11 is far too large while the save of step 10 is pending. Step 10 was
 * healthy, so its save removes the older checkpoint. Second run: the loss of step 10 itself is too
 * large, so its save removes nothing. */
static void test_steps_after_a_save_began_do_not_affect_what_it_removes(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        char *name = text_format("health-%d", late), *said;
        plant_fault(11 - late, 1, false, 1, 0);
        planted_act = on_this_disk;
        take_slow_disk();
        said = planted_run(name, KEEP1, "train_steps=12", NULL, NULL, 0);
        was_pending(name, 10, 11);
        unwrap(said);
        if (late) says(said, "warning: step 10: the loss is ");
        assert_int_equal(times_in(said, "so no older checkpoint is removed"), late);
        free(said);
        free(name);
    }
    planted_act = NULL;
}

/* ---- the end of a job ------------------------------------------------------------------------ */

/* Before step 5, while the save of step 4 is pending, makes the run believe that a save takes 1000
 * s and that its job has 1500 s left: enough for one save, but not for two. */
static void near_the_end_of_its_job(Run *run)
{
    on_this_disk(run);
    if (run->trainer.steps != 4) return;
    run->saving.seconds = 1000;
    run->job = (BatchJob){.end = seconds_now() + 1500};
}

static void test_a_run_in_a_job_also_leaves_time_for_its_pending_save(void **state)
{
    (void)state;
    for (int async = 0; async < 2; async++) {
        const char *const sets[] = {
            BARE, async ? "checkpoint.async=true" : "checkpoint.async=false", NULL};
        const char *run = async ? "job-pending" : "job-waits";
        take_slow_disk();
        sync_pause = async ? 300 : 0; /* so that it is pending for seconds */
        disturbance = (Disturbance){.kind = WORK_STEP, .act = near_the_end_of_its_job, .rank = -1};
        char *said = run_expecting(run, sets, async ? EXIT_REQUEUE : 0);
        assert_int_equal(times_in(said, "saving now: "), async);
        free(said);
        assert_int_equal(lines_of(run, "train"), async ? 5 : 7);
        assert_int_equal(lines_of(run, "ckpt"), async ? 3 : 4);
        if (async) was_pending(run, 4, 5);
    }
}

/* ---- warnings -------------------------------------------------------------------------------- */

static void test_a_failed_save_is_reported_once_and_the_last_one_again_at_the_end(void **state)
{
    static const char *const sets[] = {"train_steps=4", NULL};
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        char *name = text_format("failing-%d", ranks);
        take_failing_disk(1000);
        disturbance =
            (Disturbance){.kind = WORK_STEP, .act = on_this_disk, .ranks = ranks, .rank = -1};
        char *said = run_expecting(name, sets, EXIT_INPUT_OUTPUT);
        assert_int_equal(times_in(said, "step 2 is not saved"), 1);
        assert_int_equal(times_in(said, "step 4 is not saved"), 2);
        assert_int_equal(times_in(said, "trying again before"), 1);
        free(said);
        free(name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_pending_save_is_committed_before_unequal_replicas_end_the_run),
        cmocka_unit_test(test_the_times_of_all_comparisons_of_replicas_are_printed),
        cmocka_unit_test(test_replicas_are_compared_once_if_a_save_cannot_begin),
        cmocka_unit_test(test_steps_after_a_save_began_do_not_affect_what_it_removes),
        cmocka_unit_test(test_a_run_in_a_job_also_leaves_time_for_its_pending_save),
        cmocka_unit_test(test_a_failed_save_is_reported_once_and_the_last_one_again_at_the_end),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}
