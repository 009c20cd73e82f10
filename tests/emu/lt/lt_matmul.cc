/* lt_matmul.cc -- decides which products the emulated cuBLASLt supports, returns an algorithm for
 * them, and checks each call before it computes the product.
 *
 * It refuses what the library documents as unsupported. It also refuses to run algorithms that
 * could round partial sums to 16 bits. Only a GPU can show whether the library really has a kernel
 * for everything else. Tests select other behaviour with the environment variable EMU_LT: "plain"
 * refuses all epilogues, "in_place" a C that is not D, and "none" all products, to test the
 * callers' fallbacks. "invalid" reports all epilogues as invalid, "all_invalid" all products. With
 * "broken" the library cannot be opened, and with "full" creating a product fails for lack of
 * memory. */
#include "tests/emu/lt/lt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MARK = 0x454d554c,
    AUX_PACK = 8,
    EPILOGUE_ALIGNMENT = 16, /* alignment of bias and aux */
    WORKSPACE_MOST = 1 << 20,
    WORKSPACE_ALIGNMENT = 256
};

static bool is_bias(uint32_t epilogue)
{
    return epilogue < 256 && (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
}

static bool is_bias_gradient(uint32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_BGRADA || epilogue == CUBLASLT_EPILOGUE_BGRADB ||
           epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
}

static bool has_aux(uint32_t epilogue)
{
    return epilogue < 256 && (epilogue & 128) != 0;
}

static bool epilogue_known(uint32_t epilogue)
{
    switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB: return true;
    default: return false;
    }
}

/* ---- supported products ---------------------------------------------------------------------- */

static bool layout_valid(const EmuLtLayout *l)
{
    if (l->order != CUBLASLT_ORDER_COL && l->order != CUBLASLT_ORDER_ROW) return false;
    uint64_t line = l->order == CUBLASLT_ORDER_COL ? l->rows : l->cols;
    return emu_lt_size(l->type) > 0 && l->rows > 0 && l->cols > 0 && l->ld > 0 &&
           (uint64_t)l->ld >= line && l->batches >= 1;
}

static bool types_supported(const EmuLtProduct *p, const EmuLtProblem *problem)
{
    const EmuLtLayout *const *l = problem->layout;
    uint32_t in = l[LT_A]->type, out = l[LT_D]->type;
    bool compute = p->compute == CUBLAS_COMPUTE_32F || p->compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
                   (p->compute == CUBLAS_COMPUTE_32F_FAST_TF32 && in == CUDA_R_32F);
    return compute && p->scale == CUDA_R_32F && p->pointer_mode == CUBLASLT_POINTER_MODE_HOST &&
           in == l[LT_B]->type && l[LT_C]->type == out && (out == in || out == CUDA_R_32F) &&
           l[LT_C]->order == l[LT_D]->order && p->transpose_c == CUBLAS_OP_N;
}

/* Returns true if EMU_LT is this word. */
static bool asked_to_be(const char *word)
{
    const char *given = getenv("EMU_LT");
    return given != NULL && strcmp(given, word) == 0;
}

static bool pointer_fits(const void *p)
{
    return p != NULL && (uintptr_t)p % EPILOGUE_ALIGNMENT == 0;
}

/* Returns true if the attributes of the epilogue are valid. Only the values of the pointers are
 * checked, not the memory that they point to. */
static bool epilogue_complete(const EmuLtProduct *p)
{
    if (asked_to_be("all_invalid")) return false;
    if (p->epilogue != CUBLASLT_EPILOGUE_DEFAULT && asked_to_be("invalid")) return false;
    bool bias = is_bias(p->epilogue) || is_bias_gradient(p->epilogue);
    if (bias && !pointer_fits(p->bias)) return false;
    return !has_aux(p->epilogue) || (pointer_fits(p->aux) && p->aux_ld > 0);
}

static bool epilogue_supported(const EmuLtProduct *p, const EmuLtProblem *problem)
{
    const EmuLtLayout *d = problem->layout[LT_D];
    if (asked_to_be("none")) return false;
    if (p->epilogue == CUBLASLT_EPILOGUE_DEFAULT) return true;
    if (asked_to_be("plain")) return false;
    if (!epilogue_known(p->epilogue) || d->order == CUBLASLT_ORDER_ROW) return false;
    if (has_aux(p->epilogue) && (p->aux_ld < problem->m || p->aux_ld % AUX_PACK != 0)) return false;
    return emu_lt_type(p->bias_type, d) == d->type && emu_lt_type(p->aux_type, d) == d->type;
}

/* Returns SUCCESS and fills *problem if the product is supported, otherwise the library's error for
 * it. */
static cublasStatus_t find_problem(EmuLtProblem *problem, const EmuLtProduct *product,
                                   const EmuLtLayout *a, const EmuLtLayout *b, const EmuLtLayout *c,
                                   const EmuLtLayout *d)
{
    if (!product || !a || !b || !c || !d) return CUBLAS_STATUS_INVALID_VALUE;
    if (!layout_valid(a) || !layout_valid(b) || !layout_valid(c) || !layout_valid(d))
        return CUBLAS_STATUS_INVALID_VALUE;
    bool ta = product->transpose_a != CUBLAS_OP_N, tb = product->transpose_b != CUBLAS_OP_N;
    *problem = {product,
                {a, b, c, d},
                (int64_t)d->rows,
                (int64_t)d->cols,
                (int64_t)(ta ? a->rows : a->cols)};
    bool fits = (int64_t)(ta ? a->cols : a->rows) == problem->m &&
                (int64_t)(tb ? b->rows : b->cols) == problem->n &&
                (int64_t)(tb ? b->cols : b->rows) == problem->k && c->rows == d->rows &&
                c->cols == d->cols && a->batches == d->batches && b->batches == d->batches &&
                c->batches == d->batches;
    if (!fits || !epilogue_complete(product)) return CUBLAS_STATUS_INVALID_VALUE;
    return types_supported(product, problem) && epilogue_supported(product, problem)
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* Returns an FNV-1a hash of everything that an algorithm depends on. Pointers are excluded, because
 * they change from call to call. */
static uint64_t hash_of(const EmuLtProblem *problem)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    auto add = [&hash](uint64_t x) { hash = (hash ^ x) * 0x100000001b3ull; };
    const EmuLtProduct *p = problem->product;
    add((uint64_t)p->compute);
    add((uint64_t)p->transpose_a << 1 | (uint64_t)p->transpose_b);
    add(p->epilogue);
    add((uint64_t)p->aux_ld);
    for (const EmuLtLayout *l : problem->layout) {
        add((uint64_t)l->type << 1 | (uint64_t)l->order);
        add(l->rows);
        add(l->cols);
        add((uint64_t)l->ld);
        add((uint64_t)l->batches);
        add((uint64_t)l->batch_stride);
    }
    return hash;
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
    cublasStatus_t status = find_problem(&problem, product, a, b, c, d);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    EmuLtAlgorithm algorithm = {MARK, hash_of(&problem), 0, {}, wish->reductions};
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
    cublasStatus_t status = find_problem(&problem, product, a, b, c, d);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (found.mark != MARK || found.problem != hash_of(&problem))
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
    if (is_bias(p->epilogue) || is_bias_gradient(p->epilogue)) {
        int64_t n = p->epilogue == CUBLASLT_EPILOGUE_BGRADB ? problem->n : problem->m;
        emu_check_device(p->bias, (size_t)n * emu_lt_size(d->type), "bias");
        if ((uintptr_t)p->bias % algorithm->alignment[LT_BIAS] != 0)
            return "the bias is less aligned than the one that the heuristics were told";
    }
    if (has_aux(p->epilogue)) {
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
    if (find_problem(&problem, &q->product, l + LT_A, l + LT_B, l + LT_C, l + LT_D) !=
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
    cublasStatus_t status = find_problem(&problem, product, a_layout, b_layout, c_layout, d_layout);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (algorithm == NULL) return refuse("no algorithm: the library's own choice may change");
    memcpy(&found, algorithm, sizeof found);
    if (found.mark != MARK || found.problem != hash_of(&problem))
        return refuse("the algorithm was found for another product");
    float scale_ab, scale_c;
    memcpy(&scale_ab, alpha, sizeof scale_ab);
    memcpy(&scale_c, beta, sizeof scale_c);
    if (scale_c != 0 && c != d && asked_to_be("in_place")) return CUBLAS_STATUS_NOT_SUPPORTED;
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
    emu_stream_do(stream, asked_run, &asked, sizeof asked);
    return CUBLAS_STATUS_SUCCESS;
}
