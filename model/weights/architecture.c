/* architecture.c -- implements architecture.h: converts between architectures and this program's
 * configs. */
#include "model/weights/architecture.h"

#include "model/core/check.h"
#include "model/core/json_write.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *architecture_name(ArchitectureKind kind)
{
    static const char *const name[ARCHITECTURE_COUNT] = {"gpt2", "llama", "qwen2", "qwen3"};
    return name[kind];
}

/* ---- to a config ----------------------------------------------------------------------------- */

static void print_number(FILE *to, const char *key, double x)
{
    char text[40];
    json_number(x, text, sizeof text);
    fprintf(to, ", \"%s\": %s", key, text);
}

static void print_integer(FILE *to, const char *key, int64_t x)
{
    fprintf(to, ", \"%s\": %lld", key, (long long)x);
}

static const char *truth(bool x)
{
    return x ? "true" : "false";
}

static void print_model(FILE *to, const Architecture *a)
{
    bool gpt2 = a->kind == ARCHITECTURE_GPT2;
    fprintf(to, "\"model\": {\"num_layers\": %lld", (long long)a->layers);
    print_integer(to, "hidden_size", a->hidden);
    print_integer(to, "num_attention_heads", a->heads);
    print_integer(to, "num_key_value_heads", a->kv_heads);
    print_integer(to, "head_dim", a->head_dim);
    print_integer(to, "intermediate_size", a->mlp);
    print_integer(to, "vocab_size", a->vocab);
    print_integer(to, "max_position_embeddings", a->positions);
    fprintf(to, ", \"norm\": \"%s\", \"position\": \"%s\", \"activation\": \"%s\"",
            gpt2 ? "layernorm" : "rmsnorm", gpt2 ? "learned" : "rope", gpt2 ? "gelu" : "swiglu");
    print_number(to, "norm_epsilon", a->norm_epsilon);
    print_number(to, "initializer_range", a->initializer_range);
    fprintf(to, ", \"bias\": %s", truth(gpt2));
    /* attention_bias and mlp_bias are derived from `bias` if they are not given, so print them only
     * if they differ from that. */
    if (strcmp(a->attention_bias, gpt2 ? "all" : "none") != 0)
        fprintf(to, ", \"attention_bias\": \"%s\"", a->attention_bias);
    if (a->mlp_bias != gpt2) fprintf(to, ", \"mlp_bias\": %s", truth(a->mlp_bias));
    fprintf(to, ", \"qk_norm\": %s, \"tie_word_embeddings\": %s",
            truth(a->kind == ARCHITECTURE_QWEN3), truth(a->tied));
    if (!gpt2) print_number(to, "rope_theta", a->rope_theta);
    if (a->scaling.llama3) {
        fputs(", \"rope_scaling\": {\"type\": \"llama3\"", to);
        print_number(to, "factor", a->scaling.factor);
        print_number(to, "low_freq_factor", a->scaling.low_freq_factor);
        print_number(to, "high_freq_factor", a->scaling.high_freq_factor);
        print_integer(to, "original_max_position_embeddings", a->scaling.original_positions);
        fputs("}", to);
    }
    fputs("},\n", to);
}

/* Sequence length in training and evaluation, unless the model accepts only shorter ones. */
enum { USUAL_LENGTH = 1024 };

char *architecture_config(const Architecture *a, DType dtype, const char *tokenizer)
{
    char *text;
    size_t size;
    FILE *to = text_stream(&text, &size);
    int64_t length = a->positions < USUAL_LENGTH ? a->positions : USUAL_LENGTH;
    fputs("{\n", to);
    print_model(to, a);
    fprintf(to, "\"data\": {\"seq_length\": %lld", (long long)length);
    if (tokenizer) {
        fputs(", \"tokenizer\": ", to);
        json_print_string(to, tokenizer);
    }
    fputs("},\n", to);
    if (dtype == BF16) fputs("\"bf16\": {\"enabled\": true},\n", to);
    if (dtype == F16) fputs("\"fp16\": {\"enabled\": true},\n", to);
    if (dtype == F64) fputs("\"fp64\": {\"enabled\": true},\n", to);
    fputs("\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 1,\n"
          "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 2e-5, \"betas\": [0.9, 0.95], "
          "\"weight_decay\": 0.1}},\n"
          "\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"warmup_ratio\": 0.05, "
          "\"warmup_type\": \"linear\", \"cos_min_ratio\": 0.1}},\n"
          "\"gradient_clipping\": 1.0\n}\n",
          to);
    fclose(to);
    return text;
}

/* ---- from a config --------------------------------------------------------------------------- */

/* Unless `fits`, appends to the message that `key` has the value `is` and would need the value
 * `needed`. */
static void require(FILE *to, bool fits, const char *key, const char *is, const char *needed)
{
    if (fits) return;
    fprintf(to, "%smodel.%s is %s and would have to be %s", ftello(to) > 0 ? "; " : "", key, is,
            needed);
}

static void fill(const Config *c, Architecture *a)
{
    *a = (Architecture){.layers = c->model.num_layers,
                        .hidden = c->model.hidden_size,
                        .heads = c->model.num_attention_heads,
                        .kv_heads = c->model.num_key_value_heads,
                        .head_dim = c->model.head_dim,
                        .mlp = c->model.intermediate_size,
                        .vocab = c->model.vocab_size,
                        .positions = c->model.max_position_embeddings,
                        .attention_bias = config_word(c, "model.attention_bias"),
                        .mlp_bias = c->model.mlp_bias,
                        .tied = c->model.tie_word_embeddings,
                        .norm_epsilon = c->model.norm_epsilon,
                        .rope_theta = c->model.rope_theta,
                        .initializer_range = c->model.initializer_range};
    const RopeScaling *scaling = &c->model.rope_scaling;
    if (scaling->type != ROPE_SCALING_LLAMA3) return;
    a->scaling.llama3 = true;
    a->scaling.factor = scaling->factor;
    a->scaling.low_freq_factor = scaling->low_freq_factor;
    a->scaling.high_freq_factor = scaling->high_freq_factor;
    a->scaling.original_positions = scaling->original_max_position_embeddings;
}

static void require_gpt2(const Config *c, const Architecture *a, FILE *to)
{
    char text[32];
    require(to, c->model.norm == NORM_LAYERNORM, "norm", config_word(c, "model.norm"),
            "\"layernorm\" with learned positions (GPT-2)");
    require(to, c->model.activation == ACTIVATION_GELU, "activation",
            config_word(c, "model.activation"), "\"gelu\" with learned positions (GPT-2)");
    require(to, c->model.bias, "bias", "false", "true with learned positions (GPT-2)");
    require(to, strcmp(a->attention_bias, "all") == 0, "attention_bias", a->attention_bias,
            "\"all\" with learned positions (GPT-2)");
    require(to, a->mlp_bias, "mlp_bias", "false", "true with learned positions (GPT-2)");
    require(to, !c->model.qk_norm, "qk_norm", "true", "false with learned positions (GPT-2)");
    snprintf(text, sizeof text, "%lld", (long long)a->kv_heads);
    require(to, a->kv_heads == a->heads, "num_key_value_heads", text,
            "num_attention_heads with learned positions (GPT-2)");
    snprintf(text, sizeof text, "%lld", (long long)a->head_dim);
    require(to, a->head_dim * a->heads == a->hidden, "head_dim", text,
            "hidden_size / num_attention_heads with learned positions (GPT-2)");
}

static void require_llama(const Config *c, Architecture *a, FILE *to)
{
    bool qkv = strcmp(a->attention_bias, "qkv") == 0;
    require(to, c->model.norm == NORM_RMSNORM, "norm", config_word(c, "model.norm"),
            "\"rmsnorm\" with RoPE (Llama)");
    require(to, c->model.activation == ACTIVATION_SWIGLU, "activation",
            config_word(c, "model.activation"), "\"swiglu\" with RoPE (Llama)");
    a->kind = c->model.qk_norm ? ARCHITECTURE_QWEN3 : qkv ? ARCHITECTURE_QWEN2 : ARCHITECTURE_LLAMA;
    require(to, !(c->model.qk_norm && qkv), "attention_bias", "\"qkv\"",
            "\"none\" or \"all\" with model.qk_norm (Qwen 3)");
    require(to, a->kind == ARCHITECTURE_LLAMA || !a->mlp_bias, "mlp_bias", "true",
            "false with QK-norm or biases on q, k and v alone (Qwen)");
}

bool architecture_of(const Config *config, Architecture *out, char *err, size_t n)
{
    char *why;
    size_t size;
    FILE *to = text_stream(&why, &size);
    fill(config, out);
    if (config->model.position == POSITION_LEARNED)
        require_gpt2(config, out, to);
    else
        require_llama(config, out, to);
    fclose(to);
    bool fits =
        size == 0 || error_set(err, n, "no architecture of other programs is this: %s", why);
    free(why);
    return fits;
}

bool architecture_check_window(const Architecture *a, const Config *config, char *err, size_t n)
{
    char length[64] = "";
    int64_t window = a->window, positions = config->model.max_position_embeddings;
    if (window == 0 || positions <= window) return true;
    if (config->data.seq_length > window)
        snprintf(length, sizeof length, " --set data.seq_length=%" PRId64, window);
    return error_set(err, n,
                     "sliding windows are not built: each token of this model sees %" PRId64
                     " tokens, and a sequence has up to %" PRId64
                     "; for sequences that the window sees whole add --set "
                     "model.max_position_embeddings=%" PRId64 "%s",
                     window, positions, window, length);
}
