/* test_files.c -- tests reading files with error messages, and replacing files so that a failing
 * call leaves the old or the new file complete. */
#include "model/core/check.h"
#include "model/core/child.h"
#include "model/core/files.h"
#include "model/core/machine.h"
#include "tests/support/files/faulty_fs.h"
#include "tests/support/files/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- writing --------------------------------------------------------------------------------- */

/* Writes in pieces and rewrites the first bytes at the end, as the writer of token shards does. */
static bool write_in_pieces(const FsOps *fs, const char *path, char *err, size_t n)
{
    AtomicFile f;
    if (!atomic_file_open(&f, fs, path, err, n)) return false;
    if (atomic_file_write(&f, "???", 3, err, n) && atomic_file_write(&f, "er", 2, err, n) &&
        atomic_file_rewind(&f, err, n) && atomic_file_write(&f, "new", 3, err, n))
        return atomic_file_commit(&f, err, n);
    atomic_file_abort(&f);
    return false;
}

static bool write_at_once(const FsOps *fs, const char *path, char *err, size_t n)
{
    return file_write(fs, path, "newer", 5, err, n);
}

static int files_here(void)
{
    int count = 0;
    DIR *dir = opendir(".");
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        count += e->d_name[0] != '.';
    closedir(dir);
    return count;
}

/* Makes each call fail in turn. Afterwards the file must be the old or the new one, no temporary
 * file may be left, and the error must contain the system's reason. Returns the number of calls. */
static int fail_at_every_call(bool (*write)(const FsOps *, const char *, char *, size_t))
{
    char err[300];
    for (int at = 1;; at++) {
        FaultyFs fs;
        assert_true(file_write(&fs_system, "file", "old", 3, err, sizeof err));
        faulty_fs_init(&fs, FAULT_ONCE, at, ENOSPC);
        bool written = write(&fs.ops, "file", err, sizeof err);
        bool reached = fs.calls >= at;
        assert_int_equal(written, !reached);
        if (reached) assert_true(error_says(err, ENOSPC));
        char *text = take_text("file");
        if (strcmp(text, "newer") != 0 && (written || strcmp(text, "old") != 0))
            fail_msg("call %d leaves \"%s\"", at, text);
        free(text);
        assert_int_equal(files_here(), 1);
        if (!reached) return fs.calls;
    }
}

static void test_a_failed_call_leaves_the_old_or_the_new_file_complete(void **state)
{
    (void)state;
    /* open, write, sync, close, rename, sync of the folder */
    assert_int_equal(fail_at_every_call(write_at_once), 6);
    assert_int_equal(fail_at_every_call(write_in_pieces), 8);
    assert_int_equal(unlink("file"), 0);
}

/* Short writes and interrupted calls must not count as failures. A disk that stays full makes the
 * write fail and leaves the old file. */
static void test_short_writes_are_continued_and_a_full_disk_is_an_error(void **state)
{
    (void)state;
    char err[300], *text, *from = must_calloc(1, 1001);
    FaultyFs fs;
    memset(from, 'x', 1000);
    faulty_fs_init(&fs, FAULT_SHORT, 0, 0);
    assert_true(file_write(&fs.ops, "file", from, 1000, err, sizeof err));
    assert_true(fs.calls > 250);
    text = take_text("file");
    assert_string_equal(text, from);
    free(text);
    faulty_fs_init(&fs, FAULT_ALWAYS, 2, ENOSPC);
    assert_false(file_write(&fs.ops, "file", "y", 1, err, sizeof err));
    text = take_text("file");
    assert_string_equal(text, from);
    assert_int_equal(files_here(), 1);
    free(text);
    free(from);
    assert_int_equal(unlink("file"), 0);
}

static void test_missing_parent_folders_are_created(void **state)
{
    (void)state;
    char err[300];
    put_text("file", "");
    assert_true(fs_make_folders(&fs_system, "a/b//c/", err, sizeof err));
    assert_true(fs_make_folders(&fs_system, "a/b//c/", err, sizeof err));
    assert_int_equal(access("a/b/c", X_OK), 0);
    assert_false(fs_make_folders(&fs_system, "file", err, sizeof err));
    assert_non_null(strstr(err, "not a folder"));
    assert_int_equal(rmdir("a/b/c") | rmdir("a/b") | rmdir("a") | unlink("file"), 0);
}

/* ---- reading --------------------------------------------------------------------------------- */

static void test_file_read_follows_a_link_and_file_read_own_refuses_it(void **state)
{
    (void)state;
    char err[300], *text;
    size_t size;
    bool missing;
    put_text("file", "four");
    assert_int_equal(symlink("file", "link"), 0);
    assert_true(file_read("link", &text, &size, &missing, err, sizeof err));
    assert_string_equal(text, "four");
    assert_true(size == 4 && !missing);
    free(text);
    assert_true(file_read_own("file", &text, &size, err, sizeof err));
    assert_string_equal(text, "four");
    free(text);
    assert_false(file_read_own("link", &text, &size, err, sizeof err));
    assert_string_equal(err, "link is a symbolic link; a plain file is needed");
    assert_null(text);
    assert_false(file_read("none", &text, &size, &missing, err, sizeof err));
    assert_string_equal(err, "none cannot be opened: No such file or directory");
    assert_true(text == NULL && size == 0 && missing);
    assert_int_equal(unlink("file") | unlink("link"), 0);
}

static void test_file_read_input_reads_at_most_the_requested_bytes(void **state)
{
    (void)state;
    const char *why = NULL;
    size_t size;
    put_text("file", "0123456789");
    char *text = file_read_input("file", 4, &size, &why);
    assert_true(size == 4 && memcmp(text, "0123", 4) == 0);
    free(text);
    text = file_read_input("file", 400, &size, &why);
    assert_true(size == 10 && memcmp(text, "0123456789", 10) == 0);
    free(text);
    assert_null(file_read_input("none", 4, &size, &why));
    assert_string_equal(why, strerror(ENOENT));
    assert_int_equal(unlink("file"), 0);
}

static void test_a_number_in_a_file_of_proc_or_sys_is_found_by_its_key(void **state)
{
    (void)state;
    char text[8];
    put_text("file", "max\nMem: 12 kB\nMemory: 13 kB\n14\n");
    assert_true(kernel_number("file", "Mem:") == 12);
    assert_true(kernel_number("file", "Memory:") == 13);
    assert_true(kernel_number("file", "") == 14);
    assert_true(kernel_number("file", "mory:") == SIZE_MAX);
    assert_true(kernel_number("none", "") == SIZE_MAX);
    file_head("file", text, sizeof text);
    assert_string_equal(text, "max\nMem");
    file_head("none", text, sizeof text);
    assert_string_equal(text, "");
    assert_true(kernel_number("/proc/meminfo", "MemTotal:") > 1000);
    assert_int_equal(unlink("file"), 0);
}

/* ---- finding programs in PATH ---------------------------------------------------------------- */

static void test_program_find_searches_every_folder_of_path(void **state)
{
    (void)state;
    char *before = getenv("PATH") ? must_strdup(getenv("PATH")) : NULL;
    char err[300];
    assert_true(fs_make_folders(&fs_system, "bin", err, sizeof err));
    put_text("bin/program", "");
    put_text("program", "");
    assert_int_equal(chmod("bin/program", 0755), 0);
    assert_int_equal(setenv("PATH", "none:bin", 1), 0);
    assert_int_equal(program_find("program"), 0);
    assert_int_equal(program_find("another"), ENOENT);
    assert_int_equal(setenv("PATH", "none:", 1), 0); /* an empty entry means the current folder */
    assert_int_equal(program_find("program"), EACCES);
    assert_int_equal(unsetenv("PATH"), 0);
    assert_int_equal(program_find("sh"), 0);
    if (before) assert_int_equal(setenv("PATH", before, 1), 0);
    free(before);
    assert_int_equal(unlink("bin/program") | rmdir("bin") | unlink("program"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_failed_call_leaves_the_old_or_the_new_file_complete),
        cmocka_unit_test(test_short_writes_are_continued_and_a_full_disk_is_an_error),
        cmocka_unit_test(test_missing_parent_folders_are_created),
        cmocka_unit_test(test_file_read_follows_a_link_and_file_read_own_refuses_it),
        cmocka_unit_test(test_file_read_input_reads_at_most_the_requested_bytes),
        cmocka_unit_test(test_a_number_in_a_file_of_proc_or_sys_is_found_by_its_key),
        cmocka_unit_test(test_program_find_searches_every_folder_of_path),
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
