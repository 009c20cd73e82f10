/* test_launch_processes.c -- tests ranks as processes: what they pass back, how all end when one of
 * them fails or is killed, and how signals reach rank 0. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/log.h"
#include "parallel/grid/control.h"
#include "parallel/grid/launch.h"
#include "tests/support/files/child.h"
#include "tests/support/grid/launched_ranks.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#undef fail /* fail() of check.h is used here, not cmocka's */

enum { LONGEST = LAUNCHED_LONGEST, RANKS = LAUNCHED_RANKS };

/* ---- what comes back ------------------------------------------------------------------------- */

typedef struct {
    int64_t sum;
    pid_t process, launcher;
    char place[RANKS][16];
    char filler[40000]; /* more than one page */
} Result;

static int look(Comm *world, void *context)
{
    Result *r = context;
    char place[RANKS][16] = {""}, mine[16] = "";
    snprintf(mine, sizeof mine, "%s", log_place());
    comm_all_gather(world, NULL, tensor_1d(place, U8, sizeof place),
                    tensor_1d(mine, U8, sizeof mine));
    r->sum = control_sum(world, 1 << world->rank); /* only rank 0's copy is returned */
    memcpy(r->place, place, sizeof place);
    memset(r->filler, 'a' + world->rank, sizeof r->filler);
    r->process = getpid();
    r->launcher = launch_parent();
    return 40 + world->rank;
}

static void test_the_result_and_exit_code_of_rank_0_are_returned(void **state)
{
    (void)state;
    Result *r = calloc(1, sizeof *r);
    LaunchOptions options = {
        .timeout = LONGEST, .processes = true, .result = r, .result_bytes = sizeof *r};
    assert_int_equal(launch_ranks(RANKS, &options, look, r), 40);
    assert_int_equal(r->sum, 7);
    assert_int_equal(r->launcher, getpid());
    assert_int_not_equal(r->process, getpid());
    for (int i = 0; i < RANKS; i++) {
        char place[16];
        snprintf(place, sizeof place, "dp %d", i);
        assert_string_equal(r->place[i], place);
    }
    for (size_t i = 0; i < sizeof r->filler; i++)
        assert_int_equal(r->filler[i], 'a');
    assert_int_equal(launch_parent(), 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
    free(r);
}

static int look_alone(Comm *world, void *context)
{
    Result *r = context;
    if (world->size > 1 || log_rank() != 0) return 1;
    r->process = getpid();
    r->launcher = launch_parent();
    return 40;
}

static void test_a_single_rank_runs_in_its_own_process_if_asked(void **state)
{
    (void)state;
    Result *r = calloc(1, sizeof *r);
    LaunchOptions options = {.processes = true, .result = r, .result_bytes = sizeof *r};
    assert_int_equal(launch_ranks(1, &options, look_alone, r), 40);
    assert_int_equal(r->launcher, getpid());
    assert_int_not_equal(r->process, getpid());
    free(r);
}

static int fail_alone(Comm *world, void *context)
{
    (void)world, (void)context;
    fail(EXIT_DAMAGED, "a file is torn");
}

static void launch_alone_and_fail(void *context)
{
    LaunchOptions options = {.processes = true};
    exit(launch_ranks(1, &options, fail_alone, context));
}

static void test_a_single_rank_that_is_a_process_fails_like_a_thread(void **state)
{
    char text[256];
    (void)state;
    assert_int_equal(child_run(launch_alone_and_fail, NULL, text, sizeof text), EXIT_DAMAGED);
    assert_string_equal(text, "error[65] a file is torn\n");
}

/* ---- ends ------------------------------------------------------------------------------------ */

static int kill_the_last(Comm *world, void *context)
{
    if (world->rank == 2) raise(SIGKILL);
    return launched_wait(world, context);
}

static int exit_from_the_first(Comm *world, void *context)
{
    if (world->rank == 0) exit(EXIT_OK);
    return launched_wait(world, context);
}

static int exit_from_the_last(Comm *world, void *context)
{
    if (world->rank == 2) exit(EXIT_OK);
    return launched_wait(world, context);
}

/* Rank 0 hangs, as it would in the driver if it opened a device that does not answer. */
static int hang_on_the_first(Comm *world, void *context)
{
    while (world->rank == 0)
        pause();
    return launched_wait(world, context);
}

static int stop_the_last(Comm *world, void *context)
{
    if (world->rank == 2) raise(SIGSTOP);
    return launched_wait(world, context);
}

static void test_a_rank_that_fails_ends_all_ranks(void **state)
{
    (void)state;
    launched_ends_alike(true);
}

/* Checks that the ranks have ended within 4 seconds, with this code and with one line that contains
 * `line`, or none. */
static void check_early_end(const char *name, int code, int expected, const char *text,
                            const char *line, double seconds)
{
    const char *end = strchr(text, '\n');
    bool one = end == NULL || end[1] == '\0';
    bool good = code == expected && strstr(text, line) && one && seconds < 4;
    if (!good) print_error("%s: code %d after %.1f s, and \"%s\"\n", name, code, seconds, text);
    assert_true(good);
}

/* Whatever ends a rank, the others end soon with the first failure's code, and one line says
 * why. */
static void test_a_rank_that_ends_early_ends_all_ranks(void **state)
{
    (void)state;
    static const struct {
        LaunchBody body;
        double timeout;
        int code;
        const char *line;
    } rows[] = {
        {hang_on_the_first, 0.5, EXIT_HANG,
         " has waited 0.5 s (parallel.timeout) for rank 0, which has not arrived\n"},
        {launched_kill_the_first, LONGEST, EXIT_PEER_LOST,
         "error[87] the process of rank 0 was killed by signal 9 (Killed)\n"},
        {kill_the_last, LONGEST, EXIT_PEER_LOST, "killed by signal 9"},
        {exit_from_the_first, LONGEST, EXIT_PEER_LOST,
         "error[87] the process of rank 0 ended before its work was done\n"},
        {exit_from_the_last, LONGEST, EXIT_PEER_LOST, "rank 2"},
        {stop_the_last, 0.5, EXIT_HANG, "rank 2, which has not arrived"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[4096];
        double start = seconds_now();
        LaunchOptions options = {.timeout = rows[i].timeout, .processes = true};
        int code = launched_ranks_end(rows[i].body, &options, text, sizeof text);
        char name[16];
        snprintf(name, sizeof name, "row %zu", i);
        check_early_end(name, code, rows[i].code, text, rows[i].line, seconds_now() - start);
    }
}

/* ---- signals --------------------------------------------------------------------------------- */

/* Launches the body in a child, sends it the signal when its ranks are ready, and returns its end
 * as child_end does. */
static int signalled(LaunchBody body, int number)
{
    char first, text[1024];
    int said;
    LaunchedRanks l = {body, {.timeout = LONGEST, .processes = true}, NULL};
    pid_t launcher = child_start(launched_ranks, &l, &said);
    assert_int_equal(read(said, &first, 1), 1);
    kill(launcher, number);
    /* The read within child_end ends when no process has the other end open any more. */
    return child_end(launcher, said, text, sizeof text);
}

static void test_the_launcher_passes_signals_on_to_rank_0(void **state)
{
    (void)state;
    assert_int_equal(signalled(launched_wait_for_signal, SIGTERM), SIGTERM);
    assert_int_equal(signalled(launched_wait_for_signal, SIGHUP), SIGHUP);
    /* Without a handler in rank 0, the signal ends all, as it would end a single process. */
    assert_int_equal(signalled(launched_wait_for_ever, SIGTERM), -SIGTERM);
}

static void test_the_ranks_end_when_the_launcher_is_killed(void **state)
{
    (void)state;
    assert_int_equal(signalled(launched_wait_for_ever, SIGKILL), -SIGKILL);
}

/* ---- a rank that cannot be started, or never runs -------------------------------------------- */

pid_t __real_fork(void);
pid_t __wrap_fork(void);

static int forks = -1;       /* how many more calls of fork succeed; < 0: all */
static bool killed_at_birth; /* the child of the last one is killed before it runs any code */
static int stopped = -1;     /* after this many more calls, the child is stopped; < 0: never */

pid_t __wrap_fork(void)
{
    if (forks == 0) {
        errno = EAGAIN;
        return -1;
    }
    if (forks > 0) forks--;
    pid_t process = __real_fork();
    if (process == 0 && forks == 0 && killed_at_birth) raise(SIGKILL);
    if (process == 0 && stopped == 0) raise(SIGSTOP);
    siginfo_t info;
    if (process > 0 && stopped == 0) waitid(P_PID, (id_t)process, &info, WSTOPPED | WNOWAIT);
    if (process > 0) stopped--;
    return process;
}

static void launch_two_of_three(void *context)
{
    LaunchOptions options = {.timeout = LONGEST, .processes = true};
    (void)context;
    forks = 2;
    exit(launch_ranks(3, &options, launched_wait_for_ever, NULL));
}

static void test_ranks_already_started_are_ended_if_another_cannot_be_started(void **state)
{
    char text[1024];
    (void)state;
    assert_int_equal(child_run(launch_two_of_three, NULL, text, sizeof text), EXIT_SYSTEM);
    assert_string_equal(text, "error[71] rank 2 of 3 cannot be started as a process: Resource "
                              "temporarily unavailable\n");
}

static void launch_three_of_three(void *context)
{
    LaunchOptions options = {.timeout = LONGEST, .processes = true};
    (void)context;
    forks = RANKS;
    killed_at_birth = true;
    exit(launch_ranks(RANKS, &options, launched_wait_for_ever, NULL));
}

static void test_the_error_names_a_rank_that_dies_right_after_its_start(void **state)
{
    char text[1024];
    (void)state;
    assert_int_equal(child_run(launch_three_of_three, NULL, text, sizeof text), EXIT_PEER_LOST);
    assert_string_equal(text, "error[87] rank 2 dp 2: the process of this rank was killed by "
                              "signal 9 (Killed)\n");
}

/* ---- many descriptors ------------------------------------------------------------------------ */

static int exit_at_once(Comm *world, void *context)
{
    (void)context;
    return world->size;
}

/* The links of the ranks need more descriptors than the soft limit allows. */
static void launch_with_few_descriptors(void *context)
{
    struct rlimit limit;
    LaunchOptions options = {.timeout = LONGEST, .processes = true};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 12;
    setrlimit(RLIMIT_NOFILE, &limit);
    exit(launch_ranks(RANKS, &options, exit_at_once, context));
}

static void test_the_launch_raises_a_low_limit_of_open_files(void **state)
{
    char text[1024];
    (void)state;
    assert_int_equal(child_run(launch_with_few_descriptors, NULL, text, sizeof text), RANKS);
    assert_string_equal(text, "");
}

static void launch_and_stop(void *rank)
{
    LaunchOptions options = {.timeout = 0.5, .processes = true};
    stopped = *(const int *)rank;
    exit(launch_ranks(RANKS, &options, launched_wait, NULL));
}

/* One rank is stopped before it joins the world. */
static void test_all_ranks_end_with_an_error_if_one_never_joins_the_world(void **state)
{
    static const char *const line[] = {
        "error[86] rank 1 dp 1: group world, call 1, barrier: rank 1 has waited 0.5 s "
        "(parallel.timeout) for rank 0, which has not arrived\n",
        " has waited 0.5 s (parallel.timeout) for rank 1, which has not arrived\n"};
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        char text[1024];
        double start = seconds_now();
        int code = child_run(launch_and_stop, &rank, text, sizeof text);
        check_early_end("stopped", code, EXIT_HANG, text, line[rank], seconds_now() - start);
    }
}

static int say_who_runs(Comm *world, void *context)
{
    char rank = (char)('0' + world->rank);
    (void)!write(STDOUT_FILENO, &rank, 1);
    while (context == NULL)
        pause();
    return EXIT_OK;
}

/* The launcher has a session of its own, so no process that inherits its ranks is in it. */
static void launch_and_stop_the_second(void *context)
{
    LaunchOptions options = {.timeout = LONGEST, .processes = true};
    setsid();
    stopped = 1;
    exit(launch_ranks(RANKS, &options, say_who_runs, context));
}

/* The rank has not yet asked the kernel to kill it when the launcher ends. */
static void test_a_rank_stopped_right_after_its_start_ends_with_the_launcher(void **state)
{
    enum { MILLISECONDS = 10000 };
    char rank, text[1024];
    int said;
    (void)state;
    pid_t launcher = child_start(launch_and_stop_the_second, NULL, &said);
    for (int i = 0; i < RANKS - 1; i++) {
        assert_int_equal(read(said, &rank, 1), 1);
        assert_true(rank == '0' || rank == '2');
    }
    kill(launcher, SIGKILL);
    /* The pipe ends with the last process. The stopped rank has not called its body. */
    struct pollfd end = {.fd = said, .events = POLLIN};
    assert_int_equal(poll(&end, 1, MILLISECONDS), 1);
    assert_int_equal(child_end(launcher, said, text, sizeof text), -SIGKILL);
    assert_string_equal(text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_result_and_exit_code_of_rank_0_are_returned),
        cmocka_unit_test(test_a_single_rank_runs_in_its_own_process_if_asked),
        cmocka_unit_test(test_a_single_rank_that_is_a_process_fails_like_a_thread),
        cmocka_unit_test(test_a_rank_that_fails_ends_all_ranks),
        cmocka_unit_test(test_a_rank_that_ends_early_ends_all_ranks),
        cmocka_unit_test(test_the_launcher_passes_signals_on_to_rank_0),
        cmocka_unit_test(test_the_ranks_end_when_the_launcher_is_killed),
        cmocka_unit_test(test_ranks_already_started_are_ended_if_another_cannot_be_started),
        cmocka_unit_test(test_the_error_names_a_rank_that_dies_right_after_its_start),
        cmocka_unit_test(test_the_launch_raises_a_low_limit_of_open_files),
        cmocka_unit_test(test_all_ranks_end_with_an_error_if_one_never_joins_the_world),
        cmocka_unit_test(test_a_rank_stopped_right_after_its_start_ends_with_the_launcher),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
