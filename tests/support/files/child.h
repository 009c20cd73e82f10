/* child.h -- runs a function in a child process and reports its exit code and its output. */
#ifndef TESTS_SUPPORT_FILES_CHILD_H
#define TESTS_SUPPORT_FILES_CHILD_H

#include <stddef.h>
#include <sys/types.h>

typedef void (*ChildBody)(void *context);

/* Starts a child process that calls body(context) and then exits with 0. SIGALRM ends it after a
 * minute. Its stdout and stderr can be read from the descriptor *said. The caller must call
 * child_end. */
pid_t child_start(ChildBody body, void *context, int *said);
/* Waits until the child ends, and stores as much of its output as fits in text[0..n). Returns its
 * exit code, or minus the number of the signal that ended it. */
int child_end(pid_t child, int said, char *text, size_t n);
/* Does both child_start and child_end. */
int child_run(ChildBody body, void *context, char *text, size_t n);

#endif
