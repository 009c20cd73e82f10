/* test_sleeping_threads.c -- tests that programs with a sanitizer fork only while their other
 * threads sleep. */
#include "tests/support/sleeping_threads.h"
#include "tests/support/support.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

/* A thread that computes for 20 ms, or until it is told to stop, and then sleeps. */
typedef struct {
    pthread_t thread;
    bool forever;
    atomic_bool busy, stop;
    int wake[2];
} Worker;

static void *work(void *context)
{
    Worker *w = context;
    char byte;
    clock_t until = clock() + CLOCKS_PER_SEC / 50; /* of processor time */
    while (w->forever ? !atomic_load(&w->stop) : clock() < until)
        free(malloc(100)); /* with a sanitizer, the thread often owns a lock of the allocator */
    atomic_store(&w->busy, false);
    return read(w->wake[0], &byte, 1) == 1 ? NULL : w;
}

static Worker *worker_start(bool forever)
{
    Worker *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->forever = forever;
    atomic_store(&w->busy, true);
    assert_int_equal(pipe(w->wake), 0);
    assert_int_equal(pthread_create(&w->thread, NULL, work, w), 0);
    return w;
}

static void worker_end(Worker *w)
{
    void *result = w;
    atomic_store(&w->stop, true);
    assert_int_equal(write(w->wake[1], "", 1), 1);
    assert_int_equal(pthread_join(w->thread, &result), 0);
    assert_null(result);
    close(w->wake[0]);
    close(w->wake[1]);
    free(w);
}

static void test_other_threads_sleep_returns_true_when_they_sleep(void **state)
{
    (void)state;
    Worker *first = worker_start(false), *second = worker_start(false);
    assert_true(other_threads_sleep(60));
    assert_false(atomic_load(&first->busy) || atomic_load(&second->busy));
    worker_end(first);
    worker_end(second);
}

static void test_other_threads_sleep_gives_up_on_a_thread_that_never_sleeps(void **state)
{
    (void)state;
    Worker *w = worker_start(true);
    assert_false(other_threads_sleep(0.05));
    worker_end(w);
}

static void test_other_threads_sleep_does_not_wait_for_its_caller_to_sleep(void **state)
{
    (void)state;
    assert_true(other_threads_sleep(1));
}

/* In the child, the copy of `busy` tells what the thread did during the fork. */
static void test_with_a_sanitizer_a_fork_waits_until_other_threads_sleep(void **state)
{
    (void)state;
    int status = 0;
    Worker *w = worker_start(false);
    pid_t child = fork();
    if (child == 0) _exit(atomic_load(&w->busy) ? 1 : 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (__sanitizer_set_death_callback) assert_int_equal(WEXITSTATUS(status), 0);
    worker_end(w);
}

static void test_process_wait_until_stopped_returns_once_the_process_has_stopped(void **state)
{
    (void)state;
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        usleep(20000);
        raise(SIGSTOP);
        _exit(0);
    }
    process_wait_until_stopped(child);
    assert_int_equal(waitpid(child, &status, WUNTRACED | WNOHANG), child);
    assert_true(WIFSTOPPED(status));
    kill(child, SIGKILL);
    process_wait_until_stopped(child); /* nothing more to wait for */
    assert_int_equal(waitpid(child, &status, 0), child);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_threads_sleep_returns_true_when_they_sleep),
        cmocka_unit_test(test_other_threads_sleep_gives_up_on_a_thread_that_never_sleeps),
        cmocka_unit_test(test_other_threads_sleep_does_not_wait_for_its_caller_to_sleep),
        cmocka_unit_test(test_with_a_sanitizer_a_fork_waits_until_other_threads_sleep),
        cmocka_unit_test(test_process_wait_until_stopped_returns_once_the_process_has_stopped),
    };
    return cmocka_run_group_tests_name("sleeping threads", tests, NULL, NULL);
}
