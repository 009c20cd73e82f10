/* shape.c -- see shape.h. */
#include "model/shape.h"

#include "model/core/check.h"

GptShape gpt_shape(const Config *config)
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
                  .activation = config->model.activation,
                  .fused_gelu = config->model.fused_gelu,
                  .bias = config->model.bias,
                  .qk_norm = config->model.qk_norm,
                  .tied = config->model.tie_word_embeddings,
                  .init_std = config->model.initializer_range,
                  .decay_on = config->optimizer.weight_decay_on,
                  .recompute = config->activation_checkpointing.policy,
                  .dtype = config_dtype(config),
                  .grad_dtype = config_grad_dtype(config)};
    CHECK(s.V > 0, "a vocabulary of %lld", (long long)s.V);
    s.Vp = (s.V + 127) / 128 * 128;
    return s;
}
