/* test_llmc_refused.c -- refusals: damaged model files of llm.c, files that are not model files of
 * llm.c, and models that such a file cannot hold. Also tests disks that fail. */
#include "model/core/check.h"
#include "model/core/files.h"
#include "tests/fuzz/fuzz_weights.h"
#include "tests/support/files/data_support.h"
#include "tests/support/files/faulty_fs.h"
#include "tests/support/files/scratch.h"
#include "tests/support/model/llmc_file.h"
#include "tests/support/model/memory_source.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

/* ---- refusals -------------------------------------------------------------------------------- */

static void a_damaged_or_foreign_header_is_refused_with_the_reason(void **state)
{
    (void)state;
    static const struct {
        int index;
        int32_t value;
        const char *says;
    } table[] = {
        {0, 20240328, "is a tokenizer of llm.c"},
        {0, 20240520, "token shard"},
        {0, 20240527, "optimizer state"},
        {0, 20240803, "Llama"},
        {0, 7, "magic number of models, 20240326"},
        {1, 2, "version 2"},
        {1, 4, "version 4"},
        {2, 0, "context is 0"},
        {3, -1, "vocabulary is -1"},
        {3, LLMC_VP + 1, "padded vocabulary, 128, is smaller than that of 129"},
        {4, 1 << 30, "number of layers is 1073741824"},
        {4, 3, "its header describes"},
        {5, 3, "4 channels cannot be divided among 3 heads"},
        {6, 1 << 21, "number of channels"},
        {7, 256, "its header describes"},
        {8, 1, "number 8 of its header"},
        {255, 1, "number 255 of its header"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char err[512] = "";
        size_t n;
        LlmcHeader h;
        char *bytes = llmc_file(F32, &n), *at = bytes + 4 * table[i].index;
        llmc_put(&at, (uint32_t)table[i].value, 4);
        assert_false(llmc_parse(&h, bytes, n, (int64_t)n, err, sizeof err));
        if (strstr(err, table[i].says) == NULL) fail_msg("%s: %s", table[i].says, err);
        free(bytes);
    }
}

static void a_file_of_another_length_is_refused(void **state)
{
    (void)state;
    size_t n;
    LlmcHeader h;
    char *bytes = llmc_file(BF16, &n);
    for (size_t cut = 0; cut <= n + 1; cut++) {
        char err[512] = "", *opened;
        bool missing;
        WeightSource *source = NULL;
        char *file = must_calloc(1, cut + 1);
        memcpy(file, bytes, cut < n ? cut : n);
        assert_int_equal(llmc_parse(&h, file, cut, (int64_t)cut, err, sizeof err), cut == n);
        if (cut % 97 == 0 && cut < n) {
            put_text("cut.bin", "");
            assert_true(file_write(&fs_system, "cut.bin", file, cut, err, sizeof err));
            assert_false(
                llmc_source_open("cut.bin", &h, &source, &opened, &missing, err, sizeof err));
            assert_non_null(strstr(err, "cut.bin "));
            assert_false(missing);
        }
        free(file);
    }
    free(bytes);
}

/* With one bit flipped in its header, a file is refused, or it is another valid model of the same
 * size. Then every element of it can be read. */
static void a_flipped_bit_of_the_header_never_crashes_the_reader(void **state)
{
    (void)state;
    size_t n;
    int valid = 0;
    char *bytes = llmc_file(F32, &n);
    for (int bit = 0; bit < 8 * LLMC_HEADER_BYTES; bit++) {
        char err[512] = "", *opened;
        LlmcHeader h;
        WeightSource *source;
        bool missing;
        bytes[bit / 8] = (char)(bytes[bit / 8] ^ 1 << bit % 8);
        if (bit >= 256) assert_false(llmc_parse(&h, bytes, n, (int64_t)n, err, sizeof err));
        if (bit < 256) {
            assert_true(file_write(&fs_system, "flip.bin", bytes, n, err, sizeof err));
            if (llmc_source_open("flip.bin", &h, &source, &opened, &missing, err, sizeof err)) {
                for (int i = 0; i < source->n_tensors; i++)
                    free(source_take(source, source->tensor[i].name, 1));
                source->close(source);
                free(opened);
                valid++;
            }
        }
        bytes[bit / 8] = (char)(bytes[bit / 8] ^ 1 << bit % 8);
    }
    /* another vocabulary up to the padded one, and another number of heads */
    assert_in_range(valid, 4, 16);
    free(bytes);
}

static void randomly_damaged_files_never_crash_the_reader(void **state)
{
    (void)state;
    size_t n;
    char *bytes = llmc_file(F32, &n);
    assert_int_equal(fuzz_llmc((uint8_t *)bytes, n), 1);
    assert_int_equal(fuzz_llmc((uint8_t *)bytes, LLMC_HEADER_BYTES), 1);
    fuzz_replay(fuzz_llmc, bytes, LLMC_HEADER_BYTES, 5, 4000);
    free(bytes);
}

static void the_error_names_each_tensor_that_does_not_fit(void **state)
{
    (void)state;
    char err[1024];
    int64_t overflows;
    WeightSource *source = llmc_random(&llmc_small, F32);
    memory_source_add(source, "head.weight", F32, LLMC_V, LLMC_C, 1);
    assert_false(
        llmc_write(&fs_system, "no.bin", &llmc_small, source, NULL, &overflows, err, sizeof err));
    assert_non_null(strstr(err, "no tensor head.weight"));
    source->n_tensors--; /* leaves out head.weight until it is counted again below */
    LlmcHeader other = llmc_small;
    other.context = LLMC_P + 1;
    assert_false(
        llmc_write(&fs_system, "no.bin", &other, source, NULL, &overflows, err, sizeof err));
    assert_non_null(strstr(err, "position.weight is 3 x 4, the config describes 4 x 4"));
    other = llmc_small;
    other.layers = LLMC_L + 1;
    assert_false(
        llmc_write(&fs_system, "no.bin", &other, source, NULL, &overflows, err, sizeof err));
    assert_non_null(strstr(err, "there is no tensor block.2."));
    assert_int_not_equal(access("no.bin", F_OK), 0);
    source->n_tensors++;
    source->close(source);
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* At every call that fails, the file is as before or complete, and nothing else remains. */
static void a_disk_that_fails_leaves_the_old_file_or_the_new_one(void **state)
{
    (void)state;
    char err[1024], *text;
    size_t n, m;
    int64_t overflows;
    FaultyFs fs;
    char *bytes = llmc_file(F32, &n);
    assert_true(file_write(&fs_system, "model.bin", bytes, n, err, sizeof err));
    LlmcHeader h;
    WeightSource *source = llmc_open("model.bin", &h);
    bool good = false;
    for (int at = 1; !good; at++) {
        put_text("out.bin", "old");
        faulty_fs_init(&fs, FAULT_ONCE, at, ENOSPC);
        good = llmc_write(&fs.ops, "out.bin", &h, source, NULL, &overflows, err, sizeof err);
        assert_true(file_read("out.bin", &text, &m, NULL, err, sizeof err));
        if (m == n)
            assert_memory_equal(text, bytes, n);
        else
            assert_string_equal(text, "old");
        assert_true(!good || m == n);
        free(text);
        StringList files = {0};
        assert_true(file_list(&(StringList){1, (char *[]){(char *)(uintptr_t) "*out.bin*"}}, &files,
                              err, sizeof err));
        assert_int_equal(files.count, 1);
        string_list_free(&files);
    }
    source->close(source);
    free(bytes);
}

static void a_full_disk_is_detected_before_anything_is_written(void **state)
{
    (void)state;
    char err[1024], *disk = folder_new();
    int64_t overflows;
    FaultyFs fs;
    WeightSource *source = llmc_random(&llmc_small, F32);
    faulty_fs_init(&fs, FAULT_NONE, 0, 0);
    fs.disk = disk;
    fs.capacity = llmc_file_bytes(&llmc_small) - 1;
    char *path = text_format("%s/full.bin", disk);
    assert_false(llmc_write(&fs.ops, path, &llmc_small, source, NULL, &overflows, err, sizeof err));
    if (strstr(err, "its disk has room for") == NULL) fail_msg("%s", err);
    assert_int_equal(fs.calls, 0);
    fs.capacity++;
    if (!llmc_write(&fs.ops, path, &llmc_small, source, NULL, &overflows, err, sizeof err))
        fail_msg("%s", err);
    free(path);
    folder_drop(disk);
    /* a tensor that cannot be read leaves nothing either */
    memory_source_fail(source, 3);
    assert_false(
        llmc_write(&fs_system, "full.bin", &llmc_small, source, NULL, &overflows, err, sizeof err));
    assert_non_null(strstr(err, "cannot be read"));
    assert_int_not_equal(access("full.bin", F_OK), 0);
    source->close(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_damaged_or_foreign_header_is_refused_with_the_reason),
        cmocka_unit_test(a_file_of_another_length_is_refused),
        cmocka_unit_test(a_flipped_bit_of_the_header_never_crashes_the_reader),
        cmocka_unit_test(randomly_damaged_files_never_crash_the_reader),
        cmocka_unit_test(the_error_names_each_tensor_that_does_not_fit),
        cmocka_unit_test(a_disk_that_fails_leaves_the_old_file_or_the_new_one),
        cmocka_unit_test(a_full_disk_is_detected_before_anything_is_written),
    };
    return cmocka_run_group_tests_name("llm.c, refused", tests, enter_scratch, leave_scratch);
}
