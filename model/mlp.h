/* mlp.h -- the MLP half of a block: up -> activation -> down. With several tensor-parallel ranks,
 * the norm before it is fused with the attention half's residual add (block.c).
 *
 * Shapes use the letters of attention.h: N rows of the pass, S rows of the residual stream on this
 * rank, C hidden size; F is the MLP size of this rank. */
#ifndef MODEL_MLP_H
#define MODEL_MLP_H

#include "model/linear.h"
#include "model/norm.h"
#include "model/residual.h"

typedef struct {
    NormParams norm;
    LinearParams up, down; /* up covers gate | up with SwiGLU */
} MlpParams;

/* Results of forward that backward reads. Fields marked "recomputable [r]" can be computed again by
 * mlp_recompute. */
typedef struct {
    Tensor normed; /* (S, C): output of the norm; recomputable [r] */
    Tensor stats;  /* (S, 2): statistics of the norm, in the compute dtype; recomputable [r] */
    /* (N, C): the input of the tensor-parallel region: normed itself or, under sequence
     * parallelism, the rows gathered from all ranks, in the memory of down. */
    Tensor in;
    Tensor pre; /* (N, F), with SwiGLU (N, 2F): values before the activation */
    Tensor act; /* (N, F): output of the activation; recomputable [r] */
    /* (N, C): output of the down product without bias; only with several tensor-parallel ranks. At
     * the end of forward, this rank's rows hold the sum over the ranks. The residual add reads it
     * at once. */
    Tensor down;
} MlpActs;

/* Places the fields in the three arenas, as attention_layout does. */
void mlp_layout(MlpActs *acts, const GptShape *shape, int64_t N, Arena *saved, Arena *remade,
                Arena *shared);

/* Gradients that backward keeps in the layer's scratch, as in attention.h. */
typedef struct {
    Tensor dpre; /* gradient of pre; same shape */
    Tensor dact; /* (N, F): gradient of act; in the memory of dpre if both have the same width */
    /* (N, C): gradient of `in`. Under sequence parallelism, the same memory first holds the
     * gathered gradient of the residual stream. */
    Tensor dnormed;
} MlpGrads;

MlpGrads mlp_backward_layout(const GptShape *shape, int64_t N, Arena *scratch);

/* Computes acts->act = activation(up(acts->normed)). After this, all fields that backward reads are
 * complete. */
void mlp_forward_up(const Pass *pass, const MlpParams *params, MlpActs *acts);
/* Computes y (S, C) = x (S, C) + down(acts->act), where x is the residual stream. */
void mlp_forward_down(const Pass *pass, const MlpParams *params, MlpActs *acts, Tensor x, Tensor y);
/* Computes the fields marked "recomputable [r]" again from the norm's input x (S, C) and pre. The
 * bits are the same, because the fused ops (residual + norm, product + GELU) give the same bits as
 * the separate ones. Not allowed for fused_gelu in a 16-bit type: forward applied GELU to the sum
 * before it was rounded, and pre holds only the rounded sum. */
void mlp_recompute(const Pass *pass, const MlpParams *params, MlpActs *acts, Tensor x);
/* Runs the backward pass. On entry, grad is the gradient of the residual stream after this half; on
 * return, the gradient through this half is added to it. x (S, C) is the norm's input. Weight
 * gradients are added (+=) if `accumulate`, else written (=). */
void mlp_backward(const Pass *pass, const MlpParams *params, const MlpActs *acts, Tensor x,
                  ResidualGrad *grad, bool accumulate);

#endif
