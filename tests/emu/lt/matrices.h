/* matrices.h -- column-major matrices in device memory, the operands of the emulated cuBLASLt's
 * tests. Include it after cmocka.h. */
#ifndef TESTS_EMU_LT_MATRICES_H
#define TESTS_EMU_LT_MATRICES_H

#include "model/core/dtype.h"

#include <cublasLt.h>

/* Most elements of a matrix, and bytes by which a test may shift one in its memory. */
enum { MOST = 128 * 128, SHIFT = 256 };

/* A column-major matrix: its exact values as stored, and its device memory. */
typedef struct {
    int rows, cols, ld;
    DType type;
    double x[MOST];
    void *device;
    cublasLtMatrixLayout_t layout;
} Matrix;

static inline cudaDataType_t library_type(DType t)
{
    return t == F32 ? CUDA_R_32F : t == BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static inline double drawn(int i, int seed)
{
    return (double)((uint32_t)(i * 977 + seed) * 2654435761u >> 8) / 0x1p24 - 0.5;
}

static inline void upload(void *device, const double *x, int n, DType type)
{
    char bytes[MOST * 4];
    for (int i = 0; i < n; i++)
        dtype_set(type, bytes, i, x[i]);
    assert_int_equal(cudaMemcpy(device, bytes, (size_t)n * dtype_size(type), cudaMemcpyDefault), 0);
}

static inline void download(double *x, const void *device, int n, DType type)
{
    char bytes[MOST * 4];
    assert_int_equal(cudaMemcpy(bytes, device, (size_t)n * dtype_size(type), cudaMemcpyDefault), 0);
    for (int i = 0; i < n; i++)
        x[i] = dtype_get(type, bytes, i);
}

/* Returns a matrix of numbers drawn with this seed, whose leading dimension is rows + pad. */
static inline Matrix *matrix(int rows, int cols, DType type, int seed, int pad)
{
    Matrix *m = calloc(1, sizeof *m);
    m->rows = rows, m->cols = cols, m->ld = rows + pad, m->type = type;
    int n = m->ld * cols;
    for (int i = 0; i < n; i++)
        m->x[i] = drawn(i, seed);
    assert_int_equal(cudaMalloc(&m->device, (size_t)n * dtype_size(type) + SHIFT), 0);
    upload(m->device, m->x, n, type);
    download(m->x, m->device, n, type);
    cublasLtMatrixLayoutCreate(&m->layout, library_type(type), (uint64_t)rows, (uint64_t)cols,
                               m->ld);
    return m;
}

static inline void matrix_free(Matrix *m)
{
    cublasLtMatrixLayoutDestroy(m->layout);
    cudaFree(m->device);
    free(m);
}

#endif
