/* linear.h -- Linear: one or several adjacent weight matrices of a pack as one product, with an
 * optional bias. */
#ifndef MODEL_LINEAR_H
#define MODEL_LINEAR_H

#include "model/shape.h"

/* Rows of the parameter table: `rows` adjacent ones from `weight`, and from `bias` (-1: no bias).
 */
typedef struct {
    int weight, bias, rows;
} LinearParams;

/* weight (O, I) and bias (O) between acquire and release; their gradients between grad_acquire and
 * grad_release. */
typedef struct {
    Tensor weight, bias, dweight, dbias;
    bool accumulate; /* gradients: += if true, else = */
} Linear;

/* The linear's tensors from the store; gradients too when `grads`, to be added when `accumulate`.
 */
Linear linear_bind(ParamStore *store, const LinearParams *params, bool grads, bool accumulate);

/* y (N, O) = epilogue(x (N, I) weight^T + bias); pre (N, O, if present) = the value before the
 * epilogue. A row-cut linear (its bias is added after the reduction) passes with_bias false. */
void linear_forward(Device *dev, const Linear *linear, bool with_bias, Tensor y, Tensor x,
                    Epilogue epilogue, Tensor pre);
/* y (N, sum of O) = what n linears make of one x (N, I), side by side. */
void linear_forward_columns(const Pass *pass, const Linear *linear, int n, Tensor y, Tensor x);
/* Backward of a row-cut linear, which ends a region: dx (N, I) = dy weight, through the epilogue's
 * derivative at pre; dweight, dbias =/+= from dy (N, O) and x (N, I). columns (O, if present)
 * compute: dbias takes these column sums and does not read dy; the caller has them wherever the
 * rows of the stream are cut (residual_columns). */
void linear_backward_rows(const Pass *pass, const Linear *linear, Tensor dx, Tensor dy, Tensor x,
                          Tensor columns, Epilogue epilogue, Tensor pre);
/* Backward of the column-cut linears that begin a region, n of them side by side in the columns of
 * dy (N, sum of O), of one x (N, I): dx (N, I) = the sum of dy weight; dstream = its sum over the
 * ranks, which is made (region_enter_backward) while dweight, dbias =/+= are computed, and may be
 * read after this call. */
void linear_backward_columns(const Pass *pass, const Linear *linear, int n, Tensor dstream,
                             Tensor dx, Tensor dy, Tensor x);

#endif
