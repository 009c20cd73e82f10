/* small_weights.c -- small models and random weights for them. See small_weights.h. */
#include "tests/support/model/small_weights.h"

#include <stdio.h>
#include <string.h>

Architecture small_gpt2(void)
{
    return (Architecture){.kind = ARCHITECTURE_GPT2,
                          .layers = SMALL_L,
                          .hidden = SMALL_C,
                          .heads = 2,
                          .kv_heads = 2,
                          .head_dim = 4,
                          .mlp = SMALL_F,
                          .vocab = SMALL_V,
                          .positions = SMALL_P,
                          .attention_bias = "all",
                          .mlp_bias = true,
                          .tied = true,
                          .norm_epsilon = 1e-5};
}

Architecture small_llama(void)
{
    return (Architecture){.kind = ARCHITECTURE_LLAMA,
                          .layers = SMALL_L,
                          .hidden = SMALL_C,
                          .heads = 4,
                          .kv_heads = 2,
                          .head_dim = 6,
                          .mlp = SMALL_F,
                          .vocab = SMALL_V,
                          .positions = SMALL_P,
                          .attention_bias = "none",
                          .norm_epsilon = 1e-6,
                          .rope_theta = 50000};
}

/* Adds a tensor with random values: of a block, or (block -1) outside them. */
static void add(WeightSource *to, DType dtype, int block, const char *name, int64_t rows,
                int64_t cols)
{
    char full[64];
    snprintf(full, sizeof full, "block.%d.%s", block, name);
    memory_source_add(to, block < 0 ? name : full, dtype, rows, cols, 11);
}

/* Adds a block's tensors. */
static void add_block(WeightSource *to, DType dtype, const Architecture *m, int b)
{
    bool learned = m->kind == ARCHITECTURE_GPT2, all = strcmp(m->attention_bias, "all") == 0;
    int64_t q = m->heads * m->head_dim, k = m->kv_heads * m->head_dim;
    add(to, dtype, b, "attn.q.weight", q, m->hidden);
    add(to, dtype, b, "attn.k.weight", k, m->hidden);
    add(to, dtype, b, "attn.v.weight", k, m->hidden);
    add(to, dtype, b, "attn.out.weight", m->hidden, q);
    if (!learned) add(to, dtype, b, "mlp.gate.weight", m->mlp, m->hidden);
    add(to, dtype, b, "mlp.up.weight", m->mlp, m->hidden);
    add(to, dtype, b, "mlp.down.weight", m->hidden, m->mlp);
    if (strcmp(m->attention_bias, "none") != 0) {
        add(to, dtype, b, "attn.q.bias", q, 0);
        add(to, dtype, b, "attn.k.bias", k, 0);
        add(to, dtype, b, "attn.v.bias", k, 0);
    }
    if (all) add(to, dtype, b, "attn.out.bias", m->hidden, 0);
    if (m->mlp_bias) {
        if (!learned) add(to, dtype, b, "mlp.gate.bias", m->mlp, 0);
        add(to, dtype, b, "mlp.up.bias", m->mlp, 0);
        add(to, dtype, b, "mlp.down.bias", m->hidden, 0);
    }
    add(to, dtype, b, "attn.norm.weight", m->hidden, 0);
    add(to, dtype, b, "mlp.norm.weight", m->hidden, 0);
    if (learned) add(to, dtype, b, "attn.norm.bias", m->hidden, 0);
    if (learned) add(to, dtype, b, "mlp.norm.bias", m->hidden, 0);
    if (m->kind == ARCHITECTURE_QWEN3) add(to, dtype, b, "attn.q_norm.weight", m->head_dim, 0);
    if (m->kind == ARCHITECTURE_QWEN3) add(to, dtype, b, "attn.k_norm.weight", m->head_dim, 0);
}

/* Returns a source with random weights for the model. */
WeightSource *random_weights(const Architecture *m, DType dtype)
{
    bool learned = m->kind == ARCHITECTURE_GPT2;
    WeightSource *out = memory_source_new();
    add(out, dtype, -1, "token.weight", m->vocab, m->hidden);
    if (learned) add(out, dtype, -1, "position.weight", m->positions, m->hidden);
    for (int b = 0; b < m->layers; b++)
        add_block(out, dtype, m, b);
    add(out, dtype, -1, "final_norm.weight", m->hidden, 0);
    if (learned) add(out, dtype, -1, "final_norm.bias", m->hidden, 0);
    if (!m->tied) add(out, dtype, -1, "head.weight", m->vocab, m->hidden);
    return out;
}
