/* launched_ranks.c -- see launched_ranks.h. */
#include "tests/support/grid/launched_ranks.h"

#include "model/core/check.h"
#include "parallel/grid/control.h"
#include "tests/support/files/child.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#undef fail /* fail() of check.h is used here, not cmocka's */

void launched_ranks(void *context)
{
    const LaunchedRanks *l = context;
    if (l->before) l->before();
    int code = launch_ranks(LAUNCHED_RANKS, &l->options, l->body, NULL);
    /* There is only one rank again, so the message names none. */
    if (code == EXIT_MISSING) fail(EXIT_MISSING, "after the ranks");
    exit(code);
}

int launched_ranks_end(LaunchBody body, const LaunchOptions *options, char *text, size_t n)
{
    return child_run(launched_ranks, &(LaunchedRanks){body, *options, NULL}, text, n);
}

int launched_wait(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    return EXIT_MISSING;
}

static volatile sig_atomic_t asked;

static void take(int number, siginfo_t *info, void *unused)
{
    (void)number, (void)unused;
    asked = info->si_value.sival_int;
}

int launched_wait_for_signal(Comm *world, void *context)
{
    struct sigaction action = {.sa_sigaction = take, .sa_flags = SA_SIGINFO};
    if (world->rank == 0 && context == NULL) sigaction(launch_signal(), &action, NULL);
    comm_barrier(world);
    if (world->rank == 0) {
        (void)!write(STDOUT_FILENO, "r", 1);
        while (!asked)
            usleep(1000);
    }
    comm_barrier(world);
    return asked;
}

static void wait_for_ever(Comm *world, bool stops) __attribute__((noreturn));
static void wait_for_ever(Comm *world, bool stops)
{
    comm_barrier(world);
    if (world->rank == 0) (void)!write(STDOUT_FILENO, "r", 1);
    if (world->rank == 0 && stops) raise(SIGSTOP);
    for (;;)
        pause();
}

int launched_wait_for_ever(Comm *world, void *context)
{
    (void)context;
    wait_for_ever(world, false);
}

int launched_stop_the_first(Comm *world, void *context)
{
    (void)context;
    wait_for_ever(world, true);
}

int launched_kill_the_first(Comm *world, void *context)
{
    if (world->rank == 0) raise(SIGKILL);
    return launched_wait(world, context);
}

static int fail_on_the_last(Comm *world, void *context)
{
    if (world->rank == LAUNCHED_RANKS - 1) fail(EXIT_DAMAGED, "a file is torn");
    return launched_wait(world, context);
}

static int fail_on_each(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    fail(EXIT_DAMAGED, "a file is torn");
}

static int fail_together(Comm *world, void *context)
{
    (void)context;
    control_fail(world, EXIT_DIVERGED, "all of %d saw it", world->size);
}

void launched_ends_alike(bool processes)
{
    static const struct {
        LaunchBody body;
        int code, times;
        const char *text; /* NULL: a single line, of any rank */
    } rows[] = {
        {launched_wait, EXIT_MISSING, 1, "error[66] after the ranks\n"},
        {fail_on_the_last, EXIT_DAMAGED, 1, "error[65] rank 2 dp 2: a file is torn\n"},
        {fail_on_each, EXIT_DAMAGED, 10, NULL},
        {fail_together, EXIT_DIVERGED, 1, "error[88] all of 3 saw it\n"},
    };
    LaunchOptions options = {.timeout = LAUNCHED_LONGEST, .processes = processes};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int time = 0; time < rows[i].times; time++) {
            char text[4096];
            assert_int_equal(launched_ranks_end(rows[i].body, &options, text, sizeof text),
                             rows[i].code);
            if (rows[i].text) assert_string_equal(text, rows[i].text);
            if (rows[i].text) continue;
            assert_non_null(strstr(text, ": a file is torn\n"));
            assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
        }
    }
}
