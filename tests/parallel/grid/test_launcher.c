/* test_launcher.c -- tests what the process that started the ranks does if they cannot report an
 * error or end by themselves: several faults at once, stopped ranks, and ranks that only had to
 * exit. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "parallel/comm/socket/socket.h"
#include "parallel/grid/launch.h"
#include "tests/support/files/child.h"
#include "tests/support/grid/launched_ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#undef fail /* fail() of check.h is used here, not cmocka's */

enum { RANKS = LAUNCHED_RANKS, RESULT = 40 };

typedef struct {
    LaunchBody body;
    double timeout;
    void (*before)(void); /* called in the launcher before it starts the ranks */
    int code;             /* minus a signal's number if one ends the launcher */
    const char *line;     /* part of the only line that is printed; "": none is printed */
} Row;

/* Starts the launch of a row in a child process. *l must stay valid until it has ended. */
static pid_t start_row(const Row *row, LaunchedRanks *l, int *said)
{
    *l = (LaunchedRanks){row->body, {.timeout = row->timeout, .processes = true}, row->before};
    return child_start(launched_ranks, l, said);
}

static void expect_end(const Row *row, int code, const char *text)
{
    if (code != row->code || strstr(text, row->line) == NULL)
        print_error("\"%s\": code %d, and \"%s\"\n", row->line, code, text);
    assert_int_equal(code, row->code);
    assert_non_null(strstr(text, row->line));
    const char *end = strchr(text, '\n');
    if (*row->line == '\0') assert_string_equal(text, "");
    if (*row->line != '\0') assert_true(end != NULL && end[1] == '\0');
}

static void hear_hangups(void)
{
    signal(SIGHUP, SIG_DFL); /* the tests themselves may run under nohup */
}

/* ---- faults ---------------------------------------------------------------------------------- */

static int stop_the_first_kill_the_last(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 0) raise(SIGSTOP);
    usleep(100000);
    if (world->rank == 2) raise(SIGKILL);
    comm_barrier(world);
    return EXIT_OK;
}

static int leave_by_exit(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 0) _exit(3);
    comm_barrier(world);
    return EXIT_OK;
}

/* A rank that fails before it has joined the world cannot ask rank 0 whether it may print its
 * error. */
static int early = -1; /* the rank; -1: none */
Comm __real_socket_world_join(SocketLinks *links, int rank, double timeout);
Comm __wrap_socket_world_join(SocketLinks *links, int rank, double timeout);

Comm __wrap_socket_world_join(SocketLinks *links, int rank, double timeout)
{
    if (rank == early) fail(EXIT_NO_MEMORY, "no memory for the world");
    return __real_socket_world_join(links, rank, timeout);
}

static void first_is_early(void)
{
    early = 0;
}

static void last_is_early(void)
{
    early = RANKS - 1;
}

static ssize_t die_instead(void *cookie, const char *bytes, size_t n)
{
    (void)cookie, (void)bytes;
    raise(SIGKILL);
    return (ssize_t)n;
}

/* Rank 0 leaves it to the last rank to print the error, but that rank dies before it has printed
 * anything. */
static int fail_without_a_word(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == RANKS - 1) {
        stderr = fopencookie(NULL, "w", (cookie_io_functions_t){.write = die_instead});
        setvbuf(stderr, NULL, _IONBF, 0);
        fail(EXIT_DAMAGED, "a file is torn");
    }
    comm_barrier(world);
    return EXIT_OK;
}

static int write_to_nobody(Comm *world, void *context)
{
    int to[2];
    (void)context;
    if (world->rank == 0 && pipe(to) == 0) {
        close(to[0]);
        (void)!write(to[1], "x", 1);
    }
    comm_barrier(world);
    return EXIT_OK;
}

static void die_at_exit(void)
{
    raise(SIGKILL);
}

static void leave_at_exit(void)
{
    _exit(3);
}

static void hang_at_exit(void)
{
    for (;;)
        pause();
}

static int last_dies_at_exit(Comm *world, void *context)
{
    (void)context;
    if (world->rank == 2) atexit(die_at_exit);
    return RESULT;
}

/* Rank 2 dies after it has left the world, while rank 0 still works. */
static int last_dies_before_the_first_is_done(Comm *world, void *context)
{
    (void)context;
    if (world->rank == 2) atexit(die_at_exit);
    if (world->rank == 0) sleep(7);
    return RESULT;
}

static int first_leaves_at_exit(Comm *world, void *context)
{
    (void)context;
    if (world->rank == 0) atexit(leave_at_exit);
    return RESULT;
}

static int last_hangs_at_exit(Comm *world, void *context)
{
    (void)context;
    if (world->rank == 2) atexit(hang_at_exit);
    return RESULT;
}

static void go_on(int number)
{
    (void)number;
}

/* Rank 0 finishes its work after a terminal has closed, which sends SIGHUP twice. */
static int work_on_after_hangups(Comm *world, void *context)
{
    (void)context;
    if (world->rank > 0) return RESULT;
    signal(launch_signal(), go_on);
    for (int i = 0; i < 2; i++) {
        kill(launch_parent(), SIGHUP);
        usleep(500000);
    }
    sleep(6); /* longer than a rank has to end after a failure */
    return RESULT;
}

/* For every fault one sentence is printed, and the first failure's exit code is returned. A result
 * that is complete is never lost. The rows run at the same time: some of them wait for seconds. */
static void test_the_launcher_reports_faults_that_rank_0_cannot_report(void **state)
{
    (void)state;
    enum { LONG = 30, SECONDS = 12 };
    static const Row rows[] = {
        {stop_the_first_kill_the_last, LONG, NULL, EXIT_PEER_LOST,
         "error[87] the process of rank 2 was killed by signal 9 (Killed)\n"},
        {leave_by_exit, LONG, NULL, EXIT_PEER_LOST,
         "error[87] the process of rank 0 ended with code 3 before its work was done\n"},
        {launched_wait, LONG, first_is_early, EXIT_NO_MEMORY,
         "error[90] rank 0 dp 0: no memory for the world\n"},
        {launched_wait, LONG, last_is_early, EXIT_NO_MEMORY,
         "error[90] rank 2 dp 2: no memory for the world\n"},
        {fail_without_a_word, LONG, NULL, EXIT_DAMAGED,
         "error[65] the process of rank 2 was killed by signal 9 (Killed) before it could say why "
         "all ranks end with code 65\n"},
        {write_to_nobody, LONG, NULL, -SIGPIPE, ""},
        {launched_stop_the_first, 0.5, NULL, EXIT_HANG,
         "error[86] the process of rank 0 has been stopped for 6 s, longer than "
         "parallel.timeout (0.5 s) allows\n"},
        {last_dies_at_exit, LONG, NULL, RESULT,
         "warning: the work is done, but the process of rank 2 was then killed by signal 9"},
        {last_dies_before_the_first_is_done, LONG, NULL, RESULT,
         "warning: the work is done, but the process of rank 2 was then killed by signal 9"},
        {first_leaves_at_exit, LONG, NULL, RESULT,
         "warning: the work is done, but the process of rank 0 then ended with code 3\n"},
        {last_hangs_at_exit, 0.5, NULL, RESULT,
         "warning: the work is done, but the process of rank 2 did not end: it was killed\n"},
        {work_on_after_hangups, LONG, hear_hangups, RESULT, ""},
    };
    enum { ROWS = sizeof rows / sizeof *rows };
    LaunchedRanks launched[ROWS];
    pid_t launcher[ROWS];
    int said[ROWS];
    char text[4096];
    double start = seconds_now();
    for (size_t i = 0; i < ROWS; i++)
        launcher[i] = start_row(&rows[i], &launched[i], &said[i]);
    for (size_t i = 0; i < ROWS; i++) {
        int code = child_end(launcher[i], said[i], text, sizeof text);
        expect_end(&rows[i], code, text);
    }
    assert_true(seconds_now() - start < SECONDS);
}

/* ---- messages that nobody reads -------------------------------------------------------------- */

static void fill_the_console(void)
{
    char page[4096] = {0};
    fcntl(STDERR_FILENO, F_SETFL, O_NONBLOCK);
    while (write(STDERR_FILENO, page, sizeof page) > 0)
        continue;
    fcntl(STDERR_FILENO, F_SETFL, 0);
}

static void lose_the_console(void)
{
    int to[2];
    if (pipe(to) != 0) _exit(99);
    dup2(to[1], STDERR_FILENO);
    close(to[0]);
    close(to[1]);
}

static int leave_without_a_word(Comm *world, void *context)
{
    (void)context;
    if (world->rank == 0) _exit(EXIT_OK);
    comm_barrier(world);
    return EXIT_OK;
}

static void test_the_launcher_ends_even_if_its_message_is_not_read(void **state)
{
    (void)state;
    static const Row rows[] = {
        {launched_kill_the_first, 30, fill_the_console, EXIT_PEER_LOST, ""},
        {launched_kill_the_first, 30, lose_the_console, EXIT_PEER_LOST, ""},
        {leave_without_a_word, 30, fill_the_console, EXIT_PEER_LOST, ""},
        {last_dies_at_exit, 30, fill_the_console, RESULT, ""},
        {last_dies_at_exit, 30, lose_the_console, RESULT, ""},
    };
    enum { ROWS = sizeof rows / sizeof *rows };
    LaunchedRanks launched[ROWS];
    pid_t launcher[ROWS];
    int said[ROWS], status;
    for (size_t i = 0; i < ROWS; i++)
        launcher[i] = start_row(&rows[i], &launched[i], &said[i]);
    for (size_t i = 0; i < ROWS; i++) {
        assert_int_equal(waitpid(launcher[i], &status, 0), launcher[i]); /* nothing is read */
        close(said[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), rows[i].code);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_launcher_reports_faults_that_rank_0_cannot_report),
        cmocka_unit_test(test_the_launcher_ends_even_if_its_message_is_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
