/* test_store.c -- tests that the store checks how it is called: a call in the wrong order ends the
 * program, and the message names the broken rule. */
#include "model/core/check.h"
#include "tests/support/model/model_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static ParamStore *store;

/* Begins a step with two uses: the weights of unit 0, then the weights and gradient of unit 1. */
static void begin_step(void)
{
    static const Use uses[] = {{.unit = 0, .weight = true},
                               {.unit = 1, .weight = true, .gradient = true}};
    store->step_begin(store, uses, 2);
}

static void use_first(void)
{
    begin_step();
    store->acquire(store, 0);
    store->release(store, 0);
}

static void acquire_twice(void)
{
    store->step_begin(store, NULL, 0);
    store->acquire(store, 0);
    store->acquire(store, 0);
}

static void acquire_out_of_order(void)
{
    begin_step();
    store->acquire(store, 1);
}

static void acquire_after_the_last_use(void)
{
    use_first();
    store->acquire(store, 1);
    store->release(store, 1);
    store->acquire(store, 0);
}

static void release_without_acquire(void)
{
    store->step_begin(store, NULL, 0);
    store->release(store, 0);
}

static void release_twice(void)
{
    use_first();
    store->release(store, 0);
}

static void weight_without_acquire(void)
{
    store->step_begin(store, NULL, 0);
    store->weight(store, 0, 1);
}

static void weight_after_release(void)
{
    use_first();
    store->weight(store, 0, 1);
}

static void publish_what_is_held(void)
{
    begin_step();
    store->acquire(store, 0);
    store->publish(store, 0, NULL);
}

static void gradient_out_of_order(void)
{
    begin_step();
    store->grad_acquire(store, 0);
}

static void gradient_acquired_twice(void)
{
    use_first();
    store->acquire(store, 1);
    store->grad_acquire(store, 1);
    store->grad_acquire(store, 1);
}

static void gradient_without_acquire(void)
{
    use_first();
    store->acquire(store, 1);
    store->grad(store, store->table->unit[1].first, 1);
}

static void gradient_after_release(void)
{
    use_first();
    store->acquire(store, 1);
    store->grad_acquire(store, 1);
    store->grad_release(store, 1);
    store->grad(store, store->table->unit[1].first, 1);
}

static void gradient_released_without_acquire(void)
{
    use_first();
    store->acquire(store, 1);
    store->grad_release(store, 1);
}

/* Releases a gradient once more than announced: its sum over the ranks has already begun. */
static void gradient_released_too_often(void)
{
    use_first();
    store->acquire(store, 1);
    for (int i = 0; i < 2; i++) {
        store->grad_acquire(store, 1);
        store->grad_release(store, 1);
    }
}

static void end_before_the_last_use(void)
{
    use_first();
    store->step_end(store);
}

static void end_without_a_gradient(void)
{
    use_first();
    store->acquire(store, 1);
    store->release(store, 1);
    store->step_end(store);
}

/* Runs the body in a child process, which must end with the exit code of a bug and print
 * `sentence`. */
static void expect_bug(void (*body)(void), const char *sentence)
{
    int status = 0, ends[2];
    char said[4096];
    size_t n = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        body();
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t got; (got = read(ends[0], said + n, sizeof said - 1 - n)) > 0;)
        n += (size_t)got;
    said[n] = '\0';
    close(ends[0]);
    waitpid(pid, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != EXIT_BUG || strstr(said, sentence) == NULL)
        fail_msg("\"%s\" expected with code %d, status %d: %s", sentence, EXIT_BUG, status, said);
}

static void test_calls_in_the_wrong_order_end_the_program(void **state)
{
    (void)state;
    Fixture f;
    GptShape s = fixture_shape();
    fixture_open(&f, &s, 1, 2, 1, 1, 0);
    store = f.params;
    expect_bug(acquire_twice, "unit 0 acquired twice");
    expect_bug(acquire_out_of_order, "unit 1 used where unit 0 was told");
    expect_bug(acquire_after_the_last_use, "unit 0 used after the step's 2 uses");
    expect_bug(release_without_acquire, "unit 0 released but not acquired");
    expect_bug(release_twice, "unit 0 released but not acquired");
    expect_bug(weight_without_acquire, "token.weight asked for without its unit");
    expect_bug(weight_after_release, "token.weight asked for without its unit");
    expect_bug(publish_what_is_held, "unit 0 published while acquired");
    expect_bug(gradient_out_of_order, "unit 0 used where unit 0 was told");
    expect_bug(gradient_acquired_twice, "gradient of unit 1: acquired twice");
    expect_bug(gradient_without_acquire, "gradient of position.weight asked for without its unit");
    expect_bug(gradient_after_release, "gradient of position.weight asked for without its unit");
    expect_bug(gradient_released_without_acquire, "gradient of unit 1 released, 1 releases told");
    expect_bug(gradient_released_too_often, "gradient of unit 1 released, 0 releases told");
    expect_bug(end_before_the_last_use, "1 of 2 uses happened");
    expect_bug(end_without_a_gradient, "unit 1 lacks 1 gradient releases");
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_in_the_wrong_order_end_the_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
