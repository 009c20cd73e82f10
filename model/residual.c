/* residual.c -- see residual.h. */
#include "model/residual.h"

ResidualGrad residual_layout(const GptShape *s, int64_t N, Arena *arena)
{
    ResidualGrad grad = {.d = arena_tensor(arena, s->dtype, 2, N, s->C, 0)};
    if (s->bias) grad.columns = arena_tensor(arena, dtype_compute(s->dtype), 1, s->C, 0, 0);
    return grad;
}

Tensor residual_columns(const ResidualGrad *grad)
{
    return grad->summed ? grad->columns : NO_TENSOR;
}

void residual_norm_backward(const Pass *pass, ResidualGrad *grad, bool add, int weight, int bias,
                            bool accumulate, Tensor dy, Tensor x, Tensor stats)
{
    ParamStore *store = pass->store;
    op_norm_backward(pass->dev, grad->d, add, grad->columns, store->grad(store, weight, 1),
                     bias < 0 ? NO_TENSOR : store->grad(store, bias, 1), accumulate, dy, x, stats,
                     store->weight(store, weight, 1), pass->shape->norm);
    grad->summed = tensor_present(grad->columns);
}
