/* linear.c -- see linear.h. The input gradient comes first: with tensor parallelism its reduction
 * hides behind the weight gradient. */
#include "model/linear.h"

Linear linear_bind(ParamStore *store, const LinearParams *params, bool grads, bool accumulate)
{
    Linear linear = {.accumulate = accumulate};
    linear.weight = store->weight(store, params->weight, params->rows);
    if (params->bias >= 0) linear.bias = store->weight(store, params->bias, params->rows);
    if (!grads) return linear;
    linear.dweight = store->grad(store, params->weight, params->rows);
    if (params->bias >= 0) linear.dbias = store->grad(store, params->bias, params->rows);
    return linear;
}

void linear_forward(Device *dev, const Linear *linear, bool with_bias, Tensor y, Tensor x,
                    Epilogue epilogue, Tensor pre)
{
    op_linear_forward(dev, y, x, linear->weight, with_bias ? linear->bias : NO_TENSOR, epilogue,
                      pre);
}

void linear_backward(Device *dev, const Linear *linear, Tensor dx, Tensor dy, Tensor x,
                     Tensor columns, Epilogue epilogue, Tensor pre)
{
    op_linear_backward_input(dev, dx, dy, linear->weight, epilogue, pre, false);
    op_linear_backward_weight(dev, linear->dweight, linear->dbias, dy, x, columns,
                              linear->accumulate);
}
