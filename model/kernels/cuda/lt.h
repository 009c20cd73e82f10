/* lt.h -- opens cuBLASLt at run time and runs the matrix products of the ops through it. The
 * function pointers take their types from the toolkit's header. The program does not link against
 * the library, because that would cost every start 0.1 s and 90 MB. Private to the CUDA backend. */
#ifndef MODEL_KERNELS_CUDA_LT_H
#define MODEL_KERNELS_CUDA_LT_H

#include "model/kernels/cuda/cuda.h"

#include <cublasLt.h>

/* The library's functions that this program uses; each name is preceded by "cublasLt" in the API.
 */
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
    void *library; /* library handle from dlopen; NULL if the functions are linked into the program
                    */
    cublasLtHandle_t handle;
    bool tf32;           /* f32 products may round their factors to tf32 */
    struct LtPlan *plan; /* array of LT_PLANS plans; NULL until the first product */
    int n_plans;
} Lt;

/* Largest number of plans that are kept. A training run needs a few dozen. Work with ever-changing
 * shapes, such as prompts of any length, can exceed the limit: then all plans are dropped and the
 * library's heuristics are queried again. */
enum { LT_PLANS = 1024 };

/* Checks that a library can be loaded that has all functions listed above and the major version of
 * the header. Returns false and sets err if not. */
bool lt_find(char *err, size_t n);
/* Opens the library and creates a handle. Returns NULL and sets err on failure. */
Lt *lt_open(bool tf32, char *err, size_t n);
/* Frees the plans, destroys the handle and closes the library. Accepts NULL. */
void lt_close(Lt *lt);
/* Writes the library's version, such as "13.1.0", to buf and returns buf. */
const char *lt_version(const Lt *lt, char *buf, size_t n);

/* Ends the program when a cuBLASLt call fails: with EXIT_NO_MEMORY and advice on saving memory when
 * an allocation failed, otherwise with EXIT_SYSTEM. The message names the call and the library's
 * name for the error. */
#define LT_CHECK(lt, call) lt_check((lt), (call), #call, __FILE__, __LINE__)
void lt_check(const Lt *lt, cublasStatus_t status, const char *call, const char *file, int line);

/* ---- products -------------------------------------------------------------------------------- */

typedef enum {
    LT_PLAIN, /* d = the sum */
    LT_GELU,  /* d = gelu(unrounded sum); aux = the sum, rounded */
    LT_DGELU  /* d = the sum * gelu'(aux) */
} LtEpilogue;

/* Describes a product of row-major matrices: d (M, N) = op(a) op(b), d += op(a) op(b) with
 * accumulate, or d = op(a) op(b) + c if c (M, N) is present; then d must not overlap c. Sums are in
 * f32 and are rounded once. a is (M, K), or (K, M) when a_transposed; b is (K, N), or (N, K) when
 * b_transposed. a and b share one type; d has that type or f32. bias (N), if present, is added to
 * the sum before the epilogue; LT_DGELU does not allow a bias. aux (M, N) is written with LT_GELU,
 * where it is optional, and read with LT_DGELU. bias, aux and c have d's type. */
typedef struct {
    Tensor d, a, b;
    bool a_transposed, b_transposed;
    bool accumulate;
    Tensor c;
    LtEpilogue epilogue;
    Tensor bias, aux;
    void *workspace; /* device memory, 256-byte aligned */
    size_t workspace_bytes;
} LtProduct;

/* Queues the product on the device's stream and returns true. Returns false without doing anything
 * in these cases: bias or aux is not aligned to 16 bytes; aux rows are not a multiple of 8
 * elements; the library has no algorithm for the product, refuses to run it, or rejects its
 * epilogue or its c as invalid. If the library calls a product without bias, c and epilogue
 * invalid, the program ends, as after any other failure.
 *
 * The algorithm is the first one that the library's heuristics return for the shapes, strides,
 * types and alignments. It is never chosen by timing, so every run on the same kind of GPU has the
 * same bits. */
bool lt_product(const Device *dev, const LtProduct *p);

/* Frees all plans that lt_product has stored in lt. */
void lt_plans_free(Lt *lt);

#endif
