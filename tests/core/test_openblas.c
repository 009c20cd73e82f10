/* test_openblas.c -- trying OpenBLAS in a child process where address space is limited: the
 * sentence about how the child ended, and a program that ignores its children. */
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

/* In place of the C library's, which the child calls for its alarm: the signal arrives at once. */
static int arrives;
/* NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name) */
void (*signal(int number, void (*handler)(int)))(int)
{
    struct sigaction action = {.sa_handler = handler}, was;
    if (arrives != 0) raise(arrives);
    return sigaction(number, &action, &was) == 0 ? was.sa_handler : SIG_ERR;
}

/* A limit that is set and never reached. */
static int limit_address_space(void **state)
{
    (void)state;
    struct rlimit all;
    if (getrlimit(RLIMIT_AS, &all) != 0) return 1;
    if (all.rlim_cur == RLIM_INFINITY) all.rlim_cur = RLIM_INFINITY - 1;
    return setrlimit(RLIMIT_AS, &all);
}

static void test_only_lack_of_memory_is_reported_as_such(void **state)
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

/* SIGCHLD ignored, as some callers leave it: waiting for the child must still end. */
static void test_a_program_that_ignores_its_children(void **state)
{
    (void)state;
    CpuDevice cpu = {0};
    char why[256] = "";
    signal(SIGCHLD, SIG_IGN);
    arrives = SIGPROF;
    alarm(60); /* if it waited for ever */
    assert_false(openblas_open(&cpu, 1, 0, why, sizeof why));
    arrives = 0;
    assert_non_null(strstr(why, "does not get its memory"));
    openblas_open(&cpu, 1, 0, why, sizeof why); /* whether it is installed or not */
    assert_string_equal(why, "");
    alarm(0);
    assert_ptr_equal(signal(SIGCHLD, SIG_DFL), SIG_IGN);
}

/* OpenBLAS has no room for more threads than it was compiled for. */
static void test_more_threads_than_openblas_was_built_for(void **state)
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
        cmocka_unit_test(test_only_lack_of_memory_is_reported_as_such),
        cmocka_unit_test(test_a_program_that_ignores_its_children),
        cmocka_unit_test(test_more_threads_than_openblas_was_built_for),
    };
    return cmocka_run_group_tests(tests, limit_address_space, NULL);
}
