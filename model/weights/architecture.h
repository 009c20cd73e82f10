/* architecture.h -- Architecture: the shape of a model in the terms that other programs know:
 * GPT-2, Llama and what has their shape. Files of other programs are read to it and written from
 * it; here it becomes a config, and a config becomes it. */
#ifndef MODEL_WEIGHTS_ARCHITECTURE_H
#define MODEL_WEIGHTS_ARCHITECTURE_H

#include "configs/config.h"

/* ARCHITECTURE_LLAMA also stands for Mistral and others that differ from Llama in no computation.
 */
typedef enum {
    ARCHITECTURE_GPT2,  /* learned positions, LayerNorm, GELU, biases everywhere */
    ARCHITECTURE_LLAMA, /* RoPE, RMSNorm, SwiGLU */
    ARCHITECTURE_QWEN2, /* Llama with biases on q, k and v alone */
    ARCHITECTURE_QWEN3, /* Llama with QK-norm */
    ARCHITECTURE_COUNT
} ArchitectureKind;

typedef struct {
    ArchitectureKind kind;
    int64_t layers, hidden, heads, kv_heads, head_dim, mlp;
    int64_t vocab, positions;   /* rows of the token table; longest sequence */
    const char *attention_bias; /* value of model.attention_bias: "none", "qkv" or "all" */
    bool mlp_bias, tied;
    double norm_epsilon, rope_theta, initializer_range;
    struct {
        bool llama3; /* false: RoPE is not scaled, and the other fields are 0 */
        double factor, low_freq_factor, high_freq_factor;
        int64_t original_positions;
    } scaling;
    /* Each token sees this many tokens, itself included, so a sequence of at most this length is
     * seen whole. 0: no limit. */
    int64_t window;
} Architecture;

/* Returns the name by which Hugging Face knows the architecture ("model_type"). */
const char *architecture_name(ArchitectureKind kind);

/* Returns this program's config for a run of the model with weights in `dtype` (f32, bf16, f16 or
 * f64) as JSON text: complete but for the data. `tokenizer` is the path of its tokenizer, or NULL.
 * The caller frees the text. Learning rate and warmup are those with which training that goes on
 * from given weights usually begins. */
char *architecture_config(const Architecture *a, DType dtype, const char *tokenizer);

/* Sets *out to the architecture of a config's model. Returns false and sets err, with every key
 * that is in the way and what it would have to be, if no architecture computes the same. */
bool architecture_of(const Config *config, Architecture *out, char *err, size_t n);

/* Returns whether a run of the config computes what a model with the architecture's window does: a
 * window that sees whole sequences changes nothing. Otherwise sets err, with the keys to set. */
bool architecture_check_window(const Architecture *a, const Config *config, char *err, size_t n);

#endif
