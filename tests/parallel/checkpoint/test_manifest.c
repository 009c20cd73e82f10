/* test_manifest.c -- printing and parsing a checkpoint's manifest: it is parsed back bit for bit,
 * and every flipped bit is detected. */
#include "model/core/check.h"
#include "model/core/crc32c.h"
#include "model/core/files.h"
#include "parallel/checkpoint/manifest.h"
#include "tests/fuzz/fuzz_checkpoint.h"
#include "tests/support/checkpoint/checkpoint_run.h"
#include "tests/support/files/mutate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Makes a manifest with two tensors in `weights` files of weights. */
static Manifest manifest_of(int weights)
{
    Manifest m = {.save_id = "0123456789abcdef",
                  .state = {.samples = INT64_C(1) << 53,
                            .tokens = 1,
                            .steps = 42,
                            .updates = 40,
                            .last_overflow = -1,
                            .loss_scale = 0x1.5555555555555p-2,
                            .loss_seed = 65536,
                            .data_offset = 5,
                            .rollbacks = 2,
                            .n_losses = 3,
                            .losses = {0x1.8p0, 2.5, 0x1.5555555555555p-2}},
                  .config = must_strdup("{\n  \"a\": \"\\u00e9\t\"\n}"),
                  .machine = must_strdup("avx512, \"quoted\""),
                  .code = must_strdup("1.0"),
                  .data = must_strdup("tokenizer \"x\"; train none")};
    manifest_two_files(&m);
    m.file = must_realloc(m.file, (size_t)(weights + 1) * sizeof *m.file);
    m.file[weights] = m.file[1];
    m.n_files = weights + 1;
    m.world = (ManifestWorld){.ranks = 8,
                              .pp = 2,
                              .dp = 4,
                              .cp = 1,
                              .tp = 1,
                              .zero_stage = 3,
                              .writers = weights < 8 ? weights : 8};
    for (int f = 0; f < weights; f++) {
        m.file[f] = m.file[0];
        checkpoint_file_name(m.file[f].name, CHECKPOINT_WEIGHTS, f, weights);
    }
    m.file[0].bytes = 500;
    m.file[0].header_bytes = 100;
    m.file[0].header_crc = 0xdeadbeef;
    m.n_tensors = 2;
    m.tensor = must_calloc(2, sizeof *m.tensor);
    for (int i = 0; i < 2; i++) {
        ManifestTensor *t = &m.tensor[i];
        t->file = i * (weights - 1);
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

static Manifest example_manifest(void)
{
    return manifest_of(1);
}

static void check_survives(int weights)
{
    Manifest m = manifest_of(weights), again;
    size_t n;
    char err[300] = "", *text = manifest_print(&m, &n);
    assert_non_null(strstr(text, "\"dtype\": \"BF16\", \"shape\": [5000000, 3], \"offset\": 0,"));
    bool good = manifest_parse(&again, text, n, err, sizeof err);
    if (!good) print_error("%s\n%s", err, text);
    assert_true(good);
    assert_memory_equal(&m.state, &again.state, sizeof m.state);
    assert_int_equal(again.n_files, weights + 1);
    assert_memory_equal(m.file, again.file, (size_t)again.n_files * sizeof *m.file);
    assert_memory_equal(&m.world, &again.world, sizeof m.world);
    assert_int_equal(again.version, MANIFEST_VERSION);
    assert_int_equal(again.tensor[1].file, weights - 1);
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

static void a_manifest_is_parsed_back_bit_for_bit(void **state)
{
    (void)state;
    const int weights[] = {1, 2, 3, CHECKPOINT_MAX_WRITERS};
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        check_survives(weights[i]);
}

/* Returns the text of a manifest in which `from` is replaced by `to`, with a correct checksum; the
 * caller frees it. */
static char *edited(const Manifest *m, const char *from, const char *to, size_t *n)
{
    char *text = manifest_print(m, n), *at = strstr(text, from);
    assert_non_null(at);
    char *body = text_format("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    char *last = strstr(body, "\"manifest_crc32c\"");
    size_t before = (size_t)(last - body);
    char *whole = text_format("%.*s\"manifest_crc32c\": \"%08x\"\n}\n", (int)before, body,
                              crc32c(0, body, before));
    *n = strlen(whole);
    free(text);
    free(body);
    return whole;
}

/* The checksum is correct, so only the contents can be refused. */
static void a_manifest_with_impossible_files_or_ranks_is_refused(void **state)
{
    (void)state;
    static const char *const edits[][2] = {
        {"model-00002-of-00003", "model-00003-of-00003"}, /* in the wrong order */
        {"model-00001-of-00003", "model-00001-of-00004"}, /* one is missing */
        {"model-00001-of-00003", "model-00001-of-00002"},
        {"model-00001-of-00003", "model-00001-of-00065"},
        {"model-00001-of-00003", "../../etc/model"},
        {"model-00001-of-00003.safetensors", "model.safetensors"},
        {"optimizer.safetensors", "model.safetensors"},
        {"\"ranks\": 8", "\"ranks\": 7"}, /* not the product of the axes */
        {"\"dp\": 4", "\"dp\": 0"},
        {"\"dp\": 4", "\"dp\": -4"},
        {"\"zero_stage\": 3", "\"zero_stage\": 4"},
        {"\"writers\": 3", "\"writers\": 9"},
        {"\"version\": 3", "\"version\": 4"},
        {"\"version\": 3", "\"version\": 2"}, /* version 2 has no losses */
        {"\"version\": 3", "\"version\": 0"},
        {"\"version\": 3", "\"version\": 1"}, /* version 1 has no world */
        {"\"n_losses\": 3", "\"n_losses\": 2"},
        {"\"n_losses\": 3", "\"n_losses\": 4"},
        {"\"n_losses\": 3", "\"n_losses\": -3"},
        {"\"rollbacks\": 2", "\"rollbacks\": -2"},
        {"\"data_offset\": 5", "\"data_offset\": -5"},
        {"\"0x1.4p+1\"", "\"inf\""},
        {"\"0x1.4p+1\"", "\"2.5\""},
        {"\"name\": \"b\", \"file\": \"model-00003-of-00003", "\"name\": \"b\", \"file\": \"other"},
    };
    Manifest m = manifest_of(3), again;
    char err[300];
    size_t n;
    char *text = edited(&m, "\"dp\": 4", "\"dp\": 4", &n);
    if (!manifest_parse(&again, text, n, err, sizeof err)) fail_msg("%s", err);
    manifest_free(&again);
    free(text);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        text = edited(&m, edits[i][0], edits[i][1], &n);
        if (manifest_parse(&again, text, n, err, sizeof err)) fail_msg("%s is taken", edits[i][1]);
        free(text);
    }
    manifest_free(&m);
}

static void every_flipped_bit_of_a_manifest_is_detected(void **state)
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

static void a_chunk_is_the_fewest_whole_rows_that_reach_16_mib(void **state)
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

/* Runs the fuzz target on randomly damaged texts. */
static void damage_each_way(const char *text, size_t length)
{
    size_t n;
    int accepted = 0, rounds = 10000;
    assert_int_equal(fuzz_manifest((const uint8_t *)text, length), 1);
    assert_int_equal(fuzz_manifest((const uint8_t *)text, length), 1);
    for (int round = 0; round < rounds; round++) {
        uint8_t *damaged = mutate(text, length, 77, (uint64_t)round, &n);
        accepted += fuzz_manifest(damaged, n);
        free(damaged);
    }
    assert_in_range(accepted, 50, rounds / 2);
}

static void parsing_a_damaged_manifest_never_crashes(void **state)
{
    (void)state;
    size_t n;
    char *text, err[300];
    static const char *const kept[] = {
        "tests/golden/checkpoint_v1/checkpoints/step_00000007/manifest.json",
        "tests/fuzz/corpus/manifest/two_writers.json", "tests/fuzz/corpus/manifest/losses.json"};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        assert_true(file_read(kept[i], &text, &n, NULL, err, sizeof err));
        damage_each_way(text, n);
        free(text);
    }
    for (int weights = 1; weights <= 3; weights += 2) {
        Manifest m = manifest_of(weights);
        text = manifest_print(&m, &n);
        damage_each_way(text, n);
        free(text);
        manifest_free(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_manifest_is_parsed_back_bit_for_bit),
        cmocka_unit_test(a_manifest_with_impossible_files_or_ranks_is_refused),
        cmocka_unit_test(every_flipped_bit_of_a_manifest_is_detected),
        cmocka_unit_test(a_chunk_is_the_fewest_whole_rows_that_reach_16_mib),
        cmocka_unit_test(parsing_a_damaged_manifest_never_crashes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
