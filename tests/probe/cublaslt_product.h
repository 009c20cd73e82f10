/* cublaslt_product.h -- describes one matrix product for cuBLASLt, used by the cublasLt probes: D =
 * epilogue(op(A) op(B) + beta C) in the library's column-major terms, with A and B in bf16 and
 * packed, and the sum in f32. It gets the plans that the library's heuristics offer, times them,
 * and finds a plan's kernels (from the nodes of a captured graph). */
#ifndef TESTS_PROBE_CUBLASLT_PRODUCT_H
#define TESTS_PROBE_CUBLASLT_PRODUCT_H

#include "tests/probe/lt.h"
#include "tests/probe/probe.h"
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_bf16.h>

enum { PRODUCT_PLANS = 16, PRODUCT_TEXT = 512 };

/* Of a product's `reductions`: those that the backend allows for the type of D. */
static const uint32_t REDUCTIONS_OF_BACKEND = 0xffffffffu;

/* A matrix product. A row-major tensor (rows, columns) is a column-major matrix with `columns`
 * rows: y (N, OC) = x (N, IC) W (OC, IC)^T is m = OC, n = N, k = IC with op_a = T (W) and op_b = N
 * (x). */
struct Product {
    uint64_t m, n, k;
    cublasOperation_t op_a, op_b;
    cudaDataType_t out; /* type of C and D: CUDA_R_16BF or CUDA_R_32F */
    cublasLtEpilogue_t epilogue;
    float beta;
    bool f32_bias; /* the bias or its gradient is f32, whatever the type of D */
    size_t workspace_bytes;
    uint32_t reductions; /* mask of the cublasLtReductionScheme_t that split-K may use */
    /* alignment in bytes declared for every pointer; 0: the library's default (256) */
    uint32_t alignment;
    const void *a, *b, *c;
    void *d, *bias, *aux, *workspace;
};

/* The library's descriptors and up to PRODUCT_PLANS algorithms, the one estimated as fastest
 * first. */
struct ProductPlans {
    const struct Lt *lt;
    cublasLtHandle_t handle;
    struct Product product;
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulHeuristicResult_t found[PRODUCT_PLANS];
    int n;
};

static inline struct Product product_shape(uint64_t m, uint64_t n, uint64_t k,
                                           cublasOperation_t op_a, cublasOperation_t op_b)
{
    struct Product p;
    memset(&p, 0, sizeof p);
    p.m = m;
    p.n = n;
    p.k = k;
    p.op_a = op_a;
    p.op_b = op_b;
    p.out = CUDA_R_16BF;
    p.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    p.reductions = REDUCTIONS_OF_BACKEND;
    return p;
}

static inline double product_flops(const struct Product *p)
{
    return 2.0 * (double)p->m * (double)p->n * (double)p->k;
}

static inline cublasStatus_t product_describe(struct ProductPlans *plans)
{
    const struct Lt *lt = plans->lt;
    const struct Product *p = &plans->product;
    int32_t op_a = p->op_a, op_b = p->op_b, bias_type = CUDA_R_32F;
    uint32_t epilogue = p->epilogue;
    int64_t aux_ld = (int64_t)p->m;
    int bad = 0;
    bad |= lt->matmulDescCreate(&plans->matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (bad) return (cublasStatus_t)bad;
    bad |=
        lt->matmulDescSetAttribute(plans->matmul, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a);
    bad |=
        lt->matmulDescSetAttribute(plans->matmul, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b);
    bad |= lt->matmulDescSetAttribute(plans->matmul, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                      sizeof epilogue);
    if (p->bias)
        bad |= lt->matmulDescSetAttribute(plans->matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                          &p->bias, sizeof p->bias);
    if (p->f32_bias)
        bad |= lt->matmulDescSetAttribute(plans->matmul, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                                          &bias_type, sizeof bias_type);
    if (p->aux) {
        bad |= lt->matmulDescSetAttribute(plans->matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                                          &p->aux, sizeof p->aux);
        bad |= lt->matmulDescSetAttribute(plans->matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
                                          &aux_ld, sizeof aux_ld);
    }
    if (p->op_a == CUBLAS_OP_N)
        bad |= lt->matrixLayoutCreate(&plans->a, CUDA_R_16BF, p->m, p->k, (int64_t)p->m);
    else
        bad |= lt->matrixLayoutCreate(&plans->a, CUDA_R_16BF, p->k, p->m, (int64_t)p->k);
    if (p->op_b == CUBLAS_OP_N)
        bad |= lt->matrixLayoutCreate(&plans->b, CUDA_R_16BF, p->k, p->n, (int64_t)p->k);
    else
        bad |= lt->matrixLayoutCreate(&plans->b, CUDA_R_16BF, p->n, p->k, (int64_t)p->n);
    bad |= lt->matrixLayoutCreate(&plans->d, p->out, p->m, p->n, (int64_t)p->m);
    return (cublasStatus_t)bad;
}

/* Returns the product's mask of reduction schemes; that of the backend is the one of
 * reductions_allowed in model/kernels/cuda/lt_product.c. */
static inline uint32_t product_reductions(const struct Product *p)
{
    uint32_t in_f32 = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (p->reductions != REDUCTIONS_OF_BACKEND) return p->reductions;
    return p->out == CUDA_R_32F ? in_f32 | CUBLASLT_REDUCTION_SCHEME_INPLACE : in_f32;
}

static inline cublasStatus_t product_ask(struct ProductPlans *plans)
{
    const struct Lt *lt = plans->lt;
    const struct Product *p = &plans->product;
    cublasLtMatmulPreference_t wish;
    uint32_t reductions = product_reductions(p);
    int bad = lt->matmulPreferenceCreate(&wish), n = 0;
    if (bad) return (cublasStatus_t)bad;
    bad |= lt->matmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                            &p->workspace_bytes, sizeof p->workspace_bytes);
    bad |= lt->matmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                            &reductions, sizeof reductions);
    for (int i = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
         p->alignment && i <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES; i++)
        bad |= lt->matmulPreferenceSetAttribute(wish, (cublasLtMatmulPreferenceAttributes_t)i,
                                                &p->alignment, sizeof p->alignment);
    if (!bad)
        bad = lt->matmulAlgoGetHeuristic(plans->handle, plans->matmul, plans->a, plans->b, plans->d,
                                         plans->d, wish, PRODUCT_PLANS, plans->found, &n);
    lt->matmulPreferenceDestroy(wish);
    if (bad) return (cublasStatus_t)bad;
    for (int i = 0; i < n; i++)
        if (plans->found[i].state == CUBLAS_STATUS_SUCCESS)
            plans->found[plans->n++] = plans->found[i];
    return plans->n ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* Fills *plans, which must be closed whatever the result. Also returns NOT_SUPPORTED if the list of
 * algorithms is empty. */
static inline cublasStatus_t product_open(struct ProductPlans *plans, const struct Lt *lt,
                                          cublasLtHandle_t handle, const struct Product *product)
{
    cublasStatus_t status;
    memset(plans, 0, sizeof *plans);
    plans->lt = lt;
    plans->handle = handle;
    plans->product = *product;
    status = product_describe(plans);
    return status == CUBLAS_STATUS_SUCCESS ? product_ask(plans) : status;
}

static inline void product_close(struct ProductPlans *plans)
{
    if (plans->a) plans->lt->matrixLayoutDestroy(plans->a);
    if (plans->b) plans->lt->matrixLayoutDestroy(plans->b);
    if (plans->d) plans->lt->matrixLayoutDestroy(plans->d);
    if (plans->matmul) plans->lt->matmulDescDestroy(plans->matmul);
}

static inline cublasStatus_t product_call(const struct ProductPlans *plans, int plan,
                                          cudaStream_t stream)
{
    const struct Product *p = &plans->product;
    float one = 1;
    return plans->lt->matmul(plans->handle, plans->matmul, &one, p->a, plans->a, p->b, plans->b,
                             &p->beta, p->c ? p->c : p->d, plans->d, p->d, plans->d,
                             &plans->found[plan].algo, p->workspace, p->workspace_bytes, stream);
}

/* A plan in the form that probe_seconds calls; `status` keeps the first failure. */
struct ProductCall {
    const struct ProductPlans *plans;
    int plan;
    cublasStatus_t status;
};

static inline void product_run(void *context, cudaStream_t stream)
{
    struct ProductCall *call = (struct ProductCall *)context;
    cublasStatus_t status = product_call(call->plans, call->plan, stream);
    if (call->status == CUBLAS_STATUS_SUCCESS) call->status = status;
}

/* Returns the median time of one call in seconds; negative if the library refuses the call. */
static inline double product_seconds(const struct ProductPlans *plans, int plan,
                                     cudaStream_t stream, int calls, int rounds)
{
    struct ProductCall call = {plans, plan, CUBLAS_STATUS_SUCCESS};
    double seconds = probe_seconds(product_run, &call, stream, calls, rounds);
    cudaGetLastError();
    return call.status == CUBLAS_STATUS_SUCCESS ? seconds : -1;
}

/* Returns the median time of one call in seconds in rounds of about 3 ms, where a call takes about
 * `rough` seconds; negative if the library refuses the call. */
static inline double product_steady(const struct ProductPlans *plans, int plan, cudaStream_t stream,
                                    double rough)
{
    int calls = (int)(3e-3 / rough);
    return product_seconds(plans, plan, stream, calls < 1 ? 1 : calls > 100 ? 100 : calls, 3);
}

/* Returns the time in seconds of the fastest of the first `limit` plans, and its index; negative if
 * none runs. One call of each plan ranks them; the three fastest are timed again in rounds of about
 * 3 ms. */
static inline double product_fastest(const struct ProductPlans *plans, int limit,
                                     cudaStream_t stream, int *plan)
{
    double rough[PRODUCT_PLANS], best = -1;
    int n = plans->n < limit ? plans->n : limit;
    for (int i = 0; i < n; i++)
        rough[i] = product_seconds(plans, i, stream, 1, 1);
    for (int again = 0; again < 3; again++) {
        int at = -1;
        double seconds;
        for (int i = 0; i < n; i++)
            if (rough[i] > 0 && (at < 0 || rough[i] < rough[at])) at = i;
        if (at < 0) break;
        seconds = product_steady(plans, at, stream, rough[at]);
        rough[at] = -1;
        if (seconds > 0 && (best < 0 || seconds < best)) {
            best = seconds;
            *plan = at;
        }
    }
    return best;
}

/* Captures the call as a graph, which the caller destroys; returns NULL if it cannot be
 * captured. */
static inline cudaGraph_t product_capture(const struct ProductPlans *plans, int plan,
                                          cudaStream_t stream)
{
    cudaGraph_t graph = NULL;
    cublasStatus_t status;
    CUDA_OK(cudaStreamSynchronize(stream));
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    status = product_call(plans, plan, stream);
    if (cudaStreamEndCapture(stream, &graph) != cudaSuccess || status != CUBLAS_STATUS_SUCCESS) {
        if (graph) cudaGraphDestroy(graph);
        graph = NULL;
    }
    cudaGetLastError();
    return graph;
}

/* Returns a function of the driver, or NULL if the driver is too old to have it. */
static inline void *driver_entry(const char *name, unsigned version)
{
    void *entry = NULL;
    cudaDriverEntryPointQueryResult found;
    cudaError_t code =
        cudaGetDriverEntryPointByVersion(name, &entry, version, cudaEnableDefault, &found);
    cudaGetLastError();
    return code == cudaSuccess && found == cudaDriverEntryPointSuccess ? entry : NULL;
}

/* Returns the name of a kernel node as it is in the library's binary; "?" if it is not
 * available. */
static inline const char *node_kernel_name(cudaGraphNode_t node)
{
    PFN_cuGraphKernelNodeGetParams_v12000 get =
        (PFN_cuGraphKernelNodeGetParams_v12000)driver_entry("cuGraphKernelNodeGetParams", 12000);
    PFN_cuFuncGetName_v12030 func_name =
        (PFN_cuFuncGetName_v12030)driver_entry("cuFuncGetName", 12030);
    PFN_cuKernelGetName_v12030 kernel_name =
        (PFN_cuKernelGetName_v12030)driver_entry("cuKernelGetName", 12030);
    CUDA_KERNEL_NODE_PARAMS_v2 params;
    const char *name = "?";
    memset(&params, 0, sizeof params);
    if (!get || !func_name || !kernel_name || get(node, &params) != CUDA_SUCCESS) return "?";
    if (params.func && func_name(&name, params.func) == CUDA_SUCCESS) return name;
    if (params.kern && kernel_name(&name, params.kern) == CUDA_SUCCESS) return name;
    return "?";
}

/* Writes the kernels of a plan's call, in order of creation, joined by " + "; each name is cut to
 * 90 characters. Returns `text`. */
static inline const char *product_kernels(const struct ProductPlans *plans, int plan,
                                          cudaStream_t stream, char text[PRODUCT_TEXT])
{
    cudaGraph_t graph = product_capture(plans, plan, stream);
    cudaGraphNode_t nodes[8];
    size_t n = 8, used = 0;
    snprintf(text, PRODUCT_TEXT, "no graph");
    if (!graph) return text;
    if (cudaGraphGetNodes(graph, nodes, &n) != cudaSuccess) n = 0;
    for (size_t i = 0; i < n && i < 8 && used + 100 < PRODUCT_TEXT; i++) {
        cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
        const char *name = "other node";
        cudaGraphNodeGetType(nodes[i], &type);
        if (type == cudaGraphNodeTypeKernel) name = node_kernel_name(nodes[i]);
        if (type == cudaGraphNodeTypeMemset) name = "memset";
        used += (size_t)snprintf(text + used, PRODUCT_TEXT - used, "%s%.90s", i ? " + " : "", name);
    }
    CUDA_OK(cudaGraphDestroy(graph));
    cudaGetLastError();
    return text;
}

static inline uint32_t plan_number(const struct ProductPlans *plans, int plan,
                                   cublasLtMatmulAlgoConfigAttributes_t which)
{
    uint32_t value = 0;
    size_t written = 0;
    size_t size = which == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID ||
                          which == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID
                      ? sizeof(uint16_t)
                      : sizeof value;
    plans->lt->matmulAlgoConfigGetAttribute(&plans->found[plan].algo, which, &value, size,
                                            &written);
    return value;
}

/* Writes how a plan computes as text; tile, stages and cluster are enumerators of cublasLt.h. */
static inline const char *plan_words(const struct ProductPlans *plans, int plan,
                                     char text[PRODUCT_TEXT])
{
    snprintf(text, PRODUCT_TEXT,
             "algorithm %u tile %u stages %u cluster %u splits %u reduction %u workspace %zu B, "
             "heuristic %d of %d",
             plan_number(plans, plan, CUBLASLT_ALGO_CONFIG_ID),
             plan_number(plans, plan, CUBLASLT_ALGO_CONFIG_TILE_ID),
             plan_number(plans, plan, CUBLASLT_ALGO_CONFIG_STAGES_ID),
             plan_number(plans, plan, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID),
             plan_number(plans, plan, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
             plan_number(plans, plan, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
             plans->found[plan].workspaceSize, plan, plans->n);
    return text;
}

#endif
