/* lt_matmul.cc -- returns an algorithm for the products that the emulated cuBLASLt supports
 * (lt_problem.cc), and checks each call before it computes the product. It refuses to run
 * algorithms that could round partial sums to 16 bits. */
#include "tests/emu/lt/lt.h"

#include <stdio.h>
#include <string.h>

enum { MARK = 0x454d554c, WORKSPACE_MOST = 1 << 20, WORKSPACE_ALIGNMENT = 256 };

static int64_t products;

int64_t emu_count_products(void)
{
    return __atomic_load_n(&products, __ATOMIC_RELAXED);
}

/* Returns a hash of the kernel that a product needs: no other product shares it. */
static uint64_t hash_of_algorithm(const EmuLtAlgorithm *algorithm)
{
    uint64_t hash = algorithm->problem ^ algorithm->workspace;
    for (uint32_t alignment : algorithm->alignment)
        hash = (hash ^ alignment) * 0x100000001b3ull;
    return hash;
}

/* ---- algorithms ------------------------------------------------------------------------------ */

static void algorithm_put(cublasLtMatmulHeuristicResult_t *result, const EmuLtAlgorithm *algorithm)
{
    static_assert(sizeof *algorithm <= sizeof result->algo, "it is kept in the library's bytes");
    memset(result, 0, sizeof *result);
    memcpy(&result->algo, algorithm, sizeof *algorithm);
    result->workspaceSize = algorithm->workspace;
    result->wavesCount = 1;
}

/* Returns the largest power of two, up to 256, that divides the address. Nothing else about the
 * epilogue's pointers is used. */
static uint32_t alignment_of(const void *p)
{
    uintptr_t at = (uintptr_t)p | 256;
    return (uint32_t)(at & -at);
}

/* Returns a single algorithm. It requires as much workspace as is allowed, but at most the size of
 * D in f32 and at most WORKSPACE_MOST. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wish, int most,
                                              cublasLtMatmulHeuristicResult_t *results, int *n)
{
    EmuLtProblem problem;
    *n = 0;
    if (handle == NULL || wish == NULL || most < 1) return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t status = emu_lt_problem(&problem, product, a, b, c, d);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (emu_lt_asked_to_be("split") && (wish->reductions & CUBLASLT_REDUCTION_SCHEME_INPLACE) == 0)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    EmuLtAlgorithm algorithm = {MARK, emu_lt_hash(&problem), 0, {}, wish->reductions};
    uint64_t bytes = (uint64_t)problem.m * (uint64_t)problem.n * sizeof(float);
    if (bytes > WORKSPACE_MOST) bytes = WORKSPACE_MOST;
    algorithm.workspace = bytes < wish->workspace ? bytes : wish->workspace;
    algorithm.alignment[LT_BIAS] = alignment_of(product->bias);
    algorithm.alignment[LT_AUX] = alignment_of(product->aux);
    for (int i = 0; i < LT_OPERANDS; i++) {
        algorithm.alignment[i] = wish->alignment[i];
        if (wish->alignment[i] < emu_lt_size(problem.layout[i]->type))
            return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    algorithm_put(results, &algorithm);
    *n = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t product,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algorithm,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    EmuLtProblem problem;
    EmuLtAlgorithm found;
    memcpy(&found, algorithm, sizeof found);
    cublasStatus_t status = emu_lt_problem(&problem, product, a, b, c, d);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (found.mark != MARK || found.problem != emu_lt_hash(&problem))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    algorithm_put(result, &found);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void *value, size_t bytes, size_t *written)
{
    EmuLtAlgorithm found;
    memcpy(&found, algorithm, sizeof found);
    uint32_t x = attribute == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME ? found.reductions
                 : attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM     ? 1
                                                                    : 0;
    if (found.mark != MARK || bytes < sizeof x) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, &x, sizeof x);
    if (written != NULL) *written = sizeof x;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- running --------------------------------------------------------------------------------- */

static cublasStatus_t refuse(const char *why)
{
    fprintf(stderr, "emu: cublasLtMatmul: %s\n", why);
    return CUBLAS_STATUS_INVALID_VALUE;
}

static size_t layout_bytes(const EmuLtLayout *l)
{
    uint64_t lines = l->order == CUBLASLT_ORDER_COL ? l->cols : l->rows;
    uint64_t line = l->order == CUBLASLT_ORDER_COL ? l->rows : l->cols;
    uint64_t elements = (lines - 1) * (uint64_t)l->ld + line +
                        (uint64_t)(l->batches - 1) * (uint64_t)l->batch_stride;
    return elements * emu_lt_size(l->type);
}

/* Returns an error message if C and D overlap without being the same matrix, else NULL. */
static const char *c_wrong(const EmuLtProblem *problem, const char *c, const char *d)
{
    const EmuLtLayout *lc = problem->layout[LT_C], *ld = problem->layout[LT_D];
    if (c + layout_bytes(lc) <= d || d + layout_bytes(ld) <= c) return NULL;
    bool same = lc->ld == ld->ld && lc->batch_stride == ld->batch_stride;
    return c != d ? "C and D overlap" : same ? NULL : "C and D share memory and not the layout";
}

/* Returns an error message if an operand is less aligned than the algorithm requires, else NULL.
 * Ends the program if an operand is not in device memory. */
static const char *operand_wrong(const EmuLtProblem *problem, const EmuLtAlgorithm *algorithm,
                                 const void *const pointer[LT_OPERANDS], bool reads_c)
{
    static const char *const NAMES[LT_OPERANDS] = {"A", "B", "C", "D"};
    for (int i = 0; i < LT_OPERANDS; i++) {
        if (i == LT_C && !reads_c) continue;
        emu_check_device(pointer[i], layout_bytes(problem->layout[i]), NAMES[i]);
        if ((uintptr_t)pointer[i] % algorithm->alignment[i] != 0)
            return "an operand is less aligned than the heuristics were told";
    }
    const EmuLtProduct *p = problem->product;
    const EmuLtLayout *d = problem->layout[LT_D];
    if (emu_lt_is_bias(p->epilogue) || emu_lt_is_bias_gradient(p->epilogue)) {
        int64_t n = p->epilogue == CUBLASLT_EPILOGUE_BGRADB ? problem->n : problem->m;
        emu_check_device(p->bias, (size_t)n * emu_lt_size(d->type), "bias");
        if ((uintptr_t)p->bias % algorithm->alignment[LT_BIAS] != 0)
            return "the bias is less aligned than the one that the heuristics were told";
    }
    if (emu_lt_has_aux(p->epilogue)) {
        size_t elements = (size_t)(p->aux_ld * (problem->n - 1) + problem->m);
        emu_check_device(p->aux, elements * emu_lt_size(d->type), "epilogue aux");
        if ((uintptr_t)p->aux % algorithm->alignment[LT_AUX] != 0)
            return "the aux is less aligned than the one that the heuristics were told";
    }
    return NULL;
}

/* Returns true if the algorithm may add partial sums in D's 16-bit type: the real library could
 * then do so without anyone noticing. */
static bool sums_may_be_rounded(const EmuLtProblem *problem, const EmuLtAlgorithm *algorithm)
{
    const uint32_t in_output =
        CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    return problem->layout[LT_D]->type != CUDA_R_32F && (algorithm->reductions & in_output) != 0;
}

static const char *workspace_wrong(const EmuLtAlgorithm *algorithm, const void *workspace,
                                   size_t bytes)
{
    if (algorithm->workspace > bytes) return "less workspace than the algorithm needs";
    if (algorithm->workspace == 0) return NULL;
    if ((uintptr_t)workspace % WORKSPACE_ALIGNMENT != 0) return "workspace not 256-byte aligned";
    emu_check_device(workspace, bytes, "workspace");
    return NULL;
}

/* A queued product, with copies of the descriptors, which the caller may change after the call. */
typedef struct {
    EmuLtProduct product;
    EmuLtLayout layout[LT_OPERANDS];
    const void *a, *b, *c;
    void *d, *workspace;
    float alpha, beta;
    size_t workspace_bytes;
} Asked;

static void asked_run(void *context)
{
    const Asked *q = (const Asked *)context;
    const EmuLtLayout *l = q->layout;
    EmuLtProblem problem;
    if (emu_lt_problem(&problem, &q->product, l + LT_A, l + LT_B, l + LT_C, l + LT_D) !=
        CUBLAS_STATUS_SUCCESS)
        emu_die("a product that was possible no longer is");
    emu_memory_open();
    if (q->workspace_bytes > 0) memset(q->workspace, EMU_POISON, q->workspace_bytes);
    emu_lt_compute(&problem, q->alpha, q->a, q->b, q->beta, q->c, q->d);
    if (q->workspace_bytes > 0) memset(q->workspace, EMU_POISON, q->workspace_bytes);
    emu_memory_close();
}

static void check_device(cublasLtHandle_t handle, cudaStream_t stream)
{
    int on = emu_stream_device(stream), current = emu_current_device();
    if (on != handle->device || on != current)
        emu_die("cublasLtMatmul by a handle of device %d on a stream of device %d, while device %d "
                "is current",
                handle->device, on, current);
}

/* Queues the product. The workspace is filled with NaNs before and after the product, so code that
 * relies on its contents, or places an operand or result in it, gets NaNs. */
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                              const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                              const void *b, cublasLtMatrixLayout_t b_layout, const void *beta,
                              const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    EmuLtProblem problem;
    EmuLtAlgorithm found;
    if (handle == NULL) return CUBLAS_STATUS_NOT_INITIALIZED;
    check_device(handle, stream);
    cublasStatus_t status =
        emu_lt_problem(&problem, product, a_layout, b_layout, c_layout, d_layout);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (algorithm == NULL) return refuse("no algorithm: the library's own choice may change");
    memcpy(&found, algorithm, sizeof found);
    if (found.mark != MARK || found.problem != emu_lt_hash(&problem))
        return refuse("the algorithm was found for another product");
    float scale_ab, scale_c;
    memcpy(&scale_ab, alpha, sizeof scale_ab);
    memcpy(&scale_c, beta, sizeof scale_c);
    if (scale_c != 0 && c != d && emu_lt_asked_to_be("in_place"))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    const void *const pointer[LT_OPERANDS] = {a, b, c, d};
    const char *wrong = operand_wrong(&problem, &found, pointer, scale_c != 0);
    if (wrong == NULL) wrong = workspace_wrong(&found, workspace, workspace_bytes);
    if (wrong == NULL && scale_c != 0) wrong = c_wrong(&problem, (const char *)c, (const char *)d);
    if (wrong == NULL && sums_may_be_rounded(&problem, &found))
        wrong =
            "parts of sums may be added in 16 bits; allow the reduction in the compute type alone";
    if (wrong != NULL) return refuse(wrong);
    Asked asked = {*product,  {*a_layout, *b_layout, *c_layout, *d_layout},
                   a,         b,
                   c,         d,
                   workspace, scale_ab,
                   scale_c,   found.workspace};
    emu_driver_load(hash_of_algorithm(&found));
    __atomic_fetch_add(&products, 1, __ATOMIC_RELAXED);
    emu_stream_do(stream, asked_run, &asked, sizeof asked);
    return CUBLAS_STATUS_SUCCESS;
}
