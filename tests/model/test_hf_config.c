/* test_hf_config.c -- tests which config.json files of Hugging Face's libraries are read, what is
 * read from them, which are refused and by which name, and that a written one is read back. */
#include "configs/config.h"
#include "model/core/check.h"
#include "model/weights/hf_config.h"

#include <cJSON.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char gpt2[] =
    "{\"model_type\": \"gpt2\", \"vocab_size\": 50257, \"n_positions\": 1024, \"n_embd\": 768, "
    "\"n_layer\": 12, \"n_head\": 12, \"n_inner\": null, \"activation_function\": \"gelu_new\", "
    "\"layer_norm_epsilon\": 1e-5}";
static const char llama[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 32000, \"hidden_size\": 2048, "
    "\"intermediate_size\": 5632, \"num_hidden_layers\": 22, \"num_attention_heads\": 32, "
    "\"num_key_value_heads\": 4, \"hidden_act\": \"silu\", \"max_position_embeddings\": 2048, "
    "\"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": false, \"rope_theta\": 10000.0, "
    "\"rope_scaling\": null}";

/* Returns the config `base` with members replaced, added or, if the value is "-", removed; each
 * change is "key=JSON", and they are separated by line feeds. The caller frees it. */
static char *changed(const char *base, const char *changes)
{
    cJSON *json = cJSON_Parse(base);
    char *copy = must_strdup(changes);
    for (char *line = strtok(copy, "\n"); line; line = strtok(NULL, "\n")) {
        char *value = strchr(line, '=');
        *value++ = '\0';
        cJSON_DeleteItemFromObjectCaseSensitive(json, line);
        if (strcmp(value, "-") == 0) continue;
        cJSON *item = cJSON_Parse(value);
        if (item == NULL) fail_msg("%s is not JSON", value);
        cJSON_AddItemToObject(json, line, item);
    }
    char *text = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    free(copy);
    return text;
}

static bool parse(const char *base, const char *changes, Architecture *out, char *err, size_t n)
{
    char *text = changed(base, changes);
    bool good = hf_config_parse(out, "config.json", text, strlen(text), err, n);
    free(text);
    return good;
}

static Architecture parsed(const char *base, const char *changes)
{
    char err[2048];
    Architecture a;
    if (!parse(base, changes, &a, err, sizeof err)) fail_msg("%s: %s", changes, err);
    return a;
}

static void test_gpt2_is_read(void **state)
{
    (void)state;
    Architecture a = parsed(gpt2, "");
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
    assert_int_equal(parsed(gpt2, "n_inner=1000").mlp, 1000);
    assert_false(parsed(gpt2, "tie_word_embeddings=false").tied);
}

static void test_llama_and_its_like_are_read(void **state)
{
    (void)state;
    Architecture a = parsed(llama, "");
    assert_int_equal(a.kind, ARCHITECTURE_LLAMA);
    assert_int_equal(a.layers, 22);
    assert_int_equal(a.kv_heads, 4);
    assert_int_equal(a.head_dim, 64);
    assert_int_equal(a.mlp, 5632);
    assert_true(!a.tied && !a.mlp_bias && a.norm_epsilon == 1e-5 && a.rope_theta == 10000);
    assert_string_equal(a.attention_bias, "none");
    /* Keys that are null or missing have the values that transformers gives them. */
    assert_int_equal(parsed(llama, "num_key_value_heads=null").kv_heads, 32);
    assert_int_equal(parsed(llama, "num_key_value_heads=-").kv_heads, 32);
    assert_int_equal(parsed(llama, "head_dim=128").head_dim, 128);
    assert_true(parsed(llama, "rms_norm_eps=-").norm_epsilon == 1e-6);
    assert_string_equal(parsed(llama, "attention_bias=true").attention_bias, "all");
    assert_true(parsed(llama, "mlp_bias=true").mlp_bias);
    assert_int_equal(parsed(llama, "model_type=\"mistral\"\nsliding_window=null").window, 0);
    a = parsed(llama, "model_type=\"qwen2\"");
    assert_int_equal(a.kind, ARCHITECTURE_QWEN2);
    assert_string_equal(a.attention_bias, "qkv");
    a = parsed(llama, "model_type=\"qwen3\"\nhead_dim=128\nattention_bias=false");
    assert_int_equal(a.kind, ARCHITECTURE_QWEN3);
    assert_string_equal(a.attention_bias, "none");
}

static void test_both_spellings_of_rope(void **state)
{
    (void)state;
#define SCALING                                                                                    \
    "\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "                       \
    "\"original_max_position_embeddings\": 8192"
    static const char *const same[] = {
        "rope_theta=500000.0\nrope_scaling={\"rope_type\": \"llama3\", " SCALING "}",
        "rope_theta=500000.0\nrope_scaling={\"type\": \"llama3\", " SCALING "}",
        "rope_theta=-\nrope_scaling=-\n"
        "rope_parameters={\"rope_theta\": 500000.0, \"rope_type\": \"llama3\", " SCALING "}",
        "rope_theta=500000.0\nrope_scaling={\"rope_type\": \"llama3\", " SCALING "}\n"
        "rope_parameters={\"rope_theta\": 500000.0, \"rope_type\": \"llama3\", " SCALING "}",
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        Architecture a = parsed(llama, same[i]);
        assert_true(a.rope_theta == 500000 && a.scaling.llama3 && a.scaling.factor == 8 &&
                    a.scaling.low_freq_factor == 1 && a.scaling.high_freq_factor == 4);
        assert_int_equal(a.scaling.original_positions, 8192);
    }
    Architecture a = parsed(
        llama, "rope_theta=-\nrope_parameters={\"rope_theta\": 7, \"rope_type\": \"default\"}");
    assert_true(a.rope_theta == 7 && !a.scaling.llama3 && a.scaling.factor == 0);
    assert_true(parsed(llama, "rope_theta=-").rope_theta == 10000);
    assert_false(parsed(llama, "rope_scaling={\"type\": \"default\"}").scaling.llama3);
}

static void test_sliding_windows(void **state)
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
        int64_t window = parsed(llama, changes).window;
        if (window != table[i].window) fail_msg("%s: a window of %lld", changes, (long long)window);
    }
}

static void test_what_is_refused_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *base, *changes, *expected;
    } table[] = {
        {llama, "model_type=\"mixtral\"",
         "model_type \"mixtral\" has experts, which are not built"},
        {llama, "model_type=\"deepseek_v3\"", "latent vector (MLA)"},
        {llama, "model_type=\"gemma2\"", "norms after each half of a block"},
        {llama, "model_type=\"nonesuch\"",
         "model_type \"nonesuch\" is not known here; gpt2, llama"},
        {llama, "model_type=-", "model_type is missing"},
        {llama, "model_type=7", "model_type is a number, not a string"},
        {llama, "num_local_experts=8", "num_local_experts: experts are not built"},
        {llama, "kv_lora_rank=512", "kv_lora_rank: keys and values from a latent vector (MLA)"},
        {llama, "quantization_config={\"quant_method\": \"gptq\"}", "quantised weights"},
        {llama, "partial_rotary_factor=0.5", "partial_rotary_factor: RoPE on a part"},
        {llama, "hidden_act=\"gelu\"", "hidden_act \"gelu\" is not built for this model type"},
        {llama, "hidden_act=\"relu\"", "\"silu\" is"},
        {gpt2, "activation_function=\"gelu\"", "activation_function \"gelu\" is not built"},
        {gpt2, "activation_function=\"relu\"", "\"gelu_new\" is"},
        {gpt2, "scale_attn_weights=false", "scale_attn_weights: attention that is not scaled"},
        {gpt2, "scale_attn_by_inverse_layer_idx=true",
         "attention that each block scales otherwise"},
        {gpt2, "add_cross_attention=true", "attention to another text"},
        {gpt2, "n_embd=770", "n_embd is not a multiple of n_head"},
        {gpt2, "n_embd=-", "config.json:1:1: n_embd is not a multiple of n_head"},
        {llama, "rope_scaling={\"type\": \"linear\", \"factor\": 2.0}",
         "rope scaling of type \"linear\" is not built; \"llama3\" is"},
        {llama, "rope_scaling={\"type\": \"dynamic\", \"factor\": 2.0}", "type \"dynamic\""},
        {llama, "rope_scaling={\"rope_type\": \"yarn\", \"factor\": 4.0}", "type \"yarn\""},
        {llama, "rope_parameters={\"rope_type\": \"longrope\"}", "type \"longrope\""},
        {llama, "rope_scaling={\"rope_type\": \"llama3\", \"factor\": 8}",
         "low_freq_factor is missing"},
        {llama, "rope_scaling=2", "rope_scaling is not an object"},
        {llama, "rope_parameters={\"full_attention\": {\"rope_theta\": 1}}", "each type of block"},
        {llama, "rope_parameters={\"rope_theta\": 5}", "rope_theta and rope_theta differ"},
        {llama,
         "rope_theta=-\nrope_scaling={\"rope_theta\": 7}\nrope_parameters={\"rope_theta\": 8}",
         "rope_parameters.rope_theta and rope_theta differ"},
        {llama,
         "rope_scaling={\"rope_type\": \"llama3\", " SCALING "}\n"
         "rope_parameters={\"rope_type\": \"default\"}",
         "rope_parameters and rope_scaling differ"},
        {llama,
         "rope_scaling={\"type\": \"default\"}\n"
         "rope_parameters={\"rope_type\": \"llama3\", " SCALING "}",
         "rope_parameters and rope_scaling differ"},
        {llama, "rope_theta=0", "rope_theta is not a positive number"},
        {llama, "layer_types=[\"linear_attention\"]", "other attention than full_attention"},
        {llama, "vocab_size=-", "vocab_size is missing"},
        {llama, "num_hidden_layers=0", "num_hidden_layers is not an integer from 1"},
        {llama, "num_hidden_layers=2.5", "num_hidden_layers is not an integer"},
        {llama, "hidden_size=1e30", "hidden_size is not an integer"},
        {llama, "num_key_value_heads=5", "num_key_value_heads does not divide"},
        {llama, "head_dim=63", "the size of a head is odd"},
        {llama, "hidden_size=2050", "head_dim is missing"},
        {llama, "tie_word_embeddings=1", "tie_word_embeddings is neither true nor false"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char err[2048] = "";
        Architecture a;
        if (parse(table[i].base, table[i].changes, &a, err, sizeof err))
            fail_msg("%s is read", table[i].changes);
        if (strstr(err, table[i].expected) == NULL || strncmp(err, "config.json:1:", 14) != 0)
            fail_msg("%s: %s", table[i].changes, err);
    }
}

static void test_all_refusals_come_at_once(void **state)
{
    (void)state;
    char err[2048];
    Architecture a;
    assert_false(
        parse(llama, "hidden_act=\"gelu\"\nnum_experts=4\nvocab_size=-", &a, err, sizeof err));
    assert_non_null(strstr(err, "hidden_act"));
    assert_non_null(strstr(err, "; config.json:1:1: vocab_size is missing; "));
    assert_non_null(strstr(err, "num_experts"));
    static const char *const broken[] = {"",
                                         "[]",
                                         "7",
                                         "{",
                                         "{\"model_type\": \"llama\",,}",
                                         "{\"a\": 1, \"a\": 2, \"model_type\": \"llama\"}"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        assert_false(
            hf_config_parse(&a, "config.json", broken[i], strlen(broken[i]), err, sizeof err));
    assert_non_null(strstr(err, "a is there twice"));
}

/* A file that is cut anywhere, or has one byte changed, is refused or read as valid numbers. */
static void test_any_cut_or_change_is_survived(void **state)
{
    (void)state;
    char err[4096];
    Architecture a;
    size_t n = strlen(llama);
    for (size_t cut = 0; cut < n; cut++)
        assert_false(hf_config_parse(&a, "config.json", llama, cut, err, sizeof err));
    char text[sizeof llama];
    for (size_t at = 0; at < n; at++)
        for (int bit = 0; bit < 8; bit++) {
            memcpy(text, llama, sizeof llama);
            text[at] = (char)(text[at] ^ 1 << bit);
            if (!hf_config_parse(&a, "config.json", text, n, err, sizeof err)) continue;
            assert_true(a.layers > 0 && a.hidden > 0 && a.heads > 0 && a.kv_heads > 0 &&
                        a.heads % a.kv_heads == 0 && a.head_dim > 0 && a.vocab > 1);
        }
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

/* config.json -> our config -> config.json, which is read to the same. */
static void test_configs_go_both_ways(void **state)
{
    (void)state;
    static const struct {
        const char *base, *changes;
    } table[] = {
        {gpt2, ""},
        {gpt2, "tie_word_embeddings=false\nn_inner=100"},
        {llama, ""},
        {llama, "head_dim=128\ntie_word_embeddings=true\nrope_theta=1000000.0"},
        {llama, "model_type=\"qwen3\"\nhead_dim=128"},
        {llama, "model_type=\"qwen3\"\nattention_bias=true"},
        {llama, "model_type=\"qwen2\""},
        {llama, "attention_bias=true\nmlp_bias=true"},
        {llama, "attention_bias=true"},
        {llama, "rope_scaling={\"rope_type\": \"llama3\", " SCALING "}"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char err[2048];
        Architecture a = parsed(table[i].base, table[i].changes), b, c;
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
    assert_int_equal(parsed(llama, "max_position_embeddings=131072").positions, 131072);
    Architecture shorter = parsed(llama, "max_position_embeddings=77");
    const Config *config = our_config(&shorter, F32);
    assert_int_equal(config->data.seq_length, 77);
    assert_int_equal(config_dtype(config), F32);
    config_free(config);
}

#define ROPE                                                                                       \
    "\"bias\": false, \"norm\": \"rmsnorm\", \"position\": \"rope\", \"activation\": \"swiglu\""

static void test_models_without_an_architecture_are_refused(void **state)
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
        cmocka_unit_test(test_gpt2_is_read),
        cmocka_unit_test(test_llama_and_its_like_are_read),
        cmocka_unit_test(test_both_spellings_of_rope),
        cmocka_unit_test(test_sliding_windows),
        cmocka_unit_test(test_what_is_refused_is_named),
        cmocka_unit_test(test_all_refusals_come_at_once),
        cmocka_unit_test(test_any_cut_or_change_is_survived),
        cmocka_unit_test(test_configs_go_both_ways),
        cmocka_unit_test(test_models_without_an_architecture_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
