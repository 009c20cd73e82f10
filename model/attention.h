/* attention.h -- the attention half of a block: norm -> q, k, v -> [qk-norm] -> [rope] -> attention
 * -> projection.
 *
 * MHA, GQA and MQA by the number of kv heads. The residual add after it is fused with the mlp's
 * norm (block.c). */
#ifndef MODEL_ATTENTION_H
#define MODEL_ATTENTION_H

#include "model/linear.h"
#include "model/norm.h"
#include "model/residual.h"

typedef struct {
    NormParams norm;
    LinearParams qkv[2]; /* q | k | v of one pack; where ranks share heads of keys and values q of
                            one and k | v of another, whose gradients are summed differently */
    int n_qkv;
    LinearParams out;
    NormParams q_norm, k_norm; /* over a head, weights shared by the heads; only with qk_norm */
} AttentionParams;

/* What forward leaves for backward. Fields are saved in the slot or lie in scratch that all blocks
 * share, as recompute asks; [r]: attention_recompute makes the field again. */
typedef struct {
    Tensor normed; /* (S, C) with S rows of the stream [r] */
    Tensor stats;  /* (S, 2) compute [r] */
    Tensor in;     /* (N, C), the region's input: normed itself, or where rows are cut all ranks',
                      gathered anew in backward, in the memory of out */
    Tensor qkv; /* (N, (H+2G) D): q | k | v; q and k rotated here unless qk_norm keeps them apart */
    Tensor qk;  /* (N, (H+G) D): normed, rotated q | k; the same memory as qkv's columns without
                   qk_norm, else [r] */
    Tensor q_stats, k_stats; /* (N*H, 2), (N*G, 2) compute; with qk_norm [r] */
    Tensor o;                /* (N, H D) */
    Tensor lse;              /* (B, H, T) compute */
    Tensor out; /* (N, C): projected, without bias, this rank's rows of the stream summed over the
                   ranks; read by the residual add at once */
} AttentionActs;

/* Lays the fields out: those marked [r] in `remade`, the others that backward needs in `saved`,
 * the rest in `shared`. */
void attention_layout(AttentionActs *acts, const GptShape *shape, int64_t B, int64_t T,
                      Arena *saved, Arena *remade, Arena *shared);

/* What backward takes of the layer's scratch: gradients that nobody reads after it. */
typedef struct {
    Tensor dout;    /* (N, H D): of o */
    Tensor dqkv;    /* (N, (H+2G) D) */
    Tensor dnormed; /* (N, C): of in; before that, where rows are cut, all ranks' rows of the
                       stream's gradient */
} AttentionGrads;

/* Lays them out: over a measuring arena for the plan, over the scratch in the pass itself. */
AttentionGrads attention_backward_layout(const GptShape *shape, int64_t N, Arena *scratch);

/* This rank's rows of acts->out = projection(attention(norm(x))), no bias; x (S, C). With a cache
 * (else NULL): appends to it and attends to all of its rows. */
void attention_forward(const Pass *pass, const AttentionParams *params, AttentionActs *acts,
                       Tensor x, KvCache *cache);
/* The fields marked [r] once more, from x (S, C) and qkv: the ops forward called on the same
 * operands, so the same bits. */
void attention_recompute(const Pass *pass, const AttentionParams *params, AttentionActs *acts,
                         Tensor x);
/* grad: in, gradient of the residual stream after this half; out, += gradient through it.
 * dweights as `accumulate`. x as in forward. */
void attention_backward(const Pass *pass, const AttentionParams *params, const AttentionActs *acts,
                        Tensor x, ResidualGrad *grad, bool accumulate);
#endif
