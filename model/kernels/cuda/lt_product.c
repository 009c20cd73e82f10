/* lt_product.c -- computes products with cuBLASLt. It describes row-major operands in the library's
 * column-major terms, and keeps one plan (descriptors and an algorithm) per kind of product for the
 * life of the device.
 *
 * A row-major matrix (R, C) is a column-major matrix with C rows. So d = a b becomes d^T = b^T a^T:
 * the library's A is our b, its B is our a, and its m is the number of d's columns. */
#include "model/kernels/cuda/lt.h"

#include "model/core/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Everything that a plan depends on. All members have the same size, so there is no padding and
 * keys can be compared as bytes. */
typedef struct {
    int64_t m, n, k; /* in the library's column-major terms */
    int64_t a_transposed, b_transposed;
    int64_t type, d_type;
    int64_t lda, ldb, ldc, ldd; /* ldc: 0 without c */
    int64_t epilogue, aux_ld, accumulate;
    int64_t a_alignment, b_alignment, d_alignment;
    int64_t bias_alignment, aux_alignment, c_alignment; /* 0: absent */
    int64_t workspace_bytes;
} PlanKey;

typedef struct LtPlan {
    PlanKey key;
    bool found; /* false: the library has no algorithm */
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c, d;
    cublasLtMatmulAlgo_t algorithm;
} LtPlan;

static cudaDataType_t library_type(DType t)
{
    switch (t) {
    case F32: return CUDA_R_32F;
    case BF16: return CUDA_R_16BF;
    case F16: return CUDA_R_16F;
    default: CHECK(0, "no products of %s on CUDA", dtype_name(t));
    }
    return CUDA_R_32F;
}

/* Returns the largest power of two that divides the tensor's address, but at most 256, the largest
 * alignment that algorithms require and the one that the library assumes by default. Returns 0 for
 * an absent tensor. */
static int64_t alignment_of(Tensor t)
{
    /* x & -x is the lowest set bit of x; setting bit 256 first limits the result. */
    uintptr_t at = (uintptr_t)t.data | 256;
    return tensor_present(t) ? (int64_t)(at & -at) : 0;
}

/* Returns the row stride. The stride of a single row is never used, but the library requires that
 * it is not less than the row. */
static int64_t stride_of(Tensor t)
{
    return t.ld < tensor_cols(t) ? tensor_cols(t) : t.ld;
}

/* Returns true if bias and aux meet the library's requirements: both start on a 16-byte boundary,
 * and the stride of aux is a multiple of 8 elements. */
static bool epilogue_fits(const LtProduct *p)
{
    bool bias = !tensor_present(p->bias) || alignment_of(p->bias) >= 16;
    bool aux =
        !tensor_present(p->aux) || (stride_of(p->aux) % 8 == 0 && alignment_of(p->aux) >= 16);
    return bias && aux;
}

/* Returns the key of the product as the library sees it: transposed, with a and b exchanged (see
 * the top of this file). */
static PlanKey key_of(const LtProduct *p)
{
    return (PlanKey){
        .m = tensor_cols(p->d),
        .n = tensor_rows(p->d),
        .k = p->a_transposed ? tensor_rows(p->a) : tensor_cols(p->a),
        .a_transposed = p->b_transposed,
        .b_transposed = p->a_transposed,
        .type = p->a.dtype,
        .d_type = p->d.dtype,
        .lda = stride_of(p->b),
        .ldb = stride_of(p->a),
        .ldc = tensor_present(p->c) ? stride_of(p->c) : 0,
        .ldd = stride_of(p->d),
        .epilogue = p->epilogue,
        .aux_ld = tensor_present(p->aux) ? stride_of(p->aux) : 0,
        .accumulate = p->accumulate,
        .a_alignment = alignment_of(p->b),
        .b_alignment = alignment_of(p->a),
        .d_alignment = alignment_of(p->d),
        .bias_alignment = alignment_of(p->bias),
        .aux_alignment = alignment_of(p->aux),
        .c_alignment = alignment_of(p->c),
        .workspace_bytes = (int64_t)p->workspace_bytes,
    };
}

static void set(const Lt *lt, const LtPlan *plan, cublasLtMatmulDescAttributes_t which,
                const void *value, size_t bytes)
{
    LT_CHECK(lt, lt->MatmulDescSetAttribute(plan->product, which, value, bytes));
}

/* Stores the addresses of bias and aux in the plan; they can differ from call to call. */
static void set_pointers(const Lt *lt, const LtPlan *plan, const LtProduct *p)
{
    const void *bias = p->bias.data, *aux = p->aux.data;
    if (tensor_present(p->bias))
        set(lt, plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    if (tensor_present(p->aux))
        set(lt, plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux);
}

static uint32_t library_epilogue(const LtProduct *p)
{
    bool bias = tensor_present(p->bias), aux = tensor_present(p->aux);
    switch (p->epilogue) {
    case LT_PLAIN: return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case LT_DGELU: return CUBLASLT_EPILOGUE_DGELU;
    case LT_GELU: break;
    }
    if (aux) return bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
}

/* Returns true if the product has no bias, epilogue or c, so that it cannot be simplified
 * further. */
static bool is_plain(const LtProduct *p)
{
    return library_epilogue(p) == CUBLASLT_EPILOGUE_DEFAULT && !tensor_present(p->c);
}

/* Returns the library's operand C, which it adds to the product: c if present, else the result
 * itself, which is read only when accumulating. */
static Tensor operand_c(const LtProduct *p)
{
    return tensor_present(p->c) ? p->c : p->d;
}

static void describe_product(const Lt *lt, LtPlan *plan, const LtProduct *p)
{
    const PlanKey *key = &plan->key;
    cudaDataType_t type = library_type(p->a.dtype);
    bool tf32 = lt->tf32 && p->a.dtype == F32;
    LT_CHECK(lt, lt->MatmulDescCreate(&plan->product,
                                      tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                      CUDA_R_32F));
    int32_t op_a = key->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t op_b = key->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint32_t epilogue = library_epilogue(p);
    set(lt, plan, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a);
    set(lt, plan, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b);
    set(lt, plan, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (tensor_present(p->aux))
        set(lt, plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &key->aux_ld, sizeof key->aux_ld);
    set_pointers(lt, plan, p); /* the heuristics derive the alignments from these addresses */
    uint64_t m = (uint64_t)key->m, n = (uint64_t)key->n;
    LT_CHECK(lt, lt->MatrixLayoutCreate(&plan->a, type, (uint64_t)tensor_cols(p->b),
                                        (uint64_t)tensor_rows(p->b), key->lda));
    LT_CHECK(lt, lt->MatrixLayoutCreate(&plan->b, type, (uint64_t)tensor_cols(p->a),
                                        (uint64_t)tensor_rows(p->a), key->ldb));
    Tensor c = operand_c(p);
    LT_CHECK(lt, lt->MatrixLayoutCreate(&plan->c, library_type(c.dtype), m, n, stride_of(c)));
    LT_CHECK(lt, lt->MatrixLayoutCreate(&plan->d, library_type(p->d.dtype), m, n, key->ldd));
}

/* Writes the product's shapes and type to buf, such as "(1024, 768) by (768, 3072) in bf16", and
 * returns buf. */
static const char *product_text(const LtProduct *p, const PlanKey *key, char *buf, size_t n)
{
    snprintf(buf, n, "(%lld, %lld) by (%lld, %lld) in %s", (long long)key->n, (long long)key->k,
             (long long)key->k, (long long)key->m, dtype_name(p->a.dtype));
    return buf;
}

/* Returns true if status is success. Returns false if the library does not support the product, or
 * calls its epilogue or its c invalid: then the product can be computed without them. Any other
 * error ends the program. */
static bool accepted(const Lt *lt, const LtProduct *p, const PlanKey *key, cublasStatus_t status,
                     const char *call)
{
    char text[128];
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH)
        return false;
    if (status != CUBLAS_STATUS_INVALID_VALUE) {
        lt_check(lt, status, call, __FILE__, __LINE__);
        return true;
    }
    product_text(p, key, text, sizeof text);
    if (is_plain(p))
        fail(EXIT_SYSTEM,
             "%s calls the product of %s invalid; another version of cuBLAS may take it, and with "
             "device "
             "\"cpu\" the run needs none",
             call, text);
    log_warning("%s calls %s of the product of %s invalid; kernels after the product do its work",
                call, tensor_present(p->c) ? "the residual" : "an epilogue", text);
    return false;
}

/* Returns the ways in which an algorithm that splits the product along k may add the partial sums:
 * in f32 in memory outside the result or, if the result is f32, also in the result itself, one part
 * after the other in a fixed order. The library's default would allow both for 16-bit results, with
 * one rounding per part. */
static uint32_t reductions_allowed(DType result)
{
    uint32_t in_f32 = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    return result == F32 ? in_f32 | CUBLASLT_REDUCTION_SCHEME_INPLACE : in_f32;
}

/* Asks the library's heuristics for an algorithm for the plan. */
static void find_algorithm(const Lt *lt, LtPlan *plan, const LtProduct *p)
{
    const PlanKey *key = &plan->key;
    cublasLtMatmulPreference_t wish;
    uint64_t bytes = (uint64_t)key->workspace_bytes;
    const struct {
        cublasLtMatmulPreferenceAttributes_t which;
        uint32_t value;
    } list[] = {
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions_allowed(p->d.dtype)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)key->a_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)key->b_alignment},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)alignment_of(operand_c(p))},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)key->d_alignment},
    };
    /* Passes the tensors' actual alignments, because the library would otherwise assume 256 bytes.
     * The alignments are part of the plan's key, so a plan is used only for calls with the same
     * ones. */
    LT_CHECK(lt, lt->MatmulPreferenceCreate(&wish));
    LT_CHECK(lt, lt->MatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                  &bytes, sizeof bytes));
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        LT_CHECK(lt, lt->MatmulPreferenceSetAttribute(wish, list[i].which, &list[i].value,
                                                      sizeof list[i].value));
    cublasLtMatmulHeuristicResult_t result;
    memset(&result, 0, sizeof result);
    int n = 0;
    /* Takes the library's first proposal without measuring. An algorithm chosen by timing could
     * differ from run to run, and with it the order of the sums. */
    cublasStatus_t status = lt->MatmulAlgoGetHeuristic(lt->handle, plan->product, plan->a, plan->b,
                                                       plan->c, plan->d, wish, 1, &result, &n);
    plan->found = accepted(lt, p, key, status, "cublasLtMatmulAlgoGetHeuristic") && n > 0 &&
                  result.state == CUBLAS_STATUS_SUCCESS;
    if (plan->found) plan->algorithm = result.algo;
    LT_CHECK(lt, lt->MatmulPreferenceDestroy(wish));
}

/* Prints a warning, once per kind of product, when only the plain kernel is left. Products with an
 * epilogue or a c cause no warning here, because they are tried again without it. */
static void warn_refused(const LtProduct *p, const PlanKey *key)
{
    char text[128];
    if (!is_plain(p)) return;
    log_warning("cuBLASLt does not multiply %s; a plain kernel does, and takes many times as long",
                product_text(p, key, text, sizeof text));
}

static LtPlan *plan_of(Lt *lt, const LtProduct *p)
{
    PlanKey key = key_of(p);
    for (int i = 0; i < lt->n_plans; i++)
        if (memcmp(&lt->plan[i].key, &key, sizeof key) == 0) return &lt->plan[i];
    /* A linear search is fast enough: a run has a few dozen kinds of products, all of which occur
     * during the warm-up. If the array is full, all plans are dropped. */
    if (lt->n_plans == LT_PLANS) lt_plans_free(lt);
    if (lt->plan == NULL) lt->plan = must_calloc(LT_PLANS, sizeof *lt->plan);
    LtPlan *plan = &lt->plan[lt->n_plans++];
    *plan = (LtPlan){.key = key};
    describe_product(lt, plan, p);
    find_algorithm(lt, plan, p);
    if (!plan->found) warn_refused(p, &key);
    return plan;
}

bool lt_product(const Device *dev, const LtProduct *p)
{
    Lt *lt = cuda_device(dev)->lt;
    CHECK(!tensor_present(p->bias) || p->bias.dtype == p->d.dtype, "a bias of %s for %s",
          dtype_name(p->bias.dtype), dtype_name(p->d.dtype));
    CHECK(!tensor_present(p->c) || (p->c.dtype == p->d.dtype && !p->accumulate),
          "c is %s, d is %s, accumulate %d", dtype_name(p->c.dtype), dtype_name(p->d.dtype),
          p->accumulate);
    if (!epilogue_fits(p)) return false;
    LtPlan *plan = plan_of(lt, p);
    if (!plan->found) return false;
    set_pointers(lt, plan, p);
    /* With beta 1 the library adds operand C to the product before the only rounding. */
    float one = 1, beta = p->accumulate || tensor_present(p->c) ? 1 : 0;
    cublasStatus_t status =
        lt->Matmul(lt->handle, plan->product, &one, p->b.data, plan->a, p->a.data, plan->b, &beta,
                   operand_c(p).data, plan->c, p->d.data, plan->d, &plan->algorithm, p->workspace,
                   p->workspace_bytes, cuda_stream(dev));
    /* A plan that the library refuses at the call is never tried again. So all later steps, and
     * every rerun, compute the product in the same way and have the same bits. */
    plan->found = accepted(lt, p, &plan->key, status, "cublasLtMatmul");
    if (!plan->found) warn_refused(p, &plan->key);
    return plan->found;
}

void lt_plans_free(Lt *lt)
{
    for (int i = 0; i < lt->n_plans; i++) {
        LT_CHECK(lt, lt->MatrixLayoutDestroy(lt->plan[i].a));
        LT_CHECK(lt, lt->MatrixLayoutDestroy(lt->plan[i].b));
        LT_CHECK(lt, lt->MatrixLayoutDestroy(lt->plan[i].c));
        LT_CHECK(lt, lt->MatrixLayoutDestroy(lt->plan[i].d));
        LT_CHECK(lt, lt->MatmulDescDestroy(lt->plan[i].product));
    }
    free(lt->plan);
    lt->plan = NULL;
    lt->n_plans = 0;
}
