/* test_checkpoint_faults.c -- flipped bytes, truncated and mixed files, full disks, and kills at
 * every call: an incomplete or damaged save is never taken for a checkpoint. */
#include "model/core/check.h"
#include "model/core/log.h"
#include "tests/support/checkpoint/save_faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "manifest.json"};

/* ---- damage ---------------------------------------------------------------------------------- */

/* Flips bytes [from, to) of a file one at a time; each must be detected, with an error that names
 * the file. */
static void flip_each(TestRun *r, const char *file, int64_t from, int64_t to)
{
    char *path = test_run_file(r, 1, file);
    for (int64_t at = from; at < to; at++) {
        unsigned char mask = (unsigned char)(1 + (at * 7919 + 13) % 255);
        file_flip(path, at, mask);
        if (test_run_whole(r, 1)) fail_msg("byte %lld of %s", (long long)at, path);
        if (strstr(r->err, file) == NULL) fail_msg("%s is not named: %s", file, r->err);
        file_flip(path, at, mask);
    }
    assert_true(test_run_whole(r, 1));
    free(path);
}

static void a_flipped_byte_in_a_header_or_the_manifest_is_refused(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    test_run_must_save(&r, 1);
    for (int f = 0; f < 2; f++) { /* the manifest has no header */
        char *folder = checkpoint_path(r.run, 1);
        Checkpoint *c = NULL;
        assert_true(checkpoint_open(folder, &c, r.err, sizeof r.err));
        int64_t header_bytes = checkpoint_manifest(c)->file[f].header_bytes;
        checkpoint_close(c);
        free(folder);
        flip_each(&r, files[f], 0, header_bytes);
    }
    char *path = test_run_file(&r, 1, "manifest.json");
    flip_each(&r, "manifest.json", 0, file_size(path));
    free(path);
    test_run_close(&r);
}

static void a_flipped_data_byte_is_refused_with_the_tensors_name(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    test_run_must_save(&r, 1);
    char *folder = checkpoint_path(r.run, 1);
    Checkpoint *c = NULL;
    int flips = 0;
    assert_true(checkpoint_open(folder, &c, r.err, sizeof r.err));
    const Manifest *m = checkpoint_manifest(c);
    for (int i = 0; i < m->n_tensors; i++) {
        const ManifestTensor *t = &m->tensor[i];
        char *path = test_run_file(&r, 1, m->file[t->file].name);
        int64_t at = m->file[t->file].header_bytes + t->entry.offset;
        for (int64_t b = 0; b < t->entry.bytes; b++, flips++) {
            file_flip(path, at + b, (unsigned char)(1 + (b * 131 + i) % 255));
            if (test_run_whole(&r, 1)) fail_msg("byte %lld of %s", (long long)b, t->entry.name);
            assert_non_null(strstr(r.err, t->entry.name));
            assert_non_null(strstr(r.err, m->file[t->file].name));
            assert_false(test_run_read(&r, c));
            assert_non_null(strstr(r.err, t->entry.name));
            file_flip(path, at + b, (unsigned char)(1 + (b * 131 + i) % 255));
        }
        free(path);
    }
    assert_true(flips >= 1000);
    assert_true(test_run_whole(&r, 1));
    checkpoint_close(c);
    free(folder);
    test_run_close(&r);
}

static void truncated_and_extended_files_are_refused(void **state)
{
    (void)state;
    for (int f = 0; f < 3; f++) {
        TestRun r;
        test_run_open(&r);
        test_run_must_save(&r, 1);
        char *path = test_run_file(&r, 1, files[f]);
        int64_t bytes = file_size(path);
        int fd = open(path, O_WRONLY | O_APPEND);
        assert_int_equal(write(fd, " ", 1), 1);
        close(fd);
        assert_false(test_run_whole(&r, 1));
        assert_non_null(strstr(r.err, files[f]));
        for (int64_t cut = bytes - 1; cut >= 0; cut -= 1 + cut / 40) {
            assert_int_equal(truncate(path, cut), 0);
            assert_false(test_run_whole(&r, 1));
            assert_non_null(strstr(r.err, files[f]));
            if (f < 2) assert_non_null(strstr(r.err, "were saved"));
        }
        assert_int_equal(truncate(path, 0), 0);
        assert_false(test_run_whole(&r, 1));
        assert_int_equal(unlink(path), 0);
        assert_false(test_run_whole(&r, 1));
        assert_non_null(strstr(r.err, files[f]));
        free(path);
        test_run_close(&r);
    }
}

static void bug_51_a_mixture_of_files_from_two_saves_is_refused(void **state)
{
    (void)state;
    for (int f = 0; f < 3; f++) {
        TestRun r;
        test_run_open(&r);
        test_run_must_save(&r, 1);
        test_run_must_save(&r, 2);
        char *one = test_run_file(&r, 1, files[f]), *two = test_run_file(&r, 2, files[f]);
        assert_int_equal(rename(one, two), 0);
        assert_false(test_run_whole(&r, 2));
        assert_non_null(strstr(r.err, "two saves"));
        free(one);
        free(two);
        test_run_close(&r);
    }
    TestRun r;
    test_run_open(&r);
    test_run_must_save(&r, 1);
    char *weights = test_run_file(&r, 1, "model.safetensors"),
         *slots = test_run_file(&r, 1, "optimizer.safetensors");
    char *other = test_run_file(&r, 1, "other");
    assert_int_equal(rename(weights, other) | rename(slots, weights) | rename(other, slots), 0);
    assert_false(test_run_whole(&r, 1));
    free(weights);
    free(slots);
    free(other);
    test_run_close(&r);
}

static void links_pipes_and_folders_in_place_of_files_are_refused(void **state)
{
    (void)state;
    for (int f = 0; f < 3; f++) {
        TestRun r;
        test_run_open(&r);
        test_run_must_save(&r, 1);
        char *path = test_run_file(&r, 1, files[f]), *moved = test_run_file(&r, 1, "moved");
        assert_int_equal(rename(path, moved), 0);
        assert_int_equal(symlink("moved", path), 0);
        assert_false(test_run_whole(&r, 1));
        assert_non_null(strstr(r.err, "symbolic link"));
        assert_int_equal(unlink(path) | mkfifo(path, 0600), 0);
        assert_false(test_run_whole(&r, 1)); /* a pipe: must not wait for a writer */
        assert_non_null(strstr(r.err, files[f]));
        assert_int_equal(unlink(path) | mkdir(path, 0700), 0);
        assert_false(test_run_whole(&r, 1));
        assert_int_equal(rmdir(path) | rename(moved, path), 0);
        assert_true(test_run_whole(&r, 1));
        free(path);
        free(moved);
        test_run_close(&r);
    }
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* Each file is synced after its last write, then the folder, then the folder is renamed, then the
 * parent folders are synced. */
static void a_save_syncs_all_files_before_it_renames_the_folder(void **state)
{
    (void)state;
    TestRun r;
    char log[4096];
    test_run_open_logged(&r, log);
    /* The log begins with calls for RUN's folders, which vary. Then follow the temporary folder,
     * three files, the folder's sync, the rename and the parents. */
    static const char *const order[] = {"m omodel.safetensors w ", " s c ooptimizer.safetensors w ",
                                        " s c omanifest.json w s c s rstep_00000002 s s "};
    const char *at = log;
    for (int i = 0; i < 3; i++) {
        const char *found = strstr(at, order[i]);
        if (found == NULL) fail_msg("'%s' is not in '%s'", order[i], log);
        at = found;
    }
    test_run_close(&r);
}

static void a_save_completes_short_and_interrupted_writes(void **state)
{
    (void)state;
    TestRun r;
    FaultyFs fs;
    test_run_open(&r);
    faulty_fs_init(&fs, FAULT_SHORT, 0, 0);
    r.io.fs = &fs.ops;
    test_run_must_save(&r, 1);
    assert_true(fs.calls > 100);
    assert_int_equal(test_run_newest(&r), 1);
    test_run_close(&r);
}

/* Saves step 1, then step 2 with a disk that fails at call `at`. Returns whether the second save
 * made at least `at` calls. */
static bool fail_at(Fault fault, int at, int error)
{
    TestRun r;
    FaultyFs fs;
    test_run_open(&r);
    test_run_must_save(&r, 1);
    faulty_fs_init(&fs, fault, at, error);
    r.io.fs = &fs.ops;
    bool saved = test_run_save(&r, 2), reached = fs.calls >= at;
    r.io.fs = &fs_system;
    assert_true(saved || reached);
    save_fault_leaves(&r, &(SaveFault){fault, 0, at, error}, saved, r.err, test_run_newest(&r));
    test_run_close(&r);
    return reached;
}

static void a_disk_failure_at_any_call_leaves_the_old_checkpoint_intact(void **state)
{
    (void)state;
    static const int errors[] = {ENOSPC, EIO};
    for (int e = 0; e < 2; e++)
        for (Fault fault = FAULT_ONCE; fault <= FAULT_ALWAYS; fault++) {
            int at = 1;
            while (fail_at(fault, at, errors[e]))
                at++;
            assert_in_range(at, 25, 200);
        }
}

/* Saves step 1; then a process saves step 2, prunes to one checkpoint, and dies at call `at`.
 * Returns whether it died. */
static bool kill_at(int at)
{
    TestRun r;
    test_run_open(&r);
    test_run_must_save(&r, 1);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        FaultyFs fs;
        faulty_fs_init(&fs, FAULT_KILL, at, 0);
        r.io.fs = &fs.ops;
        bool good =
            test_run_save(&r, 2) && checkpoint_prune(&r.io, r.run, 2, 1, r.err, sizeof r.err);
        _exit(good ? 0 : 1);
    }
    bool killed = save_kill_leaves(&r, &(SaveFault){FAULT_KILL, 0, at, 0}, child, test_run_newest);
    test_run_close(&r);
    return killed;
}

static void bug_51_a_kill_at_any_call_leaves_the_old_or_new_checkpoint(void **state)
{
    (void)state;
    int at = 1;
    while (kill_at(at))
        at++;
    assert_in_range(at, 30, 200);
}

int main(void)
{
    log_set_level(LOG_ERROR); /* hides the warnings about damage that these tests cause */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flipped_byte_in_a_header_or_the_manifest_is_refused),
        cmocka_unit_test(a_flipped_data_byte_is_refused_with_the_tensors_name),
        cmocka_unit_test(truncated_and_extended_files_are_refused),
        cmocka_unit_test(bug_51_a_mixture_of_files_from_two_saves_is_refused),
        cmocka_unit_test(links_pipes_and_folders_in_place_of_files_are_refused),
        cmocka_unit_test(a_save_syncs_all_files_before_it_renames_the_folder),
        cmocka_unit_test(a_save_completes_short_and_interrupted_writes),
        cmocka_unit_test(a_disk_failure_at_any_call_leaves_the_old_checkpoint_intact),
        cmocka_unit_test(bug_51_a_kill_at_any_call_leaves_the_old_or_new_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
