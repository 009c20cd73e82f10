/* test_interruptible.c -- tests that reads fail after a signal, which ends the process when the
 * source is closed, and that an ignored signal changes nothing. */
#include "model/weights/interruptible.h"

#include "tests/support/model/memory_source.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
    int number;
    bool ignored;
} Case;

/* Reads before and after a signal. Exits with 1 to 4 if something is wrong. */
static void read_and_close(void *context)
{
    const Case *c = context;
    char err[300] = "";
    float row[4], again[4];
    signal(c->number, c->ignored ? SIG_IGN : SIG_DFL);
    WeightSource *inner = memory_source_new();
    memory_source_add(inner, "token.weight", F32, 3, 4, 1);
    WeightSource *s = interruptible_source(inner);
    if (weight_source_find(s, "token.weight") != 0) _exit(1);
    if (!s->read(s, 0, 1, 1, row, err, sizeof err)) _exit(2);
    raise(c->number);
    bool good = s->read(s, 0, 1, 1, again, err, sizeof err);
    if (good != c->ignored || (good && memcmp(row, again, sizeof row) != 0)) _exit(3);
    if (!good && strstr(err, "a signal has ended this") == NULL) _exit(4);
    s->close(s);
    _exit(0);
}

static void test_a_signal_ends_reads_and_then_the_process(void **state)
{
    (void)state;
    const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (int i = 0; i < 3; i++)
        for (int ignored = 0; ignored < 2; ignored++) {
            Case c = {numbers[i], ignored};
            int status;
            fflush(NULL);
            pid_t child = fork();
            if (child == 0) read_and_close(&c);
            assert_int_equal(waitpid(child, &status, 0), child);
            if (ignored)
                assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
            else if (!WIFSIGNALED(status) || WTERMSIG(status) != numbers[i])
                fail_msg("signal %d: status %d", numbers[i], status);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_signal_ends_reads_and_then_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
