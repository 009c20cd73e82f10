/* test_prepare_faults.c -- tests that a prepared corpus is either complete or absent, whichever
 * file system call fails or kills the process. */
#include "data/text/prepare.h"
#include "data/text/prepared.h"
#include "model/core/check.h"
#include "tests/support/files/data_support.h"
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
#include <sys/wait.h>
#include <unistd.h>

/* A text, its request, and the checksums that preparing it without failures gives. */
typedef struct {
    char *bytes;
    Text text;
    PrepareRequest request;
    uint64_t train_checksum, val_checksum;
} Corpus;

static bool prepare(const Corpus *c, const FsOps *fs, Preparation *p, char *err, size_t n)
{
    ExitCode code;
    PrepareRequest r = c->request;
    r.fs = fs;
    return prepare_text(&r, p, err, n, &code);
}

/* Returns the number of entries in the cache, and in *temporary how many have a temporary name. */
static int entries(const char *folder, int *temporary)
{
    int count = 0;
    DIR *dir = opendir(folder);
    *temporary = 0;
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        count += e->d_name[0] != '.';
        *temporary += strstr(e->d_name, ".tmp-") != NULL;
    }
    if (dir != NULL) closedir(dir);
    return count;
}

static void clear(const Corpus *c)
{
    char err[300];
    if (!fs_remove_tree(&fs_system, AT_FDCWD, c->request.cache, err, sizeof err))
        fail_msg("%s", err);
}

/* Checks that preparing without failures gives the complete corpus, whatever is already in the
 * cache. */
static void must_prepare(const Corpus *c, const FsOps *fs)
{
    char err[300];
    Preparation p;
    if (!prepare(c, fs, &p, err, sizeof err)) fail_msg("%s", err);
    if (p.train_checksum != c->train_checksum || p.val_checksum != c->val_checksum)
        fail_msg("%s holds other tokens", p.folder);
    preparation_free(&p);
}

static void corpus_open(Corpus *c)
{
    char err[300];
    Preparation p;
    *c = (Corpus){.bytes = drawn_text(61, 1000)};
    assert_true(
        text_add_file(&c->text, "a.txt", c->bytes, strlen(c->bytes), NULL, err, sizeof err));
    c->request = (PrepareRequest){
        .name = "a", .cache = "cache", .text = &c->text, .vocab_size = 270, .val_fraction = 0.25};
    if (!prepare(c, &fs_system, &p, err, sizeof err)) fail_msg("%s", err);
    c->train_checksum = p.train_checksum;
    c->val_checksum = p.val_checksum;
    assert_true(c->train_checksum != 0 && c->val_checksum != 0);
    preparation_free(&p);
    clear(c);
}

static void corpus_close(Corpus *c)
{
    clear(c);
    text_free(&c->text);
    free(c->bytes);
}

static void a_failing_file_operation_leaves_no_partial_corpus(void **state)
{
    (void)state;
    Corpus c;
    int at = 1, temporary, failed = 0;
    corpus_open(&c);
    for (bool reached = true; reached; at++) {
        char err[300];
        FaultyFs fs;
        Preparation p;
        faulty_fs_init(&fs, FAULT_ONCE, at, ENOSPC);
        bool good = prepare(&c, &fs.ops, &p, err, sizeof err);
        reached = fs.calls >= at;
        failed += !good;
        if (!good && !error_says(err, ENOSPC)) fail_msg("call %d: %s", at, err);
        if (good) preparation_free(&p);
        assert_in_range(entries(c.request.cache, &temporary), good, 1);
        assert_int_equal(temporary, 0);
        must_prepare(&c, &fs_system);
        clear(&c);
    }
    /* Two calls create folders; each of two small files takes six calls and each of two shards
     * eight; then the folder is synced, renamed, and its parent synced. */
    assert_int_equal(failed, 2 + 2 * 6 + 2 * 8 + 3);
    corpus_close(&c);
}

static void preparing_succeeds_after_a_process_was_killed_at_any_call(void **state)
{
    (void)state;
    Corpus c;
    corpus_open(&c);
    bool reached = true;
    for (int at = 1, temporary; reached; at++) {
        pid_t pid = fork();
        if (pid == 0) {
            char err[300];
            FaultyFs fs;
            Preparation p;
            faulty_fs_init(&fs, FAULT_KILL, at, 0);
            _exit(prepare(&c, &fs.ops, &p, err, sizeof err) ? 0 : 1);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        reached = WEXITSTATUS(status) == FAULTY_KILLED;
        assert_true(WIFEXITED(status) && (reached || WEXITSTATUS(status) == 0));
        must_prepare(&c, &fs_system);
        assert_int_equal(entries(c.request.cache, &temporary) - temporary, 1);
        clear(&c);
    }
    corpus_close(&c);
}

static void preparing_continues_short_writes_until_all_is_written(void **state)
{
    (void)state;
    Corpus c;
    FaultyFs fs;
    corpus_open(&c);
    faulty_fs_init(&fs, FAULT_SHORT, 0, 0);
    must_prepare(&c, &fs.ops);
    corpus_close(&c);
}

static bool count_in_use(const char *folder, PreparedState state, const Meta *meta, void *count)
{
    (void)folder;
    (void)meta;
    *(int *)count += state == PREPARED_IN_USE;
    return true;
}

static int in_use(void)
{
    char err[300];
    int count = 0;
    if (!prepared_visit("cache", count_in_use, &count, err, sizeof err)) fail_msg("%s", err);
    return count;
}

static int seen_in_use;

static ssize_t look_and_write(void *self, int fd, const void *data, size_t bytes)
{
    seen_in_use += in_use();
    return fs_system.write(self, fd, data, bytes);
}

static void a_folder_is_in_use_only_while_its_writer_runs(void **state)
{
    (void)state;
    Corpus c;
    FsOps fs = fs_system;
    FaultyFs killing;
    int temporary;
    corpus_open(&c);
    fs.write = look_and_write;
    must_prepare(&c, &fs);
    assert_true(seen_in_use > 0);
    clear(&c);
    pid_t pid = fork();
    if (pid == 0) {
        faulty_fs_init(&killing, FAULT_KILL, 5, 0);
        must_prepare(&c, &killing.ops);
    }
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    entries(c.request.cache, &temporary);
    assert_int_equal(temporary, 1);
    assert_int_equal(in_use(), 0); /* although it is new */
    corpus_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failing_file_operation_leaves_no_partial_corpus),
        cmocka_unit_test(preparing_succeeds_after_a_process_was_killed_at_any_call),
        cmocka_unit_test(preparing_continues_short_writes_until_all_is_written),
        cmocka_unit_test(a_folder_is_in_use_only_while_its_writer_runs),
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
