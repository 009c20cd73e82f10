/* test_async_save.c -- asynchronous saves: their files equal those of synchronous saves, and only
 * the writer threads write and sync. */
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/log.h"
#include "parallel/checkpoint/checkpoint.h"
#include "tests/support/checkpoint/async_ranks.h"
#include "tests/support/checkpoint/whole_pieces.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

/* ---- what is written, and by whom ------------------------------------------------------------ */

/* Returns a file of a step with the id of its save overwritten; the caller frees it. */
static char *file_of(const TestRun *r, const char *name, size_t *n)
{
    char err[256], *text, *path = test_run_file(r, 3, name);
    assert_true(file_read(path, &text, n, NULL, err, sizeof err));
    for (size_t i = 0; i + SAVE_ID_DIGITS < *n; i++)
        if (memcmp(text + i, "\"save_id\":\"", 11) == 0) memset(text + i + 11, '-', SAVE_ID_DIGITS);
    free(path);
    return text;
}

static void manifests_are_alike(const Manifest *a, const Manifest *b)
{
    assert_memory_equal(&a->state, &b->state, sizeof a->state);
    assert_memory_equal(&a->world, &b->world, sizeof a->world);
    assert_string_equal(a->config, b->config);
    assert_int_equal(a->n_tensors, b->n_tensors);
    for (int i = 0; i < a->n_tensors; i++) {
        const ManifestTensor *one = &a->tensor[i], *two = &b->tensor[i];
        assert_string_equal(one->entry.name, two->entry.name);
        assert_int_equal(one->entry.offset, two->entry.offset);
        assert_int_equal(one->n_chunks, two->n_chunks);
        assert_memory_equal(one->chunk, two->chunk, (size_t)one->n_chunks * sizeof *one->chunk);
    }
}

static void files_are_alike(const TestRun *a, const TestRun *b)
{
    Checkpoint *one, *two;
    char err[512], *of_a = checkpoint_path(a->run, 3), *of_b = checkpoint_path(b->run, 3);
    if (!checkpoint_open(of_a, &one, err, sizeof err)) fail_msg("%s", err);
    if (!checkpoint_open(of_b, &two, err, sizeof err)) fail_msg("%s", err);
    const Manifest *m = checkpoint_manifest(one);
    manifests_are_alike(m, checkpoint_manifest(two));
    for (int f = 0; f < m->n_files; f++) {
        size_t n_a, n_b;
        char *text_a = file_of(a, m->file[f].name, &n_a),
             *text_b = file_of(b, m->file[f].name, &n_b);
        assert_int_equal(n_a, n_b);
        assert_memory_equal(text_a, text_b, n_a);
        free(text_a);
        free(text_b);
    }
    checkpoint_close(one);
    checkpoint_close(two);
    free(of_a);
    free(of_b);
}

/* The ranks' tensors are overwritten as soon as the snapshot is taken, so the files must come from
 * the snapshot. */
static void an_asynchronous_save_writes_the_same_files_as_a_synchronous_one(void **state)
{
    (void)state;
    for (int w = 0; w < ASYNC_WORLDS; w++)
        for (int on_device = 0; on_device <= (async_worlds[w].ranks > 1); on_device++) {
            TestRun beside, plain;
            test_run_open(&beside);
            test_run_open(&plain);
            TestRanks saving = async_world(w, &beside, 3), other = async_world(w, &plain, 3);
            other.async = false;
            saving.on_device = other.on_device = on_device;
            ranks_must_save(&saving);
            ranks_must_save(&other);
            assert_true(saving.begun[0]);
            assert_int_equal(ranks_resume_step(&beside), 3);
            files_are_alike(&beside, &plain);
            test_run_close(&beside);
            test_run_close(&plain);
        }
}

/* A tensor of two chunks and many windows. */
static void a_tensor_of_many_windows_is_written_as_by_a_synchronous_save(void **state)
{
    (void)state;
    enum { ROWS = 5, COLS = (1 << 20) + 3 };
    TestRun run[2];
    float *values = must_alloc(sizeof(float) * ROWS * COLS);
    for (int i = 0; i < ROWS * COLS; i++)
        values[i] = (float)(i * 2654435761u % 1000003);
    for (int async = 0; async < 2; async++) {
        TestRun *r = &run[async];
        test_run_open(r);
        test_run_fill(r, 3);
        CheckpointContents contents = test_run_contents(r);
        Piece large = piece_whole("large", tensor_2d(values, F32, ROWS, COLS));
        contents.weights = &large;
        contents.n_weights = 1;
        AsyncSave *a = async_save_open(&r->io, &contents);
        AsyncResult result = {0};
        AsyncRequest request = {.run = r->run, .contents = &contents};
        if (async) {
            assert_true(async_save_begin(a, &request));
            memset(values, 0, sizeof(float) * ROWS * COLS);
            AsyncState end = async_save_await(a, &(AsyncRules){0}, &result);
            if (end != ASYNC_SAVED) fail_msg("%s", result.err);
            assert_true(result.step == 3 && result.seconds >= 0 && result.stall > 0);
        } else if (!checkpoint_write(&r->io, r->run, &contents, r->err, sizeof r->err)) {
            fail_msg("%s", r->err);
        }
        async_save_close(a);
        assert_true(test_run_whole(r, 3));
    }
    files_are_alike(&run[0], &run[1]);
    test_run_close(&run[0]);
    test_run_close(&run[1]);
    free(values);
}

static void an_asynchronous_save_writes_and_syncs_only_in_writer_threads(void **state)
{
    (void)state;
    for (int w = 0; w < ASYNC_WORLDS; w++) {
        TestRun r;
        FaultyFs fs[RANKS_MOST];
        test_run_open(&r);
        for (int async = 0; async <= 1; async++) {
            TestRanks saving = async_world(w, &r, 1 + async);
            int own = 0, all = 0;
            ranks_disks(fs, saving.ranks);
            saving.fs = fs;
            saving.async = async;
            saving.keep = 1;
            ranks_must_save(&saving);
            for (int rank = 0; rank < saving.ranks; rank++) {
                own += fs[rank].home_writes;
                all += fs[rank].calls;
            }
            assert_true(all > 20);
            assert_true(async ? own == 0 : own > 10);
        }
        assert_int_equal(test_run_entries(&r), 1); /* a thread has pruned step 1 */
        test_run_close(&r);
    }
}

static bool note_hook(void *context, char *err, size_t n)
{
    char *log = context;
    (void)err;
    (void)n;
    strncat(log, "HOOK ", 4096 - strlen(log) - 1);
    return true;
}

/* The hook runs after all ranks have synced their files and before the manifest is begun. */
static void the_hook_runs_before_the_manifest_is_written_and_the_rename_is_last(void **state)
{
    (void)state;
    static const char *const order[] = {"ooptimizer.safetensors w ", " s c HOOK omanifest.json w ",
                                        " s c s rstep_00000002 s s "};
    TestRun r;
    FaultyFs fs[RANKS_MOST];
    char log[4096] = "";
    test_run_open(&r);
    TestRanks saving = async_world(0, &r, 2);
    ranks_disks(fs, 1);
    fs[0].log = log;
    saving.fs = fs;
    saving.hook = (CheckpointHook){note_hook, log};
    ranks_must_save(&saving);
    const char *at = log;
    for (int i = 0; i < 3; i++) {
        const char *found = strstr(at, order[i]);
        if (found == NULL) fail_msg("'%s' is not in '%s'", order[i], log);
        at = found;
    }
    test_run_close(&r);
}

static bool failing_hook(void *context, char *err, size_t n)
{
    (void)context;
    return error_set(err, n, "metrics.jsonl: %s", strerror(EIO));
}

static void if_the_hook_fails_the_save_fails_on_all_ranks(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    test_run_must_save(&r, 1);
    TestRanks saving = async_world(2, &r, 2);
    saving.hook = (CheckpointHook){failing_hook, NULL};
    ranks_save(&saving);
    assert_false(ranks_agree(&saving));
    assert_true(error_says(saving.err[2], EIO));
    assert_int_equal(test_run_entries(&r), 1);
    test_run_close(&r);
}

static void a_dropped_save_leaves_no_files(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    test_run_must_save(&r, 1);
    TestRanks saving = async_world(2, &r, 2);
    saving.drop = true;
    ranks_save(&saving);
    assert_false(ranks_agree(&saving));
    assert_true(saving.begun[0]);
    assert_int_equal(test_run_entries(&r), 1);
    assert_int_equal(ranks_resume_step(&r), 1);
    test_run_close(&r);
}

/* All ranks must inspect a step's folder that exists, and only checkpoint_write does that. */
static void an_asynchronous_save_does_not_begin_if_its_step_exists(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    TestRanks saving = async_world(3, &r, 2);
    ranks_must_save(&saving);
    assert_true(saving.begun[0] && saving.begun[3]);
    ranks_must_save(&saving);
    assert_false(saving.begun[0] || saving.begun[3]);
    assert_int_equal(test_run_entries(&r), 1);
    test_run_close(&r);
}

int main(void)
{
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_asynchronous_save_writes_the_same_files_as_a_synchronous_one),
        cmocka_unit_test(a_tensor_of_many_windows_is_written_as_by_a_synchronous_save),
        cmocka_unit_test(an_asynchronous_save_writes_and_syncs_only_in_writer_threads),
        cmocka_unit_test(the_hook_runs_before_the_manifest_is_written_and_the_rename_is_last),
        cmocka_unit_test(if_the_hook_fails_the_save_fails_on_all_ranks),
        cmocka_unit_test(a_dropped_save_leaves_no_files),
        cmocka_unit_test(an_asynchronous_save_does_not_begin_if_its_step_exists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
