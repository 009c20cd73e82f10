/* child.c -- see child.h. */
#include "model/core/child.h"

#include "model/core/check.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Puts back what SIGCHLD did before; errno is the caller's. */
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

int program_find(const char *program)
{
    const char *path = getenv("PATH");
    /* Without PATH exec looks in these two; an empty entry is the current folder. */
    char *folders = must_strdup(path ? path : "/bin:/usr/bin"), *rest = folders, *folder;
    int error = ENOENT;
    while (error != 0 && (folder = strsep(&rest, ":")) != NULL) {
        char *file = text_format("%s/%s", *folder ? folder : ".", program);
        /* One that must not be run is worth more than one that is not there. */
        error = access(file, X_OK) == 0 ? 0 : errno == EACCES ? EACCES : error;
        free(file);
    }
    free(folders);
    return error;
}
