/* test_gguf_keys.c -- the metadata of GGUF files: each key is read back with a reader that shares
 * no code with the writer. Also tests models that GGUF cannot store, and disks that fail. */
#include "model/core/check.h"
#include "model/core/files.h"
#include "tests/support/files/data_support.h"
#include "tests/support/files/faulty_fs.h"
#include "tests/support/files/scratch.h"
#include "tests/support/model/gguf_reader.h"
#include "tests/support/model/gguf_written.h"
#include "tests/support/model/small_weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

/* Writes a file of the model with random weights, and reads it. */
static void written(const Architecture *m, const Tokenizer *t, GgufFile *f)
{
    GgufModel model = {.name = "a test",
                       .model = m,
                       .tokenizer = t,
                       .bos = t ? 257 : -1,
                       .eos = t ? 258 : -1,
                       .dtype = F32};
    WeightSource *source = random_weights(m, F32);
    gguf_must_write("model.gguf", &model, source);
    gguf_read(f, "model.gguf");
    source->close(source);
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void a_gpt2_file_has_the_expected_keys(void **state)
{
    (void)state;
    GgufFile f;
    Architecture m = small_gpt2();
    written(&m, NULL, &f);
    char *text = gguf_string(&f, "general.architecture");
    assert_string_equal(text, "gpt2");
    free(text);
    assert_int_equal(gguf_u32(&f, "gpt2.vocab_size"), SMALL_V);
    assert_int_equal(gguf_u32(&f, "gpt2.context_length"), SMALL_P);
    assert_int_equal(gguf_u32(&f, "gpt2.embedding_length"), SMALL_C);
    assert_int_equal(gguf_u32(&f, "gpt2.block_count"), SMALL_L);
    assert_int_equal(gguf_u32(&f, "gpt2.feed_forward_length"), SMALL_F);
    assert_int_equal(gguf_u32(&f, "gpt2.attention.head_count"), 2);
    assert_true(gguf_f32(&f, "gpt2.attention.layer_norm_epsilon") == 1e-5F);
    text = gguf_string(&f, "tokenizer.ggml.model");
    assert_string_equal(text, "none");
    free(text);
    assert_false(gguf_has(&f, "tokenizer.ggml.tokens"));
    assert_false(gguf_has(&f, "tokenizer.ggml.bos_token_id"));
    assert_false(gguf_has(&f, "tokenizer.ggml.add_bos_token"));
    /* innermost dimension first */
    const GgufInfo *t = gguf_tensor(&f, "blk.1.ffn_up.weight");
    assert_int_equal(t->dim[0], SMALL_C);
    assert_int_equal(t->dim[1], SMALL_F);
    t = gguf_tensor(&f, "blk.0.attn_qkv.bias");
    assert_int_equal(t->dim[0], 3 * SMALL_C);
    gguf_close(&f);
}

static void a_llama_file_has_the_expected_keys(void **state)
{
    (void)state;
    GgufFile f;
    Architecture m = small_llama();
    written(&m, NULL, &f);
    char *text = gguf_string(&f, "general.architecture");
    assert_string_equal(text, "llama");
    free(text);
    text = gguf_string(&f, "general.name");
    assert_string_equal(text, "a test");
    free(text);
    assert_int_equal(gguf_u32(&f, "llama.attention.head_count"), 4);
    assert_int_equal(gguf_u32(&f, "llama.attention.head_count_kv"), 2);
    assert_int_equal(gguf_u32(&f, "llama.attention.key_length"), 6);
    assert_int_equal(gguf_u32(&f, "llama.attention.value_length"), 6);
    assert_int_equal(gguf_u32(&f, "llama.rope.dimension_count"), 6);
    assert_true(gguf_f32(&f, "llama.rope.freq_base") == 50000);
    assert_true(gguf_f32(&f, "llama.attention.layer_norm_rms_epsilon") == 1e-6F);
    gguf_close(&f);
}

/* ---- the tokenizer --------------------------------------------------------------------------- */

static void the_file_contains_the_tokens_and_merges_of_the_tokenizer(void **state)
{
    (void)state;
    GgufFile f;
    Architecture m = small_llama();
    Tokenizer *t = small_tokenizer();
    written(&m, t, &f);
    static const struct {
        const char *key;
        int64_t at;
        const char *text;
        int type;
    } table[] = {
        {"tokenizer.ggml.tokens", 0, "!", 1},
        {"tokenizer.ggml.tokens", 220, "\xc4\xa0", 1}, /* a space is U+0120 */
        {"tokenizer.ggml.tokens", 256, "th", 1},
        {"tokenizer.ggml.tokens", 257, "the", 1},
        {"tokenizer.ggml.tokens", 258, "<|endoftext|>", 3},
        {"tokenizer.ggml.tokens", 259, "[PAD259]", 5},
        {"tokenizer.ggml.tokens", SMALL_V - 1, "[PAD299]", 5},
        {"tokenizer.ggml.merges", 0, "t h", 0},
        {"tokenizer.ggml.merges", 1, "th e", 0},
        {"tokenizer.ggml.model", -1, "gpt2", 0},
        {"tokenizer.ggml.pre", -1, "gpt-2", 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char *text = table[i].at < 0 ? gguf_string(&f, table[i].key)
                                     : gguf_string_at(&f, table[i].key, table[i].at);
        assert_string_equal(text, table[i].text);
        free(text);
        if (table[i].type)
            assert_int_equal(gguf_i32_at(&f, "tokenizer.ggml.token_type", table[i].at),
                             table[i].type);
    }
    assert_int_equal(gguf_count(&f, "tokenizer.ggml.tokens"), SMALL_V);
    assert_int_equal(gguf_count(&f, "tokenizer.ggml.token_type"), SMALL_V);
    assert_int_equal(gguf_count(&f, "tokenizer.ggml.merges"), 2);
    assert_int_equal(gguf_u32(&f, "tokenizer.ggml.bos_token_id"), 257);
    assert_int_equal(gguf_u32(&f, "tokenizer.ggml.eos_token_id"), 258);
    assert_false(gguf_bool(&f, "tokenizer.ggml.add_bos_token"));
    assert_false(gguf_bool(&f, "tokenizer.ggml.add_eos_token"));
    gguf_close(&f);
    tokenizer_free(t);
}

/* Loads a tokenizer that another program has made, writes a file with it and reads that. */
static void with_tokenizer(const char *name, GgufFile *f, int64_t *merges)
{
    char err[512], *path = text_format("tests/fuzz/corpus/tokenizer/%s.json", name);
    char *folder = folder_new(), *out = text_format("%s/model.gguf", folder);
    Tokenizer *t;
    Architecture m = small_llama();
    if (!tokenizer_load(path, &t, NULL, err, sizeof err)) fail_msg("%s", err);
    m.vocab = tokenizer_vocab_size(t) + 1;
    GgufModel model = {
        .name = "x", .model = &m, .tokenizer = t, .bos = -1, .eos = -1, .dtype = F32};
    WeightSource *source = random_weights(&m, F32);
    gguf_must_write(out, &model, source);
    gguf_read(f, out);
    *merges = tokenizer_merge_count(t);
    source->close(source);
    tokenizer_free(t);
    folder_drop(folder);
    free(path);
    free(out);
}

static void same_string(char *text, const char *expected)
{
    assert_string_equal(text, expected);
    free(text);
}

/* Numbers, names and types of tokens are those in the tokenizers' files. */
static void each_kind_of_tokenizer_gets_its_gguf_name_and_token_types(void **state)
{
    static const struct {
        const char *file, *pre, *token;
        int64_t id;
        int type;
    } table[] = {
        {"gpt2", "gpt-2", "<|end|>", 400, 3},       {"gpt2", "gpt-2", "        ", 402, 4},
        {"llama3", "llama-bpe", "<|end|>", 501, 3}, {"begin", "llama-bpe", "<|end|>", 501, 3},
        {"qwen2", "qwen2", "<|mid|>", 0, 3},        {"qwen2", "qwen2", "<e\xcc\x81>", 451, 4},
        {"smollm", "smollm", "<|end|>", 0, 3},      {"llama2", "default", "<s>", 1, 3},
        {"llama2", "default", "<0x0A>", 13, 6},     {"mistral", "default", "\xe2\x96\x81i", 411, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        GgufFile f;
        int64_t merges;
        bool characters = strcmp(table[i].pre, "default") == 0;
        with_tokenizer(table[i].file, &f, &merges);
        same_string(gguf_string(&f, "tokenizer.ggml.model"), characters ? "llama" : "gpt2");
        same_string(gguf_string(&f, "tokenizer.ggml.pre"), table[i].pre);
        same_string(gguf_string_at(&f, "tokenizer.ggml.tokens", table[i].id), table[i].token);
        /* This file's post_processor puts a token before each text. */
        assert_int_equal(gguf_bool(&f, "tokenizer.ggml.add_bos_token"),
                         strcmp(table[i].file, "begin") == 0);
        assert_int_equal(gguf_i32_at(&f, "tokenizer.ggml.token_type", table[i].id), table[i].type);
        if (characters) {
            /* The merges make the tokens from id 411 on, in this order, and each later one has a
             * lower score. */
            assert_false(gguf_has(&f, "tokenizer.ggml.merges"));
            assert_true(gguf_bool(&f, "tokenizer.ggml.add_space_prefix"));
            for (int64_t k = 0; k < merges; k++)
                assert_true(gguf_f32_at(&f, "tokenizer.ggml.scores", 411 + k) == (float)-(k + 1));
        } else {
            assert_int_equal(gguf_count(&f, "tokenizer.ggml.merges"), merges);
        }
        gguf_close(&f);
    }
}

/* The merges "ab c" and "a bc" make the same token. If another merge is between them, a score for
 * each token cannot tell their order. */
static void merges_whose_order_scores_cannot_express_are_refused(void **state)
{
    (void)state;
    for (int between = 0; between < 2; between++) {
        char err[512], *json;
        size_t size;
        Tokenizer *t;
        FILE *to = text_stream(&json, &size);
        fputs("{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":\"<unk>\","
              "\"fuse_unk\":true,\"vocab\":{\"<unk>\":0",
              to);
        for (int byte = 0; byte < 256; byte++)
            fprintf(to, ",\"<0x%02X>\":%d", byte, byte + 1);
        fprintf(to,
                ",\"a\":257,\"b\":258,\"c\":259,\"ab\":260,\"bc\":261,\"abc\":262,\"ca\":263},"
                "\"merges\":[\"a b\",\"b c\",\"ab "
                "c\",%s]},\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true,"
                "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false}],"
                "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":"
                "\"\xe2\x96\x81\"}}",
                between ? "\"c a\",\"a bc\"" : "\"a bc\",\"c a\"");
        fclose(to);
        if (!tokenizer_parse("merges", json, size, &t, err, sizeof err)) fail_msg("%s", err);
        Architecture m = small_llama();
        GgufModel model = {.name = "x", .model = &m, .tokenizer = t, .dtype = F32};
        assert_int_equal(gguf_fits(&model, err, sizeof err), !between);
        if (between) assert_non_null(strstr(err, "one score for all merges"));
        tokenizer_free(t);
        free(json);
    }
}

/* ---- refusals and faults --------------------------------------------------------------------- */

static void features_that_gguf_cannot_store_are_refused_and_the_error_names_them(void **state)
{
    (void)state;
    static const struct {
        ArchitectureKind kind;
        const char *bias;
        bool llama3;
        DType dtype;
        int64_t vocab;
        const char *says;
    } table[] = {
        {ARCHITECTURE_LLAMA, "none", true, F32, SMALL_V, NULL},
        {ARCHITECTURE_LLAMA, "none", false, F64, SMALL_V, "--dtype f32"},
        {ARCHITECTURE_QWEN2, "qkv", true, F32, SMALL_V, "model.rope_scaling.type"},
        {ARCHITECTURE_QWEN2, "qkv", false, F32, SMALL_V, "model.head_dim is 6"},
        {ARCHITECTURE_QWEN3, "all", false, F32, SMALL_V, "model.attention_bias is \"all\""},
        {ARCHITECTURE_LLAMA, "none", false, F32, 258, "the tokenizer has 259 tokens"},
        {ARCHITECTURE_LLAMA, "none", false, F32, 259, NULL},
    };
    Tokenizer *t = small_tokenizer();
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char err[512] = "";
        Architecture m = small_llama();
        m.kind = table[i].kind;
        m.attention_bias = table[i].bias;
        m.scaling.llama3 = table[i].llama3;
        m.vocab = table[i].vocab;
        GgufModel model = {.name = "x", .model = &m, .tokenizer = t, .dtype = table[i].dtype};
        bool fits = gguf_fits(&model, err, sizeof err);
        assert_int_equal(fits, table[i].says == NULL);
        if (!fits && strstr(err, table[i].says) == NULL) fail_msg("%s", err);
    }
    tokenizer_free(t);
}

static void the_error_names_each_tensor_that_does_not_fit(void **state)
{
    (void)state;
    static const char *const says[] = {"no tensor extra.weight", "tensor token.weight has 300 rows",
                                       "tensor token.weight has 8 columns",
                                       "there is no tensor head.weight",
                                       "tensor block.0.attn.q.weight has 24 rows"};
    for (int i = 0; i < 5; i++) {
        char err[512] = "";
        int64_t bytes, overflows;
        Architecture m = small_llama();
        m.tied = true;
        WeightSource *source = random_weights(&m, F32);
        GgufModel model = {.name = "x", .model = &m, .dtype = F32};
        if (i == 0) memory_source_add(source, "extra.weight", F32, 2, 2, 1);
        if (i == 1) m.vocab++;
        if (i == 2) m.hidden++;
        if (i == 3) m.tied = false;
        if (i == 4) m.heads = 6;
        assert_false(gguf_write(&fs_system, "no.gguf", &model, source, NULL, &bytes, &overflows,
                                err, sizeof err));
        if (strstr(err, says[i]) == NULL) fail_msg("%s", err);
        assert_int_not_equal(access("no.gguf", F_OK), 0);
        source->close(source);
    }
}

static void a_disk_that_fails_leaves_no_part_of_a_file(void **state)
{
    (void)state;
    char err[1024];
    int64_t bytes, overflows;
    bool good = false;
    Architecture m = small_llama();
    WeightSource *source = random_weights(&m, F32);
    GgufModel model = {.name = "x", .model = &m, .dtype = BF16};
    for (int at = 1; !good; at++) {
        FaultyFs fs;
        faulty_fs_init(&fs, FAULT_ONCE, at, EIO);
        good = gguf_write(&fs.ops, "out.gguf", &model, source, NULL, &bytes, &overflows, err,
                          sizeof err);
        if (access("out.gguf", F_OK) == 0) {
            GgufFile f;
            gguf_read(&f, "out.gguf");
            gguf_close(&f);
            assert_int_equal(unlink("out.gguf"), 0);
        }
        StringList files = {0};
        assert_false(file_list(&(StringList){1, (char *[]){(char *)(uintptr_t) "*out.gguf*"}},
                               &files, err, sizeof err));
        string_list_free(&files);
    }
    source->close(source);
}

int main(void)
{
    /* these tests run in the folder where the program was started; the others run in a scratch
     * folder */
    const struct CMUnitTest tokenizers[] = {
        cmocka_unit_test(each_kind_of_tokenizer_gets_its_gguf_name_and_token_types),
        cmocka_unit_test(merges_whose_order_scores_cannot_express_are_refused),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpt2_file_has_the_expected_keys),
        cmocka_unit_test(a_llama_file_has_the_expected_keys),
        cmocka_unit_test(the_file_contains_the_tokens_and_merges_of_the_tokenizer),
        cmocka_unit_test(features_that_gguf_cannot_store_are_refused_and_the_error_names_them),
        cmocka_unit_test(the_error_names_each_tensor_that_does_not_fit),
        cmocka_unit_test(a_disk_that_fails_leaves_no_part_of_a_file),
    };
    return cmocka_run_group_tests_name("GGUF tokenizers", tokenizers, NULL, NULL) +
           cmocka_run_group_tests_name("GGUF keys", tests, enter_scratch, leave_scratch);
}
