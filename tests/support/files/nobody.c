/* nobody.c -- runs a function in a child process without root's privileges. */
#include "tests/support/files/nobody.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <grp.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOBODY = 65534, STILL_ROOT = 100 };

int as_nobody(int (*run)(void *context), void *context)
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bool root = geteuid() == 0;
        if (root && (setgroups(0, NULL) != 0 || setgid(NOBODY) != 0 || setuid(NOBODY) != 0))
            _exit(STILL_ROOT);
        int result = run(context);
        fflush(NULL);
        _exit(result);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status)) fail_msg("the process of nobody ended by signal %d", WTERMSIG(status));
    assert_int_not_equal(WEXITSTATUS(status), STILL_ROOT);
    return WEXITSTATUS(status);
}
