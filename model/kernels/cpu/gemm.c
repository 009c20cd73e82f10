/* gemm.c -- matrix multiplication of one tile: by OpenBLAS if the device has loaded it, otherwise
 * by the built-in code. */
#include "model/kernels/cpu/gemm.h"

#include "model/core/device_cpu.h"

#include <limits.h>

/* Constants of the cblas C interface: CblasRowMajor, CblasNoTrans, CblasTrans. */
enum { ROW_MAJOR = 101, NOT_TRANSPOSED = 111, TRANSPOSED = 112 };

void CPU(gemm)(Device *dev, int worker, int64_t m, int64_t n, int64_t k, real alpha, Factor a,
               Factor b, real beta, real *c, int64_t ldc)
{
    const CpuDevice *cpu = dev->impl;
    int64_t largest = a.ld > b.ld ? a.ld : b.ld;
    if (ldc > largest) largest = ldc;
    if (cpu->sgemm == NULL || largest > INT_MAX || m > INT_MAX || n > INT_MAX || k > INT_MAX) {
        CPU(gemm_builtin)
        (m, n, k, alpha, a, b, beta, c, ldc, pool_workspace(dev->pool, worker, GEMM_SCRATCH));
        return;
    }
    _Generic((real)0, float
             : cpu->sgemm, double
             : cpu->dgemm)(ROW_MAJOR, a.transposed ? TRANSPOSED : NOT_TRANSPOSED,
                           b.transposed ? TRANSPOSED : NOT_TRANSPOSED, (int)m, (int)n, (int)k,
                           alpha, a.at, (int)a.ld, b.at, (int)b.ld, beta, c, (int)ldc);
}
