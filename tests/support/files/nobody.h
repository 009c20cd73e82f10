/* nobody.h -- runs part of a test as an ordinary user, for tests of file permissions, which do not
 * restrict root. */
#ifndef TESTS_SUPPORT_FILES_NOBODY_H
#define TESTS_SUPPORT_FILES_NOBODY_H

/* Calls run(context) in a child process and returns its result (0 to 99). If this process runs as
 * root, the child runs as the user `nobody`. Changes to memory in the child are lost. Fails the
 * test if the child cannot be run. */
int as_nobody(int (*run)(void *context), void *context);

#endif
