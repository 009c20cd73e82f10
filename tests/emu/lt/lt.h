/* lt.h -- declares the descriptors of the emulated cuBLASLt and the functions that its files share.
 */
#ifndef TESTS_EMU_LT_LT_H
#define TESTS_EMU_LT_LT_H

#include "tests/emu/device/emu.h"
#include "tests/emu/include/cublasLt.h"

/* A handle is valid only for the device that was current when it was created. */
struct cublasLtContext {
    int device;
};

/* Attributes of a product, with the sizes that the library documents. */
typedef struct EmuLtProduct {
    int32_t compute, scale, pointer_mode, transpose_a, transpose_b, transpose_c;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t bias_stride, aux_ld, aux_stride;
    int32_t multiprocessors, bias_type, aux_type; /* a type of -1 means D's type */
    int8_t fast_sums;
} EmuLtProduct;

typedef struct EmuLtLayout {
    uint32_t type;
    int32_t order;
    uint64_t rows, cols;
    int64_t ld;
    int32_t batches;
    int64_t batch_stride; /* in elements */
} EmuLtLayout;

enum { LT_A, LT_B, LT_C, LT_D, LT_OPERANDS, LT_BIAS = LT_OPERANDS, LT_AUX, LT_POINTERS };

typedef struct EmuLtWish {
    uint32_t search, reductions, implementations;
    uint64_t workspace;
    uint32_t alignment[LT_OPERANDS];
    float waves;
} EmuLtWish;

/* Contents of a cublasLtMatmulAlgo_t: the product that the algorithm was found for. */
typedef struct {
    uint64_t mark, problem; /* problem: a hash of descriptor and layouts */
    uint64_t workspace;
    uint32_t alignment[LT_POINTERS];
    uint32_t reductions;
} EmuLtAlgorithm;

/* A product whose operands have been checked to match each other. */
typedef struct {
    const EmuLtProduct *product;
    const EmuLtLayout *layout[LT_OPERANDS];
    int64_t m, n, k;
} EmuLtProblem;

/* Returns the size of an element in bytes; 0 for an unsupported type. */
size_t emu_lt_size(uint32_t type);
static inline uint32_t emu_lt_type(int32_t type, const EmuLtLayout *d)
{
    return type < 0 ? d->type : (uint32_t)type;
}

/* Returns true if the environment variable EMU_LT is this word (lt_problem.cc). */
bool emu_lt_asked_to_be(const char *word);
bool emu_lt_is_bias(uint32_t epilogue);
bool emu_lt_is_bias_gradient(uint32_t epilogue);
bool emu_lt_has_aux(uint32_t epilogue);

/* Returns SUCCESS and fills *problem if the product is supported, otherwise the library's error for
 * it. */
cublasStatus_t emu_lt_problem(EmuLtProblem *problem, const EmuLtProduct *product,
                              const EmuLtLayout *a, const EmuLtLayout *b, const EmuLtLayout *c,
                              const EmuLtLayout *d);
/* Returns a hash of everything that an algorithm depends on. Pointers are excluded, because they
 * change from call to call. */
uint64_t emu_lt_hash(const EmuLtProblem *problem);

/* Computes d = epilogue(alpha a b + beta c). Sums are added in f32 in ascending order of k and
 * rounded once to D's type. */
void emu_lt_compute(const EmuLtProblem *problem, float alpha, const void *a, const void *b,
                    float beta, const void *c, void *d);

#endif
