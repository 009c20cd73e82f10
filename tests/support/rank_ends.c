/* rank_ends.c -- see rank_ends.h. */
#include "tests/support/rank_ends.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

pid_t rank_end_start(const RankEnd *end, double timeout, void *context, int *said)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        alarm(60); /* a hang is a failure, too */
        dup2(ends[1], STDERR_FILENO);
        thread_ranks(end->ranks, timeout, end->body, context);
        _exit(0);
    }
    close(ends[1]);
    *said = ends[0];
    return child;
}

void rank_end_check(const RankEnd *end, pid_t child, int said)
{
    char text[2048];
    int status = 0;
    size_t n = 0;
    ssize_t got;
    while (n < sizeof text - 1 && (got = read(said, text + n, sizeof text - 1 - n)) > 0)
        n += (size_t)got;
    text[n] = '\0';
    close(said);
    assert_int_equal(waitpid(child, &status, 0), child);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code != end->code) fail_msg("%s: %d, not %d: %s", end->name, code, end->code, text);
    for (int i = 0; i < 4 && end->said[i]; i++)
        if (strstr(text, end->said[i]) == NULL)
            fail_msg("%s: \"%s\" is not in: %s", end->name, end->said[i], text);
}

void rank_end_expect(const RankEnd *end, double timeout, void *context)
{
    int said;
    pid_t child = rank_end_start(end, timeout, context, &said);
    rank_end_check(end, child, said);
}
