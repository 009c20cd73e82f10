/* cublaslt_operands.cu -- measures what the location of operands costs: the residual stream as C,
 * apart from D or in D's memory, with the bias added (its time, and where it rounds); and pointers
 * aligned to 256, 128 and 16 bytes, which are declared to the heuristics or, at the end, not
 * declared. */
#include "tests/probe/cublaslt_gpt2.h"

enum { SAMPLES = 1 << 14 };

/* Times the best plan and prints the result. The plans stay open for the caller. Returns false if
 * none runs. */
static bool time_product(const struct Bench *bench, const struct Product *product,
                         struct ProductPlans *plans, int *plan, const char *name)
{
    char kernels[PRODUCT_TEXT], unit[2 * PRODUCT_TEXT];
    cublasStatus_t status = product_open(plans, &bench->lt, bench->handle, product);
    double seconds = -1;
    if (status == CUBLAS_STATUS_SUCCESS)
        seconds = product_fastest(plans, PRODUCT_PLANS, bench->stream, plan);
    if (seconds > 0) {
        product_kernels(plans, *plan, bench->stream, kernels);
        snprintf(unit, sizeof unit, "TFLOP/s (%.1f us, %s)", 1e6 * seconds, kernels);
        probe_number(name, 1e-12 * product_flops(product) / seconds, unit);
    } else {
        probe_word(name, probe_name("not supported (status %d)", (int)status));
    }
    return seconds > 0;
}

/* Recomputes SAMPLES outputs of D = op(A)^T B + bias + C in double. counts[0] is how many outputs
 * equal this value rounded once; counts[1] is how many equal it if it is also rounded before C is
 * added. */
static __global__ void count_roundings(struct Product p, unsigned *counts)
{
    const __nv_bfloat16 *a = (const __nv_bfloat16 *)p.a, *b = (const __nv_bfloat16 *)p.b;
    const __nv_bfloat16 *c = (const __nv_bfloat16 *)p.c, *d = (const __nv_bfloat16 *)p.d;
    const __nv_bfloat16 *bias = (const __nv_bfloat16 *)p.bias;
    uint32_t s = blockIdx.x * blockDim.x + threadIdx.x;
    if (s >= SAMPLES) return;
    uint64_t i = probe_hash(s) % p.m, j = probe_hash(s + SAMPLES) % p.n;
    double sum = (double)__bfloat162float(bias[i]),
           residual = (double)__bfloat162float(c[i + j * p.m]);
    for (uint64_t k = 0; k < p.k; k++)
        sum += (double)__bfloat162float(a[k + i * p.k]) * (double)__bfloat162float(b[k + j * p.k]);
    float got = __bfloat162float(d[i + j * p.m]);
    float once = __bfloat162float(__double2bfloat16(sum + residual));
    float first = __bfloat162float(__double2bfloat16(sum));
    float twice = __bfloat162float(__double2bfloat16((double)first + residual));
    if (got == once) atomicAdd(&counts[0], 1u);
    if (got == twice) atomicAdd(&counts[1], 1u);
}

static void print_roundings(const struct Bench *bench, const struct ProductPlans *plans, int plan,
                            const char *name)
{
    unsigned *counts, n[2];
    CUDA_OK(cudaMalloc((void **)&counts, sizeof n));
    CUDA_OK(cudaMemset(counts, 0, sizeof n));
    CUDA_OK(cudaDeviceSynchronize());
    product_call(plans, plan, bench->stream);
    count_roundings<<<SAMPLES / 128, 128, 0, bench->stream>>>(plans->product, counts);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaStreamSynchronize(bench->stream));
    CUDA_OK(cudaMemcpy(n, counts, sizeof n, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaFree(counts));
    probe_word(probe_name("%s.rounded_once", name), probe_name("%u of %d", n[0], SAMPLES));
    probe_word(probe_name("%s.rounded_before_c", name), probe_name("%u of %d", n[1], SAMPLES));
}

/* Measures a product whose result is added to the residual stream, with bias. */
static void ask_residual(const struct Bench *bench, const struct Gpt2Product *row)
{
    static struct ProductPlans plans;
    struct Product p = row->product;
    int plan = 0;
    char name[64];
    snprintf(name, sizeof name, "lt.residual.%s.%s", row->model, row->name);
    p.epilogue = CUBLASLT_EPILOGUE_BIAS;
    p = bench_product(bench, p);
    fill_random(bench->d, p.m * p.n * 4, 3, bench->stream);
    time_product(bench, &p, &plans, &plan, probe_name("%s.without", name));
    product_close(&plans);
    p.beta = 1;
    time_product(bench, &p, &plans, &plan, probe_name("%s.in_place", name));
    product_close(&plans);
    p.c = bench->c;
    if (time_product(bench, &p, &plans, &plan, probe_name("%s.apart", name)))
        print_roundings(bench, &plans, plan, name);
    product_close(&plans);
}

/* Returns the product with every pointer moved by `bytes`. */
static struct Product shifted(struct Product p, size_t bytes)
{
    p.a = (const char *)p.a + bytes;
    p.b = (const char *)p.b + bytes;
    p.d = (char *)p.d + bytes;
    if (p.bias) p.bias = (char *)p.bias + bytes;
    return p;
}

static void ask_alignment(const struct Bench *bench, const struct Gpt2Product *row)
{
    static const uint32_t alignments[] = {256, 128, 16};
    static struct ProductPlans plans;
    for (int i = 0; i < 3; i++) {
        struct Product p = row->product;
        int plan = 0;
        p.epilogue = row->way == FORWARD ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
        p.out = row->way == WGRAD ? CUDA_R_32F : CUDA_R_16BF;
        p = bench_product(bench, p);
        if (alignments[i] < 256) p = shifted(p, alignments[i]);
        p.alignment = alignments[i];
        time_product(bench, &p, &plans, &plan,
                     probe_name("lt.alignment.%s.%s.%s.%uB", row->model, row->name,
                                way_name(row->way), alignments[i]));
        product_close(&plans);
    }
}

/* Tests what happens if plans made for 256-byte alignment are used with pointers of lower
 * alignment. A fault here destroys the CUDA context, so this runs last. Returns false after a
 * fault. */
static bool ask_broken_promise(const struct Bench *bench, const struct Product *product,
                               size_t bytes)
{
    static struct ProductPlans plans;
    const char *name = probe_name("lt.alignment.promised256.given%zu", bytes);
    cublasStatus_t status;
    cudaError_t code;
    struct Product p = bench_product(bench, *product);
    status = product_open(&plans, &bench->lt, bench->handle, &p);
    plans.product = shifted(p, bytes);
    if (status == CUBLAS_STATUS_SUCCESS) status = product_call(&plans, 0, bench->stream);
    code = cudaStreamSynchronize(bench->stream);
    product_close(&plans);
    if (code != cudaSuccess)
        probe_word(name, probe_name("failed: %s", cudaGetErrorString(code)));
    else if (status != CUBLAS_STATUS_SUCCESS)
        probe_word(name, probe_name("refused (status %d)", (int)status));
    else
        probe_word(name, "runs");
    return code == cudaSuccess;
}

int main(void)
{
    static struct Gpt2Product list[GPT2_PRODUCTS];
    struct Bench bench;
    struct Product up;
    probe_device();
    gpt2_products(list);
    bench_open(&bench, list, GPT2_BLOCK_PRODUCTS, (size_t)128 << 20, true);
    for (int i = 0; i < GPT2_BLOCK_PRODUCTS; i++)
        if (list[i].way == FORWARD &&
            (strcmp(list[i].name, "proj") == 0 || strcmp(list[i].name, "down") == 0))
            ask_residual(&bench, &list[i]);
    for (int i = 0; i < GPT2_BLOCK_PRODUCTS; i++)
        if (strcmp(list[i].name, "up") == 0) ask_alignment(&bench, &list[i]);
    up = gpt2_find(list, "124M", "up", FORWARD);
    if (ask_broken_promise(&bench, &up, 128) && ask_broken_promise(&bench, &up, 16))
        bench_close(&bench);
    return 0;
}
