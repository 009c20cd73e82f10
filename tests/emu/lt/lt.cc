/* lt.cc -- implements the handles and descriptors of the emulated cuBLASLt: creation, attributes,
 * destruction. */
#include "tests/emu/lt/lt.h"

#include <stdlib.h>
#include <string.h>

/* Offset and size of an attribute in its descriptor. */
typedef struct {
    int attribute;
    size_t offset, bytes;
} Field;

#define FIELD(attribute, type, name)                                                               \
    {                                                                                              \
        attribute, offsetof(type, name), sizeof(((type *)0)->name)                                 \
    }

static const Field PRODUCT_FIELDS[] = {
    FIELD(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, EmuLtProduct, compute),
    FIELD(CUBLASLT_MATMUL_DESC_SCALE_TYPE, EmuLtProduct, scale),
    FIELD(CUBLASLT_MATMUL_DESC_POINTER_MODE, EmuLtProduct, pointer_mode),
    FIELD(CUBLASLT_MATMUL_DESC_TRANSA, EmuLtProduct, transpose_a),
    FIELD(CUBLASLT_MATMUL_DESC_TRANSB, EmuLtProduct, transpose_b),
    FIELD(CUBLASLT_MATMUL_DESC_TRANSC, EmuLtProduct, transpose_c),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE, EmuLtProduct, epilogue),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_POINTER, EmuLtProduct, bias),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, EmuLtProduct, bias_stride),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, EmuLtProduct, aux),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, EmuLtProduct, aux_ld),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, EmuLtProduct, aux_stride),
    FIELD(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, EmuLtProduct, multiprocessors),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, EmuLtProduct, aux_type),
    FIELD(CUBLASLT_MATMUL_DESC_FAST_ACCUM, EmuLtProduct, fast_sums),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, EmuLtProduct, bias_type),
};

static const Field LAYOUT_FIELDS[] = {
    FIELD(CUBLASLT_MATRIX_LAYOUT_TYPE, EmuLtLayout, type),
    FIELD(CUBLASLT_MATRIX_LAYOUT_ORDER, EmuLtLayout, order),
    FIELD(CUBLASLT_MATRIX_LAYOUT_ROWS, EmuLtLayout, rows),
    FIELD(CUBLASLT_MATRIX_LAYOUT_COLS, EmuLtLayout, cols),
    FIELD(CUBLASLT_MATRIX_LAYOUT_LD, EmuLtLayout, ld),
    FIELD(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, EmuLtLayout, batches),
    FIELD(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, EmuLtLayout, batch_stride),
};

static const Field WISH_FIELDS[] = {
    FIELD(CUBLASLT_MATMUL_PREF_SEARCH_MODE, EmuLtWish, search),
    FIELD(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, EmuLtWish, workspace),
    FIELD(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, EmuLtWish, reductions),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, EmuLtWish, alignment[LT_A]),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, EmuLtWish, alignment[LT_B]),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, EmuLtWish, alignment[LT_C]),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, EmuLtWish, alignment[LT_D]),
    FIELD(CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT, EmuLtWish, waves),
    FIELD(CUBLASLT_MATMUL_PREF_IMPL_MASK, EmuLtWish, implementations),
};
#undef FIELD

#define COUNT(list) (int)(sizeof(list) / sizeof *(list))

static cublasStatus_t set(void *object, const Field *fields, int n, int attribute,
                          const void *value, size_t bytes)
{
    if (object == NULL || value == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    for (int i = 0; i < n; i++) {
        if (fields[i].attribute != attribute) continue;
        if (fields[i].bytes != bytes) return CUBLAS_STATUS_INVALID_VALUE;
        memcpy((char *)object + fields[i].offset, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

template <class Object> static Object *make(Object **object)
{
    return *object = (Object *)calloc(1, sizeof **object);
}

template <class Object> static cublasStatus_t destroy(Object *object)
{
    free(object);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- the library ----------------------------------------------------------------------------- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    int devices;
    if (emu_lt_asked_to_be("broken")) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (cudaGetDeviceCount(&devices) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!make(handle)) return CUBLAS_STATUS_ALLOC_FAILED;
    (*handle)->device = emu_current_device();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return destroy(handle);
}

size_t cublasLtGetVersion(void)
{
    return emu_lt_asked_to_be("old") ? CUBLAS_VERSION - 10000 : CUBLAS_VERSION;
}

size_t cublasLtGetCudartVersion(void)
{
    return CUDART_VERSION;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "an unknown status";
}

/* ---- descriptors ----------------------------------------------------------------------------- */

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *product, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if (emu_lt_asked_to_be("full")) return CUBLAS_STATUS_ALLOC_FAILED;
    if (!make(product)) return CUBLAS_STATUS_ALLOC_FAILED;
    (*product)->compute = compute;
    (*product)->scale = scale;
    (*product)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    (*product)->bias_type = (*product)->aux_type = -1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product)
{
    return destroy(product);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    return set(product, PRODUCT_FIELDS, COUNT(PRODUCT_FIELDS), attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    if (!make(layout)) return CUBLAS_STATUS_ALLOC_FAILED;
    **layout = {(uint32_t)type, CUBLASLT_ORDER_COL, rows, cols, ld, 1, 0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return destroy(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t bytes)
{
    return set(layout, LAYOUT_FIELDS, COUNT(LAYOUT_FIELDS), attribute, value, bytes);
}

/* Defaults of the library: pointers are assumed to be aligned to 256 bytes, and no workspace is
 * allowed. */
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *wish)
{
    if (!make(wish)) return CUBLAS_STATUS_ALLOC_FAILED;
    for (int i = 0; i < LT_OPERANDS; i++)
        (*wish)->alignment[i] = 256;
    (*wish)->reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t wish)
{
    return destroy(wish);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t wish,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    return set(wish, WISH_FIELDS, COUNT(WISH_FIELDS), attribute, value, bytes);
}
