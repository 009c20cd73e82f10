/* child.h -- finding programs in PATH, and running child processes and waiting for them.
 *
 * A process may inherit SIGCHLD as ignored. The kernel then discards the exit status of its
 * children, and waitpid fails. So child_fork sets SIGCHLD to its default, and child_wait restores
 * the old setting. */
#ifndef MODEL_CORE_CHILD_H
#define MODEL_CORE_CHILD_H

#include <signal.h>
#include <sys/types.h>

typedef struct {
    pid_t pid;
    struct sigaction was; /* the old SIGCHLD handler; restored after the child has ended */
} Child;

/* Like fork: returns 0 in the child, the child's process id in the parent, or -1 with errno set.
 * The parent must then call child_wait. Only one child may exist at a time. */
pid_t child_fork(Child *c);
/* Like waitpid with these flags, but continues after an interrupting signal. Returns the child's
 * process id when it has ended, 0 while it still runs (only with WNOHANG), or -1 with errno set on
 * failure. */
pid_t child_wait(Child *c, int *status, int flags);

/* Searches PATH as exec does. Returns 0 if exec would find the program, otherwise the errno that
 * exec would fail with. */
int program_find(const char *program);

#endif
