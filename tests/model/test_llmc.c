/* test_llmc.c -- model files of llm.c: the place of every weight, and files that are written and
 * read back bit for bit. */
#include "model/core/check.h"
#include "model/core/files.h"
#include "tests/support/files/data_support.h"
#include "tests/support/files/scratch.h"
#include "tests/support/model/llmc_file.h"
#include "tests/support/model/memory_source.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <stdio.h>

/* Where our tensors are in the file: in which of llm.c's kinds of tensors, and from which element
 * of it on. */
static const struct {
    const char *name;
    int kind, first, rows, cols;
} ours[] = {
    {"token.weight", WTE, 0, LLMC_V, LLMC_C},
    {"position.weight", WPE, 0, LLMC_P, LLMC_C},
    {"attn.norm.weight", LN1W, 0, LLMC_C, 0},
    {"attn.norm.bias", LN1B, 0, LLMC_C, 0},
    {"attn.q.weight", QKVW, 0, LLMC_C, LLMC_C},
    {"attn.k.weight", QKVW, LLMC_C *LLMC_C, LLMC_C, LLMC_C},
    {"attn.v.weight", QKVW, 2 * LLMC_C *LLMC_C, LLMC_C, LLMC_C},
    {"attn.q.bias", QKVB, 0, LLMC_C, 0},
    {"attn.k.bias", QKVB, LLMC_C, LLMC_C, 0},
    {"attn.v.bias", QKVB, 2 * LLMC_C, LLMC_C, 0},
    {"attn.out.weight", ATTPROJW, 0, LLMC_C, LLMC_C},
    {"attn.out.bias", ATTPROJB, 0, LLMC_C, 0},
    {"mlp.norm.weight", LN2W, 0, LLMC_C, 0},
    {"mlp.norm.bias", LN2B, 0, LLMC_C, 0},
    {"mlp.up.weight", FCW, 0, 4 * LLMC_C, LLMC_C},
    {"mlp.up.bias", FCB, 0, 4 * LLMC_C, 0},
    {"mlp.down.weight", FCPROJW, 0, LLMC_C, 4 * LLMC_C},
    {"mlp.down.bias", FCPROJB, 0, LLMC_C, 0},
    {"final_norm.weight", LNFW, 0, LLMC_C, 0},
    {"final_norm.bias", LNFB, 0, LLMC_C, 0},
};
enum { OURS = sizeof ours / sizeof *ours };

/* Compares a tensor of the source with the elements of its kind. */
static void compare(WeightSource *source, const char *name, int i, int layer, DType dtype)
{
    const SourceTensor *t = &source->tensor[weight_source_find(source, name)];
    assert_int_equal(t->dtype, dtype);
    assert_int_equal(t->ndim, ours[i].cols ? 2 : 1);
    assert_int_equal(t->dim[0], ours[i].rows);
    assert_int_equal(t->dim[1], ours[i].cols ? ours[i].cols : 1);
    unsigned char *data = source_take(source, name, (uint64_t)(i + 100 * layer));
    for (int e = 0; e < t->dim[0] * t->dim[1]; e++) {
        size_t size = dtype_size(dtype);
        uint32_t bits = 0;
        for (size_t b = size; b-- > 0;)
            bits = bits << 8 | data[(size_t)e * size + b];
        if (bits != llmc_bits(ours[i].kind, layer, ours[i].first + e))
            fail_msg("%s, element %d: bits %x", name, e, bits);
    }
    free(data);
}

static void every_weight_of_a_file_is_read_correctly(void **state)
{
    (void)state;
    static const DType dtypes[] = {F32, BF16};
    for (int d = 0; d < 2; d++) {
        size_t n;
        LlmcHeader h;
        char *bytes = llmc_file(dtypes[d], &n);
        assert_int_equal(file_write(&fs_system, "model.bin", bytes, n, NULL, 0), true);
        int before = dup(0);
        close(before);
        WeightSource *source = llmc_open("model.bin", &h);
        assert_int_equal(source->n_tensors, 4 + 16 * LLMC_L);
        assert_int_equal(h.dtype, dtypes[d]);
        for (int i = 0; i < OURS; i++)
            for (int l = 0; l < llmc_layers(ours[i].kind); l++) {
                char name[64];
                snprintf(name, sizeof name, "block.%d.%s", l, ours[i].name);
                compare(source, llmc_layers(ours[i].kind) == 1 ? ours[i].name : name, i, l,
                        dtypes[d]);
            }
        source->close(source);
        int after = dup(0);
        close(after);
        assert_int_equal(before, after); /* its file is closed */
        free(bytes);
    }
}

/* The file that is written has the bytes of the one that was read. */
static void writing_what_was_read_gives_the_same_file(void **state)
{
    (void)state;
    static const DType dtypes[] = {F32, BF16};
    for (int d = 0; d < 2; d++) {
        char err[1024], *again;
        size_t n, m;
        int64_t overflows;
        LlmcHeader h;
        char *bytes = llmc_file(dtypes[d], &n);
        assert_true(file_write(&fs_system, "model.bin", bytes, n, err, sizeof err));
        WeightSource *source = llmc_open("model.bin", &h);
        if (!llmc_write(&fs_system, "again.bin", &h, source, NULL, &overflows, err, sizeof err))
            fail_msg("%s", err);
        source->close(source);
        assert_true(file_read("again.bin", &again, &m, NULL, err, sizeof err));
        assert_int_equal(n, m);
        assert_memory_equal(bytes, again, n);
        free(bytes);
        free(again);
    }
}

static void weights_of_another_type_are_rounded_once_and_overflows_counted(void **state)
{
    (void)state;
    LlmcHeader h = llmc_small, read;
    char err[1024];
    int64_t overflows;
    h.dtype = BF16;
    WeightSource *source = llmc_random(&h, F32);
    ((float *)(uintptr_t)memory_source_data(source, "position.weight"))[5] = 3.4e38F;
    if (!llmc_write(&fs_system, "model.bin", &h, source, NULL, &overflows, err, sizeof err))
        fail_msg("%s", err);
    assert_int_equal(overflows, 1);
    WeightSource *written = llmc_open("model.bin", &read);
    for (int i = 0; i < source->n_tensors; i++) {
        const SourceTensor *t = &source->tensor[i];
        const float *from = memory_source_data(source, t->name);
        uint16_t *to = source_take(written, t->name, 3);
        for (int64_t e = 0; e < t->dim[0] * t->dim[1]; e++)
            assert_int_equal(to[e], bf16_from_f32(from[e]));
        free(to);
    }
    source->close(source);
    written->close(written);
}

/* ---- folders --------------------------------------------------------------------------------- */

static void the_newest_complete_model_of_a_run_folder_is_opened(void **state)
{
    (void)state;
    char err[1024], *opened;
    size_t n;
    LlmcHeader h;
    WeightSource *source;
    bool missing;
    char *bytes = llmc_file(F32, &n), *folder = folder_new();
    free(file_new(folder, "model_00000005.bin", bytes, n));
    free(file_new(folder, "model_00000020.bin", bytes, n - 1)); /* still being written */
    free(file_new(folder, "DONE_7", "", 0));
    assert_false(llmc_source_open(folder, &h, &source, &opened, &missing, err, sizeof err));
    assert_true(missing);
    assert_non_null(strstr(err, "no file like DONE_00001000"));
    free(file_new(folder, "DONE_00000005", "", 0));
    free(file_new(folder, "DONE_00000004", "", 0));
    free(file_new(folder, "DONE_00000020x", "", 0));
    if (!llmc_source_open(folder, &h, &source, &opened, &missing, err, sizeof err))
        fail_msg("%s", err);
    assert_string_equal(path_name(opened), "model_00000005.bin");
    source->close(source);
    free(opened);
    free(file_new(folder, "DONE_00000021", "", 0));
    assert_false(llmc_source_open(folder, &h, &source, &opened, &missing, err, sizeof err));
    assert_non_null(strstr(err, "model_00000021.bin"));
    assert_true(missing);
    folder_drop(folder);
    free(bytes);
}

/* ---- the model ------------------------------------------------------------------------------- */

static void a_header_converts_to_a_gpt2_config_and_back(void **state)
{
    (void)state;
    char err[1024];
    Architecture a;
    LlmcHeader h, gpt2 = {BF16, 1024, 50257, 12, 12, 768, 50304};
    llmc_architecture(&gpt2, &a);
    assert_int_equal(a.kind, ARCHITECTURE_GPT2);
    assert_int_equal(a.mlp, 3072);
    assert_int_equal(a.head_dim, 64);
    assert_int_equal(a.positions, 1024);
    assert_int_equal(a.vocab, 50257);
    assert_true(llmc_header_of(&a, BF16, &h, err, sizeof err));
    unsigned char bytes[2][LLMC_HEADER_BYTES];
    llmc_header_bytes(&h, bytes[0]);
    llmc_header_bytes(&gpt2, bytes[1]);
    assert_memory_equal(bytes[0], bytes[1], LLMC_HEADER_BYTES);
    a.vocab = 50304;
    assert_true(llmc_header_of(&a, BF16, &h, err, sizeof err));
    assert_int_equal(h.padded_vocab, 50304);
    a.vocab = 50305;
    assert_true(llmc_header_of(&a, BF16, &h, err, sizeof err));
    assert_int_equal(h.padded_vocab, 50432);
}

static void a_model_that_llmc_does_not_support_is_refused_by_its_config_keys(void **state)
{
    (void)state;
    char err[1024];
    Architecture gpt2, a;
    LlmcHeader h;
    llmc_architecture(&llmc_small, &gpt2);
    a = gpt2;
    a.kind = ARCHITECTURE_LLAMA;
    assert_false(llmc_header_of(&a, F32, &h, err, sizeof err));
    assert_non_null(strstr(err, "model.norm, model.position and model.activation"));
    assert_false(llmc_header_of(&gpt2, F16, &h, err, sizeof err));
    assert_non_null(strstr(err, "--dtype f32"));
    a = gpt2;
    a.mlp = 12;
    a.tied = false;
    a.kv_heads = 1;
    a.head_dim = 8;
    a.norm_epsilon = 1e-6;
    assert_false(llmc_header_of(&a, F32, &h, err, sizeof err));
    static const char *const keys[] = {
        "model.intermediate_size is 12", "model.tie_word_embeddings is false",
        "model.num_key_value_heads is 1", "model.head_dim is 8", "model.norm_epsilon is 1e-06"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strstr(err, keys[i]) == NULL) fail_msg("%s: %s", keys[i], err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight_of_a_file_is_read_correctly),
        cmocka_unit_test(writing_what_was_read_gives_the_same_file),
        cmocka_unit_test(weights_of_another_type_are_rounded_once_and_overflows_counted),
        cmocka_unit_test(the_newest_complete_model_of_a_run_folder_is_opened),
        cmocka_unit_test(a_header_converts_to_a_gpt2_config_and_back),
        cmocka_unit_test(a_model_that_llmc_does_not_support_is_refused_by_its_config_keys),
    };
    return cmocka_run_group_tests_name("llm.c", tests, enter_scratch, leave_scratch);
}
