/* shape.c -- implements shape.h: derives a model's dimensions from the config. */
#include "model/shape.h"

#include "model/core/check.h"
#include "model/core/min_max.h"

/* Returns the rows of the token table for V tokens and `tp` ranks: the smallest multiple of 128
 * that is at least V and gives each rank a multiple of 8 rows. */
static int64_t padded_vocabulary(int64_t V, int64_t tp)
{
    int64_t unit = 128;
    while (unit % (8 * tp) != 0)
        unit += 128;
    return (V + unit - 1) / unit * unit;
}

GptShape gpt_shape(const Config *config, int tp)
{
    GptShape s = {.L = config->model.num_layers,
                  .C = config->model.hidden_size,
                  .H = config->model.num_attention_heads,
                  .G = config->model.num_key_value_heads,
                  .D = config->model.head_dim,
                  .F = config->model.intermediate_size,
                  .V = config->model.vocab_size,
                  .P = config->model.max_position_embeddings,
                  .norm = {.kind = config->model.norm, .epsilon = config->model.norm_epsilon},
                  .position = config->model.position,
                  .rope_theta = config->model.rope_theta,
                  .rope_scaling = config->model.rope_scaling,
                  .activation = config->model.activation,
                  .fused_gelu = config->model.fused_gelu,
                  .norm_bias = config->model.bias,
                  .attention_bias = config->model.attention_bias,
                  .mlp_bias = config->model.mlp_bias,
                  .qk_norm = config->model.qk_norm,
                  .tied = config->model.tie_word_embeddings,
                  .init_std = config->model.initializer_range,
                  .decay_on = config->optimizer.weight_decay_on,
                  .head_chunk = max_i64(config->model.head_chunk_rows, 0),
                  .recompute = config->activation_checkpointing.policy,
                  .dtype = config_dtype(config),
                  .grad_dtype = config_grad_dtype(config),
                  .tp = 1,
                  .row_parts = 1};
    /* The tokenizer determines the vocabulary, so it is unknown until config_settle. */
    CHECK(s.V > 0, "a vocabulary of %lld", (long long)s.V);
    /* The padding depends on tp, but the model's results do not: padding rows are zero, are not
     * stored in checkpoints, and have no logits in the loss. */
    s.Vp = padded_vocabulary(s.V, tp);
    return s;
}

GptShape gpt_local_shape(const GptShape *whole, int tp, bool sequence_parallel)
{
    GptShape s = *whole;
    CHECK(s.H % tp == 0 && s.F % tp == 0 && s.Vp % tp == 0 && (s.G % tp == 0 || tp % s.G == 0),
          "%lld heads, %lld of keys and values, mlp of %lld, vocabulary of %lld over %d ranks",
          (long long)s.H, (long long)s.G, (long long)s.F, (long long)s.Vp, tp);
    s.H /= tp;
    /* If there are fewer kv heads than ranks, neighbouring ranks share one. */
    s.G = s.G > tp ? s.G / tp : 1;
    s.F /= tp;
    s.Vp /= tp;
    s.tp = tp;
    s.row_parts = sequence_parallel ? tp : 1;
    return s;
}
