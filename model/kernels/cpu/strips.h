/* strips.h -- the small matrix multiplication of attention; it reads both factors in place and
 * packs neither. */
#ifndef MODEL_KERNELS_CPU_STRIPS_H
#define MODEL_KERNELS_CPU_STRIPS_H

#include "model/kernels/cpu/vectors.h"

/* Rows of c that a multiplication holds in registers. Callers that compute a triangle split it into
 * strips of this many rows. */
enum { STRIP_ROWS = VECTOR_BYTES == 64 ? 8 : 6 };

/* The left factor of a multiplication: element (i, p) is at[i * row + p * step]. One of the two
 * strides is 1. */
typedef struct {
    const real *at;
    int64_t row, step;
} Strip;

/* Computes c (m, n) = a (m, k) b (k, n), or `+=` with `add`. Rows of b are ldb elements apart, rows
 * of c ldc. n is a multiple of LANES; k may be 0. Runs on the calling thread and needs no scratch
 * memory. */
void CPU(strips_product)(int64_t m, int64_t n, int64_t k, Strip a, const real *b, int64_t ldb,
                         bool add, real *c, int64_t ldc);

#endif
