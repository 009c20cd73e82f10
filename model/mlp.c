/* mlp.c -- implements mlp.h. GELU is an epilogue of the first product; SwiGLU and squared ReLU are
 * separate ops. */
#include "model/mlp.h"

#include "model/core/check.h"

void mlp_layout(MlpActs *a, const GptShape *s, int64_t N, Arena *saved, Arena *remade,
                Arena *shared)
{
    int64_t S = shape_stream_rows(s, N);
    a->normed = arena_tensor(remade, s->dtype, 2, S, s->C, 0);
    a->stats = arena_tensor(remade, dtype_compute(s->dtype), 2, S, 2, 0);
    a->pre = arena_tensor(saved, s->dtype, 2, N, shape_up_width(s), 0);
    a->act = arena_tensor(remade, s->dtype, 2, N, s->F, 0);
    a->down = s->tp > 1 ? arena_tensor(shared, s->dtype, 2, N, s->C, 0) : NO_TENSOR;
    /* `in` may share memory with `down`: the product that reads `in` finishes before `down` is
     * written. */
    a->in = s->row_parts > 1 ? a->down : a->normed;
}

MlpGrads mlp_backward_layout(const GptShape *s, int64_t N, Arena *scratch)
{
    MlpGrads d;
    d.dpre = arena_tensor(scratch, s->dtype, 2, N, shape_up_width(s), 0);
    d.dact = s->activation == ACTIVATION_SWIGLU ? arena_tensor(scratch, s->dtype, 2, N, s->F, 0)
                                                : d.dpre;
    d.dnormed = arena_tensor(scratch, s->dtype, 2, N, s->C, 0);
    return d;
}

void mlp_forward_up(const Pass *pass, const MlpParams *params, MlpActs *a)
{
    const GptShape *s = pass->shape;
    Linear up = linear_bind(pass->store, &params->up, false, false);
    region_enter_forward(pass->tp, a->in, a->normed);
    if (s->activation == ACTIVATION_GELU) {
        linear_forward(pass->dev, &up, true, a->act, a->in,
                       s->fused_gelu ? EPILOGUE_GELU_OF_SUM : EPILOGUE_GELU, a->pre);
    } else {
        linear_forward(pass->dev, &up, true, a->pre, a->in, EPILOGUE_NONE, NO_TENSOR);
        op_activation_forward(pass->dev, a->act, a->pre, s->activation);
    }
}

void mlp_forward_down(const Pass *pass, const MlpParams *params, MlpActs *a, Tensor x, Tensor y)
{
    Linear down = linear_bind(pass->store, &params->down, false, false);
    if (pass->shape->tp == 1) {
        linear_residual_forward(pass->dev, &down, y, a->act, x);
        return;
    }
    Tensor sum = region_rows(pass->tp, a->down);
    linear_forward(pass->dev, &down, false, a->down, a->act, EPILOGUE_NONE, NO_TENSOR);
    region_exit_forward(pass->tp, sum, a->down);
    op_bias_residual(pass->dev, y, sum, down.bias, x);
}

void mlp_recompute(const Pass *pass, const MlpParams *params, MlpActs *a, Tensor x)
{
    const GptShape *s = pass->shape;
    CHECK(!s->fused_gelu || s->dtype == dtype_compute(s->dtype),
          "gelu of an unrounded sum cannot be made again from a pre in %s", dtype_name(s->dtype));
    norm_forward(pass, &params->norm, a->normed, a->stats, x);
    op_activation_forward(pass->dev, a->act, a->pre, s->activation);
}

void mlp_backward(const Pass *pass, const MlpParams *params, const MlpActs *a, Tensor x,
                  ResidualGrad *grad, bool accumulate)
{
    const GptShape *s = pass->shape;
    Linear up = linear_bind(pass->store, &params->up, true, accumulate);
    Linear down = linear_bind(pass->store, &params->down, true, accumulate);
    size_t mark = arena_mark(pass->scratch);
    bool gelu = s->activation == ACTIVATION_GELU;
    MlpGrads d = mlp_backward_layout(s, pass_rows(pass), pass->scratch);
    /* Under sequence parallelism, d.dnormed first holds the gathered gradient of the residual
     * stream, until the product that reads it is done. */
    Tensor dsum = s->row_parts > 1 ? d.dnormed : grad->d;
    region_exit_backward(pass->tp, dsum, grad->d);
    linear_backward_rows(pass, &down, d.dact, dsum, a->act,
                         residual_columns(pass, grad, params->down.bias >= 0),
                         gelu ? EPILOGUE_GELU : EPILOGUE_NONE, gelu ? a->pre : NO_TENSOR);
    if (!gelu) op_activation_backward(pass->dev, d.dpre, d.dact, a->pre, s->activation);
    /* Under sequence parallelism, forward overwrote `in` with the down product's output, so gather
     * the rows again. */
    region_enter_forward(pass->tp, a->in, a->normed);
    Tensor dnormed = region_rows(pass->tp, d.dnormed);
    linear_backward_columns(pass, &up, 1, dnormed, d.dnormed, d.dpre, a->in);
    residual_norm_backward(pass, grad, true, &params->norm, accumulate, dnormed, x, a->stats);
    arena_rewind(pass->scratch, mark);
}
