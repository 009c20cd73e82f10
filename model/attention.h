/* attention.h -- the attention half of a block: norm -> q, k, v -> [qk-norm] -> [rope] -> attention
 * -> projection.
 *
 * The number of kv heads makes it MHA, GQA or MQA. The residual add that follows is fused with the
 * projection or, with several tensor-parallel ranks, with the norm of the MLP half (block.c). In
 * all comments N is the number of rows (tokens) of the pass, C the hidden size, H the query heads,
 * G the kv heads and D the head size of this rank (shape.h). S is the number of rows of the
 * residual stream on this rank: N, or under sequence parallelism N divided by the number of
 * ranks. */
#ifndef MODEL_ATTENTION_H
#define MODEL_ATTENTION_H

#include "model/linear.h"
#include "model/norm.h"
#include "model/residual.h"

typedef struct {
    NormParams norm;
    /* Usually one product computes q | k | v. If tensor-parallel ranks share kv heads, there are
     * two products, q and k | v, because only the gradients of k and v are then summed over the
     * ranks that share a head. */
    LinearParams qkv[2];
    int n_qkv;
    LinearParams out;
    NormParams q_norm, k_norm; /* norms over one head, shared by all heads; only with qk_norm */
} AttentionParams;

/* Results of forward that backward reads. Each field is either saved in the micro-batch's slot or
 * placed in scratch that all blocks share, depending on the recompute policy. Fields marked
 * "recomputable [r]" can be computed again by attention_recompute. */
typedef struct {
    Tensor normed; /* (S, C): output of the norm; recomputable [r] */
    Tensor stats;  /* (S, 2): statistics of the norm, in the compute dtype; recomputable [r] */
    /* (N, C): the input of the tensor-parallel region. Without sequence parallelism it is normed
     * itself. With it, it is the rows gathered from all ranks, in the memory of `out`; `out`
     * overwrites them, so backward gathers them again. */
    Tensor in;
    /* (N, (H+2G) D): q | k | v. Without qk_norm, q and k are rotated here in place. */
    Tensor qkv;
    /* (N, (H+G) D): normalised and rotated q | k. Without qk_norm, these are the columns of qkv
     * itself; with qk_norm, a tensor of its own that is recomputable [r]. */
    Tensor qk;
    /* (N*H, 2) and (N*G, 2): statistics of the norms of q and k, in the compute dtype; only with
     * qk_norm; recomputable [r]. */
    Tensor q_stats, k_stats;
    Tensor o;   /* (N, H D): output of attention */
    Tensor lse; /* (B, H, T): log-sum-exp of the scores, in the compute dtype */
    /* (N, C): output of the projection without bias; only with several tensor-parallel ranks. At
     * the end of forward, this rank's rows hold the sum over the ranks. The residual add reads it
     * at once. */
    Tensor out;
} AttentionActs;

/* Places the fields: recomputable ones ([r]) in `remade`, the other fields that backward needs in
 * `saved`, and the rest in `shared`. */
void attention_layout(AttentionActs *acts, const GptShape *shape, int64_t B, int64_t T,
                      Arena *saved, Arena *remade, Arena *shared);

/* Gradients that backward keeps in the layer's scratch; nothing reads them afterwards. */
typedef struct {
    Tensor dout; /* (N, H D): gradient of o */
    Tensor dqkv; /* (N, (H+2G) D): gradient of qkv */
    /* (N, C): gradient of `in`. Under sequence parallelism, the same memory first holds the
     * gathered gradient of the residual stream. */
    Tensor dnormed;
} AttentionGrads;

/* Places the gradients in an arena: for the memory plan one that only measures, during backward the
 * scratch arena. */
AttentionGrads attention_backward_layout(const GptShape *shape, int64_t N, Arena *scratch);

/* Computes this half from x (S, C). With one tensor-parallel rank sets y (S, C) = x +
 * projection(attention(norm(x))). With several ranks, y is not used: this rank's rows of acts->out
 * become the projection without bias, summed over the ranks, and the caller adds them to x. If
 * `cache` is not NULL, appends keys and values to it and attends to everything in it. */
void attention_forward(const Pass *pass, const AttentionParams *params, AttentionActs *acts,
                       Tensor x, Tensor y, KvCache *cache);
/* Computes the fields marked "recomputable [r]" again from x (S, C) and qkv. It runs the same ops
 * on the same operands as forward, so the bits are the same. */
void attention_recompute(const Pass *pass, const AttentionParams *params, AttentionActs *acts,
                         Tensor x);
/* Runs the backward pass. On entry, grad is the gradient of the residual stream after this half; on
 * return, the gradient through this half is added to it. Weight gradients are added (+=) if
 * `accumulate`, else written (=). x is that of forward. */
void attention_backward(const Pass *pass, const AttentionParams *params, const AttentionActs *acts,
                        Tensor x, ResidualGrad *grad, bool accumulate);
#endif
