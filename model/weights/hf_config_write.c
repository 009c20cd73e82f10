/* hf_config_write.c -- writes config.json for Hugging Face's libraries; see hf_config.h. */
#include "model/weights/hf_config.h"

#include "model/core/check.h"
#include "model/core/json_write.h"

#include <stdio.h>
#include <stdlib.h>

static void put_integer(FILE *to, const char *key, int64_t x)
{
    fprintf(to, ",\n  \"%s\": %lld", key, (long long)x);
}

static void put_number(FILE *to, const char *key, double x)
{
    char text[40];
    json_number(x, text, sizeof text);
    fprintf(to, ",\n  \"%s\": %s", key, text);
}

static void put_word(FILE *to, const char *key, const char *word)
{
    fprintf(to, ",\n  \"%s\": \"%s\"", key, word);
}

static void put_flag(FILE *to, const char *key, bool x)
{
    fprintf(to, ",\n  \"%s\": %s", key, x ? "true" : "false");
}

static void put_token(FILE *to, const char *key, int32_t id)
{
    if (id < 0)
        fprintf(to, ",\n  \"%s\": null", key);
    else
        put_integer(to, key, id);
}

/* Prints the members for RoPE scaling; with `old` also "type", the name of "rope_type" in old
 * versions. */
static void put_scaling(FILE *to, const Architecture *a, bool old)
{
    char factor[40], low[40], high[40];
    json_number(a->scaling.factor, factor, sizeof factor);
    json_number(a->scaling.low_freq_factor, low, sizeof low);
    json_number(a->scaling.high_freq_factor, high, sizeof high);
    fprintf(to,
            "%s\"rope_type\": \"llama3\", \"factor\": %s, \"low_freq_factor\": %s, "
            "\"high_freq_factor\": %s, \"original_max_position_embeddings\": %lld",
            old ? "\"type\": \"llama3\", " : "", factor, low, high,
            (long long)a->scaling.original_positions);
}

static void put_rope(FILE *to, const Architecture *a)
{
    char theta[40];
    json_number(a->rope_theta, theta, sizeof theta);
    put_number(to, "rope_theta", a->rope_theta);
    fputs(",\n  \"rope_scaling\": ", to);
    fputs(a->scaling.llama3 ? "{" : "null", to);
    if (a->scaling.llama3) put_scaling(to, a, true);
    fprintf(to, "%s,\n  \"rope_parameters\": {\"rope_theta\": %s, ", a->scaling.llama3 ? "}" : "",
            theta);
    if (a->scaling.llama3)
        put_scaling(to, a, false);
    else
        fputs("\"rope_type\": \"default\"", to);
    fputs("}", to);
}

static void put_gpt2(FILE *to, const Architecture *a)
{
    put_integer(to, "n_layer", a->layers);
    put_integer(to, "n_embd", a->hidden);
    put_integer(to, "n_head", a->heads);
    put_integer(to, "n_inner", a->mlp);
    put_integer(to, "n_positions", a->positions);
    put_integer(to, "n_ctx", a->positions);
    put_word(to, "activation_function", "gelu_new");
    put_number(to, "layer_norm_epsilon", a->norm_epsilon);
    fputs(",\n  \"attn_pdrop\": 0.0,\n  \"embd_pdrop\": 0.0,\n  \"resid_pdrop\": 0.0", to);
    put_flag(to, "scale_attn_weights", true);
}

static void put_llama(FILE *to, const Architecture *a)
{
    put_integer(to, "num_hidden_layers", a->layers);
    put_integer(to, "hidden_size", a->hidden);
    put_integer(to, "num_attention_heads", a->heads);
    put_integer(to, "num_key_value_heads", a->kv_heads);
    put_integer(to, "head_dim", a->head_dim);
    put_integer(to, "intermediate_size", a->mlp);
    put_integer(to, "max_position_embeddings", a->positions);
    put_word(to, "hidden_act", "silu");
    put_number(to, "rms_norm_eps", a->norm_epsilon);
    put_rope(to, a);
    fputs(",\n  \"attention_dropout\": 0.0", to);
    if (a->kind != ARCHITECTURE_QWEN2) put_flag(to, "attention_bias", *a->attention_bias == 'a');
    if (a->kind == ARCHITECTURE_LLAMA) put_flag(to, "mlp_bias", a->mlp_bias);
    if (a->kind != ARCHITECTURE_LLAMA) put_flag(to, "use_sliding_window", false);
}

char *hf_config_print(const Architecture *a, DType dtype, int32_t bos, int32_t eos)
{
    static const char *const class[ARCHITECTURE_COUNT] = {"GPT2LMHeadModel", "LlamaForCausalLM",
                                                          "Qwen2ForCausalLM", "Qwen3ForCausalLM"};
    static const char *const word[DTYPE_COUNT] = {
        [F64] = "float64", [F32] = "float32", [BF16] = "bfloat16", [F16] = "float16"};
    char *text;
    size_t size;
    FILE *to = text_stream(&text, &size);
    fprintf(to, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\"", class[a->kind],
            architecture_name(a->kind));
    put_integer(to, "vocab_size", a->vocab);
    if (a->kind == ARCHITECTURE_GPT2)
        put_gpt2(to, a);
    else
        put_llama(to, a);
    put_flag(to, "tie_word_embeddings", a->tied);
    put_number(to, "initializer_range", a->initializer_range);
    put_token(to, "bos_token_id", bos);
    put_token(to, "eos_token_id", eos);
    put_word(to, "dtype", word[dtype]);
    put_word(to, "torch_dtype", word[dtype]);
    put_flag(to, "use_cache", true);
    fputs("\n}\n", to);
    fclose(to);
    return text;
}
