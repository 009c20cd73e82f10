/* norm.h -- a LayerNorm or RMSNorm with its parameters: over the hidden size, or over each head of
 * q and of k. */
#ifndef MODEL_NORM_H
#define MODEL_NORM_H

#include "model/shape.h"

/* Rows of the parameter table (bias -1: no bias; weight -1: no norm). */
typedef struct {
    int weight, bias;
} NormParams;

/* weight and bias (C), valid between acquire and release of their parameter unit (store.h); their
 * gradients, valid between grad_acquire and grad_release. A tensor that the norm does not have is
 * absent. */
typedef struct {
    Tensor weight, bias, dweight, dbias;
} NormTensors;

/* Gets the norm's tensors from the store; with `grads` also their gradients. */
NormTensors norm_bind(ParamStore *store, const NormParams *params, bool grads);

/* Computes y (N, C) = the model's kind of norm of x (N, C), and stats (N, 2) in the compute dtype
 * as in op_norm_forward. */
void norm_forward(const Pass *pass, const NormParams *params, Tensor y, Tensor stats, Tensor x);

#endif
