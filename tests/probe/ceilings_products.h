/* ceilings_products.h -- part of ceilings.cu: measures the best speed of cuBLASLt for one product
 * of 8192 x 8192 matrices with random contents, over its first plans, for each operand type. The k
 * axis of both operands is contiguous (the library's TN), the only order that fp8 supports. */
#ifndef TESTS_PROBE_CEILINGS_PRODUCTS_H
#define TESTS_PROBE_CEILINGS_PRODUCTS_H

#include "tests/probe/lt.h"
#include "tests/probe/probe.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

enum { PRODUCT_SIDE = 8192, PRODUCT_CHOICES = 8 };
static const size_t PRODUCT_WORKSPACE = (size_t)64 << 20;

struct ProductKind {
    const char *name;
    cudaDataType in, out;
    cublasComputeType_t compute;
    bool fast_accumulate, zeros;
};

static const ProductKind product_kinds[] = {
    {"bf16", CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F, false, false},
    {"bf16.zeros", CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F, false, true},
    {"bf16.out_f32", CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F, false, false},
    {"f16", CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_32F, false, false},
    {"tf32", CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32, false, false},
    {"f32", CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, false, false},
    {"fp8", CUDA_R_8F_E4M3, CUDA_R_16BF, CUBLAS_COMPUTE_32F, false, false},
    {"fp8.fast_accumulate", CUDA_R_8F_E4M3, CUDA_R_16BF, CUBLAS_COMPUTE_32F, true, false},
};

/* One product, in the form that probe_seconds calls: D = A' B, all of size PRODUCT_SIDE x
 * PRODUCT_SIDE. */
struct ProductCall {
    const Lt *lt;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t in, out;
    const void *a, *b;
    void *d, *workspace;
    cublasLtMatmulHeuristicResult_t choice;
    cublasStatus_t status;
};

template <class T> static __global__ void random_kernel(T *x, size_t n, uint32_t seed, float scale)
{
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (; at < n; at += stride)
        x[at] = T(scale * ((float)probe_hash((uint32_t)at ^ seed) * 0x1p-31f - 1.0f));
}

/* Fills a matrix with values uniform in [-1, 1), or with zeros. */
static void product_fill(void *x, const ProductKind *kind, uint32_t seed)
{
    size_t n = (size_t)PRODUCT_SIDE * PRODUCT_SIDE;
    float scale = kind->zeros ? 0.0f : 1.0f;
    switch (kind->in) {
    case CUDA_R_16BF: random_kernel<<<1024, 256>>>((__nv_bfloat16 *)x, n, seed, scale); break;
    case CUDA_R_16F: random_kernel<<<1024, 256>>>((__half *)x, n, seed, scale); break;
    case CUDA_R_32F: random_kernel<<<1024, 256>>>((float *)x, n, seed, scale); break;
    default: random_kernel<<<1024, 256>>>((__nv_fp8_e4m3 *)x, n, seed, scale); break;
    }
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaDeviceSynchronize());
}

static void product_call(void *context, cudaStream_t stream)
{
    ProductCall *c = (ProductCall *)context;
    float one = 1.0f, zero = 0.0f;
    cublasStatus_t status =
        c->lt->matmul(c->handle, c->desc, &one, c->a, c->in, c->b, c->in, &zero, c->d, c->out, c->d,
                      c->out, &c->choice.algo, c->workspace, PRODUCT_WORKSPACE, stream);
    if (c->status == CUBLAS_STATUS_SUCCESS) c->status = status;
}

/* Creates the descriptors for `kind`. Returns false, with the status in c->status, if one fails. */
static bool product_describe(ProductCall *c, const ProductKind *kind)
{
    const Lt *lt = c->lt;
    cublasOperation_t transposed = CUBLAS_OP_T;
    int8_t fast = 1;
    uint64_t n = PRODUCT_SIDE;
    cublasStatus_t s = lt->matmulDescCreate(&c->desc, kind->compute, CUDA_R_32F);
    if (!s)
        s = lt->matmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                       sizeof transposed);
    if (!s && kind->fast_accumulate)
        s = lt->matmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast,
                                       sizeof fast);
    if (!s) s = lt->matrixLayoutCreate(&c->in, kind->in, n, n, (int64_t)n);
    if (!s) s = lt->matrixLayoutCreate(&c->out, kind->out, n, n, (int64_t)n);
    c->status = s;
    return s == CUBLAS_STATUS_SUCCESS;
}

/* Tries the first plans and stores the fastest in c->choice. Returns its time in seconds, or 0 if
 * none runs. */
static double product_choose(ProductCall *c, cudaStream_t stream)
{
    const Lt *lt = c->lt;
    cublasLtMatmulHeuristicResult_t found[PRODUCT_CHOICES], best = {};
    cublasLtMatmulPreference_t wish = nullptr;
    int n = 0;
    double least = 0;
    c->status = lt->matmulPreferenceCreate(&wish);
    if (!c->status)
        c->status = lt->matmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                     &PRODUCT_WORKSPACE, sizeof PRODUCT_WORKSPACE);
    if (!c->status)
        c->status = lt->matmulAlgoGetHeuristic(c->handle, c->desc, c->in, c->in, c->out, c->out,
                                               wish, PRODUCT_CHOICES, found, &n);
    if (wish) lt->matmulPreferenceDestroy(wish);
    if (c->status) return 0;
    if (!n) c->status = CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < n; i++) {
        double seconds;
        if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
        c->choice = found[i];
        c->status = CUBLAS_STATUS_SUCCESS;
        seconds = probe_seconds(product_call, c, stream, 2, 3);
        if (c->status == CUBLAS_STATUS_SUCCESS && (least == 0 || seconds < least)) {
            least = seconds;
            best = found[i];
        }
    }
    c->choice = best;
    if (least > 0) c->status = CUBLAS_STATUS_SUCCESS;
    return least;
}

/* Measures one kind and prints its line, with rounds of about a tenth of a second. Plain bf16 also
 * runs for two seconds without pause, in which the clock settles at what the power limit allows. */
static void product_measure(ProductCall *c, const ProductKind *kind, cudaStream_t stream)
{
    const double flops = 2.0 * PRODUCT_SIDE * PRODUCT_SIDE * PRODUCT_SIDE;
    const char *name = probe_name("product.8192.%s", kind->name);
    double seconds;
    int calls;
    product_fill((void *)c->a, kind, 0x1234567u);
    product_fill((void *)c->b, kind, 0x89abcdeu);
    seconds = product_describe(c, kind) ? product_choose(c, stream) : 0;
    if (seconds > 0) {
        calls = seconds > 0.1 ? 1 : (int)(0.1 / seconds);
        seconds = probe_seconds(product_call, c, stream, calls, 5);
        probe_number(name, 1e-12 * flops / seconds, "TFLOP/s");
        if (!strcmp(kind->name, "bf16"))
            probe_number("product.8192.bf16.sustained_2s",
                         1e-12 * flops /
                             probe_seconds(product_call, c, stream, (int)(2 / seconds), 1),
                         "TFLOP/s");
    } else {
        probe_word(name, probe_name("failed: %s", c->lt->getStatusName(c->status)));
    }
    if (c->in) c->lt->matrixLayoutDestroy(c->in);
    if (c->out) c->lt->matrixLayoutDestroy(c->out);
    if (c->desc) c->lt->matmulDescDestroy(c->desc);
    c->in = c->out = nullptr;
    c->desc = nullptr;
}

/* Measures every kind of product. */
static void probe_products(cudaStream_t stream)
{
    Lt lt;
    ProductCall c = {};
    char why[256];
    void *a = nullptr, *b = nullptr;
    size_t bytes = sizeof(float) * PRODUCT_SIDE * PRODUCT_SIDE;
    if (!lt_open(&lt, why, sizeof why)) {
        probe_word("product.8192", probe_name("failed: %s", why));
        return;
    }
    probe_word("cublaslt.version", probe_name("%zu (built with CUDA runtime %zu)", lt.getVersion(),
                                              lt.getCudartVersion()));
    c.lt = &lt;
    if (lt.create(&c.handle) != CUBLAS_STATUS_SUCCESS) {
        probe_word("product.8192", "failed: cublasLtCreate");
        return;
    }
    CUDA_OK(cudaMalloc(&a, bytes));
    CUDA_OK(cudaMalloc(&b, bytes));
    CUDA_OK(cudaMalloc(&c.d, bytes));
    CUDA_OK(cudaMalloc(&c.workspace, PRODUCT_WORKSPACE));
    c.a = a;
    c.b = b;
    for (size_t i = 0; i < sizeof product_kinds / sizeof *product_kinds; i++)
        product_measure(&c, &product_kinds[i], stream);
    CUDA_OK(cudaFree(a));
    CUDA_OK(cudaFree(b));
    CUDA_OK(cudaFree(c.d));
    CUDA_OK(cudaFree(c.workspace));
    lt.destroy(c.handle);
}

#endif
