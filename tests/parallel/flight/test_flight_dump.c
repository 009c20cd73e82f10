/* test_flight_dump.c -- tests when the flight recorders of a process are written to files, what is
 * in these, and that nothing is lost or delayed where that is not possible. Whole runs are tested
 * in test_flight_runs.c. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/dumps.h"
#include "model/core/log.h"
#include "parallel/flight/write.h"
#include "tests/support/files/child.h"
#include "tests/support/files/scratch.h"

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

enum { RANKS = 2, START = 77 };
static const char *const op[] = {"copy_rows", "add"}, *const verb[] = {"all-reduce", "send"};

/* Returns a flight with a finished op, and a collective under way. */
static Flight *some_flight(void)
{
    Flight *f = flight_create();
    GraphGroup dp = {.name = "dp", .size = 2, .rank = 1, .first = 0, .stride = 1};
    flight_group(f, &(GraphGroup){.name = "world", .size = 2, .stride = 1});
    int group = flight_group(f, &dp);
    flight_at(f, 12, 3, FLIGHT_BACKWARD);
    flight_unit(f, 5);
    FlightEntry add = {.kind = FLIGHT_OP,
                       .code = 1,
                       .dtype = F32,
                       .elements = 64,
                       .group = -1,
                       .call = -1,
                       .peer = -1};
    flight_end(f, flight_begin(f, NULL, &add));
    FlightEntry sum = {.kind = FLIGHT_COLLECTIVE,
                       .code = 0,
                       .dtype = BF16,
                       .elements = 1 << 20,
                       .group = (int8_t)group,
                       .call = 17,
                       .peer = -1};
    flight_begin(f, NULL, &sum);
    return f;
}

static FlightSource source_of(const Flight *f, int rank)
{
    return (FlightSource){.flight = f,
                          .names = {op, verb},
                          .rank = rank,
                          .ranks = RANKS,
                          .here = RANKS,
                          .dp = rank,
                          .attempt = 2,
                          .host = "n\"1",
                          .start = START};
}

static void make_run(const char *run)
{
    assert_int_equal(mkdir(run, 0777), 0);
}

/* Returns the first number after these words. */
static double number_after(const char *text, const char *words)
{
    const char *at = strstr(text, words);
    assert_non_null(at);
    return strtod(at + strlen(words), NULL);
}

/* Waits until the rank's file is of this dump. Returns whether it is, after ten seconds at most. */
static bool has_dump(const char *run, int rank, int64_t number)
{
    char *folder = text_format("%s/flight", run);
    double end = seconds_now() + 10;
    bool there = false;
    while (!there && seconds_now() < end) {
        int fd = open(folder, O_RDONLY | O_DIRECTORY);
        there = fd >= 0 && flight_is_written(fd, rank, flight_dump_name(START, number));
        if (fd >= 0) close(fd);
        usleep(1000);
    }
    free(folder);
    return there;
}

/* ---- the format ------------------------------------------------------------------------------ */

/* Replaces the digits of the value of each `key` by 'T's, whose number may differ. */
static void hide(char *text, const char *key)
{
    for (char *at = strstr(text, key); at; at = strstr(at, key)) {
        at += strlen(key);
        size_t n = strspn(at, "-0123456789.");
        if (n == 0) continue; /* null */
        memmove(at + 1, at + n, strlen(at + n) + 1);
        *at = 'T';
    }
}

static void test_a_file_has_the_flight_and_its_rank(void **state)
{
    static const char expected[] =
        "{\"format\":\"train.c flight\",\"version\":1,\"dump\":\"%016llx\",\"reason\":\"signal\","
        "\"rank\":1,\"ranks\":2,\"host\":\"n1\",\"pid\":T,\"time\":T,\"attempt\":2,\"pp\":0,"
        "\"dp\":1,\"tp\":0,\"step\":12,\"micro_batch\":3,\"action\":\"backward\",\"issued\":2,"
        "\"entries\":2}\n"
        "{\"group\":1,\"name\":\"dp\",\"ranks\":[[0,1,2]]}\n"
        "{\"n\":1,\"kind\":\"op\",\"name\":\"add\",\"dtype\":\"f32\",\"elements\":64,\"stream\":"
        "\"host\",\"group\":-1,\"call\":-1,\"peer\":-1,\"step\":12,\"micro_batch\":3,\"action\":"
        "\"backward\",\"unit\":5,\"begun\":T,\"ended\":T}\n"
        "{\"n\":2,\"kind\":\"collective\",\"name\":\"all-reduce\",\"dtype\":\"bf16\",\"elements\":"
        "1048576,\"stream\":\"host\",\"group\":1,\"call\":17,\"peer\":-1,\"step\":12,"
        "\"micro_batch\":3,\"action\":\"backward\",\"unit\":5,\"begun\":T,\"ended\":null}\n";
    (void)state;
    Flight *f = some_flight();
    FlightSource source = source_of(f, 1);
    snprintf(source.host, sizeof source.host, "n1");
    FlightRoom *room = must_alloc(sizeof *room);
    const uint64_t name = flight_dump_name(START, 3);
    make_run("format");
    assert_int_equal(mkdir("format/flight", 0777), 0);
    int folder = open("format/flight", O_RDONLY | O_DIRECTORY);
    double before = wall_seconds_now();
    assert_int_equal(
        flight_write(&source, (Dump){.number = 3, .reason = DUMP_SIGNAL}, folder, room), 0);
    assert_true(flight_is_written(folder, 1, name));
    assert_false(flight_is_written(folder, 1, flight_dump_name(START, 4)));
    assert_false(flight_is_written(folder, 0, name));
    close(folder);
    char *text = take_text("format/flight/rank_00001.jsonl");
    double time = number_after(text, "\"time\":"), begun = number_after(text, "\"begun\":"),
           ended = number_after(text, "\"ended\":");
    assert_true(time >= before - 1e-5 && time <= wall_seconds_now() + 1e-5);
    assert_true(begun <= ended && ended <= 0 && begun > -60);
    hide(text, "\"pid\":");
    hide(text, "\"time\":");
    hide(text, "\"begun\":");
    hide(text, "\"ended\":");
    char *wanted = text_format(expected, (unsigned long long)name);
    assert_string_equal(text, wanted);
    free(wanted);
    free(text);
    free(room);
    flight_free(f);
}

/* A file has room for more than the writer's buffer, and no number of an entry is lost. */
static void test_a_file_has_all_entries_of_the_ring(void **state)
{
    const FlightEntry copy = {.kind = FLIGHT_COPY,
                              .dtype = FLIGHT_NO_DTYPE,
                              .elements = INT64_MAX,
                              .group = -1,
                              .call = -1,
                              .peer = -1};
    (void)state;
    Flight *f = flight_create();
    FlightSource source = source_of(f, 65535);
    FlightRoom *room = must_alloc(sizeof *room);
    make_run("whole");
    assert_int_equal(mkdir("whole/flight", 0777), 0);
    for (int i = 0; i < 2 * FLIGHT_ENTRIES; i++)
        flight_begin(f, NULL, &copy);
    int folder = open("whole/flight", O_RDONLY | O_DIRECTORY), line = 0;
    assert_int_equal(
        flight_write(&source, (Dump){.number = 1, .reason = DUMP_SIGNAL}, folder, room), 0);
    close(folder);
    char *text = take_text("whole/flight/rank_65535.jsonl"), *at = strchr(text, '\n') + 1;
    for (; *at; at = strchr(at, '\n') + 1, line++) {
        char begin[256];
        snprintf(begin, sizeof begin,
                 "{\"n\":%d,\"kind\":\"copy\",\"name\":\"copy\",\"dtype\":\"\",\"elements\":%lld,",
                 FLIGHT_ENTRIES + 1 + line, (long long)INT64_MAX);
        assert_memory_equal(at, begin, strlen(begin));
    }
    assert_int_equal(line, FLIGHT_ENTRIES);
    free(text);
    free(room);
    flight_free(f);
}

/* ---- a process that goes on ------------------------------------------------------------------ */

/* Adds the flights of RANKS ranks, or removes them. */
static Flight *flight[RANKS];

static void open_all(const char *run)
{
    for (int r = 0; r < RANKS; r++) {
        FlightSource source = source_of(flight[r] = some_flight(), r);
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

/* Each signal makes a dump of its own if it comes after the one before; those that come while one
 * is written may share the next. */
static void dump_often(void *run)
{
    enum { TIMES = 5, BURST = 50 };
    dumps_hold_signal();
    expect(dumps_hold(), "the signal is held");
    kill(getpid(), SIGUSR2); /* waits until there is something to write */
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
    kill(getpid(), SIGUSR2); /* has no effect any more */
    open_all(run);           /* dumps begin anew */
    expect(has_dump(run, 0, 1), "the signal has waited");
    close_all();
}

static void test_signals_dump_and_stop_nothing(void **state)
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

static void test_a_signal_that_is_ignored_or_blocked_stays_so(void **state)
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

/* As on a full disk: a file may have so many bytes. */
static void dump_on_a_full_disk(void *run)
{
    const struct rlimit most = {100, 100};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &most);
    dump_once(run);
}

static void test_a_file_that_cannot_be_written_costs_a_warning(void **state)
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
    int code; /* of fail(), or of CHECK, or of ends_now */
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

/* The process must print this error message and then, if `reason`, what the files show. */
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
        assert_non_null(strstr(rest, "flight: ranks 0, 1 are late: rank 0 "));
        assert_non_null(strstr(rest, "in all-reduce of 1048576 bf16 (group dp, call 17)"));
        assert_non_null(strstr(rest, "in the backward pass of micro-batch 3 of step 12"));
        assert_true(n >= strlen(last));
        assert_string_equal(said + n - strlen(last), last);
    }
    free(last);
}

/* reason: in the files; NULL: there are none. */
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
                                  (unsigned long long)flight_dump_name(START, 0), reason);
        assert_non_null(text);
        assert_non_null(strstr(text, words));
        free(words);
    }
    free(text);
    free(path);
}

static void test_ends_that_leave_a_dump(void **state)
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
static void test_a_disk_that_hangs_delays_no_end_for_long(void **state)
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
        cmocka_unit_test(test_a_file_has_the_flight_and_its_rank),
        cmocka_unit_test(test_a_file_has_all_entries_of_the_ring),
        cmocka_unit_test(test_signals_dump_and_stop_nothing),
        cmocka_unit_test(test_a_signal_that_is_ignored_or_blocked_stays_so),
        cmocka_unit_test(test_a_file_that_cannot_be_written_costs_a_warning),
        cmocka_unit_test(test_ends_that_leave_a_dump),
        cmocka_unit_test(test_a_disk_that_hangs_delays_no_end_for_long),
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
