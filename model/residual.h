/* residual.h -- the gradient of the residual stream while it passes backward through the layers. */
#ifndef MODEL_RESIDUAL_H
#define MODEL_RESIDUAL_H

#include "model/norm.h"

/* d is the gradient (rows of the stream, C) in the storage dtype. columns (C), in the compute
 * dtype, are its column sums: the gradient of the bias that was last added to the stream. The
 * norm's backward, which writes d, computes them at no extra cost. Code that changes d in another
 * way must clear `summed`.
 *
 * The sums cover this rank's rows. A bias is added after the sum over ranks that ends a
 * tensor-parallel region, so its gradient comes from d before region_exit_backward. Under sequence
 * parallelism the ranks' sums are added up later (TP_GRAD_PARTIAL_IF_SP). */
typedef struct {
    Tensor d;
    Tensor columns; /* absent if no bias is added to the stream */
    bool summed;    /* columns are up to date with d */
} ResidualGrad;

/* Places the gradient of this rank's part of N rows; column sums are not valid yet. */
ResidualGrad residual_layout(const GptShape *shape, int64_t N, Arena *arena);
/* Returns the column sums of d, for the bias of a linear layer that adds to the stream; NO_TENSOR
 * if the layer is not `biased`. The sums may be out of date, for example after d was received from
 * another stage. Then, under sequence parallelism, they are computed here: the linear layer itself
 * has the gathered rows of all ranks, and sums over these would count each row once per rank.
 * Otherwise NO_TENSOR is returned, and the linear layer sums d itself. */
Tensor residual_columns(const Pass *pass, ResidualGrad *grad, bool biased);
/* Runs the norm's backward: d = dx, or d += dx with `add`, and computes d's column sums. The norm's
 * own gradients are added (+=) if `accumulate`, else written (=). dy, x (rows of the stream, C) and
 * stats as in op_norm_backward. */
void residual_norm_backward(const Pass *pass, ResidualGrad *grad, bool add,
                            const NormParams *params, bool accumulate, Tensor dy, Tensor x,
                            Tensor stats);

#endif
