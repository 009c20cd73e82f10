/* residual.h -- the gradient of the residual stream on its way down through the layers. */
#ifndef MODEL_RESIDUAL_H
#define MODEL_RESIDUAL_H

#include "model/norm.h"

/* d (rows of the stream, C) storage, and the sums of its columns (C) compute: the gradient of the
 * bias that was added to the stream just before. The norm's backward that writes d computes
 * them at no cost; whoever stores to d in another way clears `summed`.
 *
 * They are sums over this rank's rows: a bias is added after the reduction that ends a
 * tensor-parallel region, so its gradient is made of d as it is before region_exit_backward,
 * and where the rows are cut (sequence parallel) the ranks' sums are added up later
 * (TP_GRAD_PARTIAL_IF_SP). */
typedef struct {
    Tensor d;
    Tensor columns; /* absent: the model has no such biases */
    bool summed;    /* columns are those of the present d */
} ResidualGrad;

/* Memory for the gradient of this rank's rows of N; nothing is summed yet. */
ResidualGrad residual_layout(const GptShape *shape, int64_t N, Arena *arena);
/* The column sums of d. Where they are not known (d has come from another stage, say) they are made
 * here if rows are cut: the linear gets the gathered rows of all ranks, whose sums would count each
 * row once for every rank. Else NO_TENSOR: the linear sums d itself. */
Tensor residual_columns(const Pass *pass, ResidualGrad *grad);
/* d = or, with `add`, += dx of the norm; d's columns are summed; the norm's own gradients =/+= as
 * `accumulate`. dy, x (rows of the stream, C) and stats as in op_norm_backward. */
void residual_norm_backward(const Pass *pass, ResidualGrad *grad, bool add,
                            const NormParams *params, bool accumulate, Tensor dy, Tensor x,
                            Tensor stats);

#endif
