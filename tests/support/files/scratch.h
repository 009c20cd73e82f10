/* scratch.h -- gives a test program its own temporary folder, and reads and writes text files. */
#ifndef TESTS_SUPPORT_FILES_SCRATCH_H
#define TESTS_SUPPORT_FILES_SCRATCH_H

/* Returns the folder for temporary folders of tests that call fsync thousands of times: /dev/shm if
 * it has room, else /tmp. Memory is enough, because these tests only check the order of calls. */
const char *test_scratch_folder(void);

/* cmocka setup and teardown of a group of tests. enter_scratch creates a temporary folder, changes
 * into it and stores it in *state; leave_scratch changes back and removes it. */
int enter_scratch(void **state);
int leave_scratch(void **state);

/* Writes text to a file. */
void put_text(const char *path, const char *text);
/* Returns the content of a file without its NUL bytes, or NULL if it cannot be read. The caller
 * frees it. */
char *take_text(const char *path);

#endif
