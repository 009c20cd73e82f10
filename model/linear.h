/* linear.h -- Linear: a linear layer, one product with one or several adjacent weight matrices and
 * an optional bias. */
#ifndef MODEL_LINEAR_H
#define MODEL_LINEAR_H

#include "model/shape.h"

/* Rows of the parameter table: `rows` adjacent rows from `weight` on, and the same number of rows
 * from `bias` on (-1: no bias). */
typedef struct {
    int weight, bias, rows;
} LinearParams;

/* weight (O, I) and bias (O), valid between acquire and release of their parameter unit (store.h);
 * their gradients, valid between grad_acquire and grad_release. */
typedef struct {
    Tensor weight, bias, dweight, dbias;
    bool accumulate; /* gradients: += if true, else = */
} Linear;

/* Gets the layer's tensors from the store; with `grads` also their gradients, which backward adds
 * (+=) if `accumulate`, else writes (=). */
Linear linear_bind(ParamStore *store, const LinearParams *params, bool grads, bool accumulate);

/* Computes y (N, O) = epilogue(x (N, I) weight^T + bias), and pre (N, O, if present) = the value
 * before the epilogue. If the layer's input is split over tensor-parallel ranks, with_bias is
 * false, because the bias is added after the sum over the ranks. */
void linear_forward(Device *dev, const Linear *linear, bool with_bias, Tensor y, Tensor x,
                    Epilogue epilogue, Tensor pre);
/* Computes y (N, sum of O): the outputs of n linear layers on the same x (N, I), side by side. */
void linear_forward_columns(const Pass *pass, const Linear *linear, int n, Tensor y, Tensor x);
/* Computes y (N, O) = residual (N, O) + x (N, I) weight^T + bias, for a linear layer whose whole
 * input is on this rank. */
void linear_residual_forward(Device *dev, const Linear *linear, Tensor y, Tensor x,
                             Tensor residual);
/* Runs the backward pass of a linear layer that ends a tensor-parallel region, so its input is
 * split over the ranks. Computes dx (N, I) = dy weight, through the epilogue's derivative at pre,
 * and dweight and dbias (= or +=) from dy (N, O) and x (N, I). If `columns` (O, compute dtype) is
 * present, dbias uses it as the column sums of dy and does not read dy. It must be present under
 * sequence parallelism (residual_columns). */
void linear_backward_rows(const Pass *pass, const Linear *linear, Tensor dx, Tensor dy, Tensor x,
                          Tensor columns, Epilogue epilogue, Tensor pre);
/* Runs the backward pass of the n linear layers that begin a tensor-parallel region, so their
 * outputs are split over the ranks. They share the input x (N, I); dy (N, sum of O) has their
 * gradients side by side. Computes dx (N, I) = the sum of dy weight over the layers, and dstream =
 * the sum of dx over the ranks. The sum runs while dweight and dbias (= or +=) are computed.
 * dstream may be read after this call. */
void linear_backward_columns(const Pass *pass, const Linear *linear, int n, Tensor dstream,
                             Tensor dx, Tensor dy, Tensor x);

#endif
