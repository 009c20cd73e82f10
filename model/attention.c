/* attention.c -- implements attention.h: the attention half of a block. The backward pass mirrors
 * the forward pass. */
#include "model/attention.h"

#include <math.h>

/* q and k (normalised and rotated) and v in the form that the attention op reads: slices of
 * columns, each with N rows and D columns per head. */
typedef struct {
    Tensor q, k, v;
} Qkv;

static Qkv qkv_of(const GptShape *s, Tensor qk, Tensor qkv)
{
    int64_t q = s->H * s->D, k = s->G * s->D;
    return (Qkv){tensor_slice_cols(qk, 0, q), tensor_slice_cols(qk, q, k),
                 tensor_slice_cols(qkv, q + k, k)};
}

static Attention attention_of(const GptShape *s, int64_t causal_offset)
{
    return (Attention){.heads = s->H,
                       .kv_heads = s->G,
                       .head_size = s->D,
                       .causal_offset = causal_offset,
                       .scale = 1.0 / sqrt((double)s->D)};
}

void attention_layout(AttentionActs *a, const GptShape *s, int64_t B, int64_t T, Arena *saved,
                      Arena *remade, Arena *shared)
{
    int64_t N = B * T;
    DType compute = dtype_compute(s->dtype);
    int64_t S = shape_stream_rows(s, N);
    a->normed = arena_tensor(remade, s->dtype, 2, S, s->C, 0);
    a->stats = arena_tensor(remade, compute, 2, S, 2, 0);
    a->qkv = arena_tensor(saved, s->dtype, 2, N, shape_qkv_width(s), 0);
    if (s->qk_norm) {
        a->qk = arena_tensor(remade, s->dtype, 2, N, (s->H + s->G) * s->D, 0);
        a->q_stats = arena_tensor(remade, compute, 2, N * s->H, 2, 0);
        a->k_stats = arena_tensor(remade, compute, 2, N * s->G, 2, 0);
    } else {
        a->qk = tensor_slice_cols(a->qkv, 0, (s->H + s->G) * s->D);
    }
    a->o = arena_tensor(saved, s->dtype, 2, N, s->H * s->D, 0);
    a->lse = arena_tensor(saved, compute, 3, B, s->H, T);
    a->out = s->tp > 1 ? arena_tensor(shared, s->dtype, 2, N, s->C, 0) : NO_TENSOR;
    /* `in` may share memory with `out`: the products that read `in` finish before `out` is
     * written. */
    a->in = s->row_parts > 1 ? a->out : a->normed;
}

AttentionGrads attention_backward_layout(const GptShape *s, int64_t N, Arena *scratch)
{
    AttentionGrads d;
    d.dout = arena_tensor(scratch, s->dtype, 2, N, s->H * s->D, 0);
    d.dqkv = arena_tensor(scratch, s->dtype, 2, N, shape_qkv_width(s), 0);
    d.dnormed = arena_tensor(scratch, s->dtype, 2, N, s->C, 0);
    return d;
}

/* Applies RMSNorm to each head of q and of k; all heads share the weights. */
static void qk_norm_forward(const Pass *pass, const AttentionParams *params, AttentionActs *a)
{
    const GptShape *s = pass->shape;
    Norm norm = {.kind = NORM_RMSNORM, .epsilon = s->norm.epsilon};
    NormTensors q = norm_bind(pass->store, &params->q_norm, false),
                k = norm_bind(pass->store, &params->k_norm, false);
    Qkv in = qkv_of(s, a->qkv, a->qkv), out = qkv_of(s, a->qk, a->qkv);
    op_norm_forward(pass->dev, out.q, a->q_stats, in.q, q.weight, q.bias, norm);
    op_norm_forward(pass->dev, out.k, a->k_stats, in.k, k.weight, k.bias, norm);
}

/* Computes q and k as the attention op reads them: each head normalised (with qk_norm), then
 * rotated. */
static void heads_forward(const Pass *pass, const AttentionParams *params, AttentionActs *a)
{
    const GptShape *s = pass->shape;
    if (s->qk_norm) qk_norm_forward(pass, params, a);
    if (s->position == POSITION_ROPE)
        op_rope(pass->dev, a->qk, pass->rope_table, pass->positions, false);
}

void attention_recompute(const Pass *pass, const AttentionParams *params, AttentionActs *a,
                         Tensor x)
{
    norm_forward(pass, &params->norm, a->normed, a->stats, x);
    /* Without qk_norm, the rotated q and k are in qkv, which was kept, so they are not
     * recomputed. */
    if (pass->shape->qk_norm) heads_forward(pass, params, a);
}

/* Turns dq and dk, in place, from gradients of the normalised heads into gradients of the heads
 * before the norm. */
static void qk_norm_backward(const Pass *pass, const AttentionParams *params,
                             const AttentionActs *a, Tensor dq, Tensor dk, bool accumulate)
{
    const GptShape *s = pass->shape;
    Norm norm = {.kind = NORM_RMSNORM, .epsilon = s->norm.epsilon};
    NormTensors q = norm_bind(pass->store, &params->q_norm, true),
                k = norm_bind(pass->store, &params->k_norm, true);
    Qkv in = qkv_of(s, a->qkv, a->qkv);
    op_norm_backward(pass->dev, dq, false, NO_TENSOR, q.dweight, q.dbias, accumulate, dq, in.q,
                     a->q_stats, q.weight, norm);
    op_norm_backward(pass->dev, dk, false, NO_TENSOR, k.dweight, k.dbias, accumulate, dk, in.k,
                     a->k_stats, k.weight, norm);
}

static void bind_qkv(ParamStore *store, const AttentionParams *params, Linear *qkv, bool grads,
                     bool accumulate)
{
    for (int i = 0; i < params->n_qkv; i++)
        qkv[i] = linear_bind(store, &params->qkv[i], grads, accumulate);
}

/* Appends this pass's keys and values to the cache, and sets heads->k and heads->v to all of the
 * cache, as (1, length, G D). */
static void cache_append(const Pass *pass, KvCache *cache, Qkv *heads)
{
    int64_t T = pass->T, all = cache->length + T;
    op_copy(pass->dev, tensor_slice_rows(cache->k, cache->length, T), heads->k);
    op_copy(pass->dev, tensor_slice_rows(cache->v, cache->length, T), heads->v);
    heads->k = tensor_as_3d(tensor_slice_rows(cache->k, 0, all), 1, all);
    heads->v = tensor_as_3d(tensor_slice_rows(cache->v, 0, all), 1, all);
}

void attention_forward(const Pass *pass, const AttentionParams *params, AttentionActs *a, Tensor x,
                       Tensor y, KvCache *cache)
{
    const GptShape *s = pass->shape;
    ParamStore *store = pass->store;
    int64_t B = pass->B, T = pass->T;
    Linear qkv[2], out = linear_bind(store, &params->out, false, false);
    bind_qkv(store, params, qkv, false, false);
    norm_forward(pass, &params->norm, a->normed, a->stats, x);
    /* The tensor-parallel region begins: each rank computes its own heads, for all rows. */
    region_enter_forward(pass->tp, a->in, a->normed);
    linear_forward_columns(pass, qkv, params->n_qkv, a->qkv, a->in);
    heads_forward(pass, params, a);
    Qkv heads = qkv_of(s, a->qk, a->qkv);
    heads.q = tensor_as_3d(heads.q, B, T);
    if (cache) {
        cache_append(pass, cache, &heads);
    } else {
        heads.k = tensor_as_3d(heads.k, B, T);
        heads.v = tensor_as_3d(heads.v, B, T);
    }
    op_attention_forward(pass->dev, tensor_as_3d(a->o, B, T), a->lse, heads.q, heads.k, heads.v,
                         attention_of(s, cache ? cache->length : 0), pass->first_key);
    if (s->tp == 1) {
        linear_residual_forward(pass->dev, &out, y, a->o, x);
        return;
    }
    linear_forward(pass->dev, &out, false, a->out, a->o, EPILOGUE_NONE, NO_TENSOR);
    region_exit_forward(pass->tp, region_rows(pass->tp, a->out), a->out);
}

/* Makes the attention op, instead of the linear layers, compute the gradients of the biases of q, k
 * and v, if this is faster on the device. It is possible only without RoPE and QK-norm: then dq, dk
 * and dv are themselves the gradients of the linear layers' outputs, and their column sums are
 * those of the biases. The biases are stored in the order of the outputs: q | k | v in one linear
 * layer or, with two layers, q and k | v. */
static void attention_takes_biases(const Pass *pass, Linear *qkv, int n, AttentionTensors *t)
{
    const GptShape *s = pass->shape;
    int64_t q = s->H * s->D, k = s->G * s->D;
    if (!pass->dev->attention_sums_biases || s->position == POSITION_ROPE || s->qk_norm) return;
    if (!tensor_present(qkv[0].dbias)) return;
    Tensor of_kv = n > 1 ? qkv[1].dbias : tensor_slice_rows(qkv[0].dbias, q, 2 * k);
    t->dbq = tensor_slice_rows(qkv[0].dbias, 0, q);
    t->dbk = tensor_slice_rows(of_kv, 0, k);
    t->dbv = tensor_slice_rows(of_kv, k, k);
    t->accumulate_db = qkv[0].accumulate;
    for (int i = 0; i < n; i++)
        qkv[i].dbias = NO_TENSOR;
}

void attention_backward(const Pass *pass, const AttentionParams *params, const AttentionActs *a,
                        Tensor x, ResidualGrad *grad, bool accumulate)
{
    const GptShape *s = pass->shape;
    ParamStore *store = pass->store;
    int64_t B = pass->B, T = pass->T;
    Linear qkv[2], out = linear_bind(store, &params->out, true, accumulate);
    bind_qkv(store, params, qkv, true, accumulate);
    size_t mark = arena_mark(pass->scratch);
    AttentionGrads d = attention_backward_layout(s, B * T, pass->scratch);
    /* Keep grad->d unchanged until the end, because it is also the gradient of the residual path;
     * the norm's backward then adds to it. */
    Tensor dsum = s->row_parts > 1 ? d.dnormed : grad->d;
    region_exit_backward(pass->tp, dsum, grad->d);
    linear_backward_rows(pass, &out, d.dout, dsum, a->o,
                         residual_columns(pass, grad, params->out.bias >= 0), EPILOGUE_NONE,
                         NO_TENSOR);
    Qkv heads = qkv_of(s, a->qk, a->qkv), dheads = qkv_of(s, d.dqkv, d.dqkv);
    AttentionTensors t = {.dq = tensor_as_3d(dheads.q, B, T),
                          .dk = tensor_as_3d(dheads.k, B, T),
                          .dv = tensor_as_3d(dheads.v, B, T),
                          .dout = tensor_as_3d(d.dout, B, T),
                          .q = tensor_as_3d(heads.q, B, T),
                          .k = tensor_as_3d(heads.k, B, T),
                          .v = tensor_as_3d(heads.v, B, T),
                          .o = tensor_as_3d(a->o, B, T),
                          .lse = a->lse,
                          .first_key = pass->first_key};
    attention_takes_biases(pass, qkv, params->n_qkv, &t);
    op_attention_backward(pass->dev, &t, false, attention_of(s, 0));
    /* Undo the rotation before the backward pass of the head norms, because forward normalised
     * first. */
    if (s->position == POSITION_ROPE)
        op_rope(pass->dev, tensor_slice_cols(d.dqkv, 0, (s->H + s->G) * s->D), pass->rope_table,
                pass->positions, true);
    if (s->qk_norm) qk_norm_backward(pass, params, a, dheads.q, dheads.k, accumulate);
    /* Under sequence parallelism, forward overwrote `in` with the projection's output, so gather
     * the rows again. */
    region_enter_forward(pass->tp, a->in, a->normed);
    Tensor dnormed = region_rows(pass->tp, d.dnormed);
    linear_backward_columns(pass, qkv, params->n_qkv, dnormed, d.dnormed, d.dqkv, a->in);
    residual_norm_backward(pass, grad, true, &params->norm, accumulate, dnormed, x, a->stats);
    arena_rewind(pass->scratch, mark);
}
