/* test_openblas.c -- tests the trial of OpenBLAS in a child process, which is made if the address
 * space is limited: error messages, and a parent that ignores SIGCHLD. */
#include "model/core/openblas.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <sys/resource.h>
#include <unistd.h>

/* Replaces the C library's signal(), which the child calls for its CPU time limit, and raises the
 * signal `arrives` in the child (0: none). */
static int arrives;
/* NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name) */
void (*signal(int number, void (*handler)(int)))(int)
{
    struct sigaction action = {.sa_handler = handler}, was;
    if (arrives != 0) raise(arrives);
    return sigaction(number, &action, &was) == 0 ? was.sa_handler : SIG_ERR;
}

/* Sets a limit on address space, so that the trial is made; it is too high to be reached. */
static int limit_address_space(void **state)
{
    (void)state;
    struct rlimit all;
    if (getrlimit(RLIMIT_AS, &all) != 0) return 1;
    if (all.rlim_cur == RLIM_INFINITY) all.rlim_cur = RLIM_INFINITY - 1;
    return setrlimit(RLIMIT_AS, &all);
}

static void test_only_an_exceeded_time_limit_is_reported_as_lack_of_memory(void **state)
{
    (void)state;
    static const struct {
        int signal;
        const char *expected;
    } cases[] = {
        {SIGPROF, "OpenBLAS does not get its memory, 128 MiB for each of 2 threads, "},
        {SIGKILL, "OpenBLAS, tried within the limit on address space, was ended by signal 9 ("},
        {SIGTERM, "OpenBLAS, tried within the limit on address space, was ended by signal 15 ("}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CpuDevice cpu = {0};
        char why[256] = "";
        arrives = cases[i].signal;
        assert_false(openblas_open(&cpu, 2, 0, why, sizeof why));
        arrives = 0;
        if (strncmp(why, cases[i].expected, strlen(cases[i].expected)) != 0) fail_msg("%s", why);
        assert_null(cpu.library);
    }
}

/* Some callers leave SIGCHLD ignored. Waiting for the child must still return. */
static void test_the_openblas_trial_ends_even_if_sigchld_is_ignored(void **state)
{
    (void)state;
    CpuDevice cpu = {0};
    char why[256] = "";
    signal(SIGCHLD, SIG_IGN);
    arrives = SIGPROF;
    alarm(60); /* SIGALRM ends the test if the wait hangs */
    assert_false(openblas_open(&cpu, 1, 0, why, sizeof why));
    arrives = 0;
    assert_non_null(strstr(why, "does not get its memory"));
    openblas_open(&cpu, 1, 0, why, sizeof why); /* succeeds or finds no OpenBLAS */
    assert_string_equal(why, "");
    alarm(0);
    assert_ptr_equal(signal(SIGCHLD, SIG_DFL), SIG_IGN);
}

/* OpenBLAS has no buffers for more threads than it was compiled for. */
static void test_more_threads_than_openblas_supports_are_refused(void **state)
{
    (void)state;
    CpuDevice cpu = {0};
    char why[256] = "";
    if (!openblas_open(&cpu, 1, 0, why, sizeof why)) skip_because("there is no OpenBLAS: %s", why);
    cpu = (CpuDevice){0};
    assert_false(openblas_open(&cpu, 1 << 20, 0, why, sizeof why));
    assert_non_null(strstr(why, " threads at once, and 1048576 would call it"));
    assert_null(cpu.sgemm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_an_exceeded_time_limit_is_reported_as_lack_of_memory),
        cmocka_unit_test(test_the_openblas_trial_ends_even_if_sigchld_is_ignored),
        cmocka_unit_test(test_more_threads_than_openblas_supports_are_refused),
    };
    return cmocka_run_group_tests(tests, limit_address_space, NULL);
}
