/* child.c -- implements child.h: fork and wait with a defined SIGCHLD, and the search in PATH. */
#include "model/core/child.h"

#include "model/core/check.h"
#include "model/core/progress.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Restores the caller's SIGCHLD handler. Keeps errno. */
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
    c->pid = progress_fork();
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
    /* exec searches these two folders if PATH is not set. An empty entry means the current
     * folder. */
    char *folders = must_strdup(path ? path : "/bin:/usr/bin"), *rest = folders, *folder;
    int error = ENOENT;
    while (error != 0 && (folder = strsep(&rest, ":")) != NULL) {
        char *file = text_format("%s/%s", *folder ? folder : ".", program);
        /* Prefer EACCES (found but not executable) to ENOENT (not found). */
        error = access(file, X_OK) == 0 ? 0 : errno == EACCES ? EACCES : error;
        free(file);
    }
    free(folders);
    return error;
}
