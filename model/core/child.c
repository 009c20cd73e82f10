/* child.c -- see child.h. */
#include "model/core/child.h"

#include <errno.h>
#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>

static void put_back(const Child *c)
{
    int error = errno;
    sigaction(SIGCHLD, &c->was, NULL);
    errno = error;
}

pid_t child_fork(Child *c)
{
    struct sigaction usual = {.sa_handler = SIG_DFL};
    sigaction(SIGCHLD, &usual, &c->was);
    c->pid = fork();
    if (c->pid <= 0) put_back(c);
    return c->pid;
}

pid_t child_wait(Child *c, int *status, int flags)
{
    pid_t ended;
    do
        ended = waitpid(c->pid, status, flags);
    while (ended < 0 && errno == EINTR);
    if (ended != 0) put_back(c);
    return ended;
}
