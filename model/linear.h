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
/* dx (N, I) = dy weight, through the epilogue's derivative at pre; then dweight, dbias =/+= from dy
 * (N, O) and x (N, I). columns (O, if present) compute: dbias takes these column sums and does not
 * read dy. A row-cut linear passes them where it can: under sequence parallel dy has the rows of
 * all ranks, and the gradient of its bias is of this rank's (residual.h). */
void linear_backward(Device *dev, const Linear *linear, Tensor dx, Tensor dy, Tensor x,
                     Tensor columns, Epilogue epilogue, Tensor pre);

#endif
