/* mlp.h -- the mlp half of a block: up -> activation -> down. The norm before it is fused with the
 * attention half's residual add (block.c). */
#ifndef MODEL_MLP_H
#define MODEL_MLP_H

#include "model/linear.h"
#include "model/norm.h"
#include "model/residual.h"

typedef struct {
    NormParams norm;
    LinearParams up, down; /* up spans gate | up under swiglu */
} MlpParams;

/* As in attention.h; [r]: mlp_recompute makes the field again. */
typedef struct {
    Tensor normed; /* (S, C) with S rows of the stream [r] */
    Tensor stats;  /* (S, 2) compute [r] */
    Tensor in;     /* (N, C), the region's input: normed itself, or in the memory of down */
    Tensor pre;    /* (N, F), swiglu (N, 2F): before the activation */
    Tensor act;    /* (N, F) [r] */
    Tensor down;   /* (N, C): without bias, this rank's rows of the stream summed over the ranks;
                      read by the residual add at once */
} MlpActs;

/* Lays the fields out, as attention_layout does. */
void mlp_layout(MlpActs *acts, const GptShape *shape, int64_t N, Arena *saved, Arena *remade,
                Arena *shared);

/* What backward takes of the layer's scratch, as in attention.h. */
typedef struct {
    Tensor dpre;    /* as pre */
    Tensor dact;    /* (N, F); the same memory as dpre where the widths are equal */
    Tensor dnormed; /* (N, C): of in; before that, where rows are cut, of all ranks' rows */
} MlpGrads;

MlpGrads mlp_backward_layout(const GptShape *shape, int64_t N, Arena *scratch);

/* acts->act = act(up(acts->normed)), the last that backward reads. */
void mlp_forward_up(const Pass *pass, const MlpParams *params, MlpActs *acts);
/* This rank's rows of acts->down = down(acts->act), no bias. */
void mlp_forward_down(const Pass *pass, const MlpParams *params, MlpActs *acts);
/* The fields marked [r] once more, from the norm's input x (S, C) and pre: the same bits, because
 * the fused ops (residual and norm, product and GELU) promise those of the single ones. Not for
 * fused_gelu in a 16-bit type: pre does not have what was rounded off. */
void mlp_recompute(const Pass *pass, const MlpParams *params, MlpActs *acts, Tensor x);
/* grad: in, gradient after this half; out, += gradient through it, back to the norm's input x
 * (S, C). */
void mlp_backward(const Pass *pass, const MlpParams *params, const MlpActs *acts, Tensor x,
                  ResidualGrad *grad, bool accumulate);

#endif
