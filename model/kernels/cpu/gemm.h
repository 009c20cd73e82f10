/* gemm.h -- the matrix product of one tile on one thread, what linear layers and attention are made
 * of. */
#ifndef MODEL_KERNELS_CPU_GEMM_H
#define MODEL_KERNELS_CPU_GEMM_H

#include "model/kernels/cpu/cpu.h"

/* An operand: rows `ld` elements apart; transposed: the product reads its transpose. */
typedef struct {
    const real *at;
    int64_t ld;
    bool transposed;
} Factor;

/* The front of every worker's workspace belongs to the built-in product; callers' scratch lies
 * after it. */
#define GEMM_SCRATCH ((size_t)8 << 20)

/* Scratch of `bytes` for a task that also calls gemm. */
static inline void *gemm_workspace(Device *dev, int worker, size_t bytes)
{
    return (char *)pool_workspace(dev->pool, worker, GEMM_SCRATCH + bytes) + GEMM_SCRATCH;
}

/* c (m, n) = alpha a (m, k) b (k, n) + beta c, rows of c `ldc` apart; beta 0 overwrites whatever c
 * held. Through OpenBLAS where the device has it. Single-threaded; called from tasks of the
 * device's pool, as `worker`. */
void CPU(gemm)(Device *dev, int worker, int64_t m, int64_t n, int64_t k, real alpha, Factor a,
               Factor b, real beta, real *c, int64_t ldc);

/* The same without a library; scratch has GEMM_SCRATCH bytes, 64-byte aligned. */
void CPU(gemm_builtin)(int64_t m, int64_t n, int64_t k, real alpha, Factor a, Factor b, real beta,
                       real *c, int64_t ldc, void *scratch);

/* Rows [row, row + rows) and columns [col, col + cols) of t as reals: in place when stored so, else
 * converted into buffer (rows x cols). The caller sets `transposed`. */
static inline Factor factor_load(Tensor t, int64_t row, int64_t rows, int64_t col, int64_t cols,
                                 real *buffer)
{
    size_t size = dtype_size(t.dtype);
    if (t.dtype == REAL_DTYPE)
        return (Factor){.at = (const real *)tensor_row(t, row) + col, .ld = t.ld};
    for (int64_t r = 0; r < rows; r++)
        reals_load(buffer + r * cols, t.dtype,
                   (const char *)tensor_row(t, row + r) + (size_t)col * size, cols);
    return (Factor){.at = buffer, .ld = cols};
}

static inline Factor factor_transposed(Factor f)
{
    return (Factor){.at = f.at, .ld = f.ld, .transposed = !f.transposed};
}

#endif
