/* test_gguf.c -- the tensors of GGUF files: each is read back and compared, with a reader that
 * shares no code with the writer. A golden file was written by another program. */
#include "model/core/check.h"
#include "model/core/files.h"
#include "tests/support/files/data_support.h"
#include "tests/support/files/scratch.h"
#include "tests/support/model/gguf_reader.h"
#include "tests/support/model/gguf_written.h"
#include "tests/support/model/small_weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <stdio.h>

/* ---- tensors --------------------------------------------------------------------------------- */

/* The names of tensors in the file and ours. "+": the file's tensor consists of these tensors of
 * ours, one below the other. */
static const struct {
    const char *theirs, *ours;
} names[] = {
    {"attn_norm", "attn.norm"},     {"attn_qkv", "attn.q+attn.k+attn.v"},
    {"attn_q", "attn.q"},           {"attn_k", "attn.k"},
    {"attn_v", "attn.v"},           {"attn_output", "attn.out"},
    {"ffn_norm", "mlp.norm"},       {"ffn_gate", "mlp.gate"},
    {"ffn_up", "mlp.up"},           {"ffn_down", "mlp.down"},
    {"attn_q_norm", "attn.q_norm"}, {"attn_k_norm", "attn.k_norm"},
};

/* Writes to `ours` the names of our tensors for the tensor `theirs` of the file, joined by "+". */
static void our_names(const char *theirs, char ours[256])
{
    static const struct {
        const char *theirs, *ours;
    } outside[] = {{"token_embd.weight", "token.weight"},
                   {"position_embd.weight", "position.weight"},
                   {"output_norm.weight", "final_norm.weight"},
                   {"output_norm.bias", "final_norm.bias"},
                   {"output.weight", "head.weight"}};
    int block = -1, used = 0;
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
        if (strcmp(theirs, outside[i].theirs) == 0) {
            snprintf(ours, 256, "%s", outside[i].ours);
            return;
        }
    if (sscanf(theirs, "blk.%d.%n", &block, &used) != 1) fail_msg("tensor %s", theirs);
    const char *dot = strrchr(theirs, '.');
    size_t length = (size_t)(dot - theirs) - (size_t)used;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i].theirs) != length ||
            memcmp(names[i].theirs, theirs + used, length) != 0)
            continue;
        char part[64], *next, *list = must_strdup(names[i].ours);
        ours[0] = '\0';
        for (char *p = strtok_r(list, "+", &next); p; p = strtok_r(NULL, "+", &next)) {
            snprintf(part, sizeof part, "%sblock.%d.%s%s", ours[0] ? "+" : "", block, p, dot);
            strcat(ours, part);
        }
        free(list);
        return;
    }
    fail_msg("tensor %s", theirs);
}

/* Returns the row of ours that must be row `r` of a tensor whose rows RoPE rotates. Ours rotates
 * row i of a head with row i + head_dim/2; in the file the two are neighbours. */
static int64_t row_of(const Architecture *m, const char *name, int64_t r)
{
    bool turned = strstr(name, ".attn_q.") || strstr(name, ".attn_k.");
    if (m->kind != ARCHITECTURE_LLAMA || !turned) return r;
    int64_t d = m->head_dim, pair = r % d / 2, second = r % 2;
    return r / d * d + pair + second * (d / 2);
}

/* Compares a tensor of the file with ours, converted element by element. */
static void compare(const GgufInfo *t, const Architecture *m, DType dtype, WeightSource *source)
{
    char ours[256], *next;
    int64_t row = 0, cols = t->ndim == 2 ? (int64_t)t->dim[0] : 1;
    our_names(t->name, ours);
    bool plain = t->ndim == 1 || strcmp(t->name, "position_embd.weight") == 0;
    if (t->dtype != (plain ? F32 : dtype)) fail_msg("%s is %s", t->name, dtype_name(t->dtype));
    for (char *name = strtok_r(ours, "+", &next); name; name = strtok_r(NULL, "+", &next)) {
        int i = weight_source_find(source, name);
        if (i < 0) fail_msg("%s: there is no %s", t->name, name);
        const SourceTensor *s = &source->tensor[i];
        const void *data = memory_source_data(source, name);
        assert_int_equal(s->dim[1], cols);
        for (int64_t r = 0; r < s->dim[0]; r++, row++)
            for (int64_t c = 0; c < cols; c++) {
                char want[8], got[8];
                double x = dtype_get(s->dtype, data, row_of(m, t->name, r) * cols + c);
                dtype_set(t->dtype, want, 0, x);
                memcpy(got, (const char *)t->data + (size_t)(row * cols + c) * dtype_size(t->dtype),
                       dtype_size(t->dtype));
                if (memcmp(want, got, dtype_size(t->dtype)) != 0)
                    fail_msg("%s (%s), row %lld, column %lld: another value", t->name, name,
                             (long long)r, (long long)c);
            }
    }
    assert_int_equal(row, t->dim[t->ndim - 1]);
}

/* Writes the model, reads the file back and compares all tensors. */
static void round_trip(const Architecture *m, DType stored, DType dtype, GgufFile *f)
{
    GgufModel model = {.name = "a test", .model = m, .dtype = dtype};
    WeightSource *source = random_weights(m, stored);
    gguf_must_write("model.gguf", &model, source);
    gguf_read(f, "model.gguf");
    int merged = m->kind == ARCHITECTURE_GPT2 ? 4 * (int)m->layers : 0;
    assert_int_equal(f->n_tensors, source->n_tensors - merged + (m->scaling.llama3 ? 1 : 0));
    for (int i = 0; i < f->n_tensors; i++)
        if (strcmp(f->tensor[i].name, "rope_freqs.weight") != 0)
            compare(&f->tensor[i], m, dtype, source);
    source->close(source);
}

static void every_tensor_of_every_architecture_is_read_back(void **state)
{
    (void)state;
    static const DType dtypes[] = {F32, F16, BF16};
    for (int i = 0; i < 9; i++)
        for (int d = 0; d < 3; d++) {
            Architecture m = i < 2 ? small_gpt2() : small_llama();
            GgufFile f;
            m.tied = i % 2;
            if (i == 3 || i == 4)
                m.kind = ARCHITECTURE_QWEN2, m.attention_bias = "qkv", m.head_dim = 2;
            if (i == 5 || i == 6) m.kind = ARCHITECTURE_QWEN3;
            if (i == 7) m.attention_bias = "all", m.mlp_bias = true;
            if (i == 8) m.kv_heads = 4;
            round_trip(&m, d == 1 ? F16 : F32, dtypes[d], &f);
            assert_int_equal(gguf_u32(&f, "general.file_type"), d == 2 ? 32 : d);
            gguf_close(&f);
        }
}

/* ---- another program's file ------------------------------------------------------------------ */

/* Sets the values of all tensors as scripts/make_golden_gguf.py does: which numbers the tensors in
 * the order in which they are in the file. */
static void set_golden_values(WeightSource *source, int64_t layers)
{
    static const char *const block[] = {"attn.norm", "attn.q",   "attn.k", "attn.v",  "attn.out",
                                        "mlp.norm",  "mlp.gate", "mlp.up", "mlp.down"};
    enum { OF_BLOCK = sizeof block / sizeof *block };
    int total = 3 + (int)layers * OF_BLOCK;
    assert_int_equal(source->n_tensors, total);
    for (int number = 0; number < total; number++) {
        char name[64];
        snprintf(name, sizeof name, "block.%d.%s.weight", (number - 1) / OF_BLOCK,
                 block[(number + OF_BLOCK - 1) % OF_BLOCK]);
        const char *outside = number == 0           ? "token.weight"
                              : number == total - 2 ? "final_norm.weight"
                              : number == total - 1 ? "head.weight"
                                                    : NULL;
        const char *ours = outside ? outside : name;
        const SourceTensor *t = &source->tensor[weight_source_find(source, ours)];
        float *data = (float *)(uintptr_t)memory_source_data(source, ours);
        for (int64_t e = 0; e < t->dim[0] * t->dim[1]; e++)
            data[e] = (float)((e * 7 + number * 13) % 251 - 125) / 64;
    }
}

/* The golden file was written by the Python package of llama.cpp: a Llama with shared kv heads,
 * Llama 3's scaling and a tokenizer, in bf16. */
static void a_gguf_file_has_the_same_bytes_as_that_of_llama_cpp(void **state)
{
    (void)state;
    char err[512], *golden, *ours, *folder = folder_new();
    char *path = text_format("%s/golden.gguf", folder);
    size_t n, m;
    Architecture a = {.kind = ARCHITECTURE_LLAMA,
                      .layers = 2,
                      .hidden = 4,
                      .heads = 2,
                      .kv_heads = 1,
                      .head_dim = 8,
                      .mlp = 4,
                      .vocab = 260,
                      .positions = 16,
                      .attention_bias = "none",
                      .norm_epsilon = 1e-5,
                      .rope_theta = 500,
                      .scaling = {true, 8, 1, 4, 64}};
    Tokenizer *t = small_tokenizer();
    GgufModel model = {
        .name = "golden", .model = &a, .tokenizer = t, .bos = 258, .eos = 258, .dtype = BF16};
    WeightSource *source = random_weights(&a, F32);
    set_golden_values(source, a.layers);
    gguf_must_write(path, &model, source);
    if (!file_read("tests/golden/llama.gguf", &golden, &n, NULL, err, sizeof err))
        fail_msg("%s", err);
    assert_true(file_read(path, &ours, &m, NULL, err, sizeof err));
    assert_int_equal(m, n);
    for (size_t i = 0; i < n; i++)
        if (golden[i] != ours[i]) fail_msg("byte %zu differs", i);
    free(golden);
    free(ours);
    free(path);
    folder_drop(folder);
    source->close(source);
    tokenizer_free(t);
}

int main(void)
{
    /* this test runs in the folder where the program was started; the others run in a scratch
     * folder */
    const struct CMUnitTest golden[] = {
        cmocka_unit_test(a_gguf_file_has_the_same_bytes_as_that_of_llama_cpp),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tensor_of_every_architecture_is_read_back),
    };
    return cmocka_run_group_tests_name("GGUF, golden", golden, NULL, NULL) +
           cmocka_run_group_tests_name("GGUF", tests, enter_scratch, leave_scratch);
}
