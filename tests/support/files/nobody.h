/* nobody.h -- a piece of a test as a user whom permissions bind, for tests also run as root. */
#ifndef TESTS_SUPPORT_FILES_NOBODY_H
#define TESTS_SUPPORT_FILES_NOBODY_H

/* Calls run(context) in a process of its own: by the user `nobody` when this one is root's, else by
 * this user. Returns what it returns (0 to 99), after which nothing of its memory is left; fails
 * the test if it cannot. */
int as_nobody(int (*run)(void *context), void *context);

#endif
