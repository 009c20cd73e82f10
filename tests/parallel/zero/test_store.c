/* test_store.c -- the store checks its contract: a call out of turn ends the program. */
#include "model/core/check.h"
#include "tests/support/model/model_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static Fixture *shared;

static void acquire_twice(void)
{
    shared->params->step_begin(shared->params, NULL, 0);
    shared->params->acquire(shared->params, 0);
    shared->params->acquire(shared->params, 0);
}

static void acquire_out_of_order(void)
{
    Use uses[] = {{.unit = 0, .weight = true}, {.unit = 1, .weight = true}};
    shared->params->step_begin(shared->params, uses, 2);
    shared->params->acquire(shared->params, 1);
}

static void weight_without_unit(void)
{
    shared->params->step_begin(shared->params, NULL, 0);
    shared->params->weight(shared->params, 0, 1);
}

static void end_too_early(void)
{
    Use uses[] = {{.unit = 0, .weight = true, .gradient = true}};
    shared->params->step_begin(shared->params, uses, 1);
    shared->params->acquire(shared->params, 0);
    shared->params->release(shared->params, 0);
    shared->params->step_end(shared->params);
}

static int exit_of(void (*body)(void))
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL) _exit(1);
        body();
        _exit(0);
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_store_checks_its_contract(void **state)
{
    (void)state;
    Fixture f;
    GptShape s = fixture_shape();
    fixture_open(&f, &s, 1, 2, 1, 1, 0);
    shared = &f;
    assert_int_equal(exit_of(acquire_twice), EXIT_BUG);
    assert_int_equal(exit_of(acquire_out_of_order), EXIT_BUG);
    assert_int_equal(exit_of(weight_without_unit), EXIT_BUG);
    assert_int_equal(exit_of(end_too_early), EXIT_BUG);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_checks_its_contract),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
