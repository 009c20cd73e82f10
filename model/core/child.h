/* child.h -- finding programs in PATH, and child processes that are waited for.
 *
 * A program may inherit SIGCHLD as ignored. The system then forgets how its children ended, and
 * waitpid finds none. So child_fork sets SIGCHLD to its default, and child_wait restores it. */
#ifndef MODEL_CORE_CHILD_H
#define MODEL_CORE_CHILD_H

#include <signal.h>
#include <sys/types.h>

typedef struct {
    pid_t pid;
    struct sigaction was; /* SIGCHLD's; put back when the child has ended */
} Child;

/* As fork: 0 in the child; in the parent the child's number, and child_wait is due; -1 with errno
 * on failure. One child at a time. */
pid_t child_fork(Child *c);
/* As waitpid with these flags, called again when a signal interrupts it. Returns the child's number
 * when it has ended, 0 while it runs (WNOHANG only), -1 with errno if that cannot be known. */
pid_t child_wait(Child *c, int *status, int flags);

/* Whether exec would find the program in PATH: 0, or the errno with which it would fail. */
int program_find(const char *program);

#endif
