/* test_launcher_signals.c -- tests what the process that started the ranks does with signals, as
 * shells, nohup, batch systems and terminals send them. */
#include "model/core/clock.h"
#include "parallel/grid/launch.h"
#include "tests/support/files/child.h"
#include "tests/support/grid/launched_ranks.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Starts three ranks. `before` is called in the launcher before it starts them. */
static pid_t start(LaunchBody body, void (*before)(void), int *said)
{
    static LaunchedRanks l;
    l = (LaunchedRanks){body, {.timeout = LAUNCHED_LONGEST, .processes = true}, before};
    return child_start(launched_ranks, &l, said);
}

static void die_of(int number, siginfo_t *info, void *unused)
{
    (void)number, (void)unused;
    signal(info->si_value.sival_int, SIG_DFL);
    raise(info->si_value.sival_int);
}

/* Rank 0 dies of the first signal that it gets. */
static int die_of_a_signal(Comm *world, void *context)
{
    struct sigaction action = {.sa_sigaction = die_of, .sa_flags = SA_SIGINFO};
    if (world->rank == 0) sigaction(launch_signal(), &action, NULL);
    return launched_wait_for_ever(world, context);
}

static void ignore_hangups(void)
{
    signal(SIGHUP, SIG_IGN); /* as nohup does */
}

static void ignore_interrupts(void)
{
    signal(SIGINT, SIG_IGN); /* as a shell without job control does in the background */
}

static void block_signals(void)
{
    sigset_t all;
    sigfillset(&all);
    sigdelset(&all, SIGALRM);
    sigprocmask(SIG_BLOCK, &all, NULL);
}

static void leave_the_shell(void)
{
    setsid(); /* no shell could continue it */
}

/* Sends the signals to the launcher while it is stopped, so that it gets both at once. Returns its
 * end. */
static int signalled_at_once(LaunchBody body, int first, int second)
{
    char ready, text[1024];
    int said;
    pid_t launcher = start(body, NULL, &said);
    assert_int_equal(read(said, &ready, 1), 1);
    kill(launcher, SIGSTOP);
    kill(launcher, first);
    kill(launcher, second);
    kill(launcher, SIGCONT);
    return child_end(launcher, said, text, sizeof text);
}

/* Sends the signals to the launcher, half a second apart, and returns its end. */
static int signalled(LaunchBody body, void (*before)(void), int first, int second)
{
    char ready, text[1024];
    int said;
    pid_t launcher = start(body, before, &said);
    assert_int_equal(read(said, &ready, 1), 1);
    usleep(100000);
    kill(launcher, first);
    usleep(500000);
    if (second) kill(launcher, second);
    return child_end(launcher, said, text, sizeof text);
}

static void test_the_launcher_passes_on_blocked_signals_and_drops_ignored_ones(void **state)
{
    (void)state;
    double start = seconds_now();
    signal(SIGINT, SIG_DFL); /* the tests themselves may run in the background of a script */
    assert_int_equal(signalled(launched_wait_for_signal, ignore_hangups, SIGHUP, SIGUSR1), SIGUSR1);
    assert_int_equal(signalled(launched_wait_for_ever, ignore_interrupts, SIGINT, SIGTERM),
                     -SIGTERM);
    assert_int_equal(signalled(launched_wait_for_signal, leave_the_shell, SIGTSTP, SIGTERM),
                     SIGTERM);
    assert_int_equal(signalled(launched_wait_for_signal, block_signals, SIGTERM, 0), SIGTERM);
    assert_int_equal(signalled(launched_wait_for_ever, block_signals, SIGTERM, 0), -SIGTERM);
    /* The launcher ends by the signal that rank 0 gets first. */
    assert_int_equal(signalled_at_once(die_of_a_signal, SIGINT, SIGHUP), -SIGHUP);
    /* The second signal ends the run although rank 0 does not answer. */
    assert_int_equal(signalled(launched_stop_the_first, NULL, SIGINT, SIGTERM), -SIGTERM);
    assert_true(seconds_now() - start < 20);
}

/* Makes this process a job that Ctrl-Z can stop, as a shell with job control would. */
static void be_a_job(void)
{
    signal(SIGTSTP, SIG_DFL);
    setpgid(0, 0);
}

static int say_process(Comm *world, void *context)
{
    pid_t process = getpid();
    comm_barrier(world);
    if (world->rank == 2) (void)!write(STDOUT_FILENO, &process, sizeof process);
    while (context == NULL)
        pause();
    return EXIT_OK;
}

/* Waits until the process is stopped, or no longer is. */
static void expect_stopped(pid_t process, bool stopped)
{
    enum { TRIES = 1000, MICROSECONDS = 10000 };
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
    for (int i = 0; i < TRIES && (i == 0 || (state == 'T') != stopped); i++) {
        FILE *f = fopen(path, "re");
        assert_non_null(f);
        assert_int_equal(fscanf(f, "%*d (%*[^)]) %c", &state), 1);
        fclose(f);
        usleep(MICROSECONDS);
    }
    assert_int_equal(state == 'T', stopped);
}

static void test_ctrl_z_stops_all_ranks_until_the_launcher_is_continued(void **state)
{
    char text[1024];
    int said, status;
    pid_t rank;
    (void)state;
    pid_t launcher = start(say_process, be_a_job, &said);
    assert_int_equal(read(said, &rank, sizeof rank), sizeof rank);
    kill(launcher, SIGTSTP);
    assert_int_equal(waitpid(launcher, &status, WUNTRACED), launcher);
    assert_true(WIFSTOPPED(status));
    expect_stopped(rank, true);
    kill(launcher, SIGCONT);
    expect_stopped(rank, false);
    kill(launcher, SIGTERM);
    assert_int_equal(child_end(launcher, said, text, sizeof text), -SIGTERM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_launcher_passes_on_blocked_signals_and_drops_ignored_ones),
        cmocka_unit_test(test_ctrl_z_stops_all_ranks_until_the_launcher_is_continued),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
