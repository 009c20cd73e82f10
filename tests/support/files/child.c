/* child.c -- starts a child process with fork and reads its output from a pipe. */
#include "tests/support/files/child.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { LONGEST = 60 /* time limit of a child in seconds */ };

pid_t child_start(ChildBody body, void *context, int *said)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setenv("EMU_FORK", "allow", 1); /* it may use the parent's emulated device */
        alarm(LONGEST);                 /* a child that hangs is ended, which fails the test */
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        body(context);
        fflush(NULL);
        _exit(0);
    }
    close(ends[1]);
    *said = ends[0];
    return child;
}

int child_end(pid_t child, int said, char *text, size_t n)
{
    char rest[256];
    int status = 0;
    size_t at = 0;
    ssize_t got = 1;
    while (got > 0) {
        bool full = at + 1 >= n;
        got = full ? read(said, rest, sizeof rest) : read(said, text + at, n - 1 - at);
        if (got > 0 && !full) at += (size_t)got;
    }
    text[at] = '\0';
    close(said);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int child_run(ChildBody body, void *context, char *text, size_t n)
{
    int said;
    pid_t child = child_start(body, context, &said);
    return child_end(child, said, text, n);
}
