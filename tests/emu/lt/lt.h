/* lt.h -- the descriptors of the stand-in for cuBLASLt, and what its files share. */
#ifndef TESTS_EMU_LT_LT_H
#define TESTS_EMU_LT_LT_H

#include "tests/emu/device/emu.h"
#include "tests/emu/include/cublasLt.h"

/* A handle serves the device that was current when it was made. */
struct cublasLtContext {
    int device;
};

/* Attributes have the sizes that the library's documentation gives them. */
typedef struct EmuLtProduct {
    int32_t compute, scale, pointer_mode, transpose_a, transpose_b, transpose_c;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t bias_stride, aux_ld, aux_stride;
    int32_t multiprocessors, bias_type, aux_type; /* types: -1 is the type of D */
    int8_t fast_sums;
} EmuLtProduct;

typedef struct EmuLtLayout {
    uint32_t type;
    int32_t order;
    uint64_t rows, cols;
    int64_t ld;
    int32_t batches;
    int64_t batch_stride; /* elements */
} EmuLtLayout;

enum { LT_A, LT_B, LT_C, LT_D, LT_OPERANDS, LT_BIAS = LT_OPERANDS, LT_AUX, LT_POINTERS };

typedef struct EmuLtWish {
    uint32_t search, reductions, implementations;
    uint64_t workspace;
    uint32_t alignment[LT_OPERANDS];
    float waves;
} EmuLtWish;

/* What an algorithm was found for, inside cublasLtMatmulAlgo_t. */
typedef struct {
    uint64_t mark, problem; /* a hash of descriptor and layouts */
    uint64_t workspace;
    uint32_t alignment[LT_POINTERS];
    uint32_t reductions;
} EmuLtAlgorithm;

/* A product whose operands are known to fit together. */
typedef struct {
    const EmuLtProduct *product;
    const EmuLtLayout *layout[LT_OPERANDS];
    int64_t m, n, k;
} EmuLtProblem;

/* Bytes of an element; 0 for a type that has none here. */
size_t emu_lt_size(uint32_t type);
static inline uint32_t emu_lt_type(int32_t type, const EmuLtLayout *d)
{
    return type < 0 ? d->type : (uint32_t)type;
}

/* d = epilogue(alpha a b + beta c): sums in f32 in ascending order of k, rounded once to D's type.
 */
void emu_lt_compute(const EmuLtProblem *problem, float alpha, const void *a, const void *b,
                    float beta, const void *c, void *d);

#endif
