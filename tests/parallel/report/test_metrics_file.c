/* test_metrics_file.c -- the file metrics.jsonl: what happens to old lines when a run restarts
 * without a checkpoint, to lines that cannot be written, and to files that are not regular
 * files. */
#include "model/core/check.h"
#include "model/core/log.h"
#include "parallel/report/metrics_file.h"
#include "tests/support/files/faulty_fs.h"
#include "tests/support/files/scratch.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void assert_text(const char *path, const char *expected)
{
    char *text = take_text(path);
    if (text == NULL) fail_msg("%s is not there", path);
    assert_string_equal(text, expected);
    free(text);
}

#define LINE(event, step)                                                                          \
    "{\"event\": \"" event "\", \"step\": " step ", \"updates\": 1, \"samples\": 2, \"tokens\": "  \
    "3, \"skipped\": 0}\n"
#define TRAINED(step)                                                                              \
    "{\"event\": \"train\", \"step\": " step ", \"updates\": 1, \"samples\": 2, \"tokens\": 3, "   \
    "\"skipped\": 0, \"loss\": 2.5}\n"
static const char start[] = LINE("start", "0"), both[] = LINE("start", "0") LINE("train", "1");

static void open_at(int64_t upto, int attempt)
{
    char err[512];
    MetricsFile f;
    MetricsTail tail = {0};
    if (!metrics_file_open(&f, &fs_system, ".", "metrics.jsonl", upto, attempt, &tail, err,
                           sizeof err))
        fail_msg("%s", err);
    assert_int_equal(tail.last.step, upto);
    metrics_file_close(&f);
}

static void restarting_without_a_checkpoint_keeps_the_old_lines_in_another_file(void **unused)
{
    (void)unused;
    put_text("metrics.jsonl", both);
    open_at(1, 3); /* a checkpoint of step 1: the lines stay */
    assert_text("metrics.jsonl", both);
    open_at(0, 3);
    assert_text("metrics.jsonl", "");
    assert_text("metrics.before-attempt-3.jsonl", both);
    /* Nothing would be lost, so the file is not renamed. */
    put_text("metrics.jsonl", start);
    open_at(0, 4);
    assert_text("metrics.jsonl", start);
    assert_int_not_equal(access("metrics.before-attempt-4.jsonl", F_OK), 0);
    /* Attempts are counted from 0 again when the lock file is removed, but no file is
     * overwritten. */
    put_text("metrics.jsonl", LINE("train", "7"));
    open_at(0, 3);
    assert_text("metrics.before-attempt-3.jsonl", both);
    assert_text("metrics.before-attempt-4.jsonl", LINE("train", "7"));
}

/* A start renames the old file, and its file system call number `at` fails or kills the process.
 * Afterwards the lines must be in exactly one of the two files. */
static void renaming_the_old_metrics_file_loses_no_line_at_any_fault(void **unused)
{
    (void)unused;
    static const Fault fault[] = {FAULT_NONE, FAULT_ONCE, FAULT_KILL};
    int calls = 0;
    for (int i = 0; i < 3; i++)
        for (int at = 1; at <= (fault[i] == FAULT_NONE ? 1 : calls); at++) {
            char log[4096] = "";
            FaultyFs faulty;
            faulty_fs_init(&faulty, fault[i], at, EIO);
            faulty.log = log;
            unlink("metrics.before-attempt-9.jsonl");
            put_text("metrics.jsonl", both);
            pid_t child = fault[i] == FAULT_KILL ? fork() : 0;
            if (child == 0) {
                char err[512] = "";
                MetricsFile f;
                MetricsTail tail = {0};
                bool good = metrics_file_open(&f, &faulty.ops, ".", "metrics.jsonl", 0, 9, &tail,
                                              err, sizeof err);
                metrics_file_close(&f);
                if (fault[i] == FAULT_KILL) _exit(0);
                if (good != (fault[i] == FAULT_NONE)) fail_msg("call %d: %s", at, err);
                if (!good) assert_non_null(strstr(err, strerror(EIO)));
            } else {
                int status;
                assert_int_equal(waitpid(child, &status, 0), child);
                assert_int_equal(WEXITSTATUS(status), FAULTY_KILLED);
            }
            if (fault[i] == FAULT_NONE) {
                /* The rename is synced before the old name is used again. */
                assert_string_equal(log, "r./metrics.before-attempt-9.jsonl s ");
                calls = faulty.calls;
            }
            bool aside = access("metrics.before-attempt-9.jsonl", F_OK) == 0;
            assert_text(aside ? "metrics.before-attempt-9.jsonl" : "metrics.jsonl", both);
            if (aside && fault[i] != FAULT_NONE)
                assert_int_not_equal(access("metrics.jsonl", F_OK), 0);
        }
    unlink("metrics.before-attempt-9.jsonl");
}

/* Opens a new file and adds a line that the disk refuses once. */
static void put_on_full_disk(MetricsFile *f, FaultyFs *faulty)
{
    char err[512];
    faulty_fs_init(faulty, FAULT_ONCE, 1, ENOSPC);
    unlink("metrics.jsonl");
    if (!metrics_file_open(f, &faulty->ops, ".", "metrics.jsonl", -1, 0, NULL, err, sizeof err))
        fail_msg("%s", err);
    metrics_file_put(f, start, sizeof start - 1);
    assert_text("metrics.jsonl", "");
}

/* The disk accepts half of a line and then fails. That half is removed, and the whole line is
 * written once there is room. */
static void a_line_that_could_not_be_written_is_written_later(void **unused)
{
    (void)unused;
    char err[512];
    FaultyFs faulty;
    MetricsFile f;
    put_on_full_disk(&f, &faulty);
    assert_true(metrics_file_sync(&f, err, sizeof err));
    assert_text("metrics.jsonl", start);
    faulty.calls = 0;
    faulty.fault = FAULT_ALWAYS;
    metrics_file_put(&f, start, sizeof start - 1);
    assert_false(metrics_file_sync(&f, err, sizeof err));
    assert_non_null(strstr(err, strerror(ENOSPC)));
    assert_text("metrics.jsonl", start);
    metrics_file_close(&f);
}

/* When another thread ends the process, pending lines are written. The end does not wait forever
 * for a thread that holds the lock. */
static void metrics_file_end_writes_pending_lines_unless_the_lock_is_held(void **unused)
{
    (void)unused;
    FaultyFs faulty;
    MetricsFile f;
    put_on_full_disk(&f, &faulty);
    pthread_mutex_lock(&f.busy);
    metrics_file_end(&f);
    assert_text("metrics.jsonl", "");
    pthread_mutex_unlock(&f.busy);
    metrics_file_end(&f);
    assert_text("metrics.jsonl", start);
    /* metrics_file_end keeps the lock, so no line is added after it. */
    pthread_mutex_unlock(&f.busy);
    metrics_file_close(&f);
}

/* What a start finds out about the last step, from one line of each kind after the lines of the
 * previous step. */
static void opening_metrics_finds_out_which_lines_the_last_step_has(void **unused)
{
    (void)unused;
    static const struct {
        const char *line;
        bool trained, evaluated, sampled;
    } kind[] = {{LINE("start", "7"), false, false, false},
                {LINE("val", "7"), false, true, false},
                {LINE("sample", "7"), false, false, true},
                {LINE("ckpt", "7"), false, false, false},
                {LINE("speed", "7"), false, false, false},
                {LINE("warn", "7"), false, false, false},
                {LINE("zeta", "7"), false, false, false},
                {TRAINED("7"), true, false, false},
                /* the line of an asynchronous save, which comes after its step */
                {TRAINED("7") LINE("val", "7") LINE("ckpt", "5"), true, true, false}};
    for (size_t i = 0; i < sizeof kind / sizeof *kind; i++) {
        char err[512], text[1024];
        MetricsFile f;
        MetricsTail tail = {0};
        snprintf(text, sizeof text, "%s%s", TRAINED("6") LINE("val", "6") LINE("sample", "6"),
                 kind[i].line);
        put_text("metrics.jsonl", text);
        if (!metrics_file_open(&f, &fs_system, ".", "metrics.jsonl", 7, 1, &tail, err, sizeof err))
            fail_msg("%s", err);
        metrics_file_close(&f);
        assert_int_equal(tail.last.step, 7);
        assert_int_equal(tail.last.tokens, 3);
        assert_int_equal(tail.trained, kind[i].trained);
        assert_int_equal(tail.evaluated, kind[i].evaluated);
        assert_int_equal(tail.sampled, kind[i].sampled);
        if (tail.trained) assert_true(tail.last.loss == 2.5);
    }
}

#define VAL(step, loss)                                                                            \
    "{\"event\": \"val\", \"step\": " step ", \"updates\": 1, \"samples\": 2, \"tokens\": 3, "     \
    "\"skipped\": 0, \"loss\": " loss "}\n"

/* The lowest validation loss is that of the lines that are kept. */
static void opening_metrics_finds_the_lowest_validation_loss(void **unused)
{
    (void)unused;
    static const struct {
        int64_t upto, step;
        const char *text;
    } cases[] = {
        {9, 4, VAL("2", "5.5") VAL("4", "5.25") VAL("6", "5.75")},
        {3, 2, VAL("2", "5.5") VAL("4", "5.25") VAL("6", "5.75")},
        {9, 4, VAL("2", "null") VAL("4", "5.25") TRAINED("5") VAL("6", "5.25")},
        {9, 6, VAL("2", "5.5") VAL("4", "5.25") LINE("data", "4") VAL("6", "5.75")},
        {9, 0, VAL("2", "null") TRAINED("3")},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char err[512];
        MetricsFile f;
        MetricsTail tail = {0};
        put_text("metrics.jsonl", cases[i].text);
        if (!metrics_file_open(&f, &fs_system, ".", "metrics.jsonl", cases[i].upto, 1, &tail, err,
                               sizeof err))
            fail_msg("%s", err);
        metrics_file_close(&f);
        if (tail.lowest.step != cases[i].step)
            fail_msg("%s: %lld", cases[i].text, (long long)tail.lowest.step);
        if (tail.evaluated) assert_int_equal(tail.eval.step, tail.last.step);
    }
}

static void links_pipes_and_folders_in_place_of_files_are_refused(void **unused)
{
    (void)unused;
    static const char *const names[] = {"metrics.jsonl", "samples.txt"};
    for (int i = 0; i < 2; i++)
        for (int kind = 0; kind < 4; kind++) {
            char err[512];
            MetricsFile f;
            MetricsTail tail = {0};
            unlink(names[i]);
            put_text("precious", both);
            int made = kind == 0   ? symlink("precious", names[i])
                       : kind == 1 ? symlink("nothing", names[i])
                       : kind == 2 ? mkfifo(names[i], 0666)
                                   : mkdir(names[i], 0777);
            assert_int_equal(made, 0);
            assert_false(metrics_file_open(&f, &fs_system, ".", names[i], i == 0 ? 0 : -1, 1, &tail,
                                           err, sizeof err));
            if (strstr(err, names[i]) == NULL) fail_msg("kind %d: %s", kind, err);
            if (kind < 2) assert_non_null(strstr(err, "is a symbolic link"));
            metrics_file_close(&f);
            assert_text("precious", both);
            assert_int_not_equal(access("nothing", F_OK), 0);
            if (kind == 3) assert_int_equal(rmdir(names[i]), 0);
        }
}

/* Goes back to step 1 in a file of these lines and adds a line. */
static void go_back(const char *lines)
{
    char err[512];
    MetricsFile f;
    MetricsTail tail = {0};
    put_text("metrics.jsonl", lines);
    if (!metrics_file_open(&f, &fs_system, ".", "metrics.jsonl", 9, 1, &tail, err, sizeof err) ||
        !metrics_file_go_back(&f, 1, "aside.jsonl", "other.jsonl", &tail, err, sizeof err))
        fail_msg("%s", err);
    assert_int_equal(tail.last.step, 1);
    metrics_file_put(&f, LINE("note", "1"), strlen(LINE("note", "1")));
    metrics_file_close(&f);
    assert_text("metrics.jsonl", LINE("start", "0") LINE("train", "1") LINE("note", "1"));
}

/* The lines of later steps move to the file aside.jsonl, which they replace unless it has more
 * lines. */
static void going_back_never_replaces_earlier_moved_lines_by_fewer_lines(void **unused)
{
    (void)unused;
    go_back(LINE("start", "0") LINE("train", "1") LINE("train", "2"));
    assert_text("aside.jsonl", LINE("train", "2"));
    go_back(LINE("start", "0") LINE("train", "1") LINE("again", "2"));
    assert_text("aside.jsonl", LINE("again", "2"));
    go_back(LINE("start", "0") LINE("train", "1") LINE("train", "2") LINE("train", "3"));
    assert_text("aside.jsonl", LINE("train", "2") LINE("train", "3"));
    assert_int_not_equal(access("other.jsonl", F_OK), 0);
    go_back(LINE("start", "0") LINE("train", "1") LINE("fewer", "3"));
    assert_text("aside.jsonl", LINE("train", "2") LINE("train", "3"));
    assert_text("other.jsonl", LINE("fewer", "3"));
    unlink("aside.jsonl");
    unlink("other.jsonl");
}

int main(void)
{
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(going_back_never_replaces_earlier_moved_lines_by_fewer_lines),
        cmocka_unit_test(restarting_without_a_checkpoint_keeps_the_old_lines_in_another_file),
        cmocka_unit_test(renaming_the_old_metrics_file_loses_no_line_at_any_fault),
        cmocka_unit_test(a_line_that_could_not_be_written_is_written_later),
        cmocka_unit_test(metrics_file_end_writes_pending_lines_unless_the_lock_is_held),
        cmocka_unit_test(opening_metrics_finds_out_which_lines_the_last_step_has),
        cmocka_unit_test(opening_metrics_finds_the_lowest_validation_loss),
        cmocka_unit_test(links_pipes_and_folders_in_place_of_files_are_refused),
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
