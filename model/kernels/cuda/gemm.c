/* gemm.c -- the three products of a linear layer: by cuBLASLt where it has an algorithm for the
 * operands as they lie, else by a plain kernel of our own (gemm_simt.cu).
 *
 * What follows a product keeps the contract's roundings. GELU of the rounded value, which backward
 * and recomputation see, is the activation's kernel; GELU of the sum is the library's epilogue, or
 * a kernel after the product in f32; so is gelu' of backward. The bias joins the sum before it is
 * rounded. */
#include "model/kernels/cuda/lt.h"
#include "model/kernels/cuda/reduce.h"

/* Bytes of half the scratch. The f32 sums of a product that a kernel of our own finishes lie in the
 * second half, while the library works in the first. */
static size_t half_of_scratch(const Device *dev)
{
    enum { ALIGNMENT = 256 };
    return cuda_device(dev)->workspace_bytes / 2 / ALIGNMENT * ALIGNMENT;
}

/* d =/+= op(a) op(b), without bias or epilogue: by the library, else by the plain kernel. */
static void product(Device *dev, LtProduct p)
{
    p.epilogue = LT_PLAIN;
    p.bias = p.aux = NO_TENSOR;
    if (!lt_product(dev, &p))
        cuda_product(dev, p.d, p.a, p.a_transposed, p.b, p.b_transposed, p.accumulate);
}

static LtProduct asked(Device *dev, Tensor d, Tensor a, bool a_transposed, Tensor b,
                       bool b_transposed)
{
    return (LtProduct){.d = d,
                       .a = a,
                       .a_transposed = a_transposed,
                       .b = b,
                       .b_transposed = b_transposed,
                       .workspace = cuda_workspace(dev, cuda_device(dev)->workspace_bytes),
                       .workspace_bytes = cuda_device(dev)->workspace_bytes};
}

/* ---- products in f32, and what follows them -------------------------------------------------- */

/* Rows of `cols` f32 sums that the scratch holds at a time; whole tiles of them, if it can. */
static int64_t rows_at_once(const Device *dev, int64_t cols)
{
    enum { GRAIN = 128 };
    int64_t fit = (int64_t)(half_of_scratch(dev) / sizeof(float)) / cols;
    CHECK(fit > 0, "a row of %lld columns does not fit the scratch", (long long)cols);
    return fit < GRAIN ? fit : fit - fit % GRAIN;
}

/* The f32 sums of rows [row, row + n) of a with op(b) (cols columns), in the scratch. */
static Tensor sums_of(Device *dev, Tensor a, int64_t row, int64_t n, Tensor b, bool b_transposed,
                      int64_t cols)
{
    size_t half = half_of_scratch(dev);
    char *scratch = cuda_workspace(dev, 2 * half);
    Tensor sum = tensor_2d(scratch + half, F32, n, cols);
    LtProduct p = asked(dev, sum, tensor_slice_rows(a, row, n), false, b, b_transposed);
    p.workspace_bytes = half;
    product(dev, p);
    return sum;
}

/* y (N, O) 16-bit = gelu(x (N, I) w (O, I)^T + bias (O)) of the f32 sum, rounded once; pre (N, O,
 * if present) = the sum, rounded. */
static void gelu_of_sum(Device *dev, Tensor y, Tensor x, Tensor w, Tensor bias, Tensor pre)
{
    LtProduct p = asked(dev, y, x, false, w, true);
    p.epilogue = LT_GELU;
    p.bias = bias;
    p.aux = pre;
    if (lt_product(dev, &p)) return;
    int64_t rows = tensor_rows(y), cols = tensor_cols(y), step = rows_at_once(dev, cols);
    for (int64_t row = 0; row < rows; row += step) {
        int64_t n = rows - row < step ? rows - row : step;
        Tensor kept = tensor_present(pre) ? tensor_slice_rows(pre, row, n) : NO_TENSOR;
        cuda_gelu_of_sum(dev, tensor_slice_rows(y, row, n), kept,
                         sums_of(dev, x, row, n, w, true, cols), bias);
    }
}

/* dx (N, I) = dy (N, O) w (O, I) * gelu'(pre (N, I)), rounded once. An f32 result is its own
 * scratch. */
static void product_then_gelu(Device *dev, Tensor dx, Tensor dy, Tensor w, Tensor pre)
{
    if (dx.dtype == F32) {
        product(dev, asked(dev, dx, dy, false, w, false));
        cuda_gelu_multiply(dev, dx, dx, pre);
        return;
    }
    int64_t rows = tensor_rows(dx), cols = tensor_cols(dx), step = rows_at_once(dev, cols);
    for (int64_t row = 0; row < rows; row += step) {
        int64_t n = rows - row < step ? rows - row : step;
        cuda_gelu_multiply(dev, tensor_slice_rows(dx, row, n),
                           sums_of(dev, dy, row, n, w, false, cols),
                           tensor_slice_rows(pre, row, n));
    }
}

/* ---- the ops --------------------------------------------------------------------------------- */

/* y (N, O) = f(x (N, I) w (O, I)^T + bias (O)), storage, one rounding before f, unless f is of the
 * sum. Without the library's bias epilogue the result starts as the bias, which is exact, and the
 * product is added before the rounding all the same. */
void cuda_linear_forward(Device *dev, Tensor y, Tensor x, Tensor w, Tensor bias, Epilogue epilogue,
                         Tensor pre)
{
    if (tensor_rows(y) == 0) return;
    if (epilogue == EPILOGUE_GELU_OF_SUM && y.dtype != F32) {
        gelu_of_sum(dev, y, x, w, bias, pre);
        return;
    }
    Tensor sum = tensor_present(pre) ? pre : y;
    LtProduct p = asked(dev, sum, x, false, w, true);
    p.bias = bias;
    /* Bias as an epilogue costs nothing; where the library has none for these operands, the
     * result starts as the bias, which is one pass over it more. */
    bool done = tensor_present(bias) && lt_product(dev, &p);
    if (!done && tensor_present(bias)) {
        cuda_rows_fill(dev, sum, bias);
        p.accumulate = true;
    }
    if (!done) product(dev, p);
    if (epilogue != EPILOGUE_NONE) cuda_activation_forward(dev, y, sum, ACTIVATION_GELU);
}

/* dx (N, I) =/+= dy (N, O) w (O, I), times gelu'(pre (N, I)) where a gelu came before; one
 * rounding. In f32 gelu' is that of a kernel of our own, as gelu is forward; the library's is used
 * for 16-bit results only. */
void cuda_linear_backward_input(Device *dev, Tensor dx, Tensor dy, Tensor w, Epilogue epilogue,
                                Tensor pre, bool accumulate)
{
    if (tensor_rows(dx) == 0) return;
    LtProduct p = asked(dev, dx, dy, false, w, false);
    if (epilogue == EPILOGUE_NONE) {
        p.accumulate = accumulate;
        product(dev, p);
        return;
    }
    p.epilogue = LT_DGELU;
    p.aux = pre;
    /* Refused, the product is made in f32 and gelu' by a kernel after it: the same single
     * rounding. */
    bool done = dx.dtype != F32 && lt_product(dev, &p);
    if (!done) product_then_gelu(dev, dx, dy, w, pre);
}

/* dw (O, I) grad =/+= dy (N, O)^T x (N, I), added and rounded once. db (O) from `columns`, or else
 * from partial sums in a fixed order: the library's bias-gradient epilogue overwrites, and cannot
 * accumulate with dw. */
void cuda_linear_backward_weight(Device *dev, Tensor dw, Tensor db, Tensor dy, Tensor x,
                                 Tensor columns, bool accumulate)
{
    if (tensor_rows(dy) == 0) {
        if (!accumulate) cuda_fill(dev, dw, 0);
        if (!accumulate && tensor_present(db)) cuda_fill(dev, db, 0);
        return;
    }
    LtProduct p = asked(dev, dw, dy, true, x, false);
    p.accumulate = accumulate;
    product(dev, p);
    /* Sums that the norm's backward made while it had dy in registers; else dy is read once
     * more. */
    if (tensor_present(columns))
        cuda_partials_sum(dev, db, NO_TENSOR, NO_TENSOR, columns, accumulate);
    else if (tensor_present(db))
        cuda_bias_sums(dev, db, dy, accumulate);
}
