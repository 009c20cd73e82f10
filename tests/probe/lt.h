/* lt.h -- opens cuBLASLt at run time, so that a probe does not link against it. Types, constants
 * and function prototypes come from the toolkit's header; the library is the one that the dynamic
 * loader finds under the name with the header's major version. */
#ifndef TESTS_PROBE_LT_H
#define TESTS_PROBE_LT_H

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>

/* The functions have the API's names without "cublasLt". */
struct Lt {
    void *library;
    decltype(&cublasLtCreate) create;
    decltype(&cublasLtDestroy) destroy;
    decltype(&cublasLtGetVersion) getVersion;
    decltype(&cublasLtGetCudartVersion) getCudartVersion;
    decltype(&cublasLtGetStatusName) getStatusName;
    decltype(&cublasLtMatmul) matmul;
    decltype(&cublasLtMatmulAlgoGetHeuristic) matmulAlgoGetHeuristic;
    decltype(&cublasLtMatmulAlgoConfigGetAttribute) matmulAlgoConfigGetAttribute;
    decltype(&cublasLtMatmulAlgoConfigSetAttribute) matmulAlgoConfigSetAttribute;
    decltype(&cublasLtMatmulAlgoCheck) matmulAlgoCheck;
    decltype(&cublasLtMatmulDescCreate) matmulDescCreate;
    decltype(&cublasLtMatmulDescDestroy) matmulDescDestroy;
    decltype(&cublasLtMatmulDescSetAttribute) matmulDescSetAttribute;
    decltype(&cublasLtMatrixLayoutCreate) matrixLayoutCreate;
    decltype(&cublasLtMatrixLayoutDestroy) matrixLayoutDestroy;
    decltype(&cublasLtMatrixLayoutSetAttribute) matrixLayoutSetAttribute;
    decltype(&cublasLtMatmulPreferenceCreate) matmulPreferenceCreate;
    decltype(&cublasLtMatmulPreferenceDestroy) matmulPreferenceDestroy;
    decltype(&cublasLtMatmulPreferenceSetAttribute) matmulPreferenceSetAttribute;
};

/* Looks up one function; returns false and names it in `why` if it is missing. */
template <class F>
static inline bool lt_find(const Lt *lt, F *function, const char *name, char *why, size_t n)
{
    *function = (F)dlsym(lt->library, name);
    if (!*function) snprintf(why, n, "libcublasLt has no %s", name);
    return *function != nullptr;
}

/* Opens the library and looks up every function; returns false, with the reason in why[0..n), on
 * failure. */
static inline bool lt_open(Lt *lt, char *why, size_t n)
{
    char name[32];
    snprintf(name, sizeof name, "libcublasLt.so.%d", CUBLAS_VER_MAJOR);
    lt->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!lt->library) {
        snprintf(why, n, "%s", dlerror());
        return false;
    }
#define LT_FIND(field, name) lt_find(lt, &lt->field, "cublasLt" name, why, n)
    return LT_FIND(create, "Create") && LT_FIND(destroy, "Destroy") &&
           LT_FIND(getVersion, "GetVersion") && LT_FIND(getCudartVersion, "GetCudartVersion") &&
           LT_FIND(getStatusName, "GetStatusName") && LT_FIND(matmul, "Matmul") &&
           LT_FIND(matmulAlgoGetHeuristic, "MatmulAlgoGetHeuristic") &&
           LT_FIND(matmulAlgoConfigGetAttribute, "MatmulAlgoConfigGetAttribute") &&
           LT_FIND(matmulAlgoConfigSetAttribute, "MatmulAlgoConfigSetAttribute") &&
           LT_FIND(matmulAlgoCheck, "MatmulAlgoCheck") &&
           LT_FIND(matmulDescCreate, "MatmulDescCreate") &&
           LT_FIND(matmulDescDestroy, "MatmulDescDestroy") &&
           LT_FIND(matmulDescSetAttribute, "MatmulDescSetAttribute") &&
           LT_FIND(matrixLayoutCreate, "MatrixLayoutCreate") &&
           LT_FIND(matrixLayoutDestroy, "MatrixLayoutDestroy") &&
           LT_FIND(matrixLayoutSetAttribute, "MatrixLayoutSetAttribute") &&
           LT_FIND(matmulPreferenceCreate, "MatmulPreferenceCreate") &&
           LT_FIND(matmulPreferenceDestroy, "MatmulPreferenceDestroy") &&
           LT_FIND(matmulPreferenceSetAttribute, "MatmulPreferenceSetAttribute");
#undef LT_FIND
}

#endif
