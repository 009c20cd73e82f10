/* ops.c -- the public functions of the ops on memory, embeddings, norms and linear layers: each
 * checks its operands, once for all devices, and calls the implementation in the device's table.
 *
 * An implementation may rely on the checks made here: presence, shapes, types, density. The
 * contracts are in ops.h. */
#include "model/kernels/ops.h"

#include "model/core/check.h"
#include "model/kernels/ops_check.h"

/* ---- memory -----------------------------------------------------------------------------------
 */

/* Returns the storage type whose table of ops fills and sums tensors of type `storage`. This is
 * `storage` itself, except for f64 on a device without f64 ops: a step's sums are f64 there, too,
 * so the f32 table serves them. */
static DType sums_storage(const Device *dev, DType storage)
{
    return storage == F64 && dev->ops_f64 == NULL ? F32 : storage;
}

void op_fill(Device *dev, Tensor x, double value)
{
    expect_matrix(OP_fill, OPERAND(x), tensor_rows(x), tensor_cols(x), OPERAND(x));
    RUN_FROM(fill, sums_storage(dev, x.dtype), x.dtype, dev, x, value);
}

void op_copy(Device *dev, Tensor y, Tensor x)
{
    expect_matrix(OP_copy, OPERAND(x), tensor_rows(x), tensor_cols(x), OPERAND(x));
    expect_matrix(OP_copy, OPERAND(y), tensor_rows(x), tensor_cols(x), OPERAND(x));
    expect(OP_copy, dtype_is_float(x.dtype) && dtype_is_float(y.dtype), "both are float types",
           OPERAND(y), OPERAND(x));
    RUN(copy, x.dtype == F64 ? F64 : y.dtype, dev, y, x);
}

void op_add(Device *dev, Tensor y, Tensor a, Tensor b)
{
    expect_matrix(OP_add, OPERAND(y), tensor_rows(y), tensor_cols(y), OPERAND(y));
    expect_matrix(OP_add, OPERAND(a), tensor_rows(y), tensor_cols(y), OPERAND(y));
    expect_matrix(OP_add, OPERAND(b), tensor_rows(y), tensor_cols(y), OPERAND(y));
    expect_storage(OP_add, OPERAND(a), OPERAND(y));
    expect_storage(OP_add, OPERAND(b), OPERAND(y));
    RUN(add, y.dtype, dev, y, a, b);
}

/* Requires at least one source, and that all are dense, of one type, and as long as dst. */
static void check_sources(OpId op, Operand dst, const Tensor *src, int n)
{
    expect_argument(op, n >= 1, "there is at least one source", n);
    expect_vector(op, dst, tensor_count(dst.tensor), dst);
    Operand first = {.name = "the first source", .tensor = src[0]};
    for (int i = 0; i < n; i++) {
        Operand source = {.name = "a source", .tensor = src[i]};
        expect_vector(op, source, tensor_count(dst.tensor), dst);
        expect_storage(op, source, first);
        if (src[i].dtype != dst.tensor.dtype) expect_apart(op, dst, source);
    }
    expect(op, dtype_is_float(dst.tensor.dtype), "both are float types", dst, first);
}

void op_sum(Device *dev, Tensor dst, const Tensor *src, int n)
{
    check_sources(OP_sum, OPERAND(dst), src, n);
    Operand first = {.name = "the first source", .tensor = src[0]};
    /* A device without f64 ops cannot convert from or to f64 either. */
    expect(OP_sum,
           dst.dtype == src[0].dtype || dev->ops_f64 != NULL ||
               (dst.dtype != F64 && src[0].dtype != F64),
           "f64 is summed to f64", OPERAND(dst), first);
    DType storage = src[0].dtype == F64 ? F64 : dst.dtype;
    RUN_FROM(sum, sums_storage(dev, storage), storage, dev, dst, src, n);
}

void op_maximum(Device *dev, Tensor dst, const Tensor *src, int n)
{
    check_sources(OP_maximum, OPERAND(dst), src, n);
    expect_storage(OP_maximum, OPERAND(dst),
                   (Operand){.name = "the first source", .tensor = src[0]});
    RUN_FROM(maximum, sums_storage(dev, dst.dtype), dst.dtype, dev, dst, src, n);
}

void op_column_sum(Device *dev, Tensor columns, Tensor x)
{
    expect_matrix(OP_column_sum, OPERAND(x), tensor_rows(x), tensor_cols(x), OPERAND(x));
    expect_storage(OP_column_sum, OPERAND(x), OPERAND(x));
    expect_typed(OP_column_sum, OPERAND(columns), dtype_compute(x.dtype), tensor_cols(x),
                 OPERAND(x));
    expect_apart(OP_column_sum, OPERAND(columns), OPERAND(x));
    RUN(column_sum, x.dtype, dev, columns, x);
}

void op_normal(Device *dev, Tensor x, uint64_t seed, const Segment *part, double std)
{
    expect_vector(OP_normal, OPERAND(x), tensor_count(x), OPERAND(x));
    expect_storage(OP_normal, OPERAND(x), OPERAND(x));
    expect_argument(OP_normal, part->start <= 0, "the part begins at or before x", part->start);
    expect_argument(OP_normal, part->first >= 0, "the part's first element is not negative",
                    part->first);
    expect_argument(OP_normal,
                    part->cols == part->whole_cols ||
                        (part->cols > 0 && part->cols < part->whole_cols),
                    "a row of the part is one of the whole, or less", part->cols);
    RUN(normal, x.dtype, dev, x, seed, part, std);
}

/* ---- embedding --------------------------------------------------------------------------------
 */

/* Checks x (N, C), table (P, C) and one index per row of x, the operands common to all four
 * embedding ops. */
static void check_embedding(OpId op, Operand table, Operand x, Operand indices)
{
    Tensor t = table.tensor, r = x.tensor;
    expect_matrix(op, x, tensor_rows(r), tensor_cols(r), x);
    expect_matrix(op, table, tensor_rows(t), tensor_cols(r), x);
    expect_typed(op, indices, I32, tensor_rows(r), x);
    expect_apart(op, table, x);
}

void op_token_forward(Device *dev, Tensor x, Tensor table, Tensor tokens, int64_t first_row)
{
    check_embedding(OP_token_forward, OPERAND(table), OPERAND(x), OPERAND(tokens));
    expect_storage(OP_token_forward, OPERAND(x), OPERAND(table));
    RUN(token_forward, x.dtype, dev, x, table, tokens, first_row);
}

void op_token_backward(Device *dev, Tensor dtable, Tensor dx, Tensor tokens, int64_t first_row,
                       bool accumulate)
{
    check_embedding(OP_token_backward, OPERAND(dtable), OPERAND(dx), OPERAND(tokens));
    expect_gradient(OP_token_backward, OPERAND(dtable), OPERAND(dx));
    RUN(token_backward, dx.dtype, dev, dtable, dx, tokens, first_row, accumulate);
}

void op_position_add(Device *dev, Tensor x, Tensor table, Tensor positions)
{
    check_embedding(OP_position_add, OPERAND(table), OPERAND(x), OPERAND(positions));
    expect_storage(OP_position_add, OPERAND(x), OPERAND(table));
    RUN(position_add, x.dtype, dev, x, table, positions);
}

void op_position_backward(Device *dev, Tensor dtable, Tensor dx, Tensor positions, bool accumulate)
{
    check_embedding(OP_position_backward, OPERAND(dtable), OPERAND(dx), OPERAND(positions));
    expect_gradient(OP_position_backward, OPERAND(dtable), OPERAND(dx));
    RUN(position_backward, dx.dtype, dev, dtable, dx, positions, accumulate);
}

/* ---- norm -------------------------------------------------------------------------------------
 */

/* Checks stats (N*K, 2) in the compute type and w (W) in the storage type, where a row of x
 * consists of K groups of length W. */
static void check_norm(OpId op, Operand x, Operand stats, Operand w, Norm norm)
{
    int64_t width = tensor_count(w.tensor), rows = tensor_rows(x.tensor),
            cols = tensor_cols(x.tensor);
    expect_matrix(op, x, rows, cols, x);
    expect_vector(op, w, width, w);
    expect(op, width > 0 && cols % width == 0, "w divides the columns", w, x);
    expect_storage(op, w, x);
    expect_typed(op, stats, dtype_compute(x.tensor.dtype), 2 * rows * (cols / width), x);
    expect_argument(op, norm.kind == NORM_LAYERNORM || norm.kind == NORM_RMSNORM,
                    "the norm is layernorm or rmsnorm", norm.kind);
}

/* Checks an optional bias: one element per column of `like`. */
static void check_bias(OpId op, Operand bias, Operand like)
{
    if (!tensor_present(bias.tensor)) return;
    expect_vector(op, bias, tensor_cols(like.tensor), like);
    expect_storage(op, bias, like);
}

void op_norm_forward(Device *dev, Tensor y, Tensor stats, Tensor x, Tensor w, Tensor b, Norm norm)
{
    check_norm(OP_norm_forward, OPERAND(x), OPERAND(stats), OPERAND(w), norm);
    expect_matrix(OP_norm_forward, OPERAND(y), tensor_rows(x), tensor_cols(x), OPERAND(x));
    expect_storage(OP_norm_forward, OPERAND(y), OPERAND(x));
    check_bias(OP_norm_forward, OPERAND(b), OPERAND(w));
    RUN(norm_forward, x.dtype, dev, y, stats, x, w, b, norm);
}

void op_residual_norm_forward(Device *dev, Tensor sum, Tensor y, Tensor stats, Tensor x, Tensor a,
                              Tensor bias, Tensor w, Tensor b, Norm norm)
{
    OpId op = OP_residual_norm_forward;
    int64_t rows = tensor_rows(x), cols = tensor_cols(x);
    check_norm(op, OPERAND(x), OPERAND(stats), OPERAND(w), norm);
    expect(op, tensor_count(w) == cols, "w is as long as a row", OPERAND(w), OPERAND(x));
    expect_matrix(op, OPERAND(sum), rows, cols, OPERAND(x));
    expect_matrix(op, OPERAND(y), rows, cols, OPERAND(x));
    expect_matrix(op, OPERAND(a), rows, cols, OPERAND(x));
    expect_storage(op, OPERAND(sum), OPERAND(x));
    expect_storage(op, OPERAND(y), OPERAND(x));
    expect_storage(op, OPERAND(a), OPERAND(x));
    check_bias(op, OPERAND(bias), OPERAND(x));
    check_bias(op, OPERAND(b), OPERAND(x));
    expect_apart(op, OPERAND(y), OPERAND(sum));
    RUN(residual_norm_forward, x.dtype, dev, sum, y, stats, x, a, bias, w, b, norm);
}

void op_norm_backward(Device *dev, Tensor dx, bool accumulate_dx, Tensor columns, Tensor dw,
                      Tensor db, bool accumulate, Tensor dy, Tensor x, Tensor stats, Tensor w,
                      Norm norm)
{
    OpId op = OP_norm_backward;
    check_norm(op, OPERAND(x), OPERAND(stats), OPERAND(w), norm);
    expect_matrix(op, OPERAND(dx), tensor_rows(x), tensor_cols(x), OPERAND(x));
    expect_matrix(op, OPERAND(dy), tensor_rows(x), tensor_cols(x), OPERAND(x));
    expect_storage(op, OPERAND(dx), OPERAND(x));
    expect_storage(op, OPERAND(dy), OPERAND(x));
    expect_vector(op, OPERAND(dw), tensor_count(w), OPERAND(w));
    expect_gradient(op, OPERAND(dw), OPERAND(w));
    if (tensor_present(db)) {
        expect_vector(op, OPERAND(db), tensor_count(w), OPERAND(w));
        expect_gradient(op, OPERAND(db), OPERAND(w));
    }
    if (tensor_present(columns)) {
        expect_typed(op, OPERAND(columns), dtype_compute(x.dtype), tensor_cols(x), OPERAND(x));
        expect(op, tensor_count(w) == tensor_cols(x), "columns go with a w as long as a row",
               OPERAND(w), OPERAND(x));
    }
    expect_apart(op, OPERAND(dx), OPERAND(x));
    if (accumulate_dx) expect_apart(op, OPERAND(dx), OPERAND(dy));
    RUN(norm_backward, x.dtype, dev, dx, accumulate_dx, columns, dw, db, accumulate, dy, x, stats,
        w, norm);
}

void op_bias_residual(Device *dev, Tensor y, Tensor a, Tensor bias, Tensor x)
{
    OpId op = OP_bias_residual;
    expect_matrix(op, OPERAND(x), tensor_rows(x), tensor_cols(x), OPERAND(x));
    expect_matrix(op, OPERAND(a), tensor_rows(x), tensor_cols(x), OPERAND(x));
    expect_matrix(op, OPERAND(y), tensor_rows(x), tensor_cols(x), OPERAND(x));
    expect_storage(op, OPERAND(a), OPERAND(x));
    expect_storage(op, OPERAND(y), OPERAND(x));
    check_bias(op, OPERAND(bias), OPERAND(x));
    RUN(bias_residual, x.dtype, dev, y, a, bias, x);
}

/* ---- linear -----------------------------------------------------------------------------------
 */

static void record_product(const Device *dev, Product product)
{
    Profile *p = dev->profile;
    if (p && p->product && p->n_products < p->max_products) p->product[p->n_products++] = product;
}

/* Checks pre, the tensor of values before the epilogue. It is allowed only with an epilogue. If
 * `required`, it must be present, because the op reads it. */
static void check_pre(OpId op, Epilogue epilogue, bool required, Operand pre, Operand like)
{
    bool present = tensor_present(pre.tensor);
    expect(op, present ? epilogue != EPILOGUE_NONE : !required, "pre goes with an epilogue", pre,
           like);
    if (!present) return;
    expect_matrix(op, pre, tensor_rows(like.tensor), tensor_cols(like.tensor), like);
    expect_storage(op, pre, like);
}

/* Checks the operands of y = x w^T + bias, and returns the product for a profile. */
static Product check_linear(OpId op, Operand y, Operand x, Operand w, Operand bias)
{
    int64_t n = tensor_rows(x.tensor), inputs = tensor_cols(x.tensor),
            outputs = tensor_rows(w.tensor);
    expect_matrix(op, x, n, inputs, x);
    expect_matrix(op, w, outputs, inputs, x);
    expect_matrix(op, y, n, outputs, w);
    expect_storage(op, w, x);
    expect_storage(op, y, x);
    check_bias(op, bias, y);
    expect_apart(op, y, x);
    expect_apart(op, y, w);
    return (Product){OP_linear_forward, n, inputs, outputs, false, y.tensor.dtype};
}

void op_linear_forward(Device *dev, Tensor y, Tensor x, Tensor w, Tensor bias, Epilogue epilogue,
                       Tensor pre)
{
    OpId op = OP_linear_forward;
    Product product = check_linear(op, OPERAND(y), OPERAND(x), OPERAND(w), OPERAND(bias));
    expect_argument(op, epilogue >= EPILOGUE_NONE && epilogue <= EPILOGUE_GELU_OF_SUM,
                    "the epilogue is none, gelu or gelu of the sum", epilogue);
    check_pre(op, epilogue, false, OPERAND(pre), OPERAND(y));
    expect_apart(op, OPERAND(pre), OPERAND(x));
    RUN(linear_forward, x.dtype, dev, y, x, w, bias, epilogue, pre);
    record_product(dev, product);
}

void op_linear_residual_forward(Device *dev, Tensor y, Tensor x, Tensor w, Tensor bias,
                                Tensor residual)
{
    OpId op = OP_linear_residual_forward;
    Product product = check_linear(op, OPERAND(y), OPERAND(x), OPERAND(w), OPERAND(bias));
    expect_matrix(op, OPERAND(residual), product.n, product.outputs, OPERAND(y));
    expect_storage(op, OPERAND(residual), OPERAND(y));
    expect_apart(op, OPERAND(y), OPERAND(residual));
    RUN(linear_residual_forward, x.dtype, dev, y, x, w, bias, residual);
    record_product(dev, product);
}

void op_linear_backward_input(Device *dev, Tensor dx, Tensor dy, Tensor w, Epilogue epilogue,
                              Tensor pre, bool accumulate)
{
    OpId op = OP_linear_backward_input;
    int64_t n = tensor_rows(dy), inputs = tensor_cols(w), outputs = tensor_cols(dy);
    expect_matrix(op, OPERAND(dy), n, outputs, OPERAND(dy));
    expect_matrix(op, OPERAND(w), outputs, inputs, OPERAND(dy));
    expect_matrix(op, OPERAND(dx), n, inputs, OPERAND(w));
    expect_storage(op, OPERAND(w), OPERAND(dy));
    expect_storage(op, OPERAND(dx), OPERAND(dy));
    expect_argument(op, epilogue == EPILOGUE_NONE || epilogue == EPILOGUE_GELU,
                    "the epilogue is none or gelu", epilogue);
    expect_argument(op, !accumulate || epilogue == EPILOGUE_NONE, "+= goes without an epilogue",
                    epilogue);
    check_pre(op, epilogue, epilogue != EPILOGUE_NONE, OPERAND(pre), OPERAND(dx));
    expect_apart(op, OPERAND(dx), OPERAND(dy));
    expect_apart(op, OPERAND(dx), OPERAND(w));
    RUN(linear_backward_input, dy.dtype, dev, dx, dy, w, epilogue, pre, accumulate);
    record_product(dev, (Product){op, n, inputs, outputs, accumulate, dx.dtype});
}

void op_linear_backward_weight(Device *dev, Tensor dw, Tensor db, Tensor dy, Tensor x,
                               Tensor columns, bool accumulate)
{
    OpId op = OP_linear_backward_weight;
    int64_t n = tensor_rows(x), inputs = tensor_cols(x), outputs = tensor_cols(dy);
    expect_matrix(op, OPERAND(x), n, inputs, OPERAND(x));
    expect_matrix(op, OPERAND(dy), n, outputs, OPERAND(x));
    expect_matrix(op, OPERAND(dw), outputs, inputs, OPERAND(dy));
    expect_storage(op, OPERAND(dy), OPERAND(x));
    expect_gradient(op, OPERAND(dw), OPERAND(x));
    if (tensor_present(db)) {
        expect_vector(op, OPERAND(db), outputs, OPERAND(dy));
        expect_gradient(op, OPERAND(db), OPERAND(x));
    }
    if (tensor_present(columns)) {
        expect(op, tensor_present(db), "columns go with db", OPERAND(columns), OPERAND(db));
        expect_typed(op, OPERAND(columns), dtype_compute(x.dtype), outputs, OPERAND(dy));
        expect_apart(op, OPERAND(db), OPERAND(columns));
    }
    expect_apart(op, OPERAND(dw), OPERAND(x));
    expect_apart(op, OPERAND(dw), OPERAND(dy));
    RUN(linear_backward_weight, x.dtype, dev, dw, db, dy, x, columns, accumulate);
    record_product(dev, (Product){op, n, inputs, outputs, accumulate, dw.dtype});
}
