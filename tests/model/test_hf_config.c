/* test_hf_config.c -- tests which config.json files of Hugging Face's libraries are read, what is
 * read from them, which are refused and by which name, and that a written one is read back. */
#include "configs/config.h"
#include "model/core/check.h"
#include "model/weights/hf_config.h"
#include "tests/support/model/hf_configs.h"

#include <cJSON.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_a_gpt2_config_gives_the_expected_architecture(void **state)
{
    (void)state;
    Architecture a = hf_config_parsed(hf_config_gpt2, "");
    assert_int_equal(a.kind, ARCHITECTURE_GPT2);
    assert_int_equal(a.layers, 12);
    assert_int_equal(a.hidden, 768);
    assert_int_equal(a.heads, 12);
    assert_int_equal(a.kv_heads, 12);
    assert_int_equal(a.head_dim, 64);
    assert_int_equal(a.mlp, 3072);
    assert_int_equal(a.vocab, 50257);
    assert_int_equal(a.positions, 1024);
    assert_true(a.tied && a.mlp_bias && a.norm_epsilon == 1e-5);
    assert_string_equal(a.attention_bias, "all");
    assert_int_equal(a.window, 0);
    assert_int_equal(hf_config_parsed(hf_config_gpt2, "n_inner=1000").mlp, 1000);
    assert_false(hf_config_parsed(hf_config_gpt2, "tie_word_embeddings=false").tied);
}

static void test_configs_of_llama_like_models_give_the_expected_architectures(void **state)
{
    (void)state;
    Architecture a = hf_config_parsed(hf_config_llama, "");
    assert_int_equal(a.kind, ARCHITECTURE_LLAMA);
    assert_int_equal(a.layers, 22);
    assert_int_equal(a.kv_heads, 4);
    assert_int_equal(a.head_dim, 64);
    assert_int_equal(a.mlp, 5632);
    assert_true(!a.tied && !a.mlp_bias && a.norm_epsilon == 1e-5 && a.rope_theta == 10000);
    assert_string_equal(a.attention_bias, "none");
    /* Keys that are null or missing have the values that transformers gives them. */
    assert_int_equal(hf_config_parsed(hf_config_llama, "num_key_value_heads=null").kv_heads, 32);
    assert_int_equal(hf_config_parsed(hf_config_llama, "num_key_value_heads=-").kv_heads, 32);
    assert_int_equal(hf_config_parsed(hf_config_llama, "head_dim=128").head_dim, 128);
    assert_true(hf_config_parsed(hf_config_llama, "rms_norm_eps=-").norm_epsilon == 1e-6);
    assert_string_equal(hf_config_parsed(hf_config_llama, "attention_bias=true").attention_bias,
                        "all");
    assert_true(hf_config_parsed(hf_config_llama, "mlp_bias=true").mlp_bias);
    assert_int_equal(
        hf_config_parsed(hf_config_llama, "model_type=\"mistral\"\nsliding_window=null").window, 0);
    a = hf_config_parsed(hf_config_llama, "model_type=\"qwen2\"");
    assert_int_equal(a.kind, ARCHITECTURE_QWEN2);
    assert_string_equal(a.attention_bias, "qkv");
    a = hf_config_parsed(hf_config_llama,
                         "model_type=\"qwen3\"\nhead_dim=128\nattention_bias=false");
    assert_int_equal(a.kind, ARCHITECTURE_QWEN3);
    assert_string_equal(a.attention_bias, "none");
}

static void test_old_and_new_spellings_of_rope_keys_are_read_alike(void **state)
{
    (void)state;
    static const char *const same[] = {
        "rope_theta=500000.0\nrope_scaling={\"rope_type\": \"llama3\", " HF_LLAMA3_SCALING "}",
        "rope_theta=500000.0\nrope_scaling={\"type\": \"llama3\", " HF_LLAMA3_SCALING "}",
        "rope_theta=-\nrope_scaling=-\n"
        "rope_parameters={\"rope_theta\": 500000.0, \"rope_type\": \"llama3\", " HF_LLAMA3_SCALING
        "}",
        "rope_theta=500000.0\nrope_scaling={\"rope_type\": \"llama3\", " HF_LLAMA3_SCALING "}\n"
        "rope_parameters={\"rope_theta\": 500000.0, \"rope_type\": \"llama3\", " HF_LLAMA3_SCALING
        "}",
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        Architecture a = hf_config_parsed(hf_config_llama, same[i]);
        assert_true(a.rope_theta == 500000 && a.scaling.llama3 && a.scaling.factor == 8 &&
                    a.scaling.low_freq_factor == 1 && a.scaling.high_freq_factor == 4);
        assert_int_equal(a.scaling.original_positions, 8192);
    }
    Architecture a = hf_config_parsed(
        hf_config_llama,
        "rope_theta=-\nrope_parameters={\"rope_theta\": 7, \"rope_type\": \"default\"}");
    assert_true(a.rope_theta == 7 && !a.scaling.llama3 && a.scaling.factor == 0);
    assert_true(hf_config_parsed(hf_config_llama, "rope_theta=-").rope_theta == 10000);
    assert_false(
        hf_config_parsed(hf_config_llama, "rope_scaling={\"type\": \"default\"}").scaling.llama3);
}

static void test_each_model_type_gives_the_expected_sliding_window(void **state)
{
    (void)state;
    static const char mistral[] = "model_type=\"mistral\"\n", qwen[] = "model_type=\"qwen2\"\n";
    char changes[256];
    static const struct {
        const char *type, *keys;
        int64_t window;
    } table[] = {
        {mistral, "sliding_window=4096", 4096},
        {mistral, "", 4096}, /* transformers' default */
        {mistral, "sliding_window=null", 0},
        {qwen, "sliding_window=512", 0}, /* not used unless asked for */
        {qwen, "sliding_window=512\nuse_sliding_window=false\nmax_window_layers=0", 0},
        {qwen, "sliding_window=512\nuse_sliding_window=true\nmax_window_layers=21", 512},
        {qwen, "sliding_window=512\nuse_sliding_window=true\nmax_window_layers=22", 0},
        {qwen, "sliding_window=512\nlayer_types=[\"full_attention\", \"sliding_attention\"]", 512},
        {qwen, "sliding_window=512\nlayer_types=[\"full_attention\", \"full_attention\"]", 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        snprintf(changes, sizeof changes, "%s%s", table[i].type, table[i].keys);
        int64_t window = hf_config_parsed(hf_config_llama, changes).window;
        if (window != table[i].window) fail_msg("%s: a window of %lld", changes, (long long)window);
    }
}

/* A file that is cut anywhere, or has one byte changed, is refused or read as valid numbers. */
static void test_a_cut_or_changed_config_never_crashes_the_reader(void **state)
{
    (void)state;
    char err[4096];
    Architecture a;
    size_t n = strlen(hf_config_llama);
    for (size_t cut = 0; cut < n; cut++)
        assert_false(hf_config_parse(&a, "config.json", hf_config_llama, cut, err, sizeof err));
    char *text = must_alloc(n + 1);
    for (size_t at = 0; at < n; at++)
        for (int bit = 0; bit < 8; bit++) {
            memcpy(text, hf_config_llama, n + 1);
            text[at] = (char)(text[at] ^ 1 << bit);
            if (!hf_config_parse(&a, "config.json", text, n, err, sizeof err)) continue;
            assert_true(a.layers > 0 && a.hidden > 0 && a.heads > 0 && a.kv_heads > 0 &&
                        a.heads % a.kv_heads == 0 && a.head_dim > 0 && a.vocab > 1);
        }
    free(text);
}

/* ---- our configs ----------------------------------------------------------------------------- */

static const Config *our_config(const Architecture *a, DType dtype)
{
    ConfigReport report = {0};
    char *text = architecture_config(a, dtype, "x/tokenizer.json");
    const Config *config = config_parse(&(ConfigContext){.stored = true}, "imported", text,
                                        strlen(text), 0, NULL, &report);
    if (config == NULL) fail_msg("%s", report.error[0]);
    config_report_free(&report);
    free(text);
    return config;
}

static void check_same(const Architecture *a, const Architecture *b)
{
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->layers, b->layers);
    assert_int_equal(a->hidden, b->hidden);
    assert_int_equal(a->heads, b->heads);
    assert_int_equal(a->kv_heads, b->kv_heads);
    assert_int_equal(a->head_dim, b->head_dim);
    assert_int_equal(a->mlp, b->mlp);
    assert_int_equal(a->vocab, b->vocab);
    assert_int_equal(a->positions, b->positions);
    assert_int_equal(a->mlp_bias, b->mlp_bias);
    assert_int_equal(a->tied, b->tied);
    assert_string_equal(a->attention_bias, b->attention_bias);
    assert_true(a->norm_epsilon == b->norm_epsilon && a->rope_theta == b->rope_theta &&
                a->initializer_range == b->initializer_range);
    assert_int_equal(a->scaling.llama3, b->scaling.llama3);
    assert_true(a->scaling.factor == b->scaling.factor &&
                a->scaling.low_freq_factor == b->scaling.low_freq_factor &&
                a->scaling.high_freq_factor == b->scaling.high_freq_factor);
    assert_int_equal(a->scaling.original_positions, b->scaling.original_positions);
}

/* config.json -> our config -> config.json, which must give the same architecture when it is
 * read. */
static void test_configs_are_the_same_after_writing_and_reading(void **state)
{
    (void)state;
    static const struct {
        const char *base, *changes;
    } table[] = {
        {hf_config_gpt2, ""},
        {hf_config_gpt2, "tie_word_embeddings=false\nn_inner=100"},
        {hf_config_llama, ""},
        {hf_config_llama, "head_dim=128\ntie_word_embeddings=true\nrope_theta=1000000.0"},
        {hf_config_llama, "model_type=\"qwen3\"\nhead_dim=128"},
        {hf_config_llama, "model_type=\"qwen3\"\nattention_bias=true"},
        {hf_config_llama, "model_type=\"qwen2\""},
        {hf_config_llama, "attention_bias=true\nmlp_bias=true"},
        {hf_config_llama, "attention_bias=true"},
        {hf_config_llama, "rope_scaling={\"rope_type\": \"llama3\", " HF_LLAMA3_SCALING "}"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char err[2048];
        Architecture a = hf_config_parsed(table[i].base, table[i].changes), b, c;
        const Config *config = our_config(&a, BF16);
        assert_int_equal(config_dtype(config), BF16);
        assert_int_equal(config->data.seq_length, 1024);
        assert_string_equal(config->data.tokenizer, "x/tokenizer.json");
        if (!architecture_of(config, &b, err, sizeof err)) fail_msg("%s", err);
        check_same(&a, &b);
        char *text = hf_config_print(&b, BF16, 1, -1);
        if (!hf_config_parse(&c, "config.json", text, strlen(text), err, sizeof err))
            fail_msg("%s", err);
        check_same(&a, &c);
        assert_non_null(strstr(text, "\"dtype\": \"bfloat16\""));
        assert_non_null(strstr(text, "\"bos_token_id\": 1,"));
        assert_non_null(strstr(text, "\"eos_token_id\": null,"));
        free(text);
        config_free(config);
    }
    assert_int_equal(hf_config_parsed(hf_config_llama, "max_position_embeddings=131072").positions,
                     131072);
    Architecture shorter = hf_config_parsed(hf_config_llama, "max_position_embeddings=77");
    const Config *config = our_config(&shorter, F32);
    assert_int_equal(config->data.seq_length, 77);
    assert_int_equal(config_dtype(config), F32);
    config_free(config);
}

#define ROPE                                                                                       \
    "\"bias\": false, \"norm\": \"rmsnorm\", \"position\": \"rope\", \"activation\": \"swiglu\""

static void test_configs_that_no_architecture_fits_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *model, *expected;
    } table[] = {
        {"\"activation\": \"relu2\"", "model.activation is relu2 and would have to be \"gelu\""},
        {"\"bias\": false", "model.bias is false and would have to be true"},
        {"\"num_key_value_heads\": 3", "model.num_key_value_heads is 3"},
        {"\"position\": \"rope\", \"norm\": \"rmsnorm\"", "model.activation is gelu"},
        {"\"position\": \"rope\", \"activation\": \"swiglu\", \"bias\": false",
         "model.norm is layernorm and would have to be \"rmsnorm\""},
        {"\"head_dim\": 32", "model.head_dim is 32"},
        {"\"qk_norm\": true", "model.qk_norm is true"},
        {"\"attention_bias\": \"qkv\"", "model.attention_bias is qkv and would have to be"},
        {"\"mlp_bias\": false", "model.mlp_bias is false"},
        {"\"attention_bias\": \"qkv\", \"mlp_bias\": true, " ROPE, "model.mlp_bias is true"},
        {"\"attention_bias\": \"qkv\", \"qk_norm\": true, " ROPE, "with model.qk_norm (Qwen 3)"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char *text = text_format("{\"model\": {\"vocab_size\": 300, %s}}", table[i].model),
             err[1024];
        ConfigReport report = {0};
        Architecture a;
        const Config *config = config_parse(&(ConfigContext){.stored = true}, "c", text,
                                            strlen(text), 0, NULL, &report);
        if (config == NULL) fail_msg("%s", report.error[0]);
        if (architecture_of(config, &a, err, sizeof err)) fail_msg("%s", text);
        if (strstr(err, table[i].expected) == NULL) fail_msg("%s: %s", text, err);
        config_report_free(&report);
        config_free(config);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_gpt2_config_gives_the_expected_architecture),
        cmocka_unit_test(test_configs_of_llama_like_models_give_the_expected_architectures),
        cmocka_unit_test(test_old_and_new_spellings_of_rope_keys_are_read_alike),
        cmocka_unit_test(test_each_model_type_gives_the_expected_sliding_window),
        cmocka_unit_test(test_a_cut_or_changed_config_never_crashes_the_reader),
        cmocka_unit_test(test_configs_are_the_same_after_writing_and_reading),
        cmocka_unit_test(test_configs_that_no_architecture_fits_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
