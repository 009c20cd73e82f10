/* cublaslt_bias_gradient.cu -- tests whether the bias gradient of an epilogue overwrites the
 * existing vector or is added to it when beta makes D accumulate, which type the vector has, and
 * whether all plans behave the same. All operands are constant, so each right result is one exact
 * number. */
#include "tests/probe/cublaslt_gpt2.h"

/* A is 1 and B is 1/64, so the product is SIZE_K / 64 everywhere. C is 1, and the vector starts at
 * BEFORE. All sums below are exact in bf16 as well. */
enum { SIZE_MN = 768, SIZE_K = 4096, PRODUCT_VALUE = SIZE_K / 64, BEFORE = 1024 };

static __global__ void set_all(void *memory, size_t n, float value, bool f32)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        if (f32)
            ((float *)memory)[i] = value;
        else
            ((__nv_bfloat16 *)memory)[i] = __float2bfloat16(value);
    }
}

static void set_constant(const struct Bench *bench, void *memory, size_t n, float value, bool f32)
{
    set_all<<<256, 256, 0, bench->stream>>>(memory, n, value, f32);
    CUDA_OK(cudaGetLastError());
}

/* Returns element i of a bf16 or f32 array on the device. */
static float element(const void *memory, size_t i, bool f32)
{
    uint32_t bits = 0;
    float value;
    if (f32) {
        CUDA_OK(cudaMemcpy(&bits, (const uint32_t *)memory + i, 4, cudaMemcpyDeviceToHost));
    } else {
        uint16_t half = 0;
        CUDA_OK(cudaMemcpy(&half, (const uint16_t *)memory + i, 2, cudaMemcpyDeviceToHost));
        bits = (uint32_t)half << 16;
    }
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Says what happened to a value that was `before` when `fresh` was computed for it: "overwrites",
 * "adds", "leaves it" or "another value". */
static const char *verdict(float got, float before, float fresh)
{
    if (got == fresh) return "overwrites";
    if (got == before + fresh) return "adds";
    return got == before ? "leaves it" : "another value";
}

/* Runs one plan and says what happened to the vector and to D, or "refused" if the call fails. */
static const char *try_plan(const struct Bench *bench, const struct ProductPlans *plans, int plan,
                            float fresh, float *vector)
{
    const struct Product *p = &plans->product;
    bool f32 = p->out == CUDA_R_32F, f32_vector = f32 || p->f32_bias;
    cublasStatus_t status;
    const char *gradient, *product;
    float d;
    set_constant(bench, (void *)p->a, p->m * p->k, 1.0f, false);
    set_constant(bench, (void *)p->b, p->k * p->n, 1.0f / 64, false);
    set_constant(bench, p->d, p->m * p->n, 1.0f, f32);
    set_constant(bench, p->bias, SIZE_MN, (float)BEFORE, f32_vector);
    /* at 8, the derivative of GELU is 1 */
    if (p->aux) set_constant(bench, p->aux, p->m * p->n, 8.0f, f32);
    status = product_call(plans, plan, bench->stream);
    CUDA_OK(cudaStreamSynchronize(bench->stream));
    cudaGetLastError();
    if (status != CUBLAS_STATUS_SUCCESS) return probe_name("refused (status %d)", (int)status);
    *vector = element(p->bias, SIZE_MN - 1, f32_vector);
    d = element(p->d, SIZE_MN + 1, f32);
    gradient = verdict(*vector, (float)BEFORE, fresh);
    product = verdict(d, 1.0f, (float)PRODUCT_VALUE);
    return probe_name("gradient %s, D %s", gradient, product);
}

static void ask_gradient(const struct Bench *bench, struct Product p, const char *name, float fresh)
{
    static struct ProductPlans plans;
    char first[160], kernels[PRODUCT_TEXT];
    float vector = 0, ignored;
    int same = 0;
    cublasStatus_t status;
    p = bench_product(bench, p);
    status = product_open(&plans, &bench->lt, bench->handle, &p);
    if (status != CUBLAS_STATUS_SUCCESS)
        probe_word(name, probe_name("not supported (status %d)", (int)status));
    for (int plan = 0; plan < plans.n; plan++) {
        const char *words = try_plan(bench, &plans, plan, fresh, plan ? &ignored : &vector);
        if (plan == 0) snprintf(first, sizeof first, "%s", words);
        same += strcmp(first, words) == 0;
    }
    if (plans.n) {
        product_kernels(&plans, 0, bench->stream, kernels);
        printf("%s = %s (gradient %g of %g, %d of %d plans, %s)\n", name, first, (double)vector,
               (double)fresh, same, plans.n, kernels);
        fflush(stdout);
    }
    product_close(&plans);
}

int main(void)
{
    /* `fresh` is the vector's expected new value: A summed over k, B summed over k, or D's gradient
     * summed over n. With beta 1, the sum of D may or may not include C, so the epilogue with the
     * derivative is tested only with beta 0. */
    static const struct {
        const char *name;
        cublasLtEpilogue_t epilogue;
        float fresh;
    } cases[] = {{"bgrada", CUBLASLT_EPILOGUE_BGRADA, SIZE_K},
                 {"bgradb", CUBLASLT_EPILOGUE_BGRADB, SIZE_K / 64},
                 {"dgelu_bgrad", CUBLASLT_EPILOGUE_DGELU_BGRAD, SIZE_MN * PRODUCT_VALUE}};
    struct Bench bench;
    struct Gpt2Product shapes[2] = {
        {"", "", WGRAD, product_shape(SIZE_MN, SIZE_MN, SIZE_K, CUBLAS_OP_N, CUBLAS_OP_T)},
        {"", "", DGRAD, product_shape(SIZE_MN, SIZE_MN, SIZE_K, CUBLAS_OP_N, CUBLAS_OP_N)}};
    probe_device();
    bench_open(&bench, shapes, 2, (size_t)128 << 20, false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int type = 0; type < 3; type++)
            for (int beta = 0; beta < (i < 2 ? 2 : 1); beta++) {
                static const char *const types[3] = {"bf16", "f32", "bf16.f32_vector"};
                struct Product p = shapes[i == 2].product;
                char name[96];
                snprintf(name, sizeof name, "lt.bias_gradient.%s.%s.beta%d", cases[i].name,
                         types[type], beta);
                p.epilogue = cases[i].epilogue;
                p.out = type == 1 ? CUDA_R_32F : CUDA_R_16BF;
                p.f32_bias = type == 2;
                p.beta = (float)beta;
                ask_gradient(&bench, p, name, cases[i].fresh);
            }
    bench_close(&bench);
    return 0;
}
