/* test_checkpoint.c -- saving and restoring on one rank: dtypes, chunks, devices, pruning, and the
 * command `./train ckpt`. */
#include "model/core/check.h"
#include "model/core/device.h"
#include "model/core/log.h"
#include "tests/support/checkpoint/checkpoint_run.h"
#include "tests/support/checkpoint/whole_pieces.h"
#include "tests/support/trainer/train_child.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- round trips ----------------------------------------------------------------------------- */

static void tensors_of_every_dtype_are_restored_bit_for_bit(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    assert_int_equal(test_run_newest(&r), -1);
    test_run_must_save(&r, 1);
    test_run_must_save(&r, 123456789);
    assert_int_equal(test_run_newest(&r), 123456789);
    int64_t *steps;
    assert_int_equal(checkpoint_list(r.run, &steps, r.err, sizeof r.err), 2);
    assert_int_equal(steps[0], 123456789);
    assert_int_equal(steps[1], 1);
    free(steps);
    char *path = checkpoint_path(r.run, 1);
    Checkpoint *c = NULL;
    assert_true(checkpoint_open(path, &c, r.err, sizeof r.err));
    assert_string_equal(checkpoint_manifest(c)->config, test_run_contents(&r).config);
    assert_string_equal(checkpoint_manifest(c)->machine, test_run_contents(&r).machine);
    assert_string_equal(checkpoint_manifest(c)->data, test_run_contents(&r).data);
    assert_string_equal(checkpoint_folder(c), path);
    checkpoint_close(c);
    free(path);
    test_run_close(&r);
}

static void the_size_estimate_covers_a_save_by_one_rank(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    test_run_must_save(&r, 1);
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors",
                                        "manifest.json"};
    int64_t bytes = 0;
    for (int i = 0; i < 3; i++) {
        struct stat st;
        char *path = test_run_file(&r, 1, files[i]);
        assert_int_equal(stat(path, &st), 0);
        bytes += st.st_size;
        free(path);
    }
    CheckpointContents contents = test_run_contents(&r);
    assert_in_range(checkpoint_bytes(&contents), bytes, bytes + 20000);
    test_run_close(&r);
}

static void a_large_tensor_is_saved_in_several_chunks(void **state)
{
    (void)state;
    TestRun r;
    const size_t bytes = (size_t)40 << 20;
    uint32_t *data = must_alloc(bytes), *back = must_calloc(1, bytes);
    Piece big = piece_whole("big", tensor_2d(data, F32, (int64_t)bytes / 4096, 1024)), dst = big;
    dst.data.data = back;
    for (uint32_t i = 0; i < bytes / 4; i++)
        data[i] = i * 2654435761u;
    test_run_open(&r);
    test_run_fill(&r, 5);
    CheckpointContents contents = test_run_contents(&r);
    contents.weights = &big;
    contents.n_weights = 1;
    assert_true(checkpoint_write(&r.io, r.run, &contents, r.err, sizeof r.err));
    Checkpoint *c = NULL;
    assert_true(checkpoint_open_newest(&r.io, r.run, &c, r.err, sizeof r.err));
    assert_int_equal(checkpoint_manifest(c)->tensor[0].n_chunks, 3);
    assert_true(checkpoint_read(&r.io, c, CHECKPOINT_WEIGHTS, &dst, 1, r.err, sizeof r.err));
    assert_memory_equal(data, back, bytes);
    char *path = test_run_file(&r, 5, "model.safetensors");
    int fd = open(path, O_WRONLY);
    assert_int_equal(
        pwrite(fd, "\x01\x02", 2, checkpoint_manifest(c)->file[0].header_bytes + (20 << 20)), 2);
    close(fd);
    assert_false(checkpoint_read(&r.io, c, CHECKPOINT_WEIGHTS, &dst, 1, r.err, sizeof r.err));
    assert_non_null(strstr(r.err, "chunk 2 of 3"));
    checkpoint_close(c);
    free(path);
    free(data);
    free(back);
    test_run_close(&r);
}

/* The device of the test below, and the number of writes during which it was copying. */
static const Device *copying_device;
static int writes_beside_copies;

static ssize_t write_and_look(void *self, int fd, const void *data, size_t bytes)
{
    /* In `index` the device counts its copies, and in `waits` the waits for them. */
    writes_beside_copies += copying_device->index > copying_device->waits;
    return fs_system.write(self, fd, data, bytes);
}

/* While a window is written, the device copies the next window of the same part (weights or slots)
 * to the other half of the staging buffer. */
static void device_copies_overlap_file_writes_and_restore_every_tensor(void **state)
{
    (void)state;
    Device device = {.backend = &test_offset_backend};
    FsOps fs = fs_system;
    TestRun r;
    test_run_open(&r);
    test_run_must_save(&r, 1);
    checkpoint_io_close(&r.io);
    checkpoint_io_open(&r.io, &device, NULL);
    copying_device = &device;
    writes_beside_copies = 0;
    fs.write = write_and_look;
    r.io.fs = &fs;
    test_run_fill(&r, 2);
    CheckpointContents contents = test_run_contents(&r);
    for (int i = 0; i < N_ALL; i++) {
        r.tensor[i].data.place = PLACE_DEVICE;
        r.tensor[i].data.data = (char *)r.tensor[i].data.data + DEVICE_OFFSET;
    }
    assert_true(checkpoint_write(&r.io, r.run, &contents, r.err, sizeof r.err));
    assert_int_equal(device.index, N_ALL);
    assert_in_range(writes_beside_copies, N_ALL - CHECKPOINT_PARTS, N_ALL);
    char *path = checkpoint_path(r.run, 1);
    Checkpoint *c = NULL;
    assert_true(checkpoint_open(path, &c, r.err, sizeof r.err));
    assert_true(test_run_read(&r, c));
    assert_int_equal(device.index, 2 * N_ALL);
    assert_int_equal(device.waits, 2 * N_ALL);
    assert_int_equal(device.allocations, 1); /* only the staging buffer, at the start */
    checkpoint_close(c);
    free(path);
    TestRun expected;
    test_run_open(&expected);
    test_run_fill(&expected, 1);
    for (int i = 0; i < N_ALL; i++) {
        r.tensor[i].data.place = PLACE_HOST;
        r.tensor[i].data.data = (char *)r.tensor[i].data.data - DEVICE_OFFSET;
        assert_memory_equal(r.tensor[i].data.data, expected.tensor[i].data.data,
                            tensor_bytes(r.tensor[i].data));
    }
    test_run_close(&expected);
    assert_int_equal(test_run_newest(&r), 2);
    test_run_close(&r);
}

static void a_resume_skips_damaged_checkpoints(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    for (int64_t step = 1; step <= 4; step++)
        test_run_must_save(&r, step);
    char *path = test_run_file(&r, 4, "optimizer.safetensors");
    file_flip(path, file_size(path) - 1, 1);
    free(path);
    path = test_run_file(&r, 3, "manifest.json");
    assert_int_equal(truncate(path, 0), 0);
    free(path);
    assert_int_equal(test_run_newest(&r), 2);
    test_run_must_save(&r, 3); /* the damaged one is replaced */
    assert_int_equal(test_run_newest(&r), 3);
    test_run_must_save(&r, 4);
    assert_int_equal(test_run_newest(&r), 4);
    assert_int_equal(test_run_entries(&r), 4);
    for (int64_t step = 1; step <= 4; step++) {
        path = test_run_file(&r, step, "model.safetensors");
        assert_int_equal(unlink(path), 0);
        free(path);
    }
    Checkpoint *c = NULL;
    assert_false(checkpoint_open_newest(&r.io, r.run, &c, r.err, sizeof r.err));
    assert_null(c);
    assert_non_null(strstr(r.err, "none of the 4"));
    test_run_close(&r);
}

static void a_checkpoint_of_another_model_is_refused_with_a_tensors_name(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    test_run_must_save(&r, 1);
    char *folder = checkpoint_path(r.run, 1);
    Checkpoint *c = NULL;
    assert_true(checkpoint_open(folder, &c, r.err, sizeof r.err));
    free(folder);
    Piece good = r.tensor[2];
    r.tensor[2].dim[0] = 4;
    assert_false(test_run_read(&r, c));
    assert_non_null(
        strstr(r.err, "block.0.attn.q.weight is (5, 7) bf16 there and (4, 7) bf16 in this run"));
    r.tensor[2] = good;
    r.tensor[2].dtype = F16;
    assert_false(test_run_read(&r, c));
    assert_non_null(strstr(r.err, "block.0.attn.q.weight"));
    r.tensor[2] = good;
    r.tensor[2].name = "block.0.attn.qq.weight";
    assert_false(test_run_read(&r, c));
    r.tensor[2] = good;
    assert_false(checkpoint_read(&r.io, c, CHECKPOINT_WEIGHTS, r.tensor, N_WEIGHTS - 1, r.err,
                                 sizeof r.err));
    assert_non_null(strstr(r.err, "holds a tensor bytes that"));
    assert_false(checkpoint_read(&r.io, c, CHECKPOINT_WEIGHTS, r.tensor, N_WEIGHTS + 1, r.err,
                                 sizeof r.err));
    assert_non_null(strstr(r.err, "has no tensor embedding.token.weight.master"));
    assert_true(test_run_read(&r, c));
    checkpoint_close(c);
    test_run_close(&r);
}

/* ---- keeping and pruning --------------------------------------------------------------------- */

static void pruning_keeps_the_newest_readable_checkpoints(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    for (int64_t step = 1; step <= 6; step++)
        test_run_must_save(&r, step);
    char *path = test_run_file(&r, 5, "manifest.json");
    file_flip(path, 3, 1); /* unreadable: does not count as kept, but stays as evidence */
    free(path);
    assert_true(checkpoint_prune(&r.io, r.run, 6, 3, r.err, sizeof r.err));
    assert_true(test_run_whole(&r, 6) && test_run_whole(&r, 4) && test_run_whole(&r, 3));
    assert_int_equal(test_run_entries(&r), 4);
    /* A resumed run went back to step 3 and now saves step 4. Later checkpoints are neither removed
     * nor counted. */
    assert_true(checkpoint_prune(&r.io, r.run, 4, 1, r.err, sizeof r.err));
    assert_true(test_run_whole(&r, 6) && test_run_whole(&r, 4));
    assert_int_equal(test_run_entries(&r), 3);
    test_run_close(&r);
}

static void saving_a_step_that_is_already_saved_writes_nothing(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    test_run_must_save(&r, 1);
    char *path = test_run_file(&r, 1, "manifest.json");
    struct stat before, after;
    assert_int_equal(stat(path, &before), 0);
    test_run_must_save(&r, 1);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    free(path);
    test_run_close(&r);
}

/* ---- from outside ---------------------------------------------------------------------------- */

/* Returns the exit code of ./train ckpt COMMAND PATH. */
static int ckpt(const char *command, const char *path)
{
    ChildResult r =
        train_in_child(&(ChildPlace){0}, (const char *const[]){"ckpt", command, path, NULL});
    free(r.text);
    return r.code;
}

static void ckpt_exit_codes_distinguish_intact_damaged_and_missing_checkpoints(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    int empty = ckpt("list", r.run);
    test_run_must_save(&r, 1);
    test_run_must_save(&r, 2);
    char *one = checkpoint_path(r.run, 1), *file = test_run_file(&r, 1, "model.safetensors");
    int good[] = {ckpt("list", r.run),     ckpt("inspect", one),  ckpt("inspect", r.run),
                  ckpt("verify", one),     ckpt("verify", r.run), ckpt("--help", NULL),
                  ckpt("verify", "--help")};
    int misuse[] = {ckpt(NULL, NULL), ckpt("burn", r.run), ckpt("verify", NULL),
                    ckpt("verify", "--force")};
    file_flip(file, file_size(file) - 1, 1);
    int damaged[] = {ckpt("verify", one), ckpt("verify", r.run)},
        missing = ckpt("verify", "/nowhere");
    assert_int_equal(empty, EXIT_MISSING);
    assert_int_equal(missing, EXIT_MISSING);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_int_equal(good[i], EXIT_OK);
    for (size_t i = 0; i < sizeof misuse / sizeof *misuse; i++)
        assert_int_equal(misuse[i], EXIT_USAGE);
    assert_int_equal(damaged[0] + damaged[1], 2 * EXIT_DAMAGED);
    free(one);
    free(file);
    test_run_close(&r);
}

int main(void)
{
    log_set_level(LOG_ERROR); /* hides the warnings about damage that these tests cause */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_of_every_dtype_are_restored_bit_for_bit),
        cmocka_unit_test(the_size_estimate_covers_a_save_by_one_rank),
        cmocka_unit_test(a_large_tensor_is_saved_in_several_chunks),
        cmocka_unit_test(device_copies_overlap_file_writes_and_restore_every_tensor),
        cmocka_unit_test(a_resume_skips_damaged_checkpoints),
        cmocka_unit_test(a_checkpoint_of_another_model_is_refused_with_a_tensors_name),
        cmocka_unit_test(pruning_keeps_the_newest_readable_checkpoints),
        cmocka_unit_test(saving_a_step_that_is_already_saved_writes_nothing),
        cmocka_unit_test(ckpt_exit_codes_distinguish_intact_damaged_and_missing_checkpoints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
