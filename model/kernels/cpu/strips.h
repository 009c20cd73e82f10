/* strips.h -- the small matrix products of attention: both factors are read where they are, nothing
 * is packed. */
#ifndef MODEL_KERNELS_CPU_STRIPS_H
#define MODEL_KERNELS_CPU_STRIPS_H

#include "model/kernels/cpu/vectors.h"

/* Rows of c that a product holds in registers: callers that hand it a triangle cut it by these. */
enum { STRIP_ROWS = VECTOR_BYTES == 64 ? 8 : 6 };

/* The left factor of a product: element (i, p) at `at[i * row + p * step]`. One of them is 1. */
typedef struct {
    const real *at;
    int64_t row, step;
} Strip;

/* c (m, n) = a (m, k) b (k, n), or += where `add`; rows of b and c ldb and ldc apart. n is a
 * multiple of LANES; k may be 0. Single-threaded, no scratch. */
void CPU(strips_product)(int64_t m, int64_t n, int64_t k, Strip a, const real *b, int64_t ldb,
                         bool add, real *c, int64_t ldc);

#endif
