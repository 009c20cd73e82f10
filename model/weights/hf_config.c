/* hf_config.c -- reads config.json of Hugging Face's libraries; see hf_config.h. */
#include "model/weights/hf_config.h"

#include "model/core/check.h"
#include "model/core/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A config.json that is being read. Errors are collected, so that all are reported at once. */
typedef struct {
    Json json;
    const char *path;
    FILE *refusals;
    int n_refusals;
} Reading;

enum { ROOT = 0, ABSENT = -1, MOST_REFUSALS = 12 };

/* Adds an error about the value at this node; ABSENT: about the whole file. */
static void __attribute__((format(printf, 3, 4))) refuse(Reading *r, int node, const char *fmt, ...)
{
    int line, column;
    if (r->n_refusals++ >= MOST_REFUSALS) return;
    if (node == ABSENT) node = ROOT;
    json_place(&r->json, r->json.node[node].key_at, &line, &column);
    fprintf(r->refusals, "%s%s:%d:%d: ", r->n_refusals > 1 ? "; " : "", r->path, line, column);
    va_list args;
    va_start(args, fmt);
    vfprintf(r->refusals, fmt, args);
    va_end(args);
}

/* Returns the node of a member of the object `parent`, or ABSENT. A member that is null counts as
 * absent, as in transformers. */
static int member(const Reading *r, int parent, const char *key)
{
    const JsonNode *node = r->json.node;
    if (!cJSON_IsObject(node[parent].item)) return ABSENT;
    for (int i = parent + 1; i < node[parent].end; i = node[i].end)
        if (strcmp(node[i].item->string, key) == 0) return cJSON_IsNull(node[i].item) ? ABSENT : i;
    return ABSENT;
}

/* Reads the integer `key`, from `least` to 2^31 - 1. If the key is missing, returns `otherwise`; a
 * negative `otherwise` means that a missing key is an error. */
static int64_t integer(Reading *r, int parent, const char *key, int64_t least, int64_t otherwise)
{
    int i = member(r, parent, key);
    int64_t x;
    if (i == ABSENT && otherwise < 0) refuse(r, parent, "%s is missing", key);
    if (i == ABSENT) return otherwise < 0 ? least : otherwise;
    if (json_integer(&r->json, i, &x) && x >= least && x <= INT32_MAX) return x;
    refuse(r, i, "%s is not an integer from %lld to %d", key, (long long)least, INT32_MAX);
    return least;
}

/* Reads the positive number `key`. If the key is missing, returns `otherwise`; if `otherwise` is 0,
 * a missing key is an error. */
static double number(Reading *r, int parent, const char *key, double otherwise)
{
    int i = member(r, parent, key);
    if (i == ABSENT && otherwise == 0) refuse(r, parent, "%s is missing", key);
    if (i == ABSENT) return otherwise;
    double x = r->json.node[i].item->valuedouble;
    if (cJSON_IsNumber(r->json.node[i].item) && x > 0 && x < 1e30) return x;
    refuse(r, i, "%s is not a positive number", key);
    return 1;
}

static bool flag(Reading *r, const char *key, bool otherwise)
{
    int i = member(r, ROOT, key);
    if (i == ABSENT) return otherwise;
    if (!cJSON_IsBool(r->json.node[i].item)) refuse(r, i, "%s is neither true nor false", key);
    return cJSON_IsTrue(r->json.node[i].item);
}

/* Reads the string `key`; returns `otherwise` if it is missing. Another type is an error and gives
 * "". */
static const char *word(Reading *r, int parent, const char *key, const char *otherwise)
{
    int i = member(r, parent, key);
    if (i == ABSENT) return otherwise;
    if (cJSON_IsString(r->json.node[i].item)) return r->json.node[i].item->valuestring;
    refuse(r, i, "%s is %s, not a string", key, json_kind(r->json.node[i].item));
    return "";
}

/* ---- what is refused ------------------------------------------------------------------------- */

/* Widely used model types that this program would compute differently, and the difference. */
static const char *const other_type[][2] = {
    {"mixtral", "experts"},
    {"qwen2_moe", "experts"},
    {"qwen3_moe", "experts"},
    {"gpt_oss", "experts"},
    {"llama4", "experts"},
    {"llama4_text", "experts"},
    {"granitemoe", "experts"},
    {"olmoe", "experts"},
    {"deepseek_v2", "experts, and keys and values from a latent vector (MLA)"},
    {"deepseek_v3", "experts, and keys and values from a latent vector (MLA)"},
    {"gemma", "scaled embeddings, and norms whose weights are stored less one"},
    {"gemma2", "scaled embeddings, norms after each half of a block, and capped logits"},
    {"gemma3", "scaled embeddings, norms after each half of a block, and sliding windows"},
    {"gemma3_text", "scaled embeddings, norms after each half of a block, and sliding windows"},
    {"phi", "both halves of a block side by side, and RoPE on a part of each head"},
    {"phi3", "q, k and v in one matrix, and gate and up in one"},
    {"gpt_neox", "both halves of a block side by side, and RoPE on a part of each head"},
    {"gptj", "both halves of a block side by side, and RoPE of neighbouring pairs"},
    {"gpt_neo", "attention that is not scaled, and local in every second block"},
    {"gpt_bigcode", "one key and value head beside learned positions"},
    {"opt", "ReLU, and positions counted from 2"},
    {"bloom", "positions as a bias of the scores (ALiBi)"},
    {"mpt", "positions as a bias of the scores (ALiBi)"},
    {"falcon", "both halves of a block side by side"},
    {"olmo", "norms without weights"},
    {"olmo2", "norms after each half of a block"},
    {"olmo3", "norms after each half of a block, and sliding windows"},
    {"cohere", "both halves of a block side by side"},
    {"cohere2", "both halves of a block side by side, and sliding windows"},
    {"granite", "factors on embeddings, attention, residuals and logits"},
    {"stablelm", "LayerNorm beside RoPE on a part of each head"},
    {"starcoder2", "LayerNorm and GELU beside RoPE"},
    {"smollm3", "blocks without RoPE"},
    {"exaone4", "blocks without RoPE, and sliding windows"},
    {"glm4", "norms after each half of a block, and RoPE on a part of each head"},
    {"mamba", "state spaces instead of attention"},
    {"mamba2", "state spaces instead of attention"},
    {"nemotron", "squared ReLU, LayerNorm, and RoPE on a part of each head"},
    {"minicpm", "factors on embeddings, residuals and logits"},
};

static bool known_type(const char *type, ArchitectureKind *kind)
{
    static const struct {
        const char *type;
        ArchitectureKind kind;
    } table[] = {{"gpt2", ARCHITECTURE_GPT2},
                 {"llama", ARCHITECTURE_LLAMA},
                 {"mistral", ARCHITECTURE_LLAMA},
                 {"qwen2", ARCHITECTURE_QWEN2},
                 {"qwen3", ARCHITECTURE_QWEN3}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(type, table[i].type) == 0) {
            *kind = table[i].kind;
            return true;
        }
    return false;
}

static void refuse_type(Reading *r, const char *type)
{
    static const char read[] = "gpt2, llama, mistral, qwen2 and qwen3 are read";
    int at = member(r, ROOT, "model_type");
    const char *why = NULL;
    for (size_t i = 0; i < sizeof other_type / sizeof *other_type; i++)
        if (strcmp(type, other_type[i][0]) == 0) why = other_type[i][1];
    if (at == ABSENT)
        refuse(r, ROOT, "model_type is missing; %s", read);
    else if (why)
        refuse(r, at, "model_type \"%s\" has %s, which are not built; %s", type, why, read);
    else
        refuse(r, at, "model_type \"%.60s\" is not known here; %s", type, read);
}

/* Refuses features that may be added to any model type. */
static void refuse_extras(Reading *r)
{
    static const char *const extra[][2] = {
        {"quantization_config", "quantised weights are not read; take the model without them"},
        {"num_experts", "experts are not built"},
        {"num_local_experts", "experts are not built"},
        {"n_routed_experts", "experts are not built"},
        {"moe_intermediate_size", "experts are not built"},
        {"kv_lora_rank", "keys and values from a latent vector (MLA) are not built"},
        {"q_lora_rank", "queries from a latent vector (MLA) are not built"},
        {"no_rope_layers", "blocks without RoPE are not built"},
        {"text_config", "a model of text and something else; its text part alone is not read"},
    };
    for (size_t i = 0; i < sizeof extra / sizeof *extra; i++) {
        int at = member(r, ROOT, extra[i][0]);
        if (at != ABSENT) refuse(r, at, "%s: %s", extra[i][0], extra[i][1]);
    }
    int part = member(r, ROOT, "partial_rotary_factor");
    if (part != ABSENT && number(r, ROOT, "partial_rotary_factor", 1) != 1)
        refuse(r, part, "partial_rotary_factor: RoPE on a part of each head is not built");
}

static void refuse_flag(Reading *r, const char *key, bool wanted, const char *why)
{
    if (flag(r, key, wanted) != wanted) refuse(r, member(r, ROOT, key), "%s: %s", key, why);
}

static void refuse_activation(Reading *r, const char *key, const char *const *known,
                              const char *otherwise)
{
    const char *is = word(r, ROOT, key, otherwise);
    int at = member(r, ROOT, key);
    for (int i = 0; known[i] != NULL; i++)
        if (strcmp(is, known[i]) == 0) return;
    refuse(r, at == ABSENT ? ROOT : at, "%s \"%.60s\" is not built for this model type; \"%s\" is",
           key, is, known[0]);
}

/* ---- RoPE ------------------------------------------------------------------------------------ */

static void read_scaling(Reading *r, int section, Architecture *out)
{
    /* Old configs call it "type", newer ones "rope_type"; some have both. */
    const char *type = word(r, section, "rope_type", word(r, section, "type", "default"));
    if (strcmp(type, "default") == 0) return;
    if (strcmp(type, "llama3") != 0) {
        refuse(r, section,
               "rope scaling of type \"%.60s\" is not built; \"llama3\" is, and models without "
               "scaling are read",
               type);
        return;
    }
    out->scaling.llama3 = true;
    out->scaling.factor = number(r, section, "factor", 0);
    out->scaling.low_freq_factor = number(r, section, "low_freq_factor", 0);
    out->scaling.high_freq_factor = number(r, section, "high_freq_factor", 0);
    out->scaling.original_positions =
        integer(r, section, "original_max_position_embeddings", 1, -1);
}

static bool same_scaling(const Architecture *a, const Architecture *b)
{
    return a->scaling.llama3 == b->scaling.llama3 && a->scaling.factor == b->scaling.factor &&
           a->scaling.low_freq_factor == b->scaling.low_freq_factor &&
           a->scaling.high_freq_factor == b->scaling.high_freq_factor &&
           a->scaling.original_positions == b->scaling.original_positions;
}

/* Reads RoPE's keys: rope_theta and rope_scaling before transformers 5, rope_parameters since. A
 * file written for both versions has all of them, and they must agree. */
static void read_rope(Reading *r, Architecture *out)
{
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    const int section[] = {member(r, ROOT, names[0]), member(r, ROOT, names[1])};
    bool given = member(r, ROOT, "rope_theta") != ABSENT;
    Architecture scaled[] = {*out, *out};
    out->rope_theta = number(r, ROOT, "rope_theta", 10000);
    for (int i = 0; i < 2; i++) {
        if (section[i] == ABSENT) continue;
        if (!cJSON_IsObject(r->json.node[section[i]].item)) {
            refuse(r, section[i], "%s is not an object", names[i]);
            continue;
        }
        for (int c = section[i] + 1; c < r->json.node[section[i]].end; c = r->json.node[c].end)
            if (cJSON_IsObject(r->json.node[c].item))
                refuse(r, c, "%s of each type of block are not built; one for all is", names[i]);
        read_scaling(r, section[i], &scaled[i]);
        out->scaling = scaled[i].scaling;
        if (member(r, section[i], "rope_theta") == ABSENT) continue;
        double theta = number(r, section[i], "rope_theta", 0);
        if (given && out->rope_theta != theta)
            refuse(r, section[i], "%s.rope_theta and rope_theta differ", names[i]);
        out->rope_theta = theta;
        given = true;
    }
    if (section[0] != ABSENT && section[1] != ABSENT && !same_scaling(&scaled[0], &scaled[1]))
        refuse(r, section[1], "rope_parameters and rope_scaling differ");
}

/* ---- sliding windows ------------------------------------------------------------------------- */

/* Returns whether a list of the blocks' attention types has one that is not full attention. */
static bool has_windows(Reading *r, int list)
{
    const JsonNode *node = r->json.node;
    for (int i = list + 1; i < node[list].end; i = node[i].end)
        if (!cJSON_IsString(node[i].item) ||
            strcmp(node[i].item->valuestring, "full_attention") != 0)
            return true;
    return false;
}

/* Reads the size of the sliding window. In Mistral's configs a missing key means 4096, null no
 * window. Qwen's have a switch and the number of blocks that have no window (max_window_layers). */
static void read_window(Reading *r, const char *type, Architecture *out)
{
    bool mistral = strcmp(type, "mistral") == 0, qwen = strncmp(type, "qwen", 4) == 0;
    int kinds = member(r, ROOT, "layer_types");
    bool there = cJSON_GetObjectItemCaseSensitive(r->json.root, "sliding_window") != NULL;
    int64_t window = integer(r, ROOT, "sliding_window", 1, mistral && !there ? 4096 : 0);
    bool used = mistral || (qwen && flag(r, "use_sliding_window", false) &&
                            integer(r, ROOT, "max_window_layers", 0, 0) < out->layers);
    if (kinds != ABSENT) used = has_windows(r, kinds);
    if (kinds != ABSENT && used && window == 0)
        refuse(r, kinds,
               "layer_types names other attention than full_attention, which is not built");
    out->window = used ? window : 0;
}

/* ---- model types ----------------------------------------------------------------------------- */

static void read_gpt2(Reading *r, Architecture *out)
{
    static const char *const activations[] = {"gelu_new", "gelu_pytorch_tanh", NULL};
    out->layers = integer(r, ROOT, "n_layer", 1, -1);
    out->hidden = integer(r, ROOT, "n_embd", 1, -1);
    out->heads = out->kv_heads = integer(r, ROOT, "n_head", 1, -1);
    out->mlp = integer(r, ROOT, "n_inner", 1, 4 * out->hidden);
    out->positions = integer(r, ROOT, "n_positions", 1, -1);
    out->norm_epsilon = number(r, ROOT, "layer_norm_epsilon", 1e-5);
    out->attention_bias = "all";
    out->mlp_bias = true;
    out->tied = flag(r, "tie_word_embeddings", true);
    out->rope_theta = 10000; /* not used: GPT-2 has no RoPE */
    if (out->hidden % out->heads != 0)
        refuse(r, member(r, ROOT, "n_embd"), "n_embd is not a multiple of n_head");
    out->head_dim = out->hidden / out->heads;
    refuse_activation(r, "activation_function", activations, "gelu_new");
    refuse_flag(r, "scale_attn_weights", true, "attention that is not scaled is not built");
    refuse_flag(r, "scale_attn_by_inverse_layer_idx", false,
                "attention that each block scales otherwise is not built");
    refuse_flag(r, "add_cross_attention", false, "attention to another text is not built");
}

static void read_llama(Reading *r, const char *type, Architecture *out)
{
    static const char *const activations[] = {"silu", "swish", NULL};
    bool has_biases = strcmp(type, "llama") == 0 || strcmp(type, "qwen3") == 0;
    out->layers = integer(r, ROOT, "num_hidden_layers", 1, -1);
    out->hidden = integer(r, ROOT, "hidden_size", 1, -1);
    out->heads = integer(r, ROOT, "num_attention_heads", 1, -1);
    out->kv_heads = integer(r, ROOT, "num_key_value_heads", 1, out->heads);
    out->head_dim = integer(r, ROOT, "head_dim", 1, out->hidden / out->heads);
    out->mlp = integer(r, ROOT, "intermediate_size", 1, -1);
    out->positions = integer(r, ROOT, "max_position_embeddings", 1, -1);
    out->norm_epsilon = number(r, ROOT, "rms_norm_eps", 1e-6);
    out->tied = flag(r, "tie_word_embeddings", false);
    bool biased = has_biases && flag(r, "attention_bias", false);
    out->attention_bias = out->kind == ARCHITECTURE_QWEN2 ? "qkv" : biased ? "all" : "none";
    out->mlp_bias = strcmp(type, "llama") == 0 && flag(r, "mlp_bias", false);
    if (member(r, ROOT, "head_dim") == ABSENT && out->hidden % out->heads != 0)
        refuse(r, ROOT, "hidden_size is no multiple of num_attention_heads; head_dim is missing");
    if (out->heads % out->kv_heads != 0)
        refuse(r, member(r, ROOT, "num_key_value_heads"),
               "num_key_value_heads does not divide num_attention_heads");
    if (out->head_dim % 2 != 0) refuse(r, ROOT, "the size of a head is odd, and RoPE turns pairs");
    refuse_activation(r, "hidden_act", activations, "silu");
    read_rope(r, out);
    read_window(r, type, out);
}

static void read_all(Reading *r, Architecture *out)
{
    if (!cJSON_IsObject(r->json.root)) {
        refuse(r, ROOT, "this is not a JSON object");
        return;
    }
    /* Refuse repeated keys: another program might use the other value. */
    for (int i = ROOT + 1; i < r->json.node[ROOT].end; i = r->json.node[i].end)
        if (json_duplicate(&r->json, ROOT, i))
            refuse(r, i, "%.60s is there twice", r->json.node[i].item->string);
    const char *type = word(r, ROOT, "model_type", "");
    if (!known_type(type, &out->kind)) {
        refuse_type(r, type);
        return;
    }
    refuse_extras(r);
    out->vocab = integer(r, ROOT, "vocab_size", 2, -1);
    out->initializer_range = number(r, ROOT, "initializer_range", 0.02);
    if (out->kind == ARCHITECTURE_GPT2)
        read_gpt2(r, out);
    else
        read_llama(r, type, out);
}

bool hf_config_parse(Architecture *out, const char *path, const char *text, size_t bytes, char *err,
                     size_t n)
{
    Reading r = {.path = path};
    char why[512], *refusals;
    size_t at, size;
    *out = (Architecture){.attention_bias = "none"};
    bool good = json_parse(&r.json, text, bytes, why, sizeof why, &at);
    if (!good) {
        int line, column;
        json_place(&r.json, at, &line, &column);
        json_free(&r.json);
        return error_set(err, n, "%s:%d:%d: %s", path, line, column, why);
    }
    r.refusals = text_stream(&refusals, &size);
    read_all(&r, out);
    if (r.n_refusals > MOST_REFUSALS)
        fprintf(r.refusals, "; %s: %d more of this kind", path, r.n_refusals - MOST_REFUSALS);
    fclose(r.refusals);
    json_free(&r.json);
    good = r.n_refusals == 0 || error_set(err, n, "%s", refusals);
    free(refusals);
    return good;
}
