/* strips.c -- the small matrix multiplications of attention: a strip of rows of the result c, one
 * or two vectors wide, stays in registers while elements of a are multiplied with rows of b. */
#include "model/kernels/cpu/strips.h"

/* Lets the compiler use fused multiply-adds if the CPU level has them, which -std=c11 alone would
 * not. */
#pragma GCC optimize("fp-contract=fast")

/* Computes one strip of c, `rows` rows of `width` vectors. The callers pass constants for rows,
 * width and one of a's strides, so the loops unroll. */
static inline __attribute__((always_inline)) void
block_product(int rows, int width, int64_t k, const real *restrict a, int64_t row, int64_t step,
              const real *restrict b, int64_t ldb, bool add, real *restrict c, int64_t ldc)
{
    /* The sums must stay in registers. 8 rows of 2 vectors use 16 of AVX-512's 32 registers, 6 rows
     * of 2 use 12 of AVX2's 16; the others hold vectors of b and broadcast elements of a. */
    Vector acc[STRIP_ROWS][2] = {{{0}}};
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int w = 0; w < width; w++)
            if (add) acc[i][w] = *(const Vector *)(c + i * ldc + w * LANES);
    for (int64_t p = 0; p < k; p++) {
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
            for (int w = 0; w < width; w++)
                acc[i][w] += a[i * row] * *(const Vector *)(b + w * LANES);
        a += step;
        b += ldb;
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int w = 0; w < width; w++)
            *(Vector *)(c + i * ldc + w * LANES) = acc[i][w];
}

/* Computes `rows` rows of c of any width. */
static inline __attribute__((always_inline)) void strip_product(int rows, int64_t n, int64_t k,
                                                                Strip a, const real *b, int64_t ldb,
                                                                bool add, real *c, int64_t ldc)
{
    int64_t j = 0;
    for (; j + 2 * LANES <= n; j += 2 * LANES) {
        /* One of a's strides is 1 and each case says so, so that the compiler folds the address
         * arithmetic of the inner loop. */
        if (a.step == 1)
            block_product(rows, 2, k, a.at, a.row, 1, b + j, ldb, add, c + j, ldc);
        else
            block_product(rows, 2, k, a.at, 1, a.step, b + j, ldb, add, c + j, ldc);
    }
    if (j == n) return;
    if (a.step == 1)
        block_product(rows, 1, k, a.at, a.row, 1, b + j, ldb, add, c + j, ldc);
    else
        block_product(rows, 1, k, a.at, 1, a.step, b + j, ldb, add, c + j, ldc);
}

void CPU(strips_product)(int64_t m, int64_t n, int64_t k, Strip a, const real *b, int64_t ldb,
                         bool add, real *c, int64_t ldc)
{
    int64_t rows;
    for (; m > 0; m -= rows) {
        /* The number of rows must be a constant for the sums to stay in registers: the remaining
         * rows are split into powers of two. */
        rows = m >= STRIP_ROWS ? STRIP_ROWS : m >= 4 ? 4 : m >= 2 ? 2 : 1;
        switch (rows) {
        case 1: strip_product(1, n, k, a, b, ldb, add, c, ldc); break;
        case 2: strip_product(2, n, k, a, b, ldb, add, c, ldc); break;
        case 4: strip_product(4, n, k, a, b, ldb, add, c, ldc); break;
        default: strip_product(STRIP_ROWS, n, k, a, b, ldb, add, c, ldc); break;
        }
        a.at += rows * a.row;
        c += rows * ldc;
    }
}
