/* shape.h -- the numbers of one GPT, derived once from the config, and what every layer borrows
 * while it runs. */
#ifndef MODEL_SHAPE_H
#define MODEL_SHAPE_H

#include "configs/config.h"
#include "model/kernels/ops.h"
#include "model/param/region.h"
#include "model/param/store.h"

typedef struct {
    int64_t L, C, H, G, D, F; /* blocks, hidden, query heads, kv heads, head size, mlp size */
    int64_t V, Vp, P;         /* vocabulary, padded for its ranks; learned or rotary positions */
    Norm norm;
    PositionKind position;
    double rope_theta;
    ActivationKind activation;
    bool fused_gelu; /* gelu of the unrounded sum; in 16 bits not with selective recompute */
    bool bias, qk_norm, tied;
    double init_std;
    WeightDecayOn decay_on;
    RecomputePolicy recompute;
    DType dtype, grad_dtype; /* weights and activations; gradient buffers */
    int64_t head_chunk;      /* rows of logits at a time; 0: by memory (head.c) */
    int64_t tp;              /* tensor-parallel ranks of which this shape is one's part; else 1 */
    int64_t row_parts;       /* sequence parallelism: ranks that cut the rows of the residual stream
                                outside regions; else 1 */
} GptShape;

/* Shape of the whole model that `config` describes, its vocabulary padded for `tp` tensor-parallel
 * ranks; config->model.vocab_size must be known. */
GptShape gpt_shape(const Config *config, int tp);
/* The part of one of `tp` tensor-parallel ranks, all alike, which tensors and layouts follow: H, G
 * (at least 1: ranks may share a head of keys and values), F and Vp are those of the rank; L, C, D,
 * V and P the model's. */
GptShape gpt_local_shape(const GptShape *whole, int tp, bool sequence_parallel);

/* Width of the fused q|k|v rows, and of the first mlp product (gate | up under swiglu). */
static inline int64_t shape_qkv_width(const GptShape *s)
{
    return (s->H + 2 * s->G) * s->D;
}
static inline int64_t shape_up_width(const GptShape *s)
{
    return s->activation == ACTIVATION_SWIGLU ? 2 * s->F : s->F;
}

/* Keys and values of the tokens so far, for one block, while generating. */
typedef struct {
    Tensor k, v;    /* (max tokens, G*D) storage */
    int64_t length; /* rows filled before this pass */
} KvCache;

/* What a layer borrows for one pass over N = B*T rows. */
typedef struct {
    Device *dev;
    ParamStore *store;
    const Region *tp;
    const GptShape *shape;
    Arena *scratch;                    /* for one layer: marked at entry, rewound at exit */
    Tensor rope_table;                 /* (P, D) compute; absent with learned positions */
    Tensor tokens, targets, positions; /* (N) i32 */
    Tensor first_key;                  /* (N) i32, absent without document masks */
    int64_t B, T;
    KvCache *caches; /* L, one a block; NULL while training */
} Pass;

/* Rows of a region's tensors, and of the residual stream's. */
static inline int64_t pass_rows(const Pass *pass)
{
    return pass->B * pass->T;
}
static inline int64_t shape_stream_rows(const GptShape *shape, int64_t N)
{
    return N / shape->row_parts;
}

#endif
