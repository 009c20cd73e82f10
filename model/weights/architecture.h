/* architecture.h -- Architecture: describes a model in the terms of other programs: GPT-2, Llama
 * and models of the same form. Files of other programs are read into this struct and written from
 * it. The functions below convert it to a config and back. */
#ifndef MODEL_WEIGHTS_ARCHITECTURE_H
#define MODEL_WEIGHTS_ARCHITECTURE_H

#include "configs/config.h"

/* ARCHITECTURE_LLAMA is also used for Mistral and others that compute the same as Llama. */
typedef enum {
    ARCHITECTURE_GPT2,  /* learned positions, LayerNorm, GELU, biases everywhere */
    ARCHITECTURE_LLAMA, /* RoPE, RMSNorm, SwiGLU */
    ARCHITECTURE_QWEN2, /* Llama with biases only on q, k and v */
    ARCHITECTURE_QWEN3, /* Llama with QK-norm */
    ARCHITECTURE_COUNT
} ArchitectureKind;

typedef struct {
    ArchitectureKind kind;
    int64_t layers, hidden, heads, kv_heads, head_dim, mlp;
    int64_t vocab, positions;   /* rows of the token table; the longest sequence */
    const char *attention_bias; /* value of model.attention_bias: "none", "qkv" or "all" */
    bool mlp_bias, tied;
    double norm_epsilon, rope_theta, initializer_range;
    struct {
        bool llama3; /* false: RoPE is not scaled, and the other fields are 0 */
        double factor, low_freq_factor, high_freq_factor;
        int64_t original_positions;
    } scaling;
    /* Each token attends to this many tokens, itself included, so the window has no effect on
     * sequences of at most this length. 0: no limit. */
    int64_t window;
} Architecture;

/* Returns Hugging Face's name of the architecture ("model_type"). */
const char *architecture_name(ArchitectureKind kind);

/* Returns, as JSON text, this program's config for a run of the model with weights in `dtype` (f32,
 * bf16, f16 or f64). It is complete except that it names no training data. `tokenizer` is the path
 * of the tokenizer, or NULL. Learning rate and warmup are usual values for training that starts
 * from given weights. The caller frees the text. */
char *architecture_config(const Architecture *a, DType dtype, const char *tokenizer);

/* Sets *out to the architecture of a config's model. If no architecture computes the same, returns
 * false and sets err to every key that does not fit and the value that it would need. */
bool architecture_of(const Config *config, Architecture *out, char *err, size_t n);

/* Returns whether a run of the config computes the same as a model with the architecture's sliding
 * window. It does if model.max_position_embeddings, the length of the longest sequence, is not more
 * than the window. If not, sets err to a message with the keys to set. */
bool architecture_check_window(const Architecture *a, const Config *config, char *err, size_t n);

#endif
