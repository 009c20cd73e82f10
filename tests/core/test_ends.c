/* test_ends.c -- tests how a process with several ranks ends after a failure: with one error
 * message and one exit code, whichever thread fails. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/log.h"
#include "model/core/pool.h"
#include "tests/support/files/child.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#undef fail /* these tests mean fail of check.h, not cmocka's */

enum { RANKS = 4, TIMES = 50 };

/* The action of each rank in the child process once all have started. */
typedef void (*Act)(int rank);
static pthread_barrier_t met;
static Act act;

static void *rank_main(void *context)
{
    int rank = (int)(intptr_t)context;
    char place[16];
    snprintf(place, sizeof place, "dp %d", rank);
    log_set_rank(rank, place);
    pthread_barrier_wait(&met);
    act(rank);
    return NULL;
}

static void flush_and_say(void *context)
{
    if (write(STDERR_FILENO, context, strlen(context)) < 0) _exit(1);
}

/* The ranks' action, and the flush hook that runs when they end. */
typedef struct {
    Act act;
    void (*flush)(void *);
} Does;

static void ranks_main(void *context)
{
    const Does *does = context;
    pthread_t thread[RANKS];
    pthread_barrier_init(&met, NULL, RANKS);
    act = does->act;
    ends_share(true);
    ends_set_flush(does->flush, (char *)"flushed\n");
    for (intptr_t i = 1; i < RANKS; i++)
        thread_start(&thread[i], rank_main, (void *)i, "a rank");
    rank_main(NULL);
    for (int i = 1; i < RANKS; i++)
        pthread_join(thread[i], NULL);
    ends_set_flush(NULL, NULL);
    ends_share(false);
    fail(EXIT_MISSING, "one rank alone");
}

/* Runs ranks with this action in a child process. Returns its exit code and stores its output in
 * text. */
static int child(Act acts, void (*flush)(void *), char *text, size_t n)
{
    return child_run(ranks_main, &(Does){acts, flush}, text, n);
}

static void fail_each_its_own(int rank)
{
    static const ExitCode code[RANKS] = {EXIT_DAMAGED, EXIT_INPUT_OUTPUT, EXIT_NO_MEMORY,
                                         EXIT_SYSTEM};
    fail(code[rank], "cause %d", rank);
}

/* All ranks fail at once with different errors: one error is printed, and the exit code is that
 * error's. */
static void test_when_all_ranks_fail_only_the_first_error_is_printed(void **state)
{
    (void)state;
    char text[4096], expected[128];
    for (int i = 0; i < TIMES; i++) {
        int code = child(fail_each_its_own, flush_and_say, text, sizeof text), rank = -1;
        assert_int_equal(sscanf(text, "error[%*d] rank %d", &rank), 1);
        snprintf(expected, sizeof expected, "error[%d] rank %d dp %d: cause %d\nflushed\n", code,
                 rank, rank, rank);
        assert_string_equal(text, expected);
    }
}

static void check_on_two(int rank)
{
    if (rank < 2) CHECK(rank == RANKS, "rank %d", rank);
    for (;;)
        pause();
}

static void test_a_failed_check_on_one_rank_ends_all_ranks(void **state)
{
    (void)state;
    char text[4096], expected[128];
    for (int i = 0; i < TIMES; i++) {
        assert_int_equal(child(check_on_two, flush_and_say, text, sizeof text), EXIT_BUG);
        const char *end = strchr(text, '\n'), *rank = strstr(text, "rank 1 dp 1") ? "1" : "0";
        snprintf(expected, sizeof expected, "\nbug[70] rank %s dp %s: rank %s\nflushed\n", rank,
                 rank, rank);
        assert_non_null(strstr(text, ": CHECK(rank == RANKS) failed\n"));
        assert_string_equal(end, expected);
    }
}

static sem_t ended;

static void note_end(void *context)
{
    (void)context;
    sem_post(&ended);
}

/* Rank 0 holds the lock of stdout, which the thread that ends the process tries to take, until that
 * thread has gone on without it. */
static void fail_beside_a_printer(int rank)
{
    if (rank == 0) {
        flockfile(stdout);
        pthread_barrier_wait(&met);
        sem_wait(&ended);
        funlockfile(stdout);
        for (;;)
            pause();
    }
    pthread_barrier_wait(&met);
    if (rank == 2) fail(EXIT_HANG, "a cause");
    for (;;)
        pause();
}

static void test_a_failing_rank_does_not_wait_for_one_that_holds_stdout(void **state)
{
    (void)state;
    char text[4096];
    sem_init(&ended, 0, 0);
    assert_int_equal(child(fail_beside_a_printer, note_end, text, sizeof text), EXIT_HANG);
    assert_string_equal(text, "error[86] rank 2 dp 2: a cause\n");
}

/* Rank 0 holds the lock of stderr, as in a warning that waits for a blocked write to stdout, until
 * the error has been printed: ThreadSanitizer takes the lock when the process ends. */
static void hold_stderr_beside(int rank)
{
    if (rank == 0) flockfile(stderr);
    pthread_barrier_wait(&met);
    if (rank == 0) {
        sem_wait(&ended);
        funlockfile(stderr);
    }
    if (rank == 1) fail(EXIT_HANG, "a \n cause");
    if (rank == 2) check_on_two(1);
    for (;;)
        pause();
}

static void check_beside(int rank)
{
    hold_stderr_beside(rank == 1 ? 3 : rank);
}

static void fail_beside(int rank)
{
    hold_stderr_beside(rank == 2 ? 3 : rank);
}

static void test_a_failing_rank_does_not_wait_for_one_that_holds_stderr(void **state)
{
    (void)state;
    char text[4096];
    sem_init(&ended, 0, 0);
    assert_int_equal(child(fail_beside, note_end, text, sizeof text), EXIT_HANG);
    assert_string_equal(text, "error[86] rank 1 dp 1: a \\x0a cause\n");
    assert_int_equal(child(check_beside, note_end, text, sizeof text), EXIT_BUG);
    assert_non_null(strstr(text, ": CHECK(rank == RANKS) failed\nbug[70] rank 2 dp 2: rank 1\n"));
}

static void fail_again(void *context)
{
    (void)context;
    fail(EXIT_NO_MEMORY, "never said");
}

static void fail_on_one(int rank)
{
    printf("rank %d\n", rank * 0);
    pthread_barrier_wait(&met);
    if (rank == 3) fail(EXIT_DAMAGED, "a cause");
    /* If this thread returned, ThreadSanitizer could report it as leaked and change the exit
     * code. */
    for (;;)
        pause();
}

/* If the flush hook fails, too, the first error still decides the exit code. Text printed earlier
 * must appear before the error message. */
static void test_a_failure_in_the_flush_hook_keeps_the_first_exit_code(void **state)
{
    (void)state;
    char text[4096];
    assert_int_equal(child(fail_on_one, fail_again, text, sizeof text), EXIT_DAMAGED);
    assert_string_equal(text, "rank 0\nrank 0\nrank 0\nrank 0\nerror[65] rank 3 dp 3: a cause\n");
}

static void do_nothing(int rank)
{
    (void)rank;
}

/* After all ranks have finished, fail works as in a program with a single rank. */
static void test_when_all_ranks_have_finished_fail_works_as_with_one_rank(void **state)
{
    (void)state;
    char text[4096];
    assert_int_equal(child(do_nothing, flush_and_say, text, sizeof text), EXIT_MISSING);
    assert_string_equal(text, "error[66] rank 0 dp 0: one rank alone\n");
}

/* Replaces the stream of this file descriptor by a full pipe that nobody reads. */
static void stall(int fd)
{
    static const char page[4096];
    int ends[2];
    if (pipe(ends) != 0 || fcntl(ends[1], F_SETFL, O_NONBLOCK) != 0) _exit(1);
    while (write(ends[1], page, sizeof page) > 0)
        continue;
    if (fcntl(ends[1], F_SETFL, 0) != 0 || dup2(ends[1], fd) != fd) _exit(1);
}

static void fail_beside_a_stalled_stdout(void *unused)
{
    (void)unused;
    stall(STDOUT_FILENO);
    printf("never read\n");
    fail(EXIT_DAMAGED, "a cause");
}

static void fail_on_a_stalled_console(void *unused)
{
    (void)unused;
    stall(STDOUT_FILENO);
    stall(STDERR_FILENO);
    fail(EXIT_DAMAGED, "a cause: %s", strerror(EACCES)); /* the reason changes the code */
}

static void check_on_a_stalled_console(void *unused)
{
    stall(STDERR_FILENO);
    CHECK(unused != NULL, "a cause");
}

static void never_return(void *context)
{
    (void)context;
    for (;;)
        pause();
}

static void fail_with_a_flush_that_never_returns(void *unused)
{
    (void)unused;
    ends_share(true);
    ends_set_flush(never_return, NULL);
    fail(EXIT_DAMAGED, "a cause");
}

/* The process must end in time even if its message cannot be printed because nobody reads it, or if
 * a disk does not answer. */
static void test_a_failure_ends_the_process_within_five_seconds(void **state)
{
    static const struct {
        ChildBody body;
        int code;
        const char *said;
    } failures[] = {{fail_beside_a_stalled_stdout, EXIT_DAMAGED, "error[65] a cause\n"},
                    {fail_on_a_stalled_console, EXIT_PERMISSION, ""},
                    {check_on_a_stalled_console, EXIT_BUG, ""},
                    {fail_with_a_flush_that_never_returns, EXIT_DAMAGED, "error[65] a cause\n"}};
    enum { FAILURES = sizeof failures / sizeof *failures };
    double start = seconds_now();
    pid_t process[FAILURES];
    int said[FAILURES];
    char text[256];
    (void)state;
    for (int i = 0; i < FAILURES; i++)
        process[i] = child_start(failures[i].body, NULL, &said[i]);
    for (int i = 0; i < FAILURES; i++) {
        assert_int_equal(child_end(process[i], said[i], text, sizeof text), failures[i].code);
        assert_string_equal(text, failures[i].said);
    }
    assert_true(seconds_now() - start < 5);
}

static void check_in_a_task(void *context, int64_t task, int worker)
{
    (void)context;
    if (worker == 0)
        for (;;)
            pause(); /* only the other thread's task shall fail */
    CHECK(task < 0, "task %lld", (long long)task);
}

static void run_tasks(int rank)
{
    if (rank == 1) pool_run(pool_create(2), 2, check_in_a_task, NULL);
    for (;;)
        pause();
}

/* The pool threads of a rank print errors with that rank's place. */
static void test_errors_in_pool_threads_show_the_place_of_their_rank(void **state)
{
    (void)state;
    char text[4096];
    assert_int_equal(child(run_tasks, NULL, text, sizeof text), EXIT_BUG);
    assert_non_null(strstr(text, "bug[70] rank 1 dp 1: task "));
}

/* A rank's log file receives its messages of every level, while ranks other than 0 print none of
 * them on the console. */
static void test_a_rank_writes_messages_of_every_level_to_its_log_file(void **state)
{
    (void)state;
    char *text;
    size_t n;
    FILE *to = text_stream(&text, &n);
    LogLevel level = log_level();
    log_set_level(LOG_WARNING);
    log_set_rank(2, "dp 2");
    log_set_file(to);
    assert_ptr_equal(log_file(), to);
    log_info("an information of %d", 7);
    log_warning("a warning");
    log_set_file(NULL);
    log_warning("another");
    log_set_rank(0, NULL);
    log_set_level(level);
    fclose(to);
    assert_string_equal(text, "an information of 7\nwarning: a warning\n");
    free(text);
}

/* Writing to standard output fails at first (/dev/full) and then succeeds. */
static void lose_a_part_of_the_output(void *context)
{
    int usual = dup(STDOUT_FILENO), full = open("/dev/full", O_WRONLY);
    if (dup2(full, STDOUT_FILENO) < 0 || printf("first") < 0 || fflush(stdout) == 0 ||
        dup2(usual, STDOUT_FILENO) < 0)
        _exit(1);
    exit(output_checked(*(const int *)context));
}

static void test_lost_output_is_an_error_unless_the_command_has_failed_anyway(void **state)
{
    (void)state;
    char text[256];
    int ok = EXIT_OK, usage = EXIT_USAGE;
    assert_int_equal(child_run(lose_a_part_of_the_output, &ok, text, sizeof text),
                     EXIT_INPUT_OUTPUT);
    assert_string_equal(text, "error[74] part of the output could not be written\n");
    assert_int_equal(child_run(lose_a_part_of_the_output, &usage, text, sizeof text), EXIT_USAGE);
    assert_string_equal(text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_when_all_ranks_fail_only_the_first_error_is_printed),
        cmocka_unit_test(test_a_failed_check_on_one_rank_ends_all_ranks),
        cmocka_unit_test(test_a_failing_rank_does_not_wait_for_one_that_holds_stdout),
        cmocka_unit_test(test_a_failing_rank_does_not_wait_for_one_that_holds_stderr),
        cmocka_unit_test(test_a_failure_in_the_flush_hook_keeps_the_first_exit_code),
        cmocka_unit_test(test_when_all_ranks_have_finished_fail_works_as_with_one_rank),
        cmocka_unit_test(test_a_failure_ends_the_process_within_five_seconds),
        cmocka_unit_test(test_errors_in_pool_threads_show_the_place_of_their_rank),
        cmocka_unit_test(test_a_rank_writes_messages_of_every_level_to_its_log_file),
        cmocka_unit_test(test_lost_output_is_an_error_unless_the_command_has_failed_anyway),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
