/* test_ends.c -- how a process of several ranks ends: one cause, one sentence, one exit code, from
 * whichever thread it comes. */
#include "model/core/check.h"
#include "model/core/log.h"
#include "model/core/pool.h"
#include "tests/support/files/child.h"

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
#undef fail /* check.h's is meant */

enum { RANKS = 4, TIMES = 50 };

/* What a rank of the child does when all have started. */
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

/* What a child's ranks do, and what is called when they end. */
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

/* The exit code of a child whose ranks do that, and what it printed. */
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

/* All ranks fail at once, each for its own reason: one reason is printed, with its exit code. */
static void test_the_first_cause_ends_all(void **state)
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

static void test_a_check_ends_all(void **state)
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

/* Rank 0 holds the lock of its output, which the end would take, until the end has continued
 * without it. */
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

static void test_the_end_waits_for_nobody(void **state)
{
    (void)state;
    char text[4096];
    sem_init(&ended, 0, 0);
    assert_int_equal(child(fail_beside_a_printer, note_end, text, sizeof text), EXIT_HANG);
    assert_string_equal(text, "error[86] rank 2 dp 2: a cause\n");
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
    /* A thread that had returned by then would be a leak to ThreadSanitizer, with its exit code. */
    for (;;)
        pause();
}

/* A failure during the end is not the cause; what was printed before comes out before the sentence.
 */
static void test_a_failing_end_keeps_its_cause(void **state)
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

/* After the ranks are done, a single rank fails as it does alone. */
static void test_one_rank_alone_exits(void **state)
{
    (void)state;
    char text[4096];
    assert_int_equal(child(do_nothing, flush_and_say, text, sizeof text), EXIT_MISSING);
    assert_string_equal(text, "error[66] rank 0 dp 0: one rank alone\n");
}

static void check_in_a_task(void *context, int64_t task, int worker)
{
    (void)context;
    if (worker == 0)
        for (;;)
            pause(); /* the other thread's task is the one that counts */
    CHECK(task < 0, "task %lld", (long long)task);
}

static void run_tasks(int rank)
{
    if (rank == 1) pool_run(pool_create(2), 2, check_in_a_task, NULL);
    for (;;)
        pause();
}

/* A rank's threads print under the rank's name. */
static void test_threads_of_a_rank_print_its_place(void **state)
{
    (void)state;
    char text[4096];
    assert_int_equal(child(run_tasks, NULL, text, sizeof text), EXIT_BUG);
    assert_non_null(strstr(text, "bug[70] rank 1 dp 1: task "));
}

/* All messages of a rank, of any level, go to its own file; those of other ranks than 0 stay off
 * the console. */
static void test_a_ranks_own_log(void **state)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_first_cause_ends_all),
        cmocka_unit_test(test_a_check_ends_all),
        cmocka_unit_test(test_the_end_waits_for_nobody),
        cmocka_unit_test(test_a_failing_end_keeps_its_cause),
        cmocka_unit_test(test_one_rank_alone_exits),
        cmocka_unit_test(test_threads_of_a_rank_print_its_place),
        cmocka_unit_test(test_a_ranks_own_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
