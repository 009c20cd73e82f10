/* gemm.c -- the three products of a linear layer: by cuBLASLt where it has an algorithm for the
 * operands as they lie, else by a plain kernel of our own (gemm_simt.cu).
 *
 * What follows a product keeps the contract's roundings. GELU is applied to the rounded value that
 * backward and recomputation see; the library's own GELU epilogue takes the unrounded sum, so the
 * activation's kernel does it. The bias joins the sum before it is rounded. */
#include "model/kernels/cuda/lt.h"

/* The f32 product that a factor follows gets half of the scratch, the library the other half. */
#define PRODUCT_BYTES (CUDA_WORKSPACE / 2)

/* d =/+= op(a) op(b), whoever has to do it. */
static void product(Device *dev, LtProduct p)
{
    p.epilogue = LT_PLAIN;
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
                       .workspace = cuda_workspace(dev, CUDA_WORKSPACE),
                       .workspace_bytes = CUDA_WORKSPACE};
}

/* y (N, O) = f(x (N, I) w (O, I)^T + bias (O)), storage, one rounding before f. Without the
 * library's bias epilogue the result starts as the bias, which is exact, and the product is added
 * before the rounding all the same. */
void cuda_linear_forward(Device *dev, Tensor y, Tensor x, Tensor w, Tensor bias, Epilogue epilogue,
                         Tensor pre)
{
    if (tensor_rows(y) == 0) return;
    Tensor sum = tensor_present(pre) ? pre : y;
    LtProduct p = asked(dev, sum, x, false, w, true);
    if (tensor_present(bias)) {
        p.epilogue = LT_BIAS;
        p.operand = bias;
        if (!lt_product(dev, &p)) {
            cuda_rows_fill(dev, sum, bias);
            p.accumulate = true;
            product(dev, p);
        }
    } else {
        product(dev, p);
    }
    if (epilogue == EPILOGUE_GELU)
        cuda_activation_forward(dev, y, sum, ACTIVATION_GELU);
    else if (tensor_present(pre))
        cuda_copy(dev, y, pre);
}

/* dx (N, I) = dy (N, O) w (O, I) * gelu'(pre (N, I)), rounded once: the f32 product of as many rows
 * as the scratch holds at a time, then the factor. An f32 result is its own scratch. */
static void product_then_gelu(Device *dev, Tensor dx, Tensor dy, Tensor w, Tensor pre)
{
    enum { GRAIN = 128 };
    int64_t rows = tensor_rows(dx), cols = tensor_cols(dx);
    int64_t fit = (int64_t)(PRODUCT_BYTES / sizeof(float)) / cols, step = fit - fit % GRAIN;
    bool own = dx.dtype == F32;
    char *scratch = cuda_workspace(dev, CUDA_WORKSPACE);
    if (step == 0) step = fit;
    CHECK(step > 0, "a row of %lld columns does not fit the scratch", (long long)cols);
    if (own) step = rows;
    for (int64_t row = 0; row < rows; row += step) {
        int64_t n = rows - row < step ? rows - row : step;
        Tensor part = tensor_slice_rows(dx, row, n);
        Tensor sum = own ? part : tensor_2d(scratch + PRODUCT_BYTES, F32, n, cols);
        LtProduct p = asked(dev, sum, tensor_slice_rows(dy, row, n), false, w, false);
        if (!own) p.workspace_bytes = PRODUCT_BYTES;
        product(dev, p);
        cuda_gelu_multiply(dev, part, sum, tensor_slice_rows(pre, row, n));
    }
}

void cuda_linear_backward_input(Device *dev, Tensor dx, Tensor dy, Tensor w, Epilogue epilogue,
                                Tensor pre)
{
    if (tensor_rows(dx) == 0) return;
    LtProduct p = asked(dev, dx, dy, false, w, false);
    if (epilogue == EPILOGUE_NONE) {
        product(dev, p);
        return;
    }
    p.epilogue = LT_DGELU;
    p.operand = pre;
    if (!lt_product(dev, &p)) product_then_gelu(dev, dx, dy, w, pre);
}

/* dw (O, I) grad =/+= dy (N, O)^T x (N, I), added and rounded once; db (O) by fixed partial sums:
 * the library's bias-gradient epilogue overwrites where the weight's gradient accumulates. */
void cuda_linear_backward_weight(Device *dev, Tensor dw, Tensor db, Tensor dy, Tensor x,
                                 bool accumulate)
{
    if (tensor_rows(dy) == 0) {
        if (!accumulate) cuda_fill(dev, dw, 0);
        if (!accumulate && tensor_present(db)) cuda_fill(dev, db, 0);
        return;
    }
    LtProduct p = asked(dev, dw, dy, true, x, false);
    p.accumulate = accumulate;
    product(dev, p);
    if (tensor_present(db)) cuda_column_sums(dev, db, dy, accumulate);
}
