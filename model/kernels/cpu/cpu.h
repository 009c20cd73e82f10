/* cpu.h -- common definitions of the CPU kernels: how one source file is compiled into six tables
 * of ops, conversion of rows of any storage type to rows of reals, and the residual sum.
 *
 * Every kernel source is compiled once per CPU level (baseline, v3 = AVX2 and FMA, v4 = AVX-512)
 * and once per compute type (float, double): the build passes CPU_LEVEL, REAL, REAL_DTYPE and
 * REAL_SUFFIX. Kernels compute in `real`. f32 rows (f64 rows in the double build) are used in
 * place, and rows of other types go through a row buffer in the workspace. */
#ifndef MODEL_KERNELS_CPU_CPU_H
#define MODEL_KERNELS_CPU_CPU_H

#include "model/core/check.h"
#include "model/kernels/ops.h"

#define CPU_PASTE_(name, level, suffix) cpu_##name##_##level##_##suffix
#define CPU_PASTE(name, level, suffix)  CPU_PASTE_(name, level, suffix)
/* The symbol of `name` in this level and compute type: CPU(norm_forward) is
 * cpu_norm_forward_v3_f32. */
#define CPU(name) CPU_PASTE(name, CPU_LEVEL, REAL_SUFFIX)

typedef REAL real;

#define OP(name, arguments) void CPU(name) arguments;
#define OP_WITHOUT_CUDA     OP
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA

/* Converts n elements at `from` to reals in `to`. */
static inline void reals_load(real *restrict to, DType dtype, const void *restrict from, int64_t n)
{
    switch (dtype) {
    case F64:
        for (int64_t i = 0; i < n; i++)
            to[i] = (real)((const double *)from)[i];
        break;
    case F32:
        for (int64_t i = 0; i < n; i++)
            to[i] = (real)((const float *)from)[i];
        break;
    case BF16:
        for (int64_t i = 0; i < n; i++)
            to[i] = (real)bf16_to_f32(((const uint16_t *)from)[i]);
        break;
    case F16:
        for (int64_t i = 0; i < n; i++)
            to[i] = (real)f16_to_f32(((const uint16_t *)from)[i]);
        break;
    default: CHECK(0, "reals from %s", dtype_name(dtype));
    }
}

/* Stores n reals at `to` in the given type, rounded to nearest even. */
static inline void reals_store(DType dtype, void *restrict to, const real *restrict from, int64_t n)
{
    switch (dtype) {
    case F64:
        for (int64_t i = 0; i < n; i++)
            ((double *)to)[i] = (double)from[i];
        break;
    case F32:
        for (int64_t i = 0; i < n; i++)
            ((float *)to)[i] = (float)from[i];
        break;
    case BF16:
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)to)[i] = bf16_from_f32((float)from[i]);
        break;
    case F16:
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)to)[i] = f16_from_f32((float)from[i]);
        break;
    default: CHECK(0, "reals to %s", dtype_name(dtype));
    }
}

/* Returns row `row` of t as reals: in place if t stores reals, else converted into buffer (cols
 * elements). */
static inline const real *row_load(Tensor t, int64_t row, real *buffer)
{
    if (t.dtype == REAL_DTYPE) return tensor_row(t, row);
    reals_load(buffer, t.dtype, tensor_row(t, row), tensor_cols(t));
    return buffer;
}

/* Returns where to compute row `row` of an output: in place, or in buffer, from which row_store
 * writes it. */
static inline real *row_out(Tensor t, int64_t row, real *buffer)
{
    return t.dtype == REAL_DTYPE ? tensor_row(t, row) : buffer;
}

/* Computes sum (n) = x + a + bias, in this order; sum may be x or a, and bias may be NULL. */
static inline void residual_row(real *sum, const real *x, const real *a, const real *bias,
                                int64_t n)
{
    if (bias) {
#pragma GCC ivdep
        for (int64_t i = 0; i < n; i++)
            sum[i] = x[i] + a[i] + bias[i];
    } else {
#pragma GCC ivdep
        for (int64_t i = 0; i < n; i++)
            sum[i] = x[i] + a[i];
    }
}

/* Writes a row that was computed in row_out's buffer to the tensor; does nothing if it was computed
 * in place. */
static inline void row_store(Tensor t, int64_t row, const real *values)
{
    if (t.dtype != REAL_DTYPE) reals_store(t.dtype, tensor_row(t, row), values, tensor_cols(t));
}

#endif
