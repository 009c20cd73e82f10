/* lt.h -- cuBLASLt, opened at run time: its functions by the toolkit's own prototypes, without a
 * link dependency (a linked one costs every start 0.1 s and 90 MB), and the products that the ops
 * ask of it. Private to the CUDA backend. */
#ifndef MODEL_KERNELS_CUDA_LT_H
#define MODEL_KERNELS_CUDA_LT_H

#include "model/kernels/cuda/cuda.h"

#include <cublasLt.h>

/* The functions that are used, as the API calls them after "cublasLt". */
#define LT_FUNCTIONS(F)                                                                            \
    F(Create)                                                                                      \
    F(Destroy)                                                                                     \
    F(GetVersion)                                                                                  \
    F(GetStatusName)                                                                               \
    F(Matmul)                                                                                      \
    F(MatmulAlgoGetHeuristic)                                                                      \
    F(MatmulDescCreate)                                                                            \
    F(MatmulDescDestroy)                                                                           \
    F(MatmulDescSetAttribute)                                                                      \
    F(MatrixLayoutCreate)                                                                          \
    F(MatrixLayoutDestroy)                                                                         \
    F(MatmulPreferenceCreate)                                                                      \
    F(MatmulPreferenceDestroy)                                                                     \
    F(MatmulPreferenceSetAttribute)

typedef struct Lt {
#define F(name) __typeof__(cublasLt##name) *name;
    LT_FUNCTIONS(F)
#undef F
    void *library; /* handle of dlopen; NULL where the functions are part of the program */
    cublasLtHandle_t handle;
    bool tf32;           /* f32 products may round their factors to tf32 */
    struct LtPlan *plan; /* LT_PLANS of them; NULL until the first product */
    int n_plans;
} Lt;

/* Kinds of products that are remembered. A training run has some dozens; what asks for ever new
 * shapes (prompts of any length) forgets them all now and then and asks the library again. */
enum { LT_PLANS = 1024 };

/* Whether the library is there with all its functions; false with a sentence. */
bool lt_find(char *err, size_t n);
/* Opens the library and a handle. NULL with a sentence. */
Lt *lt_open(bool tf32, char *err, size_t n);
/* Closes plans, handle and library; NULL is fine. */
void lt_close(Lt *lt);
/* "13.1.0" */
const char *lt_version(const Lt *lt, char *buf, size_t n);

/* Ends the run with EXIT_SYSTEM (EXIT_NO_MEMORY for memory, and what to lower), the call and the
 * library's word for the failure. */
#define LT_CHECK(lt, call) lt_check((lt), (call), #call, __FILE__, __LINE__)
void lt_check(const Lt *lt, cublasStatus_t status, const char *call, const char *file, int line);

/* ---- products -------------------------------------------------------------------------------- */

typedef enum {
    LT_PLAIN, /* d = sum */
    LT_GELU,  /* d = gelu(sum), of the unrounded sum; aux = the sum, rounded */
    LT_DGELU  /* d = sum * gelu'(aux) */
} LtEpilogue;

/* d (M, N) =/+= op(a) op(b) in row-major terms, sums in f32, rounded once. a is (M, K), or (K, M)
 * when a_transposed; b is (K, N), or (N, K). a and b share one type; d has it or is f32. bias (N),
 * if present, joins the sum before all else; not with LT_DGELU. aux (M, N) is written under
 * LT_GELU, where it may be absent, and read under LT_DGELU. Both have d's type. */
typedef struct {
    Tensor d, a, b;
    bool a_transposed, b_transposed;
    bool accumulate;
    LtEpilogue epilogue;
    Tensor bias, aux;
    void *workspace; /* 256-byte aligned device memory */
    size_t workspace_bytes;
} LtProduct;

/* Puts the product on the compute stream. False, and nothing is done, when bias or aux do not lie
 * in whole packs of 16 bytes, or when the library has no algorithm for the product, refuses to run
 * it, or calls its epilogue invalid. A product that it calls invalid although there is neither bias
 * nor epilogue ends the run, as every other failure does. The algorithm is the first that the
 * heuristics name for shapes, strides, types and alignments. It is never chosen by timing, so every
 * run on one kind of GPU has the same bits. */
bool lt_product(const Device *dev, const LtProduct *p);

/* Frees what lt_product keeps. */
void lt_plans_free(Lt *lt);

#endif
