/* test_folder_lock.c -- tests of the lock on a run folder: a second process is refused even if the
 * lock file is removed, and a lock file that is a link, a pipe or a folder is refused. */
#include "model/core/check.h"
#include "model/core/log.h"
#include "parallel/run/folder_lock.h"
#include "tests/support/files/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Replaces the C library's lstat: the next `failures` calls fail with `error`. */
static int error, failures;
/* NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name) */
int lstat(const char *restrict path, struct stat *restrict st)
{
    if (failures == 0) return fstatat(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
    failures--;
    errno = error;
    return -1;
}

/* Lets a child process try to lock the folder. Returns whether it got the lock, or was refused, or
 * was refused with the message that the lock file was removed. */
enum { GOT_IT, REFUSED, REFUSED_WITHOUT_FILE };
static int ask_from_outside(const char *path)
{
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char err[512];
        FolderLock lock;
        if (folder_lock_take(&lock, path, err, sizeof err)) _exit(GOT_IT);
        bool another = strstr(err, "another run is writing") != NULL;
        bool removed = strstr(err, "lock file was removed") != NULL;
        _exit(!another ? 9 : removed ? REFUSED_WITHOUT_FILE : REFUSED);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Fails unless a refused process names this process as the holder, as in the lock file but without
 * the padding of its record. */
static void says_who_holds(const char *path, int attempt)
{
    char host[65] = "", holder[160], err[512] = "";
    int status;
    gethostname(host, sizeof host - 1);
    snprintf(holder, sizeof holder, " (attempt %d, process %ld on %s);", attempt, (long)getpid(),
             host);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        FolderLock lock;
        _exit(folder_lock_take(&lock, path, err, sizeof err) || strstr(err, holder) == NULL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_a_second_process_is_refused_after_the_lock_file_was_removed(void **unused)
{
    (void)unused;
    char err[512];
    FolderLock lock;
    struct stat st;
    assert_int_equal(mkdir("a", 0777), 0);
    assert_int_equal(ask_from_outside("a"), GOT_IT);
    assert_true(folder_lock_take(&lock, "a", err, sizeof err));
    assert_int_equal(lock.attempt, 1);
    assert_int_equal(ask_from_outside("a"), REFUSED);
    says_who_holds("a", 1);
    assert_true(folder_lock_hold(&lock, "a", err, sizeof err));
    assert_int_equal(unlink("a/lock"), 0);
    assert_int_equal(ask_from_outside("a"), REFUSED_WITHOUT_FILE);
    /* folder_lock_hold creates the file again, locked and with the number of the attempt. */
    for (int i = 0; i < 2; i++) {
        if (i == 1) assert_int_equal(unlink("a/lock"), 0);
        assert_true(folder_lock_hold(&lock, "a", err, sizeof err));
        assert_int_equal(stat("a/lock", &st), 0);
        assert_int_equal(ask_from_outside("a"), REFUSED);
    }
    folder_lock_release(&lock);
    assert_true(folder_lock_take(&lock, "a", err, sizeof err));
    assert_int_equal(lock.attempt, 2);
    folder_lock_release(&lock);
    folder_lock_release(&lock);
}

/* Some file systems can lock only files, not folders. There a second run gets the lock if the lock
 * file is removed, and the first run notices it at its next save. */
static void test_folder_lock_hold_fails_after_another_process_took_the_folder(void **unused)
{
    (void)unused;
    char err[512];
    FolderLock first, second;
    assert_int_equal(mkdir("b", 0777), 0);
    assert_true(folder_lock_take(&first, "b", err, sizeof err));
    close(first.folder);
    first.folder = -1;
    assert_int_equal(unlink("b/lock"), 0);
    assert_true(folder_lock_take(&second, "b", err, sizeof err));
    assert_false(folder_lock_hold(&first, "b", err, sizeof err));
    assert_non_null(strstr(err, "another run is writing to b"));
    assert_true(folder_lock_hold(&second, "b", err, sizeof err));
    folder_lock_release(&first);
    folder_lock_release(&second);
    /* If the whole folder is gone, no other process can have locked it. */
    assert_true(folder_lock_take(&first, "b", err, sizeof err));
    assert_int_equal(unlink("b/lock") | rmdir("b"), 0);
    assert_true(folder_lock_hold(&first, "b", err, sizeof err));
    folder_lock_release(&first);
}

/* If lstat fails, the lock file does not count as removed. If it is reported missing although this
 * process holds it, the process's own lock is not taken for another's. */
static void test_a_lock_counts_as_held_if_its_file_cannot_be_examined(void **unused)
{
    (void)unused;
    static const int errors[] = {EIO, ESTALE, EACCES, ENOENT};
    char err[512];
    FolderLock lock;
    assert_int_equal(mkdir("d", 0777), 0);
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        error = errors[i];
        failures =
            error == ENOENT ? 1 : 1000; /* ENOENT passes after one call; other errors persist */
        if (!folder_lock_take(&lock, "d", err, sizeof err)) fail_msg("%s", err);
        int file = lock.file;
        failures = error == ENOENT ? 1 : 1000;
        if (!folder_lock_hold(&lock, "d", err, sizeof err)) fail_msg("%s", err);
        failures = 0;
        assert_int_equal(lock.file, file);
        assert_int_equal(lock.attempt, (int)i);
        assert_int_equal(ask_from_outside("d"), REFUSED);
        folder_lock_release(&lock);
    }
}

static void test_a_lock_file_that_is_a_link_a_pipe_or_a_folder_is_refused(void **unused)
{
    (void)unused;
    char err[512];
    FolderLock lock;
    assert_int_equal(mkdir("c", 0777), 0);
    int fd = open("precious", O_WRONLY | O_CREAT, 0666);
    assert_int_equal(write(fd, "data", 4), 4);
    close(fd);
    assert_int_equal(symlink("../precious", "c/lock"), 0);
    assert_false(folder_lock_take(&lock, "c", err, sizeof err));
    assert_non_null(strstr(err, "c/lock is a symbolic link"));
    struct stat st;
    assert_int_equal(stat("precious", &st), 0);
    assert_int_equal(st.st_size, 4);
    assert_int_equal(unlink("c/lock") | symlink("../nothing", "c/lock"), 0);
    assert_false(folder_lock_take(&lock, "c", err, sizeof err));
    assert_int_not_equal(access("nothing", F_OK), 0);
    assert_int_equal(unlink("c/lock") | mkfifo("c/lock", 0666), 0);
    assert_false(folder_lock_take(&lock, "c", err, sizeof err));
    assert_non_null(strstr(err, "not a plain file"));
    assert_int_equal(unlink("c/lock") | mkdir("c/lock", 0777), 0);
    assert_false(folder_lock_take(&lock, "c", err, sizeof err));
    folder_lock_release(&lock);
}

int main(void)
{
    log_set_level(LOG_ERROR); /* hides the warnings about removed lock files */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_second_process_is_refused_after_the_lock_file_was_removed),
        cmocka_unit_test(test_folder_lock_hold_fails_after_another_process_took_the_folder),
        cmocka_unit_test(test_a_lock_counts_as_held_if_its_file_cannot_be_examined),
        cmocka_unit_test(test_a_lock_file_that_is_a_link_a_pipe_or_a_folder_is_refused),
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
