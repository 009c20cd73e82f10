/* test_manifest.c -- the manifest of a checkpoint, as pure functions: it is read back to the bit,
 * and every bit that flips is seen. */
#include "model/core/check.h"
#include "parallel/checkpoint/manifest.h"
#include "tests/fuzz/fuzz_checkpoint.h"
#include "tests/support/mutate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static Manifest example_manifest(void)
{
    Manifest m = {.save_id = "0123456789abcdef",
                  .state = {.samples = INT64_C(1) << 53,
                            .tokens = 1,
                            .steps = 42,
                            .updates = 40,
                            .last_overflow = -1,
                            .loss_scale = 0x1.5555555555555p-2,
                            .loss_seed = 65536},
                  .config = must_strdup("{\n  \"a\": \"\\u00e9\t\"\n}"),
                  .machine = must_strdup("avx512, \"quoted\""),
                  .code = must_strdup("1.0"),
                  .data = must_strdup("tokenizer \"x\"; train none")};
    m.file[0] = (ManifestFile){.bytes = 500, .header_bytes = 100, .header_crc = 0xdeadbeef};
    m.file[1] = (ManifestFile){.bytes = 50, .header_bytes = 50, .header_crc = 1};
    m.n_tensors = 2;
    m.tensor = must_calloc(2, sizeof *m.tensor);
    for (int i = 0; i < 2; i++) {
        ManifestTensor *t = &m.tensor[i];
        t->file = CHECKPOINT_WEIGHTS;
        t->entry = (SafetensorsEntry){.name = must_strdup(i ? "b" : "a"),
                                      .dtype = i ? BF16 : F64,
                                      .ndim = 2,
                                      .dim = {5000000, 3}};
        assert_true(safetensors_size(t->entry.dtype, 2, t->entry.dim, &t->entry.bytes));
        t->n_chunks = manifest_chunk_count(&t->entry);
        t->chunk = must_calloc((size_t)t->n_chunks, sizeof *t->chunk);
    }
    return m;
}

static void manifest_survives_printing_to_the_bit(void **state)
{
    (void)state;
    Manifest m = example_manifest(), again;
    size_t n;
    char err[300] = "", *text = manifest_print(&m, &n);
    assert_non_null(strstr(text, "\"dtype\": \"BF16\", \"shape\": [5000000, 3], \"offset\": 0,"));
    bool good = manifest_parse(&again, text, n, err, sizeof err);
    if (!good) print_error("%s\n%s", err, text);
    assert_true(good);
    assert_memory_equal(&m.state, &again.state, sizeof m.state);
    assert_memory_equal(m.file, again.file, sizeof m.file);
    assert_string_equal(m.config, again.config);
    assert_string_equal(m.machine, again.machine);
    assert_string_equal(m.data, again.data);
    assert_int_equal(again.n_tensors, 2);
    assert_memory_equal(&m.tensor[1].entry.dim, &again.tensor[1].entry.dim,
                        sizeof m.tensor[1].entry.dim);
    manifest_free(&again);
    manifest_free(&m);
    free(text);
}

static void every_flipped_bit_of_a_manifest_is_seen(void **state)
{
    (void)state;
    Manifest m = example_manifest(), again;
    size_t n;
    char err[300], *text = manifest_print(&m, &n);
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit++) {
            text[i] = (char)(text[i] ^ 1 << bit);
            if (manifest_parse(&again, text, n, err, sizeof err))
                fail_msg("bit %d of byte %zu of %zu", bit, i, n);
            text[i] = (char)(text[i] ^ 1 << bit);
        }
    for (size_t cut = 0; cut < n; cut++)
        assert_false(manifest_parse(&again, text, cut, err, sizeof err));
    manifest_free(&m);
    free(text);
}

static void chunks_are_the_fewest_whole_rows_of_16_mib(void **state)
{
    (void)state;
    static const struct {
        DType dtype;
        int ndim;
        int64_t dim[4], chunk;
        int count;
    } table[] = {
        {F32, 1, {10}, 40, 1},
        {F32, 0, {0}, 4, 1},
        {F32, 2, {4096, 1024}, 1 << 24, 1},
        {F32, 2, {4097, 1024}, 1 << 24, 2},
        {F32, 2, {9000, 1000}, 4195 * 4000, 3},
        {BF16, 2, {3, 1 << 23}, 1 << 24, 3},
        {U8, 2, {3, (1 << 24) + 1}, (1 << 24) + 1, 3},
        {F64, 1, {(1 << 21) + 1}, 1 << 24, 2},
        {U8, 3, {2, 3, 5}, 30, 1},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        SafetensorsEntry e = {.dtype = table[i].dtype, .ndim = table[i].ndim};
        memcpy(e.dim, table[i].dim, sizeof e.dim);
        assert_true(safetensors_size(e.dtype, e.ndim, e.dim, &e.bytes));
        assert_int_equal(manifest_chunk_bytes(&e), table[i].chunk);
        assert_int_equal(manifest_chunk_count(&e), table[i].count);
    }
}

/* Replays the fuzz target. */
static void damaged_manifests_never_crash_the_reader(void **state)
{
    (void)state;
    Manifest m = example_manifest();
    size_t n, length;
    char *text = manifest_print(&m, &length);
    int accepted = 0, rounds = 20000;
    assert_int_equal(fuzz_manifest((const uint8_t *)text, length), 1);
    for (int round = 0; round < rounds; round++) {
        uint8_t *damaged = mutate(text, length, 77, (uint64_t)round, &n);
        accepted += fuzz_manifest(damaged, n);
        free(damaged);
    }
    assert_in_range(accepted, 100, rounds / 2);
    free(text);
    manifest_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(manifest_survives_printing_to_the_bit),
        cmocka_unit_test(every_flipped_bit_of_a_manifest_is_seen),
        cmocka_unit_test(chunks_are_the_fewest_whole_rows_of_16_mib),
        cmocka_unit_test(damaged_manifests_never_crash_the_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
