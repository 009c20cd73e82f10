/* test_new_folder.c -- tests new_folder.h, which gives a folder its final name only when it is
 * complete: what is synced and when, what is left after each system call that fails, and which
 * existing files and folders are not replaced. */
#include "model/core/new_folder.h"

#include "model/core/check.h"
#include "model/core/files.h"
#include "tests/support/files/faulty_fs.h"
#include "tests/support/files/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Makes the folder `path` with one file in it. The file is written without the table of system
 * calls `fs`. */
static bool make(const FsOps *fs, const char *path, char *err, size_t n)
{
    NewFolder folder;
    if (!new_folder_begin(&folder, fs, path, err, n)) return false;
    char *file = text_format("%s/file", folder.temporary);
    put_text(file, "content");
    free(file);
    return new_folder_commit(&folder, err, n);
}

/* Removes the folder "a" with everything in it. */
static void clear(void)
{
    char err[300];
    assert_true(fs_remove_tree(&fs_system, AT_FDCWD, "a", err, sizeof err));
}

static bool is_complete(void)
{
    char *text = take_text("a/new/file");
    bool complete = text != NULL && strcmp(text, "content") == 0;
    free(text);
    return complete;
}

/* Returns how many names the folder "a" has, also hidden ones. */
static int names_in_a(void)
{
    int count = 0;
    DIR *dir = opendir("a");
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;)
        count += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    if (dir) closedir(dir);
    return count;
}

static void test_a_new_folder_is_synced_before_and_after_it_is_renamed(void **state)
{
    (void)state;
    char err[300], log[4096] = "";
    FaultyFs fs;
    faulty_fs_init(&fs, FAULT_NONE, 0, 0);
    fs.log = log;
    assert_true(make(&fs.ops, "a/new/", err, sizeof err));
    /* The parent and the temporary folder are made (m m), the temporary folder is synced (s) and
     * renamed (r), and then the parent is synced (s). */
    assert_string_equal(log, "m m s ra/new s ");
    assert_true(is_complete());
    clear();
}

static void test_whichever_system_call_fails_no_incomplete_folder_is_left(void **state)
{
    (void)state;
    char err[300];
    bool made = false;
    for (int at = 1; !made; at++) {
        FaultyFs fs;
        faulty_fs_init(&fs, FAULT_ONCE, at, EIO);
        made = make(&fs.ops, "a/new", err, sizeof err);
        assert_int_equal(made, fs.calls < at);
        if (!made) assert_true(error_says(err, EIO));
        /* After the rename, the fourth call, only the sync of the parent can fail. */
        assert_int_equal(names_in_a(), at >= 5);
        assert_int_equal(is_complete(), at >= 5);
        clear();
    }
}

static void test_an_existing_file_or_folder_is_not_replaced(void **state)
{
    (void)state;
    char err[300];
    assert_true(fs_make_folders(&fs_system, "a/new", err, sizeof err));
    put_text("a/new/.hidden", "x");
    assert_false(make(&fs_system, "a/new", err, sizeof err));
    assert_string_equal(err, "a/new exists already; choose a new folder with --out");
    assert_int_equal(names_in_a(), 1);
    assert_int_equal(unlink("a/new/.hidden"), 0);
    assert_true(make(&fs_system, "a/new", err, sizeof err)); /* an empty folder is replaced */
    assert_true(is_complete());
    clear();
    assert_true(fs_make_folders(&fs_system, "a", err, sizeof err));
    put_text("a/new", "a file");
    assert_false(make(&fs_system, "a/new", err, sizeof err));
    clear();
}

/* Another process has created a folder `path` with a file in it while the new folder was
 * written. */
static void test_a_folder_that_appeared_meanwhile_is_not_replaced(void **state)
{
    (void)state;
    char err[300];
    NewFolder folder;
    assert_true(new_folder_begin(&folder, &fs_system, "a/new", err, sizeof err));
    assert_int_equal(mkdir("a/new", 0777), 0);
    put_text("a/new/other", "x");
    assert_false(new_folder_commit(&folder, err, sizeof err));
    assert_true(error_says(err, ENOTEMPTY));
    assert_int_equal(access("a/new/other", F_OK), 0);
    assert_int_equal(names_in_a(), 1);
    new_folder_abort(&folder); /* does nothing after a commit, also one that failed */
    clear();
}

static void test_an_aborted_folder_is_removed(void **state)
{
    (void)state;
    char err[300];
    NewFolder folder;
    assert_true(new_folder_begin(&folder, &fs_system, "a/new", err, sizeof err));
    assert_int_equal(names_in_a(), 1);
    new_folder_abort(&folder);
    assert_int_equal(names_in_a(), 0);
    clear();
}

/* Runs `write` in a process that ends like a killed one, without clearing up. */
static void killed_while(void (*write)(void))
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        write();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void begin_a_folder(void)
{
    char err[300];
    NewFolder folder;
    if (!new_folder_begin(&folder, &fs_system, "a/new", err, sizeof err)) _exit(1);
    char *file = text_format("%s/half", folder.temporary);
    put_text(file, "half");
    free(file);
}

static void begin_a_file(void)
{
    char err[300];
    AtomicFile file;
    if (!atomic_file_open(&file, &fs_system, "a/new", err, sizeof err)) _exit(1);
}

static void test_only_files_and_folders_left_by_killed_processes_are_removed(void **state)
{
    (void)state;
    static const char *const others[] = {"a/new.tmp-x-0", "a/new.tmp-7-0.old", "a/newer.tmp-7-0",
                                         "a/new.tmp-0-0", "a/anew.tmp-7-0"};
    enum { N_OTHERS = sizeof others / sizeof *others };
    char err[300];
    NewFolder held;
    assert_true(new_folder_begin(&held, &fs_system, "a/new", err, sizeof err));
    killed_while(begin_a_folder);
    killed_while(begin_a_file);
    for (int i = 0; i < N_OTHERS; i++)
        put_text(others[i], "another's");
    assert_int_equal(names_in_a(), 3 + N_OTHERS);
    assert_true(make(&fs_system, "a/new", err, sizeof err));
    /* The folder that this process is still writing stays, and so do files whose names are not
     * temporary names of a/new. */
    assert_true(is_complete());
    assert_int_equal(names_in_a(), 2 + N_OTHERS);
    assert_true(fs_is_folder(held.temporary));
    new_folder_abort(&held);
    assert_int_equal(names_in_a(), 1 + N_OTHERS);
    clear();
}

static void test_a_size_beyond_the_known_free_space_of_a_disk_is_refused(void **state)
{
    (void)state;
    char err[300];
    FaultyFs fs;
    faulty_fs_init(&fs, FAULT_NONE, 0, 0);
    fs.disk = ".";
    fs.capacity = 3000000;
    assert_true(file_room(&fs.ops, "a/b/c", 3000000, err, sizeof err));
    assert_false(file_room(&fs.ops, "a/b/c", 3000001, err, sizeof err));
    assert_non_null(strstr(err, "a/b/c takes "));
    assert_non_null(strstr(err, ", and its disk has room for "));
    fs.room_unknown = true;
    assert_true(file_room(&fs.ops, "a/b/c", 3000001, err, sizeof err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_new_folder_is_synced_before_and_after_it_is_renamed),
        cmocka_unit_test(test_whichever_system_call_fails_no_incomplete_folder_is_left),
        cmocka_unit_test(test_an_existing_file_or_folder_is_not_replaced),
        cmocka_unit_test(test_a_folder_that_appeared_meanwhile_is_not_replaced),
        cmocka_unit_test(test_an_aborted_folder_is_removed),
        cmocka_unit_test(test_only_files_and_folders_left_by_killed_processes_are_removed),
        cmocka_unit_test(test_a_size_beyond_the_known_free_space_of_a_disk_is_refused),
    };
    return cmocka_run_group_tests_name("new folders", tests, enter_scratch, leave_scratch);
}
