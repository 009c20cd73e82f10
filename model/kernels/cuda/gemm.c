/* gemm.c -- computes the three matrix products of a linear layer. It uses cuBLASLt if the library
 * has an algorithm for the operands' shapes and alignment, otherwise the plain kernel in
 * gemm_simt.cu.
 *
 * The operations after a product round as ops.h specifies. The default GELU is applied to the
 * rounded value, which backward and recomputation also see; it runs as a separate activation
 * kernel. GELU of the unrounded sum uses the library's epilogue, or a kernel that follows a product
 * in f32. The same holds for gelu' in backward. Bias and residual are added before the sum is
 * rounded. */
#include "model/kernels/cuda/lt.h"
#include "model/kernels/cuda/reduce.h"

/* Lowest compute capability (major version) on which the library's gelu' epilogue is used. Before
 * Hopper, products with this epilogue run at a lower rate than those without. */
enum { DGELU_LEAST = 9 };

/* Returns half of the scratch memory in bytes, aligned. The first half is the library's workspace.
 * The second half holds the f32 sums of a product that one of our own kernels finishes. */
static size_t half_of_scratch(const Device *dev)
{
    enum { ALIGNMENT = 256 };
    return cuda_device(dev)->workspace_bytes / 2 / ALIGNMENT * ALIGNMENT;
}

/* Computes d = op(a) op(b), or += with p.accumulate, without bias or epilogue: with the library or,
 * if it refuses, with the plain kernel. */
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

/* ---- products in f32 and the kernels after them ---------------------------------------------- */

/* Returns how many rows of `cols` f32 sums fit in the scratch memory at a time, rounded down to
 * whole tiles of GRAIN rows if possible. */
static int64_t rows_at_once(const Device *dev, int64_t cols)
{
    enum { GRAIN = 128 };
    int64_t fit = (int64_t)(half_of_scratch(dev) / sizeof(float)) / cols;
    CHECK(fit > 0, "a row of %lld columns does not fit the scratch", (long long)cols);
    return fit < GRAIN ? fit : fit - fit % GRAIN;
}

/* Computes the f32 product of rows [row, row + n) of a with op(b), which has `cols` columns, and
 * returns it. The result is in the scratch memory. */
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

/* Computes y (N, O), 16-bit, = gelu(x (N, I) w (O, I)^T + bias (O)) of the unrounded f32 sum,
 * rounded once. If pre (N, O) is present, stores the rounded sum in it. */
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

/* Computes dx (N, I) = dy (N, O) w (O, I) * gelu'(pre (N, I)), rounded once. If dx is f32, the
 * product is computed in dx itself; otherwise in the scratch memory. */
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

/* Computes y (N, O) = f(x (N, I) w (O, I)^T + bias (O)), where f is GELU or the identity; all
 * tensors have the storage type. The sum is rounded once before f, except with
 * EPILOGUE_GELU_OF_SUM. If the library cannot add the bias in its epilogue, the result is first
 * filled with the bias, which is exact, and the product is added to it; the sum is still rounded
 * only once. */
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
    /* The library's bias epilogue needs no extra pass over the result. Filling the result with the
     * bias first, which is done if the library refuses the epilogue, needs one. */
    bool done = tensor_present(bias) && lt_product(dev, &p);
    if (!done && tensor_present(bias)) {
        cuda_rows_fill(dev, sum, bias);
        p.accumulate = true;
    }
    if (!done) product(dev, p);
    if (epilogue != EPILOGUE_NONE) cuda_activation_forward(dev, y, sum, ACTIVATION_GELU);
}

/* Computes y (N, O) = residual (N, O) + x (N, I) w (O, I)^T + bias (O), rounded once: the residual
 * is passed to the library as operand C. If the library refuses, the product is rounded and a
 * kernel adds the rest, which rounds twice, as the CPU does. */
void cuda_linear_residual_forward(Device *dev, Tensor y, Tensor x, Tensor w, Tensor bias,
                                  Tensor residual)
{
    if (tensor_rows(y) == 0) return;
    LtProduct p = asked(dev, y, x, false, w, true);
    p.bias = bias;
    p.c = residual;
    if (lt_product(dev, &p)) return;
    product(dev, asked(dev, y, x, false, w, true));
    cuda_bias_residual(dev, y, y, bias, residual);
}

/* Computes dx (N, I) = dy (N, O) w (O, I), or += with accumulate. If a GELU preceded the layer,
 * multiplies the product by gelu'(pre (N, I)). Rounds once. f32 uses our own kernel for gelu', as
 * forward does for GELU; the library's epilogue is used only for 16-bit results, and on GPUs where
 * it is fast. */
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
    /* If the library refuses, or if its epilogue is slow, the product is computed in f32 and a
     * kernel applies gelu' to it, so there is still only one rounding. */
    bool fast = cuda_device(dev)->major >= DGELU_LEAST;
    bool done = fast && dx.dtype != F32 && lt_product(dev, &p);
    if (!done) product_then_gelu(dev, dx, dy, w, pre);
}

/* Computes dw (O, I), of the gradient type, = dy (N, O)^T x (N, I), or += with accumulate; rounds
 * once. Computes db (O) from `columns` or, without them, from the columns of dy in a fixed order.
 * The library's bias-gradient epilogue is not used: it can only overwrite db, not add to it. */
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
    /* `columns` are sums that the norm's backward computed while it had dy in registers. Without
     * them dy is read again. */
    if (tensor_present(columns))
        cuda_partials_sum(dev, db, NO_TENSOR, NO_TENSOR, columns, accumulate);
    else if (tensor_present(db))
        cuda_bias_sums(dev, db, dy, accumulate);
}
