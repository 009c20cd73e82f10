/* test_checkpoint_formats.c -- compatibility of checkpoint files with earlier versions of the
 * program, with Python readers and with the command `./train ckpt`. */
#include "model/core/check.h"
#include "model/core/files.h"
#include "tests/support/checkpoint/checkpoint_ranks.h"
#include "tests/support/checkpoint/whole_pieces.h"
#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

/* A checkpoint of version 1, which was written before the program supported several ranks. */
static void a_checkpoint_of_version_1_is_read(void **state)
{
    (void)state;
    TestRun r, expected;
    Checkpoint *c = NULL;
    test_run_open(&r);
    test_run_open(&expected);
    test_run_fill(&expected, 7);
    if (!checkpoint_open("tests/golden/checkpoint_v1/checkpoints/step_00000007", &c, r.err,
                         sizeof r.err))
        fail_msg("%s", r.err);
    const Manifest *m = checkpoint_manifest(c);
    assert_int_equal(m->version, 1);
    assert_int_equal(m->world.ranks * m->world.dp * m->world.writers, 1);
    assert_int_equal(m->n_files, 2);
    assert_memory_equal(&m->state, &expected.state, sizeof m->state);
    assert_true(checkpoint_verify(&r.io, c, r.err, sizeof r.err));
    if (!test_run_read(&r, c)) fail_msg("%s", r.err);
    for (int i = 0; i < N_ALL; i++)
        assert_memory_equal(r.tensor[i].data.data, expected.tensor[i].data.data,
                            tensor_bytes(r.tensor[i].data));
    checkpoint_close(c);
    test_run_close(&expected);
    test_run_close(&r);
}

/* A single rank must write the same bytes as version 1, except for the id of the save. */
static void one_rank_writes_the_same_tensor_files_as_version_1(void **state)
{
    (void)state;
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    TestRun r;
    test_run_open(&r);
    test_run_must_save(&r, 7);
    for (int f = 0; f < 2; f++) {
        char *path = test_run_file(&r, 7, files[f]), *now, *then, *id, *again;
        char *golden =
            text_format("tests/golden/checkpoint_v1/checkpoints/step_00000007/%s", files[f]);
        size_t n, n_then;
        assert_true(file_read(path, &now, &n, NULL, r.err, sizeof r.err));
        assert_true(file_read(golden, &then, &n_then, NULL, r.err, sizeof r.err));
        assert_int_equal(n, n_then);
        id = strstr(now + 8, "save_id\":\"");
        again = strstr(then + 8, "save_id\":\"");
        assert_true(id != NULL && again != NULL);
        memset(id + 10, '-', SAVE_ID_DIGITS);
        memset(again + 10, '-', SAVE_ID_DIGITS);
        assert_memory_equal(now, then, n);
        free(now);
        free(then);
        free(golden);
        free(path);
    }
    test_run_close(&r);
}

/* Runs a reader in plain Python that shares no code with the program. It must find all weights of
 * step 1 in the file, or through the index, that is passed to it. */
static void check_python(TestRun *r, const char *name_of_file)
{
    static const char *const format_name[DTYPE_COUNT] = {
        [F32] = "F32", [F64] = "F64", [F16] = "F16", [BF16] = "BF16",
        [I32] = "I32", [I64] = "I64", [U16] = "U16", [U8] = "U8"};
    test_run_fill(r, 1);
    char *path = test_run_file(r, 1, name_of_file);
    char *command = text_format("python3 tests/support/files/read_safetensors.py '%s'", path);
    FILE *from = popen(command, "r");
    char line[2048], name[100], dtype[8], shape[64];
    int seen = 0, hex;
    assert_non_null(from);
    while (fgets(line, sizeof line, from) != NULL) {
        char expected[64] = "";
        assert_int_equal(sscanf(line, "%99s %7s %63s %n", name, dtype, shape, &hex), 3);
        int i = 0;
        while (i < N_WEIGHTS && strcmp(test_tensors[i].name, name) != 0)
            i++;
        assert_in_range(i, 0, N_WEIGHTS - 1);
        const TestTensor *t = &test_tensors[i];
        assert_string_equal(dtype, format_name[t->dtype]);
        for (int d = 0; d < t->ndim; d++)
            snprintf(expected + strlen(expected), sizeof expected - strlen(expected), "%s%lld",
                     d ? "x" : "", (long long)t->dim[d]);
        assert_string_equal(shape, expected);
        const unsigned char *data = r->tensor[i].data.data;
        size_t bytes = tensor_bytes(r->tensor[i].data);
        assert_int_equal(strcspn(line + hex, "\n"), 2 * bytes);
        for (size_t b = 0; b < bytes; b++) {
            unsigned value;
            assert_int_equal(sscanf(line + hex + 2 * b, "%2x", &value), 1);
            if (value != data[b]) fail_msg("%s, byte %zu: %02x, not %02x", name, b, value, data[b]);
        }
        seen++;
    }
    assert_int_equal(pclose(from), 0); /* scripts/setup.sh installs python3 */
    assert_int_equal(seen, N_WEIGHTS);
    free(command);
    free(path);
}

static void python_can_read_the_weights_file(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    test_run_must_save(&r, 1);
    check_python(&r, "model.safetensors");
    test_run_close(&r);
}

/* Saves step 1 on four ranks, three of which write. */
static TestRanks three_writers(const TestRun *r)
{
    TestRanks saving = {.ranks = 4, .tp = 2, .writers = 3, .run = r->run, .step = 1};
    ranks_save(&saving);
    if (!ranks_agree(&saving)) fail_msg("%s", saving.err[0]);
    return saving;
}

static void python_can_read_several_weight_files_through_the_index(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    three_writers(&r);
    check_python(&r, "model.safetensors.index.json");
    test_run_close(&r);
}

/* Returns the total size of the files in step 1's folder, and their number in *files. */
static int64_t bytes_of_step(const TestRun *r, int *files)
{
    char *folder = checkpoint_path(r->run, 1);
    int64_t bytes = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    *files = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        char *path = text_format("%s/%s", folder, e->d_name);
        bytes += file_size(path);
        ++*files;
        free(path);
    }
    closedir(dir);
    free(folder);
    return bytes;
}

enum { MANY = 600 }; /* many tensors with long names, so the entries of each tensor dominate */

/* Two ranks save many small tensors; rank 0 has all elements. */
static void save_many(Comm *world, void *context)
{
    TestRun *r = context;
    CheckpointIo io;
    TestRun texts = {0};
    Piece *piece = must_calloc(MANY, sizeof *piece);
    float value[1] = {1};
    char err[1024];
    StepState state = {.steps = 1, .hysteresis = 1, .last_overflow = -1, .loss_scale = 1};
    for (int i = 0; i < MANY; i++) {
        piece[i] = piece_whole(text_format("block.%0240d.weight", i), tensor_1d(value, F32, 1));
        if (world->rank > 0) piece[i].extent.count = 0;
    }
    CheckpointContents contents = test_run_contents(&texts);
    contents.weights = piece;
    contents.n_weights = MANY;
    contents.n_slots = 0;
    contents.state = &state;
    contents.grid = (GridPlace){1, 2, 1, 1};
    contents.writers = 2;
    checkpoint_io_open(&io, NULL, world);
    if (!checkpoint_write(&io, r->run, &contents, err, sizeof err)) rank_wrong(world, "%s", err);
    checkpoint_io_close(&io);
    int files;
    int64_t thought = checkpoint_bytes(&contents), bytes = bytes_of_step(r, &files);
    if (thought < bytes || thought > bytes + bytes)
        rank_wrong(world, "%lld bytes were thought of %lld", (long long)thought, (long long)bytes);
    for (int i = 0; i < MANY; i++)
        free((char *)(uintptr_t)piece[i].name);
    free(piece);
}

static void the_size_estimate_covers_a_save_by_several_writers(void **state)
{
    (void)state;
    TestRun r;
    int files;
    test_run_open(&r);
    three_writers(&r);
    int64_t bytes = bytes_of_step(&r, &files);
    assert_int_equal(files, 9);
    test_run_fill(&r, 1);
    CheckpointContents contents = test_run_contents(&r);
    contents.writers = 3;
    assert_in_range(checkpoint_bytes(&contents), bytes, bytes + 20000);
    test_run_close(&r);
    test_run_open(&r);
    thread_ranks(2, 60, save_many, &r);
    test_run_close(&r);
}

/* Checks the output of `./train ckpt inspect`, list and verify for checkpoints of several writers
 * and of one. */
static void ckpt_inspect_prints_the_grid_of_ranks_that_saved(void **state)
{
    (void)state;
    TestRun r;
    char *text, err[256];
    size_t n;
    test_run_open(&r);
    three_writers(&r);
    char *output = text_format("%s/output", r.run);
    assert_int_equal(test_ckpt("inspect", r.run, output), EXIT_OK);
    assert_true(file_read(output, &text, &n, NULL, err, sizeof err));
    assert_non_null(strstr(text, "world       4 ranks = dp 2 x tp 2, ZeRO 1, 3 writers\n"));
    assert_non_null(strstr(text, "model-00003-of-00003.safetensors: "));
    assert_non_null(strstr(text, "optimizer-00001-of-00003.safetensors: "));
    for (int i = 0; i < N_ALL; i++)
        assert_non_null(strstr(text, test_tensors[i].name));
    free(text);
    assert_int_equal(test_ckpt("list", r.run, output), EXIT_OK);
    assert_int_equal(test_ckpt("verify", r.run, output), EXIT_OK);
    assert_true(file_read(output, &text, &n, NULL, err, sizeof err));
    assert_non_null(strstr(text, "whole (12 tensors, "));
    free(text);
    char *file = test_run_file(&r, 1, "optimizer-00002-of-00003.safetensors");
    file_flip(file, file_size(file) - 1, 1);
    assert_int_equal(test_ckpt("verify", r.run, output), EXIT_DAMAGED);
    free(file);
    free(output);
    test_run_must_save(&r, 2);
    output = text_format("%s/output", r.run);
    assert_int_equal(test_ckpt("inspect", r.run, output), EXIT_OK);
    assert_true(file_read(output, &text, &n, NULL, err, sizeof err));
    assert_non_null(strstr(text, "world       1 rank, 1 writer\n"));
    free(text);
    free(output);
    test_run_close(&r);
}

/* Checks that step 1 opens and verifies, which does not need the indexes, and returns whether its
 * indexes verify. */
static bool indexes_are_whole(TestRun *r)
{
    Checkpoint *c = NULL;
    char *path = checkpoint_path(r->run, 1);
    if (!checkpoint_open(path, &c, r->err, sizeof r->err) ||
        !checkpoint_verify(&r->io, c, r->err, sizeof r->err))
        fail_msg("%s", r->err);
    bool whole = checkpoint_verify_indexes(c, r->err, sizeof r->err);
    checkpoint_close(c);
    free(path);
    return whole;
}

/* An index has another byte or another length, or is missing: the command reports it, but a run can
 * resume without it. */
static void ckpt_verify_reports_a_damaged_or_missing_index(void **state)
{
    (void)state;
    static const char *const names[] = {"model.safetensors.index.json",
                                        "optimizer.safetensors.index.json"};
    TestRun r;
    test_run_open(&r);
    three_writers(&r);
    char *output = text_format("%s/output", r.run), *text, err[256];
    assert_true(indexes_are_whole(&r));
    for (int i = 0; i < 2; i++) {
        char *file = test_run_file(&r, 1, names[i]);
        size_t n;
        assert_true(file_read(file, &text, &n, NULL, err, sizeof err));
        file_flip(file, (int64_t)n / 2, 1);
        assert_false(indexes_are_whole(&r));
        assert_non_null(strstr(r.err, names[i]));
        assert_non_null(strstr(r.err, " is damaged: it is not the index that was saved; "));
        assert_int_equal(test_ckpt("verify", r.run, output), EXIT_DAMAGED);
        assert_true(file_write(&fs_system, file, "{}\n", 3, err, sizeof err));
        assert_false(indexes_are_whole(&r));
        assert_int_equal(test_ckpt("verify", r.run, output), EXIT_DAMAGED);
        assert_int_equal(unlink(file), 0);
        assert_false(indexes_are_whole(&r));
        assert_non_null(strstr(r.err, names[i]));
        assert_non_null(strstr(r.err, "Hugging Face's loaders need it, resuming does not"));
        assert_int_equal(test_ckpt("verify", r.run, output), EXIT_DAMAGED);
        assert_true(file_write(&fs_system, file, text, n, err, sizeof err));
        assert_true(indexes_are_whole(&r));
        free(text);
        free(file);
    }
    free(output);
    test_run_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_checkpoint_of_version_1_is_read),
        cmocka_unit_test(one_rank_writes_the_same_tensor_files_as_version_1),
        cmocka_unit_test(python_can_read_the_weights_file),
        cmocka_unit_test(python_can_read_several_weight_files_through_the_index),
        cmocka_unit_test(the_size_estimate_covers_a_save_by_several_writers),
        cmocka_unit_test(ckpt_inspect_prints_the_grid_of_ranks_that_saved),
        cmocka_unit_test(ckpt_verify_reports_a_damaged_or_missing_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
