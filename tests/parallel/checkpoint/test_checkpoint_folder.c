/* test_checkpoint_folder.c -- the folder RUN/checkpoints: names and modes of what a save writes
 * there, and what is removed after a crash or on a full disk. */
#include "model/core/check.h"
#include "model/core/log.h"
#include "tests/support/checkpoint/checkpoint_run.h"
#include "tests/support/files/faulty_fs.h"

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

/* Returns whether RUN/checkpoints/NAME exists. */
static bool is_there(const TestRun *r, const char *name)
{
    char *path = text_format("%s/checkpoints/%s", r->run, name);
    bool there = access(path, F_OK) == 0;
    free(path);
    return there;
}

static int rename_step(const TestRun *r, int64_t from, int64_t to)
{
    char *a = checkpoint_path(r->run, from), *b = checkpoint_path(r->run, to);
    int result = rename(a, b);
    free(a);
    free(b);
    return result;
}

/* ---- what a save puts there ------------------------------------------------------------------ */

/* Paths and host names may contain any bytes. */
static void invalid_utf8_in_texts_is_saved_as_replacement_characters(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"d\xe9/demo.json", "d\xef\xbf\xbd/demo.json"},
        {"a\nb\"c\\d\x1b[31m", "a\nb\"c\\d\x1b[31m"},
        {"\xed\xa0\x80\xff\xc3", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xc3\xa4 \xf0\x9f\x98\x80", "\xc3\xa4 \xf0\x9f\x98\x80"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        TestRun r;
        Checkpoint *c = NULL;
        test_run_open(&r);
        test_run_fill(&r, 1);
        CheckpointContents contents = test_run_contents(&r);
        contents.config = contents.machine = contents.code = contents.data = texts[i][0];
        if (!checkpoint_write(&r.io, r.run, &contents, r.err, sizeof r.err)) fail_msg("%s", r.err);
        if (!checkpoint_open_newest(&r.io, r.run, &c, r.err, sizeof r.err) || c == NULL)
            fail_msg("text %zu: %s", i, r.err);
        const Manifest *m = checkpoint_manifest(c);
        assert_string_equal(m->config, texts[i][1]);
        assert_string_equal(m->machine, texts[i][1]);
        assert_string_equal(m->code, texts[i][1]);
        assert_string_equal(m->data, texts[i][1]);
        checkpoint_close(c);
        test_run_close(&r);
    }
}

/* The disk reports success but writes other bytes. If these are in a header or in the manifest, the
 * save notices it before the new checkpoint replaces the old one. */
static void a_save_fails_if_the_disk_stores_other_bytes_than_were_written(void **state)
{
    (void)state;
    TestRun r;
    FaultyFs fs;
    char log[4096];
    test_run_open_logged(&r, log);
    r.io.fs = &fs.ops;
    int seen = 0, call = 0;
    for (const char *at = log; *at; at = strchr(at, ' ') + 1) {
        call++;
        bool first_write =
            *at == 'w' &&
            strchr("sn", at[-2]) != NULL; /* the log has the file's name before its first write */
        if (!first_write) continue;       /* two headers and the manifest */
        faulty_fs_init(&fs, FAULT_FLIP, call, 0);
        assert_false(test_run_save(&r, 3));
        if (strstr(r.err, "does not read back") == NULL) fail_msg("call %d: %s", call, r.err);
        assert_int_equal(test_run_entries(&r), 2);
        seen++;
    }
    r.io.fs = &fs_system;
    assert_int_equal(seen, 3);
    assert_int_equal(test_run_newest(&r), 2);
    test_run_close(&r);
}

/* A symbolic link with the name of a step leads to a folder that this run has not saved. The run
 * neither resumes from it nor counts it as a save of that step. */
static void a_link_in_place_of_a_checkpoint_is_not_followed(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    test_run_must_save(&r, 1);
    test_run_must_save(&r, 2);
    char *two = checkpoint_path(r.run, 2), *away = text_format("%s/away", r.run);
    assert_int_equal(rename(two, away), 0);
    assert_int_equal(symlink("../away", two), 0);
    assert_int_equal(test_run_newest(&r), 1);
    test_run_must_save(&r, 2);
    struct stat st;
    assert_int_equal(lstat(two, &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    assert_int_equal(test_run_newest(&r), 2);
    assert_int_equal(access(away, F_OK), 0);
    free(two);
    free(away);
    test_run_close(&r);
}

static void saved_files_and_folders_respect_the_umask(void **state)
{
    (void)state;
    static const mode_t masks[] = {022, 027, 077, 002};
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        TestRun r;
        struct stat st;
        test_run_open(&r);
        mode_t before = umask(masks[i]);
        test_run_must_save(&r, 1);
        umask(before);
        static const char *const files[] = {"model.safetensors", "optimizer.safetensors",
                                            "manifest.json", "."};
        for (int f = 0; f < 4; f++) {
            char *path = test_run_file(&r, 1, files[f]);
            assert_int_equal(stat(path, &st), 0);
            assert_int_equal(st.st_mode & 07777, (f == 3 ? 0777 : 0666) & ~masks[i]);
            free(path);
        }
        test_run_close(&r);
    }
}

/* ---- names ----------------------------------------------------------------------------------- */

static void a_folder_named_after_another_step_is_refused(void **state)
{
    (void)state;
    TestRun r;
    char *with_slash, *path, *elsewhere;
    Checkpoint *c = NULL;
    test_run_open(&r);
    test_run_must_save(&r, 5);
    test_run_must_save(&r, 10);
    assert_int_equal(rename_step(&r, 10, 20), 0);
    path = checkpoint_path(r.run, 20);
    with_slash = text_format("%s//", path);
    elsewhere = text_format("%s/best", r.run);
    assert_false(checkpoint_open(path, &c, r.err, sizeof r.err));
    assert_null(c);
    assert_non_null(strstr(r.err, "step_00000020 holds step 10"));
    assert_false(checkpoint_open(with_slash, &c, r.err, sizeof r.err));
    assert_int_equal(test_ckpt("verify", r.run, "/dev/null"), EXIT_DAMAGED);
    assert_int_equal(test_ckpt("list", r.run, "/dev/null"), EXIT_DAMAGED);
    assert_int_equal(test_run_newest(&r), 5);
    /* Step 20 is saved, and the folder that had its name is kept under another name. */
    test_run_must_save(&r, 20);
    assert_int_equal(test_run_newest(&r), 20);
    assert_int_equal(test_run_entries(&r), 3);
    assert_true(checkpoint_prune(&r.io, r.run, 20, 1, r.err, sizeof r.err));
    assert_int_equal(test_run_entries(&r), 2);
    /* A copy can be opened under a name that is not a step's. */
    assert_int_equal(rename(path, elsewhere), 0);
    if (!checkpoint_open(elsewhere, &c, r.err, sizeof r.err)) fail_msg("%s", r.err);
    checkpoint_close(c);
    free(path);
    free(with_slash);
    free(elsewhere);
    test_run_close(&r);
}

/* Saves a step and stores in `said` what the save has printed to stderr. File system call number
 * `at` fails; 0: none. */
static void save_aloud(TestRun *r, int64_t step, int at, char *said, size_t n)
{
    FaultyFs fs;
    FILE *file = tmpfile();
    int own = dup(STDERR_FILENO);
    assert_true(file != NULL && own >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    faulty_fs_init(&fs, at ? FAULT_ONCE : FAULT_NONE, at, EIO);
    r->io.fs = &fs.ops;
    log_set_level(LOG_WARNING);
    bool good = test_run_save(r, step);
    log_set_level(LOG_ERROR);
    r->io.fs = &fs_system;
    dup2(own, STDERR_FILENO);
    close(own);
    rewind(file);
    said[fread(said, 1, n - 1, file)] = '\0';
    fclose(file);
    assert_int_equal(good, at == 0);
}

/* The warning is printed only after the rename. A save that fails before the rename leaves
 * everything in place and prints no warning. */
static void a_save_warns_after_it_has_moved_an_existing_folder(void **state)
{
    (void)state;
    for (int damaged = 0; damaged < 2; damaged++) {
        TestRun r;
        char said[4096];
        test_run_open(&r);
        test_run_must_save(&r, 10);
        assert_int_equal(rename_step(&r, 10, 20), 0);
        if (damaged) {
            char *path = test_run_file(&r, 20, "manifest.json");
            assert_int_equal(truncate(path, 0), 0);
            free(path);
        }
        save_aloud(&r, 20, 12, said, sizeof said);
        assert_string_equal(said, "");
        assert_true(is_there(&r, "step_00000020"));
        save_aloud(&r, 20, 0, said, sizeof said);
        assert_non_null(strstr(
            said, damaged ? "a damaged checkpoint makes way for a new one: "
                          : "step_00000020 held step 10: it was moved to step_00000020.holds-10-"));
        assert_int_equal(test_run_newest(&r), 20);
        test_run_close(&r);
    }
}

static void pruning_removes_only_leftovers_of_this_program(void **state)
{
    (void)state;
    static const char *const ours[] = {"step_00000007.tmp-0123456789abcdef", ".trash-step_00000007",
                                       ".trash-step_00000007-0123456789abcdef",
                                       "step_123456789.tmp-00000000ffffffff"};
    static const char *const users[] = {"step_00000007.tmp-mine",
                                        "step_00000007.tmp-0123456789abcdeg",
                                        "step_7.tmp-0123456789abcdef",
                                        "step_00000007.tmp-0123456789abcdef0",
                                        "step_best.tmp-backup",
                                        ".trash-step_00000007-old",
                                        ".trash-mine",
                                        "step_00000007.bak",
                                        ".trash-step_00000007-0123-ab",
                                        "step_00000007.tmp-"};
    TestRun r;
    test_run_open(&r);
    test_run_must_save(&r, 1);
    const size_t n_ours = sizeof ours / sizeof *ours, n_users = sizeof users / sizeof *users;
    for (size_t i = 0; i < n_ours + n_users; i++) {
        char *path =
            text_format("%s/checkpoints/%s", r.run, i < n_ours ? ours[i] : users[i - n_ours]);
        assert_int_equal(mkdir(path, 0777), 0);
        free(path);
    }
    test_run_must_save(&r, 2);
    assert_true(checkpoint_prune(&r.io, r.run, 2, 1, r.err, sizeof r.err));
    for (size_t i = 0; i < n_ours; i++)
        if (is_there(&r, ours[i])) fail_msg("%s is still there", ours[i]);
    for (size_t i = 0; i < n_users; i++)
        if (!is_there(&r, users[i])) fail_msg("%s is gone", users[i]);
    test_run_close(&r);
}

/* ---- a full disk ----------------------------------------------------------------------------- */

static bool save_making_room(TestRun *r, int64_t step)
{
    test_run_fill(r, step);
    CheckpointContents contents = test_run_contents(r);
    return checkpoint_write_making_room(&r->io, r->run, &contents, r->err, sizeof r->err);
}

/* Replaces the run's folder by one far below it, whose path is longer than an error message can
 * be. */
static void go_deeper(TestRun *r)
{
    size_t at = strlen(r->run);
    for (int i = 0; i < 6; i++) {
        at += (size_t)snprintf(r->run + at, sizeof r->run - at, "/%0200d", i);
        assert_int_equal(mkdir(r->run, 0777), 0);
    }
}

/* Saves steps 1 to 4, damages step 4, and limits the disk to what is used plus room for the given
 * number of checkpoints. `tells`: the disk reports its free space. */
static void fill_disk(TestRun *r, FaultyFs *fs, double checkpoints_of_room, bool tells)
{
    for (int64_t step = 1; step <= 4; step++)
        test_run_must_save(r, step);
    CheckpointContents contents = test_run_contents(r);
    /* The oldest is made larger than the estimate for a save. */
    char *large = test_run_file(r, 1, "notes");
    int fd = open(large, O_WRONLY | O_CREAT, 0666);
    assert_int_equal(ftruncate(fd, 2 * checkpoint_bytes(&contents)), 0);
    close(fd);
    free(large);
    faulty_fs_init(fs, FAULT_NONE, 0, 0);
    fs->disk = r->run;
    fs->capacity = INT64_MAX;
    int64_t used = fs->capacity - fs->ops.room(fs, r->run);
    fs->room_unknown = !tells;
    fs->capacity = used + (int64_t)(checkpoints_of_room * (double)checkpoint_bytes(&contents));
    char *path = test_run_file(r, 4, "model.safetensors");
    file_flip(path, file_size(path) - 1, 1);
    free(path);
    r->io.fs = &fs->ops;
}

static void a_save_on_a_full_disk_removes_old_checkpoints_but_never_the_last_good_one(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        TestRun r;
        FaultyFs fs;
        bool tells = i > 0, deep = i == 2;
        test_run_open(&r);
        size_t own = strlen(r.run); /* the folder that test_run_close removes */
        if (deep) go_deeper(&r);
        fill_disk(&r, &fs, 0.1, tells);
        assert_false(test_run_save(&r, 5)); /* checkpoint_write itself removes nothing */
        assert_true(error_says(r.err, ENOSPC));
        assert_int_equal(test_run_entries(&r), 4);
        if (!save_making_room(&r, 5)) fail_msg("%s", r.err);
        assert_false(is_there(&r, "step_00000001"));
        assert_true(is_there(&r, "step_00000002")); /* no more are removed than needed */
        assert_true(is_there(&r, "step_00000003")); /* newest that verifies until 5 exists */
        assert_int_equal(test_run_newest(&r), 5);
        r.io.fs = &fs_system;
        r.run[own] = '\0';
        test_run_close(&r);
        test_run_open(&r);
        if (deep) go_deeper(&r);
        fill_disk(&r, &fs, -8.0, tells); /* no removal makes enough room */
        assert_false(save_making_room(&r, 5));
        assert_true(error_says(r.err, ENOSPC));
        assert_false(is_there(&r, "step_00000001") || is_there(&r, "step_00000002"));
        assert_int_equal(test_run_newest(&r), 3);
        r.io.fs = &fs_system;
        r.run[own] = '\0';
        test_run_close(&r);
    }
}

static void free_space_is_measured_at_the_nearest_existing_folder(void **state)
{
    (void)state;
    TestRun r;
    FaultyFs fs;
    test_run_open(&r);
    faulty_fs_init(&fs, FAULT_NONE, 0, 0);
    fs.disk = r.run;
    fs.capacity = 12345;
    char *deep = text_format("%s/a/b//c", r.run), *relative = must_strdup("not-there/x");
    assert_int_equal(fs_room(&fs.ops, deep), 12345);
    assert_true(fs_room(&fs_system, relative) > 0);
    assert_true(fs_room(&fs_system, "/nothing-here/x") > 0);
    assert_true(fs_room(&fs_system, "/") > 0);
    fs.room_unknown = true;
    assert_int_equal(fs_room(&fs.ops, deep), -1);
    free(deep);
    free(relative);
    test_run_close(&r);
}

int main(void)
{
    log_set_level(LOG_ERROR); /* hides the warnings about damage that these tests cause */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(invalid_utf8_in_texts_is_saved_as_replacement_characters),
        cmocka_unit_test(a_save_fails_if_the_disk_stores_other_bytes_than_were_written),
        cmocka_unit_test(a_link_in_place_of_a_checkpoint_is_not_followed),
        cmocka_unit_test(saved_files_and_folders_respect_the_umask),
        cmocka_unit_test(a_folder_named_after_another_step_is_refused),
        cmocka_unit_test(a_save_warns_after_it_has_moved_an_existing_folder),
        cmocka_unit_test(pruning_removes_only_leftovers_of_this_program),
        cmocka_unit_test(a_save_on_a_full_disk_removes_old_checkpoints_but_never_the_last_good_one),
        cmocka_unit_test(free_space_is_measured_at_the_nearest_existing_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
