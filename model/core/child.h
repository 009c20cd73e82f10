/* child.h -- programs in PATH, and a child process that is waited for, whatever the program was
 * started with: where SIGCHLD is inherited as ignored, the system forgets children as they end, and
 * none is found. */
#ifndef MODEL_CORE_CHILD_H
#define MODEL_CORE_CHILD_H

#include <signal.h>
#include <sys/types.h>

typedef struct {
    pid_t pid;
    struct sigaction was; /* SIGCHLD's; put back when the child has ended */
} Child;

/* fork: 0 in the child, -1 with errno if there is none; otherwise child_wait is due. One at a time.
 */
pid_t child_fork(Child *c);
/* waitpid with its flags, gone on with after interruptions: the child's number when it has ended,
 * 0 while it runs (WNOHANG), -1 with errno if that cannot be known. */
pid_t child_wait(Child *c, int *status, int flags);

/* Whether exec would find the program in PATH: 0, or the errno with which it would fail. */
int program_find(const char *program);

#endif
