/* linear.c -- implements linear.h: forward and backward of matrix products with their weights. */
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

void linear_residual_forward(Device *dev, const Linear *linear, Tensor y, Tensor x, Tensor residual)
{
    op_linear_residual_forward(dev, y, x, linear->weight, linear->bias, residual);
}

void linear_backward_rows(const Pass *pass, const Linear *linear, Tensor dx, Tensor dy, Tensor x,
                          Tensor columns, Epilogue epilogue, Tensor pre)
{
    op_linear_backward_input(pass->dev, dx, dy, linear->weight, epilogue, pre, false);
    op_linear_backward_weight(pass->dev, linear->dweight, linear->dbias, dy, x, columns,
                              linear->accumulate);
}

/* Returns the columns of y that belong to the i-th of several linear layers, whose outputs are side
 * by side in y. */
static Tensor columns_of(const Linear *linear, int i, Tensor y)
{
    int64_t first = 0;
    for (int k = 0; k < i; k++)
        first += tensor_rows(linear[k].weight);
    return tensor_slice_cols(y, first, tensor_rows(linear[i].weight));
}

void linear_forward_columns(const Pass *pass, const Linear *linear, int n, Tensor y, Tensor x)
{
    for (int i = 0; i < n; i++)
        linear_forward(pass->dev, &linear[i], true, columns_of(linear, i, y), x, EPILOGUE_NONE,
                       NO_TENSOR);
}

void linear_backward_columns(const Pass *pass, const Linear *linear, int n, Tensor dstream,
                             Tensor dx, Tensor dy, Tensor x)
{
    /* Compute the input gradient first, so that its sum over the ranks runs while the weight
     * gradients are computed. */
    for (int i = 0; i < n; i++)
        op_linear_backward_input(pass->dev, dx, columns_of(linear, i, dy), linear[i].weight,
                                 EPILOGUE_NONE, NO_TENSOR, i > 0);
    region_enter_backward(pass->tp, dstream, dx);
    for (int i = 0; i < n; i++)
        op_linear_backward_weight(pass->dev, linear[i].dweight, linear[i].dbias,
                                  columns_of(linear, i, dy), x, NO_TENSOR, linear[i].accumulate);
    region_await(pass->tp);
}
