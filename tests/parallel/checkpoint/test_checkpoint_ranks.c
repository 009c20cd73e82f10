/* test_checkpoint_ranks.c -- checkpoints saved and read by several ranks: tensors are whole on
 * disk, and a checkpoint of any number of ranks can be read by any other number. */
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/log.h"
#include "parallel/checkpoint/layout.h"
#include "tests/support/checkpoint/checkpoint_ranks.h"
#include "tests/support/checkpoint/whole_pieces.h"
#include "tests/support/grid/thread_ranks.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static const struct {
    int ranks, tp;
} worlds[] = {{1, 1}, {2, 1}, {2, 2}, {3, 1}, {4, 2}, {5, 1}, {6, 3}};
enum { WORLDS = sizeof worlds / sizeof *worlds };

static TestRanks world_of(int w, const TestRun *r, int writers)
{
    return (TestRanks){
        .ranks = worlds[w].ranks, .tp = worlds[w].tp, .writers = writers, .run = r->run};
}

/* There are 9 weights and 3 optimizer states, some with fewer elements than there are ranks. */
static void a_checkpoint_can_be_read_on_any_number_of_ranks(void **state)
{
    (void)state;
    for (int w = 0; w < WORLDS; w++)
        for (int writers = 1; writers <= worlds[w].ranks; writers++) {
            TestRun r;
            test_run_open(&r);
            TestRanks saving = world_of(w, &r, writers);
            saving.step = 10 + writers;
            saving.on_device = writers % 2;
            ranks_save(&saving);
            if (!ranks_agree(&saving)) fail_msg("%s", saving.err[0]);
            for (int other = 0; other < WORLDS; other++) {
                TestRanks reading = world_of(other, &r, 1);
                reading.on_device = (other + writers) % 2;
                ranks_newest(&reading);
                if (!ranks_agree(&reading)) fail_msg("%s", reading.err[0]);
                assert_int_equal(reading.found[0], saving.step);
            }
            test_run_close(&r);
        }
}

/* Returns a file of step 3 with the id of its save overwritten; the caller frees it. */
static char *file_of(const TestRun *r, const char *name, size_t *n)
{
    char err[256], *text, *path = test_run_file(r, 3, name);
    assert_true(file_read(path, &text, n, NULL, err, sizeof err));
    for (size_t i = 0; i + SAVE_ID_DIGITS < *n; i++)
        if (memcmp(text + i, "\"save_id\":\"", 11) == 0) memset(text + i + 11, '-', SAVE_ID_DIGITS);
    free(path);
    return text;
}

/* The files do not depend on which ranks had the parts of the tensors. */
static void one_writer_writes_the_same_files_for_any_number_of_ranks(void **state)
{
    (void)state;
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    TestRun one;
    test_run_open(&one);
    test_run_must_save(&one, 3);
    for (int w = 1; w < WORLDS; w++) {
        TestRun r;
        test_run_open(&r);
        TestRanks saving = world_of(w, &r, 1);
        saving.step = 3;
        ranks_save(&saving);
        assert_true(ranks_agree(&saving));
        for (int f = 0; f < 2; f++) {
            size_t n, n_one;
            char *text = file_of(&r, files[f], &n), *alone = file_of(&one, files[f], &n_one);
            assert_int_equal(n, n_one);
            assert_memory_equal(text, alone, n);
            free(text);
            free(alone);
        }
        test_run_close(&r);
    }
    test_run_close(&one);
}

/* ---- damage ---------------------------------------------------------------------------------- */

/* Saves step 1 with one rank and step 2 with three writers; step 2 will be damaged. */
static void two_steps(TestRun *r)
{
    test_run_open(r);
    test_run_must_save(r, 1);
    TestRanks saving = world_of(4, r, 3);
    saving.step = 2;
    ranks_save(&saving);
    if (!ranks_agree(&saving)) fail_msg("%s", saving.err[0]);
}

/* Whichever rank reads the damaged chunk, no rank resumes from this checkpoint. */
static void no_rank_resumes_from_a_checkpoint_with_a_damaged_chunk(void **state)
{
    (void)state;
    TestRun r;
    Checkpoint *c = NULL;
    two_steps(&r);
    char *folder = checkpoint_path(r.run, 2);
    assert_true(checkpoint_open(folder, &c, r.err, sizeof r.err));
    const Manifest *m = checkpoint_manifest(c);
    assert_int_equal(m->n_files, 6);
    for (int i = 0; i < m->n_tensors; i++) {
        const ManifestTensor *t = &m->tensor[i];
        const ManifestFile *file = &m->file[t->file];
        char *path = test_run_file(&r, 2, file->name);
        int64_t at = file->header_bytes + t->entry.offset + (i * 7) % t->entry.bytes;
        file_flip(path, at, 4);
        TestRanks reading = world_of(1 + i % (WORLDS - 1), &r, 1);
        ranks_newest(&reading);
        if (!ranks_agree(&reading)) fail_msg("%s", reading.err[0]);
        if (reading.found[0] != 1) fail_msg("a damaged %s is taken", t->entry.name);
        assert_false(test_run_whole(&r, 2));
        assert_non_null(strstr(r.err, t->entry.name));
        assert_non_null(strstr(r.err, file->name));
        file_flip(path, at, 4);
        free(path);
    }
    checkpoint_close(c);
    free(folder);
    test_run_close(&r);
}

/* Each file of the weights and of the optimizer states is truncated, removed, or replaced by
 * another one. */
static void errors_name_a_truncated_missing_or_replaced_file(void **state)
{
    (void)state;
    for (int f = 0; f < 6; f++)
        for (int how = 0; how < 3; how++) {
            TestRun r;
            char name[CHECKPOINT_FILE_NAME], next[CHECKPOINT_FILE_NAME];
            CheckpointPart part = f < 3 ? CHECKPOINT_WEIGHTS : CHECKPOINT_SLOTS;
            two_steps(&r);
            checkpoint_file_name(name, part, f % 3, 3);
            checkpoint_file_name(next, part, (f + 1) % 3, 3);
            char *path = test_run_file(&r, 2, name), *other = test_run_file(&r, 2, next);
            if (how == 0) assert_int_equal(truncate(path, file_size(path) - 1), 0);
            if (how == 1) assert_int_equal(unlink(path), 0);
            if (how == 2) assert_int_equal(rename(other, path), 0);
            assert_false(test_run_whole(&r, 2));
            if (strstr(r.err, name) == NULL && (how != 2 || strstr(r.err, next) == NULL))
                fail_msg("neither %s nor %s in %s", name, next, r.err);
            TestRanks reading = world_of(2, &r, 1);
            ranks_newest(&reading);
            assert_int_equal(reading.found[0], 1);
            free(path);
            free(other);
            test_run_close(&r);
        }
}

static void bug_51_mixed_files_of_two_saves_by_several_writers_are_refused(void **state)
{
    (void)state;
    TestRun r;
    two_steps(&r);
    TestRanks saving = world_of(4, &r, 3);
    saving.step = 3;
    ranks_save(&saving);
    char *two = test_run_file(&r, 2, "model-00002-of-00003.safetensors"),
         *three = test_run_file(&r, 3, "model-00002-of-00003.safetensors");
    assert_int_equal(rename(two, three), 0);
    assert_false(test_run_whole(&r, 3));
    assert_non_null(strstr(r.err, "two saves"));
    free(two);
    free(three);
    test_run_close(&r);
}

/* ---- bounds ---------------------------------------------------------------------------------- */

/* The communication functions of the world under test, and the size of the largest message sent. */
static const CommOps *transport;
static CommOps watched;
static _Atomic int64_t largest_message, messages;

static void watched_send(Comm *comm, Device *on, Tensor x, int to)
{
    int64_t bytes = (int64_t)tensor_bytes(x), seen = largest_message;
    while (bytes > seen && !atomic_compare_exchange_weak(&largest_message, &seen, bytes))
        ;
    messages++;
    transport->send(comm, on, x, to);
}

enum { ROWS = 5000, COLS = 1536 }; /* 30 MiB: more than one chunk */

/* Saves a large tensor and reads it back; the last rank has no part of it. */
static void save_large(Comm *world, void *context)
{
    TestRun *r = context;
    bool none = world->rank == world->size - 1;
    int64_t own = COLS / (world->size - 1);
    float *data = must_alloc((size_t)(ROWS * own) * sizeof *data);
    Piece large = {.name = "large", .dtype = F32, .ndim = 2, .dim = {ROWS, COLS}};
    large.extent = (ParamExtent){
        .count = ROWS * own, .first = world->rank * own, .cols = own, .whole_cols = COLS};
    if (none) large.extent = (ParamExtent){0};
    large.data = tensor_1d(data, F32, large.extent.count);
    for (int64_t i = 0; i < large.extent.count; i++)
        data[i] = (float)(param_extent_element(&large.extent, i) % 8191);
    Comm through = *world;
    through.ops = &watched;
    CheckpointIo io;
    StepState state = {.steps = 4, .hysteresis = 1, .last_overflow = -1, .loss_scale = 1};
    TestRun texts = {0};
    char err[1024];
    CheckpointContents contents = test_run_contents(&texts);
    contents.weights = &large;
    contents.n_weights = 1;
    contents.n_slots = 0;
    contents.state = &state;
    contents.grid = (GridPlace){1, 1, 1, world->size};
    checkpoint_io_open(&io, NULL, &through);
    Checkpoint *c = NULL;
    if (!checkpoint_write(&io, r->run, &contents, err, sizeof err)) rank_wrong(world, "%s", err);
    memset(data, 0, (size_t)(ROWS * own) * sizeof *data);
    if (!checkpoint_open_newest(&io, r->run, &c, err, sizeof err) ||
        !checkpoint_read(&io, c, CHECKPOINT_WEIGHTS, &large, 1, err, sizeof err))
        rank_wrong(world, "%s", err);
    for (int64_t i = 0; i < large.extent.count; i++)
        if (data[i] != (float)(param_extent_element(&large.extent, i) % 8191))
            rank_wrong(world, "element %lld came back as %g", (long long)i, (double)data[i]);
    checkpoint_close(c);
    checkpoint_io_close(&io);
    free(data);
}

static void own_transport(Comm *world, void *context)
{
    (void)context;
    if (world->rank == 0) transport = world->ops;
}

/* A large tensor that is cut by columns is sent in many messages, none larger than half of the
 * staging buffer. */
static void no_message_of_a_save_exceeds_half_of_the_staging_buffer(void **state)
{
    (void)state;
    TestRun r;
    Checkpoint *c = NULL;
    test_run_open(&r);
    thread_ranks(4, 60, own_transport, NULL);
    watched = *transport;
    watched.send = watched_send;
    thread_ranks(4, 60, save_large, &r);
    assert_in_range(largest_message, 1, CHECKPOINT_STAGING_BYTES / 2);
    assert_true(messages >= 2 * ((int64_t)ROWS * COLS * 4 / (int64_t)CHECKPOINT_STAGING_BYTES));
    float *back = must_alloc((size_t)ROWS * COLS * sizeof *back);
    Piece whole = piece_whole("large", tensor_2d(back, F32, ROWS, COLS));
    assert_true(checkpoint_open_newest(&r.io, r.run, &c, r.err, sizeof r.err) && c != NULL);
    assert_int_equal(checkpoint_manifest(c)->tensor[0].n_chunks, 2);
    if (!checkpoint_read(&r.io, c, CHECKPOINT_WEIGHTS, &whole, 1, r.err, sizeof r.err))
        fail_msg("%s", r.err);
    for (int64_t i = 0; i < (int64_t)ROWS * COLS; i++)
        if (back[i] != (float)(i % 8191)) fail_msg("element %lld", (long long)i);
    checkpoint_close(c);
    free(back);
    test_run_close(&r);
}

/* Returns how many files this process has open. */
static int open_files(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* A checkpoint of more than CHECKPOINT_OPEN_FILES files is read with one file open at a time. */
static void a_reader_of_many_files_keeps_only_one_open(void **state)
{
    (void)state;
    TestRun r;
    Checkpoint *c = NULL;
    test_run_open(&r);
    TestRanks saving = world_of(6, &r, 6);
    saving.step = 3;
    int before = open_files();
    ranks_save(&saving);
    assert_true(ranks_agree(&saving));
    assert_int_equal(open_files(), before);
    char *folder = checkpoint_path(r.run, 3);
    assert_true(checkpoint_open(folder, &c, r.err, sizeof r.err));
    assert_true(checkpoint_manifest(c)->n_files > CHECKPOINT_OPEN_FILES);
    assert_true(test_run_read(&r, c) && checkpoint_verify(&r.io, c, r.err, sizeof r.err));
    assert_int_equal(open_files(), before + 2); /* the folder and one file */
    checkpoint_close(c);
    assert_int_equal(open_files(), before);
    free(folder);
    test_run_close(&r);
}

/* ---- what is where --------------------------------------------------------------------------- */

/* Every tensor is in exactly one file, no file is empty, and none is larger than an equal share by
 * more than one tensor. */
static void writers_get_nearly_equal_numbers_of_bytes(void **state)
{
    (void)state;
    enum { MOST = 40 };
    for (int64_t i = 0; i < 3000; i++) {
        int n = 1 + (int)(MOST * drawn_uniform(1, i)), first[MOST + 1],
            files = 1 + (int)(n * drawn_uniform(2, i));
        int64_t bytes[MOST], total = 0, largest = 0;
        for (int k = 0; k < n; k++) {
            double size = drawn_uniform(3 + (uint64_t)k, i);
            bytes[k] = 1 + (int64_t)(1e6 * size * size * size * size);
            total += bytes[k];
            if (bytes[k] > largest) largest = bytes[k];
        }
        layout_cut(bytes, n, files, first);
        assert_int_equal(first[0], 0);
        assert_int_equal(first[files], n);
        for (int f = 0; f < files; f++) {
            int64_t own = 0;
            assert_true(first[f + 1] > first[f]);
            for (int k = first[f]; k < first[f + 1]; k++)
                own += bytes[k];
            assert_true(first[f + 1] == first[f] + 1 || own <= total / files + largest + 1);
        }
    }
    int first[2] = {7, 7};
    layout_cut(NULL, 0, 1, first);
    assert_int_equal(first[1], 0);
    for (int ranks = 1; ranks <= 64; ranks++)
        for (int writers = 1; writers <= ranks; writers++) {
            assert_int_equal(layout_writer(0, writers, ranks), 0);
            for (int k = 1; k < writers; k++)
                assert_true(layout_writer(k, writers, ranks) >
                                layout_writer(k - 1, writers, ranks) &&
                            layout_writer(k, writers, ranks) < ranks);
        }
}

int main(void)
{
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_checkpoint_can_be_read_on_any_number_of_ranks),
        cmocka_unit_test(one_writer_writes_the_same_files_for_any_number_of_ranks),
        cmocka_unit_test(no_rank_resumes_from_a_checkpoint_with_a_damaged_chunk),
        cmocka_unit_test(errors_name_a_truncated_missing_or_replaced_file),
        cmocka_unit_test(bug_51_mixed_files_of_two_saves_by_several_writers_are_refused),
        cmocka_unit_test(no_message_of_a_save_exceeds_half_of_the_staging_buffer),
        cmocka_unit_test(a_reader_of_many_files_keeps_only_one_open),
        cmocka_unit_test(writers_get_nearly_equal_numbers_of_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
