/* head.c -- implements head.h: logits, loss and their gradients, one chunk of rows after the
 * other. */
#include "model/head.h"

#include "model/embedding.h"

#include "model/core/min_max.h"

/* Size in bytes of the logits of one chunk if the shape does not set the number of rows, as on
 * CPUs. Each chunk reads the table and its gradient again, so larger is better; beyond this size
 * the gain on CPUs is below three percent of the time of the head's products.
 * configs/reader/settle.c chooses the rows for GPUs. */
#define HEAD_LOGITS_BYTES ((int64_t)128 << 20)

int head_add_params(Head *h, ParamTable *table, const GptShape *s, int unit, int token_unit,
                    int token)
{
    ParamGroup group = s->decay_on == DECAY_ON_ALL ? GROUP_DECAY : GROUP_NO_DECAY;
    ParamSpec norm = {.name = "final_norm.weight",
                      .pack = -1,
                      .rows = s->C,
                      .tp_dim = -1,
                      .tp_grad = TP_GRAD_PARTIAL_IF_SP,
                      .group = group,
                      .init = INIT_ONE};
    *h = (Head){.norm_unit = unit, .norm = {.bias = -1}, .table_unit = token_unit, .table = token};
    h->norm.weight = param_table_add(table, unit, s->dtype, &norm);
    if (s->norm_bias && s->norm.kind == NORM_LAYERNORM) {
        norm.name = "final_norm.bias";
        norm.init = INIT_ZERO;
        h->norm.bias = param_table_add(table, unit, s->dtype, &norm);
    }
    unit++;
    if (!s->tied) {
        ParamSpec head = vocab_table_spec(s, "head.weight");
        h->table_unit = unit;
        h->table = param_table_add(table, unit++, s->dtype, &head);
    }
    return unit;
}

void head_layout(HeadActs *a, const GptShape *s, int64_t N, bool backward, Arena *shared)
{
    int64_t most =
        s->head_chunk ? s->head_chunk : HEAD_LOGITS_BYTES / (s->Vp * (int64_t)dtype_size(s->dtype));
    /* Use chunks of nearly equal length instead of full chunks and a short rest, because short
     * products are slow. But keep whole tiles if full chunks have them: GPUs compute products in
     * tiles of up to 256 rows. */
    const int64_t TILE = 256;
    int64_t chunks = most > 0 ? (N + most - 1) / most : N;
    int64_t unit = s->head_chunk > 0 && s->head_chunk % TILE == 0 ? TILE : 1;
    a->chunk = min_i64((N + chunks * unit - 1) / (chunks * unit) * unit, N);
    int64_t S = shape_stream_rows(s, N);
    DType compute = dtype_compute(s->dtype);
    a->normed = arena_tensor(shared, s->dtype, 2, S, s->C, 0);
    a->stats = arena_tensor(shared, compute, 2, S, 2, 0);
    /* Unlike in a block, `in` has its own memory, because every chunk reads it. */
    a->in = s->row_parts > 1 ? arena_tensor(shared, s->dtype, 2, N, s->C, 0) : a->normed;
    a->dnormed = backward ? arena_tensor(shared, s->dtype, 2, N, s->C, 0) : NO_TENSOR;
    a->logits = arena_tensor(shared, s->dtype, 2, a->chunk, s->Vp, 0);
    a->losses = arena_tensor(shared, compute, 1, N, 0, 0);
    a->most = s->tp > 1 ? arena_tensor(shared, compute, 1, a->chunk, 0, 0) : NO_TENSOR;
    a->terms = s->tp > 1 ? arena_tensor(shared, compute, 2, a->chunk, 2, 0) : NO_TENSOR;
}

/* Computes the final norm of this rank's rows x; returns the rows of all ranks. */
static Tensor norm_rows(const Pass *pass, const Head *h, HeadActs *a, Tensor x)
{
    int64_t n = tensor_rows(x);
    Tensor normed = tensor_slice_rows(a->normed, 0, n),
           in = tensor_slice_rows(a->in, 0, n * pass->shape->row_parts);
    norm_forward(pass, &h->norm, normed, tensor_slice_rows(a->stats, 0, n), x);
    region_enter_forward(pass->tp, in, normed);
    return in;
}

/* Computes the losses of n rows of logits. With `backward`, overwrites the logits with their
 * gradients. */
static void loss_of(const Pass *pass, const Head *h, const HeadActs *a, Tensor losses,
                    Tensor logits, Tensor targets, Tensor scale, bool backward)
{
    int64_t n = tensor_rows(logits), V = pass->shape->V;
    if (pass->shape->tp == 1) {
        op_loss(pass->dev, losses, logits, targets, V, scale, backward);
        return;
    }
    /* The vocabulary-parallel cross entropy of Megatron-LM (arXiv:1909.08053, section 3). */
    int64_t first = vocab_first_row(pass->store, h->table);
    Tensor most = tensor_slice_rows(a->most, 0, n), terms = tensor_slice_rows(a->terms, 0, n);
    op_loss_max(pass->dev, most, logits, first, V);
    region_reduce(pass->tp, most, REDUCE_MAX);
    op_loss_terms(pass->dev, terms, logits, targets, most, first, V);
    region_reduce(pass->tp, terms, REDUCE_SUM);
    op_loss_finish(pass->dev, losses, logits, targets, most, terms, first, V, scale, backward);
}

/* Computes the loss of one chunk of rows and, with `backward`, its gradients. `accumulate` selects
 * += or = for the gradient of the table. After the last chunk dnormed is complete; its sum over the
 * ranks runs while the table's gradient is computed, so the caller must call region_await. */
static void chunk_loss(const Pass *pass, const Head *h, HeadActs *a, int64_t first, int64_t n,
                       Tensor scale, bool backward, bool accumulate)
{
    ParamStore *store = pass->store;
    Tensor table = store->weight(store, h->table, 1);
    Tensor in = tensor_slice_rows(a->in, first, n), logits = tensor_slice_rows(a->logits, 0, n);
    op_linear_forward(pass->dev, logits, in, table, NO_TENSOR, EPILOGUE_NONE, NO_TENSOR);
    loss_of(pass, h, a, tensor_slice_rows(a->losses, first, n), logits,
            tensor_slice_rows(pass->targets, first, n), scale, backward);
    if (!backward) return;
    op_linear_backward_input(pass->dev, tensor_slice_rows(a->dnormed, first, n), logits, table,
                             EPILOGUE_NONE, NO_TENSOR, false);
    if (first + n == pass_rows(pass))
        region_enter_backward(pass->tp, region_rows(pass->tp, a->dnormed), a->dnormed);
    op_linear_backward_weight(pass->dev, store->grad(store, h->table, 1), NO_TENSOR, logits, in,
                              NO_TENSOR, accumulate);
}

/* Adds the losses to the stats of all rows, or of each of B sequences. */
static void sum_losses(const Pass *pass, const HeadActs *a, Tensor stats)
{
    int64_t sequences = tensor_rows(stats), n = pass_rows(pass) / sequences;
    for (int64_t i = 0; i < sequences; i++)
        op_loss_sum(pass->dev, tensor_1d(tensor_row(stats, i), F64, 2),
                    tensor_slice_rows(a->losses, i * n, n),
                    tensor_slice_rows(pass->targets, i * n, n));
}

void head_loss(const Pass *pass, const Head *h, HeadActs *a, Tensor x, Tensor stats, Tensor scale,
               ResidualGrad *grad, const bool *accumulate)
{
    int64_t N = pass_rows(pass);
    bool backward = grad != NULL, add_norm = backward && accumulate[0],
         add_table = backward && accumulate[1];
    norm_rows(pass, h, a, x);
    /* The table's gradient is a sum over all chunks, so only the first chunk of the step may write
     * (=) instead of add. */
    for (int64_t first = 0; first < N; first += a->chunk) {
        int64_t n = first + a->chunk < N ? a->chunk : N - first;
        chunk_loss(pass, h, a, first, n, scale, backward, add_table || first > 0);
    }
    sum_losses(pass, a, stats);
    if (backward) {
        region_await(pass->tp);
        residual_norm_backward(pass, grad, false, &h->norm, add_norm,
                               region_rows(pass->tp, a->dnormed), x, a->stats);
    }
}

void head_logits(const Pass *pass, const Head *h, HeadActs *a, Tensor x, Tensor logits)
{
    ParamStore *store = pass->store;
    Tensor in = norm_rows(pass, h, a, x), table = store->weight(store, h->table, 1);
    if (pass->shape->tp == 1) {
        op_linear_forward(pass->dev, logits, in, table, NO_TENSOR, EPILOGUE_NONE, NO_TENSOR);
        return;
    }
    /* Gather one row at a time. A gather concatenates whole parts, so the columns are in order only
     * within a row. A decoding pass has one row. */
    for (int64_t i = 0; i < tensor_rows(in); i++) {
        Tensor part = tensor_slice_rows(a->logits, 0, 1);
        op_linear_forward(pass->dev, part, tensor_slice_rows(in, i, 1), table, NO_TENSOR,
                          EPILOGUE_NONE, NO_TENSOR);
        region_gather(pass->tp, tensor_slice_rows(logits, i, 1), part);
    }
}
