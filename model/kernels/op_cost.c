/* op_cost.c -- see op_cost.h. By default each tensor argument is read or written once; the switches
 * below add the differences. */
#include "model/kernels/op_cost.h"

#include "model/core/min_max.h"
#include "model/kernels/op_arguments.h"

/* ---- bytes ----------------------------------------------------------------------------------- */

static int64_t bytes_of(Tensor t)
{
    return tensor_present(t) ? (int64_t)tensor_bytes(t) : 0;
}

static int64_t bytes_of_argument(const void *tensor)
{
    return bytes_of(*(const Tensor *)tensor);
}

static int64_t no_bytes(const void *argument)
{
    (void)argument;
    return 0;
}

static int64_t bytes_of_list(const Tensor *x, int n)
{
    int64_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += bytes_of(x[i]);
    return bytes;
}

/* once_NAME returns the bytes of the op's tensor arguments, each tensor counted once. */
#define BYTES_OF(name)                                                                             \
    +_Generic(&a->name, const Tensor * : bytes_of_argument, default : no_bytes)(&a->name)
#define OP(name_, parameters)                                                                      \
    static int64_t once_##name_(const void *arguments)                                             \
    {                                                                                              \
        const Arguments_##name_ *a = arguments;                                                    \
        return EACH(BYTES_OF, ARGUMENTS_##name_);                                                  \
    }
#define OP_WITHOUT_CUDA OP
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA

static int64_t (*const once[OP_COUNT])(const void *arguments) = {
#define OP(name, parameters) [OP_##name] = once_##name,
#define OP_WITHOUT_CUDA      OP
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA
};

/* Returns the bytes of the table rows that the indices select. */
static int64_t picked(Tensor table, Tensor indices)
{
    int64_t rows = min_i64(tensor_count(indices), tensor_rows(table));
    return rows * tensor_cols(table) * (int64_t)dtype_size(table.dtype);
}

/* Returns the traffic of a table's gradient minus its size, in bytes. The difference is 0 for `=`,
 * which writes the whole gradient; `+=` reads and writes only the selected rows. */
static int64_t more_of_table(Tensor dtable, Tensor indices, bool accumulate)
{
    return accumulate ? 2 * picked(dtable, indices) - bytes_of(dtable) : 0;
}

static int64_t attention_bytes(const Arguments_attention_backward *a)
{
    const AttentionTensors *t = a->t;
    int64_t results = bytes_of(t->dq) + bytes_of(t->dk) + bytes_of(t->dv);
    int64_t biases = bytes_of(t->dbq) + bytes_of(t->dbk) + bytes_of(t->dbv);
    return results * (a->accumulate ? 2 : 1) + biases * (t->accumulate_db ? 2 : 1) +
           bytes_of(t->dout) + bytes_of(t->q) + bytes_of(t->k) + bytes_of(t->v) + bytes_of(t->o) +
           bytes_of(t->lse) + bytes_of(t->first_key);
}

/* Returns the bytes of an update. With master weights the weight is only written. */
static int64_t update_bytes(const UpdateRange *range, int n)
{
    int64_t bytes = 0;
    for (const UpdateRange *r = range; r < range + n; r++)
        bytes += bytes_of(r->weight) * (tensor_present(r->master) ? 1 : 2) + bytes_of(r->grad) +
                 2 * (bytes_of(r->master) + bytes_of(r->slot[0]) + bytes_of(r->slot[1])) +
                 bytes_of(r->rounding.segments);
    return bytes;
}

static int64_t bytes_on_host(Tensor t)
{
    return t.place == PLACE_HOST ? bytes_of(t) : 0;
}

/* Returns how many bytes of master weights and optimizer slots in host memory an update reads and
 * writes. */
static int64_t host_bytes(const UpdateRange *range, int n)
{
    int64_t bytes = 0;
    for (const UpdateRange *r = range; r < range + n; r++)
        bytes +=
            2 * (bytes_on_host(r->master) + bytes_on_host(r->slot[0]) + bytes_on_host(r->slot[1]));
    return bytes;
}

/* Returns how many more bytes a call moves than its tensor arguments have (fewer: negative), for
 * ops with tables, norms or activations. */
static int64_t more_of_layers(OpId op, const void *arguments)
{
    switch (op) {
    case OP_token_forward: {
        const Arguments_token_forward *a = arguments;
        return picked(a->table, a->tokens) - bytes_of(a->table);
    }
    case OP_token_backward: {
        const Arguments_token_backward *a = arguments;
        return more_of_table(a->dtable, a->tokens, a->accumulate);
    }
    case OP_position_add: {
        const Arguments_position_add *a = arguments;
        return bytes_of(a->x) + picked(a->table, a->positions) - bytes_of(a->table);
    }
    case OP_position_backward: {
        const Arguments_position_backward *a = arguments;
        return more_of_table(a->dtable, a->positions, a->accumulate);
    }
    case OP_norm_backward: {
        const Arguments_norm_backward *a = arguments;
        return (a->accumulate_dx ? bytes_of(a->dx) : 0) +
               (a->accumulate ? bytes_of(a->dw) + bytes_of(a->db) : 0);
    }
    case OP_linear_backward_input: {
        const Arguments_linear_backward_input *a = arguments;
        return a->accumulate ? bytes_of(a->dx) : 0;
    }
    case OP_linear_backward_weight: {
        const Arguments_linear_backward_weight *a = arguments;
        return a->accumulate ? bytes_of(a->dw) + bytes_of(a->db) : 0;
    }
    case OP_rope: {
        const Arguments_rope *a = arguments;
        return bytes_of(a->x) + picked(a->table, a->positions) - bytes_of(a->table);
    }
    case OP_attention_backward: return attention_bytes(arguments);
    default: return 0;
    }
}

/* Returns the same difference as more_of_layers, for the other ops. */
static int64_t more_of_step(OpId op, const void *arguments)
{
    switch (op) {
    case OP_sum: {
        const Arguments_sum *a = arguments;
        return bytes_of_list(a->src, a->n);
    }
    case OP_maximum: {
        const Arguments_maximum *a = arguments;
        return bytes_of_list(a->src, a->n);
    }
    case OP_loss: {
        const Arguments_loss *a = arguments;
        return a->backward ? bytes_of(a->logits) : 0;
    }
    case OP_loss_finish: {
        const Arguments_loss_finish *a = arguments;
        return a->backward ? bytes_of(a->logits) : 0;
    }
    case OP_loss_sum: return bytes_of(((const Arguments_loss_sum *)arguments)->stats);
    case OP_sq_norm: {
        const Arguments_sq_norm *a = arguments;
        return bytes_of(a->stats) + bytes_of_list(a->x, a->n);
    }
    case OP_hash: return bytes_of(((const Arguments_hash *)arguments)->sum);
    case OP_step_decide: {
        /* One learning rate is read. */
        const Arguments_step_decide *a = arguments;
        return (int64_t)(2 * sizeof *a->state + 2 * sizeof *a->stats + sizeof *a->decision +
                         sizeof(double)) -
               bytes_of(a->lr_table);
    }
    case OP_adamw: {
        const Arguments_adamw *a = arguments;
        return update_bytes(a->range, a->n);
    }
    case OP_sgd: {
        const Arguments_sgd *a = arguments;
        return update_bytes(a->range, a->n);
    }
    default: return 0;
    }
}

/* ---- products -------------------------------------------------------------------------------- */

static OpCost product(int64_t m, int64_t n, int64_t k)
{
    return (OpCost){.m = m, .n = n, .k = k, .flops = 2.0 * (double)m * (double)n * (double)k};
}

/* Returns the cost of `products` products over the pairs of a query and a key that it may attend
 * to: query t sees keys 0 .. t + causal_offset, of those that exist. */
static OpCost attention(Tensor q, Tensor k, Attention a, int products)
{
    int64_t queries = q.dim[1], keys = k.dim[1];
    /* few: the number of queries that see only a part of the keys. seen: the number of pairs of a
     * query and a key that it sees. */
    int64_t few = max_i64(0, min_i64(queries, keys - a.causal_offset));
    double seen = (double)few * (double)a.causal_offset + 0.5 * (double)few * (double)(few + 1) +
                  (double)(queries - few) * (double)keys;
    OpCost cost = {.m = q.dim[0] * a.heads, .n = queries, .k = a.head_size};
    cost.flops = 2.0 * products * seen * (double)cost.m * (double)cost.k;
    return cost;
}

static OpCost arithmetic(OpId op, const void *arguments)
{
    switch (op) {
    case OP_linear_forward: {
        const Arguments_linear_forward *a = arguments;
        return product(tensor_rows(a->y), tensor_cols(a->y), tensor_cols(a->x));
    }
    case OP_linear_residual_forward: {
        const Arguments_linear_residual_forward *a = arguments;
        return product(tensor_rows(a->y), tensor_cols(a->y), tensor_cols(a->x));
    }
    case OP_linear_backward_input: {
        const Arguments_linear_backward_input *a = arguments;
        return product(tensor_rows(a->dx), tensor_cols(a->dx), tensor_cols(a->dy));
    }
    case OP_linear_backward_weight: {
        const Arguments_linear_backward_weight *a = arguments;
        return product(tensor_rows(a->dw), tensor_cols(a->dw), tensor_rows(a->dy));
    }
    case OP_attention_forward: {
        const Arguments_attention_forward *a = arguments;
        return attention(a->q, a->k, a->attention, 2);
    }
    case OP_attention_backward: {
        const Arguments_attention_backward *a = arguments;
        return attention(a->t->q, a->t->k, a->attention, 5);
    }
    default: return (OpCost){0};
    }
}

OpCost op_cost(OpId op, const void *arguments)
{
    OpCost cost = arithmetic(op, arguments);
    cost.bytes = once[op](arguments) + more_of_layers(op, arguments) + more_of_step(op, arguments);
    if (op == OP_adamw) {
        const Arguments_adamw *a = arguments;
        cost.host_bytes = host_bytes(a->range, a->n);
    } else if (op == OP_sgd) {
        const Arguments_sgd *a = arguments;
        cost.host_bytes = host_bytes(a->range, a->n);
    }
    return cost;
}
