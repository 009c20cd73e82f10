/* gemm.h -- matrix multiplication of one tile on one thread, the building block of linear layers.
 */
#ifndef MODEL_KERNELS_CPU_GEMM_H
#define MODEL_KERNELS_CPU_GEMM_H

#include "model/kernels/cpu/cpu.h"

/* An operand whose rows are `ld` elements apart. If `transposed`, its transpose is multiplied. */
typedef struct {
    const real *at;
    int64_t ld;
    bool transposed;
} Factor;

/* The first GEMM_SCRATCH bytes of every worker's workspace are used by the built-in multiplication;
 * callers' scratch memory follows. */
#define GEMM_SCRATCH ((size_t)8 << 20)

/* Returns `bytes` of scratch memory for a task that also calls gemm. */
static inline void *gemm_workspace(Device *dev, int worker, size_t bytes)
{
    return (char *)pool_workspace(dev->pool, worker, GEMM_SCRATCH + bytes) + GEMM_SCRATCH;
}

/* Computes c (m, n) = alpha a (m, k) b (k, n) + beta c, with rows of c `ldc` apart; beta 0
 * overwrites whatever c held. Uses OpenBLAS if the device has it. Single-threaded; called from
 * tasks of the device's pool with the task's worker number. */
void CPU(gemm)(Device *dev, int worker, int64_t m, int64_t n, int64_t k, real alpha, Factor a,
               Factor b, real beta, real *c, int64_t ldc);

/* Computes the same as gemm without OpenBLAS. scratch has GEMM_SCRATCH bytes and is 64-byte
 * aligned. */
void CPU(gemm_builtin)(int64_t m, int64_t n, int64_t k, real alpha, Factor a, Factor b, real beta,
                       real *c, int64_t ldc, void *scratch);

/* Returns rows [row, row + rows) and columns [col, col + cols) of t as reals: in place if t stores
 * reals, else converted into buffer (rows x cols). The caller sets `transposed`. */
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
