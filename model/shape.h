/* shape.h -- the dimensions of a GPT, derived once from the config, and Pass, the data that every
 * layer uses while it runs. */
#ifndef MODEL_SHAPE_H
#define MODEL_SHAPE_H

#include "configs/config.h"
#include "model/kernels/ops.h"
#include "model/param/region.h"
#include "model/param/store.h"

typedef struct {
    int64_t L, C, H, G, D, F; /* blocks, hidden size, query heads, kv heads, head size, MLP size */
    int64_t V, Vp, P;         /* vocabulary, padded vocabulary, context size (positions) */
    Norm norm;
    PositionKind position;
    double rope_theta;
    RopeScaling rope_scaling;
    ActivationKind activation;
    /* GELU is applied to the sum before it is rounded to the storage type. Not possible with a
     * 16-bit type and selective recompute, which has only the rounded sum. */
    bool fused_gelu;
    bool norm_bias; /* LayerNorm has a bias */
    AttentionBias attention_bias;
    bool mlp_bias, qk_norm, tied;
    double init_std;
    WeightDecayOn decay_on;
    RecomputePolicy recompute;
    DType dtype, grad_dtype; /* dtype of weights and activations, and of gradients */
    int64_t head_chunk;      /* rows of logits per chunk; 0: as many as 128 MiB hold (head.c) */
    int64_t tp; /* number of tensor-parallel ranks if this is one rank's part, else 1 */
    /* With sequence parallelism: the number of ranks among which the rows of the residual stream
     * are divided outside tensor-parallel regions. Without it: 1. */
    int64_t row_parts;
} GptShape;

/* Returns the shape of the whole model in `config`, with the vocabulary padded for `tp`
 * tensor-parallel ranks. config->model.vocab_size must be known. */
GptShape gpt_shape(const Config *config, int tp);
/* Returns the shape of one tensor-parallel rank's part of the model; it is the same for all `tp`
 * ranks. Tensors and layouts are sized by it. H, G, F and Vp are those of this part (G is at least
 * 1, because ranks may share a kv head). L, C, D, V and P are those of the whole model. */
GptShape gpt_local_shape(const GptShape *whole, int tp, bool sequence_parallel);

/* Returns whether a linear layer that adds to the residual stream has a bias. */
static inline bool shape_has_residual_bias(const GptShape *s)
{
    return s->attention_bias == ATTENTION_BIAS_ALL || s->mlp_bias;
}

/* Returns the number of columns of q | k | v. */
static inline int64_t shape_qkv_width(const GptShape *s)
{
    return (s->H + 2 * s->G) * s->D;
}
/* Returns the number of columns of the first MLP product (gate | up with SwiGLU). */
static inline int64_t shape_up_width(const GptShape *s)
{
    return s->activation == ACTIVATION_SWIGLU ? 2 * s->F : s->F;
}

/* Cached keys and values of one block during generation. */
typedef struct {
    Tensor k, v;    /* (max tokens, G*D) in the storage dtype */
    int64_t length; /* rows filled before this pass */
} KvCache;

/* The data that a layer uses during one pass over N = B*T rows; a layer owns none of it. */
typedef struct {
    Device *dev;
    ParamStore *store;
    const Region *tp;
    const GptShape *shape;
    Arena *scratch;    /* for one layer: marked when it starts, rewound when it ends */
    Tensor rope_table; /* (P, D) in the compute dtype; absent with learned positions */
    Tensor tokens, targets, positions; /* (N) i32 */
    /* (N) i32: the first key that each row attends to; absent without document masks. */
    Tensor first_key;
    int64_t B, T;
    KvCache *caches; /* L entries, one per block; NULL during training */
} Pass;

/* Returns the number of rows of tensors inside a tensor-parallel region. */
static inline int64_t pass_rows(const Pass *pass)
{
    return pass->B * pass->T;
}
/* Returns how many of N rows of the residual stream are on this rank. */
static inline int64_t shape_stream_rows(const GptShape *shape, int64_t N)
{
    return N / shape->row_parts;
}

#endif
