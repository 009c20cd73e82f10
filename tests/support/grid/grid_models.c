/* grid_models.c -- defines the models of grid_case.h. They have vocabulary sizes that no
 * number of ranks divides, units smaller than a rank's alignment, every kind of layer, and heads
 * for every number of tensor-parallel ranks.
 *
 * QK-norm divides by the length of a head's vector. With two elements this length is sometimes
 * almost zero, which amplifies rounding errors. Models with QK-norm therefore have eight elements
 * per head. */
#include "tests/support/grid/grid_case.h"

/* Bits of GridModel.tensor: T2 is set if two tensor-parallel ranks can split the model. */
#define T1 1
#define T2 2
#define T3 4
#define T4 8

const GridModel grid_model[GRID_MODELS] = {
    {"gpt2",
     "\"hidden_size\":16,\"num_attention_heads\":12,\"head_dim\":2,\"intermediate_size\":60,"
     "\"vocab_size\":61",
     7, T1 | T2 | T3 | T4},
    {"llama",
     "\"hidden_size\":16,\"num_attention_heads\":12,\"num_key_value_heads\":6,\"head_dim\":2,"
     "\"norm\":\"rmsnorm\",\"position\":\"rope\",\"activation\":\"swiglu\",\"bias\":false,"
     "\"tie_word_embeddings\":false,\"intermediate_size\":24,\"vocab_size\":53",
     6, T1 | T2 | T3},
    {"prime sizes",
     "\"hidden_size\":21,\"num_attention_heads\":3,\"intermediate_size\":39,\"vocab_size\":97", 5,
     T1 | T3},
    {"gpt2 untied",
     "\"hidden_size\":12,\"num_attention_heads\":12,\"head_dim\":2,\"intermediate_size\":36,"
     "\"tie_word_embeddings\":false,\"vocab_size\":31",
     8, T1 | T2 | T3 | T4},
    {"llama tied with QK-norm, one kv head",
     "\"hidden_size\":24,\"num_attention_heads\":12,\"num_key_value_heads\":1,\"head_dim\":8,"
     "\"norm\":\"rmsnorm\",\"position\":\"rope\",\"activation\":\"swiglu\",\"bias\":false,"
     "\"qk_norm\":true,\"intermediate_size\":48,\"vocab_size\":67",
     6, T1 | T2 | T3 | T4},
    {"relu2 with rope, vocabulary of 17",
     "\"hidden_size\":16,\"num_attention_heads\":12,\"head_dim\":2,\"intermediate_size\":24,"
     "\"position\":\"rope\",\"activation\":\"relu2\",\"bias\":false,\"vocab_size\":17",
     7, T1 | T2 | T3 | T4},
    {"one head of 13", "\"hidden_size\":13,\"num_attention_heads\":1,\"vocab_size\":17", 5, T1},
    {"one kv head, wide heads",
     "\"hidden_size\":10,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
     "\"head_dim\":8,\"position\":\"rope\",\"activation\":\"relu2\",\"vocab_size\":29",
     6, T1 | T2},
    {"two pages of vocabulary", "\"hidden_size\":8,\"num_attention_heads\":4,\"vocab_size\":131", 4,
     T1 | T2 | T4},
    {"two pages of vocabulary, untied",
     "\"hidden_size\":6,\"num_attention_heads\":3,\"tie_word_embeddings\":false,"
     "\"bias\":false,\"vocab_size\":257",
     4, T1 | T3},
    {"swiglu with biases",
     "\"hidden_size\":14,\"num_attention_heads\":12,\"head_dim\":3,\"activation\":\"swiglu\","
     "\"intermediate_size\":12,\"bias\":true,\"vocab_size\":43",
     6, T1 | T2 | T3 | T4},
    {"rmsnorm, QK-norm, biases, four kv heads",
     "\"hidden_size\":18,\"num_attention_heads\":12,\"num_key_value_heads\":4,\"head_dim\":8,"
     "\"norm\":\"rmsnorm\",\"qk_norm\":true,\"bias\":true,\"intermediate_size\":36,"
     "\"vocab_size\":59",
     7, T1 | T2 | T4},
    {"two kv heads with biases, vocabulary of 127",
     "\"hidden_size\":8,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
     "\"intermediate_size\":12,\"vocab_size\":127",
     5, T1 | T2 | T4},
    {"smaller than a shard",
     "\"hidden_size\":2,\"num_attention_heads\":1,\"intermediate_size\":3,"
     "\"norm\":\"rmsnorm\",\"bias\":false,\"vocab_size\":5",
     3, T1},
    {"one token a row",
     "\"hidden_size\":12,\"num_attention_heads\":12,\"head_dim\":2,\"intermediate_size\":24,"
     "\"position\":\"rope\",\"vocab_size\":23",
     1, T1 | T2 | T3 | T4},
    {"learned positions, untied swiglu",
     "\"hidden_size\":15,\"num_attention_heads\":3,\"activation\":\"swiglu\","
     "\"tie_word_embeddings\":false,\"intermediate_size\":33,\"vocab_size\":37",
     9, T1 | T3},
    {"fused gelu",
     "\"hidden_size\":16,\"num_attention_heads\":12,\"head_dim\":2,\"intermediate_size\":48,"
     "\"fused_gelu\":true,\"vocab_size\":47",
     6, T1 | T2 | T3 | T4},
    {"kv heads shared by two, QK-norm",
     "\"hidden_size\":20,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
     "\"qk_norm\":true,\"vocab_size\":71",
     6, T1 | T2 | T4},
    {"wide blocks",
     "\"hidden_size\":40,\"num_attention_heads\":12,\"head_dim\":4,\"intermediate_size\":60,"
     "\"vocab_size\":11",
     4, T1 | T2 | T3 | T4},
    {"rope, layernorm, untied relu2, three kv heads",
     "\"hidden_size\":12,\"num_attention_heads\":6,\"num_key_value_heads\":3,\"position\":\"rope\","
     "\"activation\":\"relu2\",\"tie_word_embeddings\":false,\"vocab_size\":13",
     11, T1 | T3},
    {"biases of q, k and v",
     "\"hidden_size\":16,\"num_attention_heads\":12,\"num_key_value_heads\":6,\"head_dim\":2,"
     "\"norm\":\"rmsnorm\",\"position\":\"rope\",\"activation\":\"swiglu\",\"bias\":false,"
     "\"attention_bias\":\"qkv\",\"intermediate_size\":24,\"vocab_size\":41",
     6, T1 | T2 | T3},
    {"biases of q, k and v, kv heads shared by two",
     "\"hidden_size\":16,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
     "\"attention_bias\":\"qkv\",\"mlp_bias\":false,\"intermediate_size\":24,\"vocab_size\":73",
     6, T1 | T2 | T4},
    {"biases of attention, none of the mlp",
     "\"hidden_size\":16,\"num_attention_heads\":12,\"head_dim\":2,\"bias\":false,"
     "\"attention_bias\":\"all\",\"intermediate_size\":36,\"vocab_size\":79",
     7, T1 | T2 | T3 | T4},
    {"biases of the mlp, none of attention",
     "\"hidden_size\":16,\"num_attention_heads\":12,\"head_dim\":2,\"attention_bias\":\"none\","
     "\"position\":\"rope\",\"intermediate_size\":36,\"vocab_size\":83",
     7, T1 | T2 | T3 | T4},
    {"Llama 3.1's rope scaling",
     "\"hidden_size\":16,\"num_attention_heads\":12,\"num_key_value_heads\":3,\"head_dim\":12,"
     "\"norm\":\"rmsnorm\",\"position\":\"rope\",\"activation\":\"swiglu\",\"bias\":false,"
     "\"rope_theta\":100,\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,"
     "\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":64},"
     "\"intermediate_size\":24,\"vocab_size\":89",
     9, T1 | T3},
};
