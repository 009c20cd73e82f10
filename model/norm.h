/* norm.h -- a LayerNorm or RMSNorm over the hidden size, or over the heads of q and of k, with its
 * parameters. */
#ifndef MODEL_NORM_H
#define MODEL_NORM_H

#include "model/shape.h"

/* Rows of the parameter table (bias -1: no bias; weight -1: no norm). */
typedef struct {
    int weight, bias;
} NormParams;

/* weight and bias (C) between acquire and release; their gradients between grad_acquire and
 * grad_release. What the norm does not have is absent. */
typedef struct {
    Tensor weight, bias, dweight, dbias;
} NormTensors;

/* The norm's tensors from the store; gradients too when `grads`. */
NormTensors norm_bind(ParamStore *store, const NormParams *params, bool grads);

/* y (N, C) = the shape's norm of x (N, C); stats (N, 2) compute as in op_norm_forward. */
void norm_forward(const Pass *pass, const NormParams *params, Tensor y, Tensor stats, Tensor x);

#endif
