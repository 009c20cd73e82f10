/* child.h -- a child process that runs a body: how it ends, and what it said. */
#ifndef TESTS_SUPPORT_FILES_CHILD_H
#define TESTS_SUPPORT_FILES_CHILD_H

#include <stddef.h>
#include <sys/types.h>

typedef void (*ChildBody)(void *context);

/* Starts a child that runs body(context) and then ends with 0; a minute later SIGALRM ends it. What
 * it says on stdout and stderr can be read from *said. child_end is due. */
pid_t child_start(ChildBody body, void *context, int *said);
/* Waits for its end. Returns its exit code, or minus the signal that has ended it; what it has said
 * is in text[n], as much of it as fits. */
int child_end(pid_t child, int said, char *text, size_t n);
/* Both. */
int child_run(ChildBody body, void *context, char *text, size_t n);

#endif
