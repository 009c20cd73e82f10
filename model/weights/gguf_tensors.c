/* gguf_tensors.c -- makes the list of a GGUF file's tensors: their names, shapes and types, and the
 * tensors of ours that they consist of. See gguf_parts.h. */
#include "configs/rope.h"
#include "model/core/check.h"
#include "model/weights/gguf_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The condition under which an architecture has a tensor; the function `has` evaluates it. */
typedef enum {
    ALWAYS,
    GPT2,
    GATED,
    SPLIT_QKV,
    QKV_BIAS,
    OUT_BIAS,
    MLP_BIAS,
    GATE_BIAS,
    QK_NORM,
    UNTIED
} When;

/* A tensor: its name in the file, the names of our tensors that it holds, and its shape, with a
 * letter for each dimension (size_of); 0 columns: a vector. For a tensor of a block, the block's
 * name is put before all these names. */
typedef struct {
    const char *name, *ours[GGUF_MOST_PARTS];
    char rows, cols;
    When when;
    bool turned; /* RoPE rotates these rows */
} Row;

static const Row before_blocks[] = {
    {"token_embd.weight", {"token.weight"}, 'V', 'C', ALWAYS, false},
    {"position_embd.weight", {"position.weight"}, 'P', 'C', GPT2, false},
};
static const Row of_block[] = {
    {"attn_norm.weight", {"attn.norm.weight"}, 'C', 0, ALWAYS, false},
    {"attn_norm.bias", {"attn.norm.bias"}, 'C', 0, GPT2, false},
    {"attn_qkv.weight", {"attn.q.weight", "attn.k.weight", "attn.v.weight"}, '3', 'C', GPT2, false},
    {"attn_qkv.bias", {"attn.q.bias", "attn.k.bias", "attn.v.bias"}, '3', 0, GPT2, false},
    {"attn_q.weight", {"attn.q.weight"}, 'Q', 'C', SPLIT_QKV, true},
    {"attn_k.weight", {"attn.k.weight"}, 'K', 'C', SPLIT_QKV, true},
    {"attn_v.weight", {"attn.v.weight"}, 'K', 'C', SPLIT_QKV, false},
    {"attn_q.bias", {"attn.q.bias"}, 'Q', 0, QKV_BIAS, true},
    {"attn_k.bias", {"attn.k.bias"}, 'K', 0, QKV_BIAS, true},
    {"attn_v.bias", {"attn.v.bias"}, 'K', 0, QKV_BIAS, false},
    {"attn_q_norm.weight", {"attn.q_norm.weight"}, 'D', 0, QK_NORM, false},
    {"attn_k_norm.weight", {"attn.k_norm.weight"}, 'D', 0, QK_NORM, false},
    {"attn_output.weight", {"attn.out.weight"}, 'C', 'Q', ALWAYS, false},
    {"attn_output.bias", {"attn.out.bias"}, 'C', 0, OUT_BIAS, false},
    {"ffn_norm.weight", {"mlp.norm.weight"}, 'C', 0, ALWAYS, false},
    {"ffn_norm.bias", {"mlp.norm.bias"}, 'C', 0, GPT2, false},
    {"ffn_gate.weight", {"mlp.gate.weight"}, 'F', 'C', GATED, false},
    {"ffn_gate.bias", {"mlp.gate.bias"}, 'F', 0, GATE_BIAS, false},
    {"ffn_up.weight", {"mlp.up.weight"}, 'F', 'C', ALWAYS, false},
    {"ffn_up.bias", {"mlp.up.bias"}, 'F', 0, MLP_BIAS, false},
    {"ffn_down.weight", {"mlp.down.weight"}, 'C', 'F', ALWAYS, false},
    {"ffn_down.bias", {"mlp.down.bias"}, 'C', 0, MLP_BIAS, false},
};
static const Row after_blocks[] = {
    {"output_norm.weight", {"final_norm.weight"}, 'C', 0, ALWAYS, false},
    {"output_norm.bias", {"final_norm.bias"}, 'C', 0, GPT2, false},
    {"output.weight", {"head.weight"}, 'V', 'C', UNTIED, false},
};
enum {
    BEFORE = sizeof before_blocks / sizeof *before_blocks,
    BLOCK = sizeof of_block / sizeof *of_block,
    AFTER = sizeof after_blocks / sizeof *after_blocks
};

static bool has(const Architecture *m, When when)
{
    bool gpt2 = m->kind == ARCHITECTURE_GPT2, all = strcmp(m->attention_bias, "all") == 0;
    switch (when) {
    case ALWAYS: return true;
    case GPT2: return gpt2;
    case GATED:
    case SPLIT_QKV: return !gpt2;
    case QKV_BIAS: return !gpt2 && strcmp(m->attention_bias, "none") != 0;
    case OUT_BIAS: return all;
    case MLP_BIAS: return m->mlp_bias;
    case GATE_BIAS: return m->mlp_bias && !gpt2;
    case QK_NORM: return m->kind == ARCHITECTURE_QWEN3;
    case UNTIED: return !m->tied;
    }
    return false;
}

static int64_t size_of(const Architecture *m, char letter)
{
    switch (letter) {
    case 'C': return m->hidden;
    case 'V': return m->vocab;
    case 'P': return m->positions;
    case 'Q': return m->heads * m->head_dim;
    case 'K': return m->kv_heads * m->head_dim;
    case '3': return (m->heads + 2 * m->kv_heads) * m->head_dim;
    case 'D': return m->head_dim;
    case 'F': return m->mlp;
    default: return 0;
    }
}

/* ---- the list -------------------------------------------------------------------------------- */

/* The values that do not change while the list is made. */
typedef struct {
    GgufTensors *list;
    const GgufModel *model;
    const WeightSource *source;
    char *err;
    size_t n;
} Listing;

/* Finds the parts of a tensor in the source and checks that together they have its shape. `block`
 * is our name of the block, or "". */
static bool find_parts(Listing *l, const Row *row, const char *block, GgufTensor *t)
{
    int64_t rows = 0;
    for (int p = 0; p < GGUF_MOST_PARTS && row->ours[p]; p++) {
        char name[GGUF_NAME];
        snprintf(name, sizeof name, "%s%s", block, row->ours[p]);
        int i = weight_source_find(l->source, name);
        if (i < 0) return error_set(l->err, l->n, "there is no tensor %s", name);
        const SourceTensor *s = &l->source->tensor[i];
        if (s->ndim != (t->cols ? 2 : 1) || s->dim[1] != (t->cols ? t->cols : 1))
            return error_set(l->err, l->n, "tensor %s has %lld columns, the config describes %lld",
                             name, (long long)s->dim[1], (long long)(t->cols ? t->cols : 1));
        rows += s->dim[0];
        t->part[t->n_parts++] = i;
    }
    return rows == t->rows ||
           error_set(l->err, l->n, "tensor %s%s has %lld rows, the config describes %lld", block,
                     row->ours[0], (long long)rows, (long long)t->rows);
}

/* Adds a tensor if the architecture has it. `number` is the number of its block, or -1. */
static bool add(Listing *l, const Row *row, int64_t number)
{
    const Architecture *m = l->model->model;
    char ours[32] = "";
    if (!has(m, row->when)) return true;
    GgufTensor *t = &l->list->tensor[l->list->count++];
    *t = (GgufTensor){.rows = size_of(m, row->rows), .cols = size_of(m, row->cols)};
    bool plain = t->cols == 0 || strcmp(row->name, "position_embd.weight") == 0;
    t->dtype = plain ? F32 : l->model->dtype;
    /* For Llama, llama.cpp's RoPE rotates pairs of adjacent rows, so rows are interleaved. For the
     * other architectures it pairs rows of the two halves of a head, as this program does. */
    if (row->turned && m->kind == ARCHITECTURE_LLAMA) t->head = m->head_dim;
    if (number < 0) {
        snprintf(t->name, sizeof t->name, "%s", row->name);
    } else {
        snprintf(t->name, sizeof t->name, "blk.%lld.%s", (long long)number, row->name);
        snprintf(ours, sizeof ours, "block.%lld.", (long long)number);
    }
    return find_parts(l, row, ours, t);
}

/* Adds the factors by which Llama 3's scaling divides the RoPE frequencies of a head. */
static void add_rope_factors(Listing *l)
{
    const Architecture *m = l->model->model;
    if (!m->scaling.llama3) return;
    GgufTensor *t = &l->list->tensor[l->list->count++];
    *t = (GgufTensor){.name = "rope_freqs.weight", .dtype = F32, .rows = m->head_dim / 2};
    t->values = must_calloc((size_t)t->rows + 1, sizeof *t->values);
    RopeScaling none = {0}, scaling = {.type = ROPE_SCALING_LLAMA3,
                                       .factor = m->scaling.factor,
                                       .low_freq_factor = m->scaling.low_freq_factor,
                                       .high_freq_factor = m->scaling.high_freq_factor};
    scaling.original_max_position_embeddings = m->scaling.original_positions;
    for (int64_t i = 0; i < t->rows; i++)
        t->values[i] = (float)(rope_frequency(&none, m->rope_theta, m->head_dim, i) /
                               rope_frequency(&scaling, m->rope_theta, m->head_dim, i));
}

/* Checks that every tensor of the source is in the file: leaving one out would change the model. */
static bool check_unused(const Listing *l)
{
    bool *used = must_calloc((size_t)l->source->n_tensors + 1, sizeof *used);
    bool good = true;
    for (int i = 0; i < l->list->count; i++)
        for (int p = 0; p < l->list->tensor[i].n_parts; p++)
            used[l->list->tensor[i].part[p]] = true;
    for (int i = 0; good && i < l->source->n_tensors; i++)
        if (!used[i])
            good = error_set(l->err, l->n, "GGUF's architecture %s has no tensor %s",
                             architecture_name(l->model->model->kind), l->source->tensor[i].name);
    free(used);
    return good;
}

bool gguf_tensors(GgufTensors *out, const GgufModel *model, const WeightSource *source, char *err,
                  size_t n)
{
    Listing l = {.list = out, .model = model, .source = source, .err = err, .n = n};
    int64_t layers = model->model->layers;
    bool good = true;
    *out = (GgufTensors){0};
    out->tensor = must_calloc((size_t)(BEFORE + layers * BLOCK + AFTER + 1), sizeof *out->tensor);
    for (int i = 0; good && i < BEFORE; i++)
        good = add(&l, &before_blocks[i], -1);
    if (good) add_rope_factors(&l);
    for (int64_t b = 0; good && b < layers; b++)
        for (int i = 0; good && i < BLOCK; i++)
            good = add(&l, &of_block[i], b);
    for (int i = 0; good && i < AFTER; i++)
        good = add(&l, &after_blocks[i], -1);
    return good && check_unused(&l);
}

void gguf_tensors_free(GgufTensors *tensors)
{
    for (int i = 0; i < tensors->count; i++)
        free(tensors->tensor[i].values);
    free(tensors->tensor);
    *tensors = (GgufTensors){0};
}
