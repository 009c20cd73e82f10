/* scratch.h -- a folder of a test program's own, and text files in it. */
#ifndef TESTS_SUPPORT_FILES_SCRATCH_H
#define TESTS_SUPPORT_FILES_SCRATCH_H

/* Where folders of tests lie that sync thousands of times: memory where there is some, for order is
 * all that is tested there. */
const char *test_scratch_folder(void);

/* Setup of a group of tests: makes a folder there and goes into it, *state; teardown goes back and
 * removes it. */
int enter_scratch(void **state);
int leave_scratch(void **state);

/* Writes a text to a file. */
void put_text(const char *path, const char *text);
/* A whole file as a string without its NULs, which the caller frees; NULL if it cannot be read. */
char *take_text(const char *path);

#endif
