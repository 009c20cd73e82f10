/* option_model.h -- the rows of option_table.c for the section "model".
 *
 * The limit of model.num_layers keeps a checkpoint's header and manifest, which has one line per
 * tensor, below their size limits (tests/parallel/checkpoint/test_deep.c). */
#ifndef CONFIGS_READER_OPTION_MODEL_H
#define CONFIGS_READER_OPTION_MODEL_H

#include "configs/reader/option_rows.h"

#define MODEL_ROWS                                                                                 \
    INT(model.num_layers, "12", 1, 3000, IMPOSSIBLE, LOSSES | PLAN,                                \
        "number of transformer blocks"),                                                           \
        INT(model.hidden_size, "768", 1, 1e6, IMPOSSIBLE, LOSSES | PLAN,                           \
            "width of the residual stream"),                                                       \
        INT(model.num_attention_heads, "12", 1, 1e5, IMPOSSIBLE, LOSSES | PLAN,                    \
            "query heads per block"),                                                              \
        INT(model.num_key_value_heads, 0, 1, 1e5, IMPOSSIBLE, LOSSES | PLAN,                       \
            "key and value heads per block: as many as query heads is multi-head, fewer is "       \
            "grouped-query, 1 is multi-query attention",                                           \
            .derived = "num_attention_heads", .flags = OPTION_AUTO),                               \
        INT(model.head_dim, 0, 1, 1e5, IMPOSSIBLE, LOSSES | PLAN,                                  \
            "size of one head; may differ from hidden_size / num_attention_heads",                 \
            .derived = "hidden_size / num_attention_heads", .flags = OPTION_AUTO),                 \
        INT(model.intermediate_size, 0, 1, 1e7, IMPOSSIBLE, LOSSES | PLAN,                         \
            "width of the feed-forward part",                                                      \
            .derived =                                                                             \
                "4 x hidden_size; for swiglu 8/3 x hidden_size, rounded up to a multiple of 64",   \
            .flags = OPTION_AUTO),                                                                 \
        INT(model.vocab_size, 0, 2, 16777216, IMPOSSIBLE, LOSSES | PLAN,                           \
            "number of token ids, at most that where the tokenizer is trained on the text; "       \
            "padding for speed is added inside and never enters the loss",                         \
            .derived = "the tokenizer's", .flags = OPTION_AUTO),                                   \
        INT(model.max_position_embeddings, 0, 1, 1e9, IMPOSSIBLE, PLAN,                            \
            "rows of the learned position table; the longest sequence the model takes",            \
            .derived = "data.seq_length", .flags = OPTION_AUTO),                                   \
        CHOICE(model.norm, "\"layernorm\"", norm_choices, IMPOSSIBLE, LOSSES | PLAN,               \
               "normalisation before each half of a block and before the head"),                   \
        NUMBER(model.norm_epsilon, "1e-05", 0, 1, NUMBERS, LOSSES,                                 \
               "added to the variance (or mean square) inside the root", .flags = OPTION_ABOVE),   \
        CHOICE(model.position, "\"learned\"", position_choices, IMPOSSIBLE, LOSSES | PLAN,         \
               "how positions enter: a learned table, or rotation of queries and keys"),           \
        NUMBER(model.rope_theta, "10000", 1, 1e12, NUMBERS, LOSSES,                                \
               "base of the rotation's wavelengths; read with position rope"),                     \
        CHOICE(                                                                                    \
            model.rope_scaling.type, "\"none\"", rope_scaling_choices, NUMBERS, LOSSES,            \
            "how rotations are slowed down for texts longer than those of an earlier training: "   \
            "not at all, or as in Llama 3.1, the slow ones by a factor and the fast ones not"),    \
        NUMBER(model.rope_scaling.factor, 0, 1, 1e6, NUMBERS, LOSSES,                              \
               "llama3: by how much the slow rotations are slowed down",                           \
               .derived = "none: llama3 needs it", .types = LLAMA3),                               \
        NUMBER(                                                                                    \
            model.rope_scaling.low_freq_factor, 0, 0, 1e6, NUMBERS, LOSSES,                        \
            "llama3: rotations are slow that turn fewer times than this in the original length",   \
            .derived = "none: llama3 needs it", .flags = OPTION_ABOVE, .types = LLAMA3),           \
        NUMBER(                                                                                    \
            model.rope_scaling.high_freq_factor, 0, 0, 1e6, NUMBERS, LOSSES,                       \
            "llama3: rotations are fast that turn more times than this in the original length; "   \
            "those in between are slowed down in part",                                            \
            .derived = "none: llama3 needs it", .flags = OPTION_ABOVE, .types = LLAMA3),           \
        INT(model.rope_scaling.original_max_position_embeddings, 0, 1, 1e9, NUMBERS, LOSSES,       \
            "llama3: the original length, in tokens: the longest texts of the earlier training",   \
            .derived = "none: llama3 needs it", .types = LLAMA3),                                  \
        CHOICE(model.activation, "\"gelu\"", activation_choices, IMPOSSIBLE, LOSSES | PLAN,        \
               "nonlinearity of the feed-forward part: gelu (tanh form), relu2 (squared ReLU), "   \
               "swiglu (gated; a third matrix)"),                                                  \
        FLAG(model.fused_gelu, 0, ROUNDING, LOSSES,                                                \
             "gelu of a product's sum before it is rounded to bf16 or fp16, which on GPUs is one " \
             "kernel with the product; false: of the rounded value",                               \
             .derived = "true in bf16 and fp16 on GPUs from compute capability 9.0 on, unless "    \
                        "recomputation is selective; else false; a run keeps what it began with",  \
             .flags = OPTION_AUTO | OPTION_DEVICE),                                                \
        INT(model.head_chunk_rows, 0, 0, 1e9, ROUNDING, PLAN,                                      \
            "rows of logits that the head computes at a time; 0: as many as 128 MiB hold",         \
            .derived = "0; on a GPU the largest power of two from 256 to 16384 whose logits take " \
                       "at most 2 % of its memory; a run keeps what it began with",                \
            .flags = OPTION_AUTO | OPTION_DEVICE),                                                 \
        FLAG(model.bias, "true", IMPOSSIBLE, LOSSES | PLAN,                                        \
             "biases in LayerNorm, and in linear layers where the next two keys are not given"),   \
        CHOICE(model.attention_bias, 0, attention_bias_choices, IMPOSSIBLE, LOSSES | PLAN,         \
               "biases of the attention's projections: none, those of q, k and v (as in Qwen 2), " \
               "or all, the output's too",                                                         \
               .derived = "all if model.bias is true, else none",                                  \
               .flags = OPTION_AUTO | OPTION_FOLLOWS),                                             \
        FLAG(model.mlp_bias, 0, IMPOSSIBLE, LOSSES | PLAN,                                         \
             "biases in the linear layers of the feed-forward part", .derived = "model.bias",      \
             .flags = OPTION_AUTO | OPTION_FOLLOWS),                                               \
        FLAG(model.qk_norm, "false", IMPOSSIBLE, LOSSES | PLAN,                                    \
             "normalise each query and key head before its rotation, by an RMSNorm whatever "      \
             "model.norm is, as in Qwen 3"),                                                       \
        FLAG(model.tie_word_embeddings, "true", IMPOSSIBLE, LOSSES | PLAN,                         \
             "the head reads the token table instead of a matrix of its own"),                     \
        NUMBER(model.initializer_range, "0.02", 0, 10, NONE, LOSSES,                               \
               "standard deviation of initial weights; projections into the residual get it "      \
               "divided by sqrt(2 x num_layers)",                                                  \
               .flags = OPTION_ABOVE)

#endif
