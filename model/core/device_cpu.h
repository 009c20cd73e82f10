/* device_cpu.h -- the CPU backend's own data (Device.impl), mainly the BLAS library. */
#ifndef MODEL_CORE_DEVICE_CPU_H
#define MODEL_CORE_DEVICE_CPU_H

#include "model/core/device.h"

/* Types of cblas_sgemm and cblas_dgemm; their enums are ints in the C ABI. A NULL pointer means
 * that the built-in products are used. */
typedef void (*BlasSgemm)(int order, int transa, int transb, int m, int n, int k, float alpha,
                          const float *a, int lda, const float *b, int ldb, float beta, float *c,
                          int ldc);
typedef void (*BlasDgemm)(int order, int transa, int transb, int m, int n, int k, double alpha,
                          const double *a, int lda, const double *b, int ldb, double beta,
                          double *c, int ldc);

typedef struct {
    BlasSgemm sgemm;
    BlasDgemm dgemm;
    void *library;       /* handle of dlopen */
    char blas_name[128]; /* "OpenBLAS 0.3.21" or "built-in products" */
    CpuLevel level;      /* of the kernels in use; never CPU_LEVEL_AUTO */
} CpuDevice;

/* Returns the highest instruction set level that this CPU supports and whose kernels are linked
 * into the program. */
CpuLevel cpu_level_best(void);
/* Returns the name of a level for messages: "avx2 (v3)". */
const char *cpu_level_text(CpuLevel level);
/* For tests: makes cpu_level_best return no level above `most` in the calling thread. */
void cpu_level_set_most(CpuLevel most);

#endif
