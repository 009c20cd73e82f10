/* residual.c -- implements residual.h: the gradient of the residual stream and its column sums. */
#include "model/residual.h"

ResidualGrad residual_layout(const GptShape *s, int64_t N, Arena *arena)
{
    ResidualGrad grad = {.d = arena_tensor(arena, s->dtype, 2, shape_stream_rows(s, N), s->C, 0)};
    if (shape_has_residual_bias(s))
        grad.columns = arena_tensor(arena, dtype_compute(s->dtype), 1, s->C, 0, 0);
    return grad;
}

Tensor residual_columns(const Pass *pass, ResidualGrad *grad, bool biased)
{
    if (!biased) return NO_TENSOR;
    if (!grad->summed && pass->tp->parts > 1 && tensor_present(grad->columns)) {
        op_column_sum(pass->dev, grad->columns, grad->d);
        grad->summed = true;
    }
    return grad->summed ? grad->columns : NO_TENSOR;
}

void residual_norm_backward(const Pass *pass, ResidualGrad *grad, bool add,
                            const NormParams *params, bool accumulate, Tensor dy, Tensor x,
                            Tensor stats)
{
    NormTensors norm = norm_bind(pass->store, params, true);
    /* The op writes each element of d once and sums its columns at the same time. */
    op_norm_backward(pass->dev, grad->d, add, grad->columns, norm.dweight, norm.dbias, accumulate,
                     dy, x, stats, norm.weight, pass->shape->norm);
    grad->summed = tensor_present(grad->columns);
}
