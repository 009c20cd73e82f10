/* test_flight_dump.c -- tests when the flight recorders of a process are written to files, and that
 * nothing is lost or delayed where that is not possible. What is in the files is tested in
 * test_flight_file.c, and whole runs in tests/program/flight.sh. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/dumps.h"
#include "model/core/log.h"
#include "tests/support/files/child.h"
#include "tests/support/files/scratch.h"
#include "tests/support/flight/some_flight.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#undef fail /* these tests mean fail of check.h, not cmocka's */

enum { RANKS = SOME_RANKS };

static void make_run(const char *run)
{
    assert_int_equal(mkdir(run, 0777), 0);
}

/* Waits for at most ten seconds until the rank's file belongs to this dump. Returns whether it
 * does. */
static bool has_dump(const char *run, int rank, int64_t number)
{
    char *folder = text_format("%s/flight", run);
    double end = seconds_now() + 10;
    bool there = false;
    while (!there && seconds_now() < end) {
        int fd = open(folder, O_RDONLY | O_DIRECTORY);
        there = fd >= 0 && flight_is_written(fd, rank, flight_dump_name(SOME_START, number));
        if (fd >= 0) close(fd);
        usleep(1000);
    }
    free(folder);
    return there;
}

/* ---- a process that goes on ------------------------------------------------------------------ */

/* The flight recorders that open_all adds and close_all removes. */
static Flight *flight[RANKS];

static void open_all(const char *run)
{
    for (int r = 0; r < RANKS; r++) {
        FlightSource source = some_source(flight[r] = some_flight(), r);
        log_set_rank(r, NULL);
        flight_dump_add(&source, run);
    }
    log_set_rank(0, NULL);
}

static void close_all(void)
{
    for (int r = 0; r < RANKS; r++) {
        flight_dump_remove(flight[r]);
        flight_free(flight[r]);
    }
}

static void expect(bool holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "not so: %s\n", what);
    _exit(1);
}

/* A signal that comes when no dump is being written causes a dump of its own. Signals that come
 * while one is being written may all be answered by a single further dump. */
static void dump_often(void *run)
{
    enum { TIMES = 5, BURST = 50 };
    dumps_hold_signal();
    expect(dumps_hold(), "the signal is held");
    kill(getpid(), SIGUSR2); /* stays pending until there is something to write */
    open_all(run);
    for (int i = 1; i <= TIMES; i++) {
        for (int r = 0; r < RANKS; r++)
            expect(has_dump(run, r, i), "each rank has the dump");
        kill(getpid(), SIGUSR2);
    }
    for (int i = 0; i < BURST; i++)
        kill(getpid(), SIGUSR2);
    usleep(300000);
    kill(getpid(), SIGUSR2);
    usleep(300000);
    close_all();
    kill(getpid(), SIGUSR2); /* stays pending again */
    open_all(run);           /* the numbers of dumps begin at 1 again */
    expect(has_dump(run, 0, 1), "the signal has waited");
    close_all();
}

static void test_a_signal_writes_a_dump_and_the_run_continues(void **state)
{
    char said[4096];
    (void)state;
    make_run("signals");
    int code = child_run(dump_often, "signals", said, sizeof said);
    if (code != 0) print_error("%s", said);
    assert_int_equal(code, 0);
    assert_memory_equal(said, "flight: ", strlen("flight: "));
    assert_non_null(strstr(said, "./train flight signals"));
}

static void keep_ignored(void *run)
{
    struct sigaction was;
    signal(SIGUSR2, SIG_IGN);
    dumps_hold_signal();
    expect(!dumps_hold(), "an ignored signal is not held");
    sigaction(SIGUSR2, NULL, &was);
    expect(was.sa_handler == SIG_IGN, "it stays ignored");
    open_all(run);
    raise(SIGUSR2);
    kill(getpid(), SIGUSR2);
    usleep(200000);
    close_all();
}

static void keep_blocked(void *run)
{
    sigset_t set, pending;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    dumps_hold_signal();
    expect(!dumps_hold(), "a blocked signal is not held");
    open_all(run);
    kill(getpid(), SIGUSR2);
    usleep(200000);
    close_all();
    sigpending(&pending);
    expect(sigismember(&pending, SIGUSR2), "the signal is still pending");
}

static void test_a_signal_that_is_ignored_or_blocked_at_the_start_remains_so(void **state)
{
    char said[4096];
    (void)state;
    make_run("kept");
    assert_int_equal(child_run(keep_ignored, "kept", said, sizeof said), 0);
    assert_string_equal(said, "");
    assert_int_equal(child_run(keep_blocked, "kept", said, sizeof said), 0);
    assert_string_equal(said, "");
    assert_int_equal(access("kept/flight", F_OK), -1);
}

/* ---- files that cannot be written ------------------------------------------------------------ */

static void dump_once(void *run)
{
    dumps_hold_signal();
    open_all(run);
    kill(getpid(), SIGUSR2);
    usleep(400000);
    close_all();
}

/* Imitates a full disk: no file may have more than 100 bytes. */
static void dump_on_a_full_disk(void *run)
{
    const struct rlimit most = {100, 100};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &most);
    dump_once(run);
}

static void test_a_file_that_cannot_be_written_causes_a_warning(void **state)
{
    char said[4096];
    (void)state;
    make_run("file");
    put_text("file/flight", "no folder");
    assert_int_equal(child_run(dump_once, "file", said, sizeof said), 0);
    assert_string_equal(said, "warning: the flight recorder cannot be written to file/flight: Not "
                              "a directory\n");
    make_run("full");
    assert_int_equal(mkdir("full/flight", 0777), 0);
    put_text("full/flight/rank_00000.jsonl", "of an earlier dump");
    assert_int_equal(child_run(dump_on_a_full_disk, "full", said, sizeof said), 0);
    assert_string_equal(said, "warning: the flight recorder cannot be written to full/flight: File "
                              "too large\n");
    char *kept = take_text("full/flight/rank_00000.jsonl");
    assert_string_equal(kept, "of an earlier dump");
    assert_int_equal(access("full/flight/rank_00000.jsonl.tmp", F_OK), -1);
    free(kept);
    /* Nothing is written through a link. */
    make_run("linked");
    assert_int_equal(mkdir("elsewhere", 0777), 0);
    assert_int_equal(symlink("../elsewhere", "linked/flight"), 0);
    assert_int_equal(child_run(dump_once, "linked", said, sizeof said), 0);
    assert_int_equal(access("elsewhere/rank_00000.jsonl", F_OK), -1);
    assert_non_null(strstr(said, "warning: the flight recorder cannot be written"));
}

/* ---- a process that ends --------------------------------------------------------------------- */

/* How a process ends. */
typedef struct {
    const char *run;
    int code; /* its exit code: passed to fail() or to ends_now(), or that of CHECK */
    bool silent, check, alone;
} End;

static void end_process(void *context)
{
    const End *end = context;
    dumps_hold_signal();
    ends_share(true);
    open_all(end->run);
    if (end->alone) dumps_end_alone();
    if (end->check) CHECK(end->run == NULL, "a bug of rank %d", 1);
    if (end->silent) ends_now((ExitCode)end->code);
    fail((ExitCode)end->code, "it ends");
}

/* Checks the output of the process: this error message, and after it what the files show, or only
 * the command that shows it if end->alone. If the process has written no files (`reason` is NULL)
 * or ends silently, nothing may follow the error message. */
static void check_said(const End *end, const char *said, const char *error, const char *reason)
{
    char *last = text_format("\nflight: ./train flight %s shows more\n", end->run);
    const char *at = strstr(said, error), *rest = at ? at + strlen(error) : "";
    size_t n = strlen(said);
    assert_non_null(at);
    if (reason == NULL || end->silent) {
        assert_string_equal(rest, "");
    } else if (end->alone) {
        assert_string_equal(rest, last + 1);
    } else {
        assert_non_null(strstr(rest, "flight: ranks 0, 1 are late: rank "));
        assert_non_null(strstr(rest, "in all-reduce of 1048576 bf16 (group dp, call 17)"));
        assert_non_null(strstr(rest, "in the backward pass of micro-batch 3 of step 12"));
        assert_true(n >= strlen(last));
        assert_string_equal(said + n - strlen(last), last);
    }
    free(last);
}

/* reason: the dump's reason, which its files must contain; NULL: there must be no files. */
static void check_end(const End *end, const char *reason, const char *error)
{
    char said[4096], *text;
    make_run(end->run);
    char *path = text_format("%s/flight/rank_00001.jsonl", end->run);
    assert_int_equal(child_run(end_process, (void *)end, said, sizeof said), end->code);
    check_said(end, said, error, reason);
    text = take_text(path);
    if (reason == NULL) {
        assert_null(text);
    } else {
        char *words = text_format("\"dump\":\"%016llx\",\"reason\":\"%s\",\"rank\":1,",
                                  (unsigned long long)flight_dump_name(SOME_START, 0), reason);
        assert_non_null(text);
        assert_non_null(strstr(text, words));
        free(words);
    }
    free(text);
    free(path);
}

static void test_only_the_documented_exit_codes_leave_a_dump(void **state)
{
    static const End hang = {.run = "hang", .code = EXIT_HANG},
                     lost = {.run = "lost", .code = EXIT_PEER_LOST},
                     alone = {.run = "alone", .code = EXIT_HANG, .alone = true},
                     bug = {.run = "bug", .code = EXIT_BUG, .check = true},
                     /* Another process says what the files show. */
        silent = {.run = "silent", .code = EXIT_HANG, .silent = true},
                     disk = {.run = "disk", .code = EXIT_INPUT_OUTPUT},
                     stop = {.run = "stop", .code = EXIT_REQUEUE, .silent = true};
    (void)state;
    check_end(&hang, "deadline", "error[86] it ends\n");
    check_end(&lost, "failure", "error[87] it ends\n");
    check_end(&alone, "deadline", "error[86] it ends\n");
    check_end(&bug, "failure", "bug[70] a bug of rank 1\n");
    check_end(&silent, "deadline", "");
    check_end(&disk, NULL, "error[74] it ends\n");
    check_end(&stop, NULL, "");
}

/* The disk does not answer: opening a pipe waits for its reader. */
static void test_a_blocked_disk_delays_the_exit_by_about_2_seconds(void **state)
{
    char said[4096];
    const End end = {.run = "pipe", .code = EXIT_HANG};
    (void)state;
    make_run("pipe");
    assert_int_equal(mkdir("pipe/flight", 0777), 0);
    assert_int_equal(mkfifo("pipe/flight/rank_00000.jsonl.tmp", 0666), 0);
    double begin = seconds_now();
    assert_int_equal(child_run(end_process, (void *)&end, said, sizeof said), EXIT_HANG);
    double seconds = seconds_now() - begin;
    assert_string_equal(said, "error[86] it ends\n");
    assert_true(seconds >= 1.5 && seconds < 3.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_signal_writes_a_dump_and_the_run_continues),
        cmocka_unit_test(test_a_signal_that_is_ignored_or_blocked_at_the_start_remains_so),
        cmocka_unit_test(test_a_file_that_cannot_be_written_causes_a_warning),
        cmocka_unit_test(test_only_the_documented_exit_codes_leave_a_dump),
        cmocka_unit_test(test_a_blocked_disk_delays_the_exit_by_about_2_seconds),
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
