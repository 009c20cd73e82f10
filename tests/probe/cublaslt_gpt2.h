/* cublaslt_gpt2.h -- lists the matrix products of a GPT-2 block (qkv, proj, up, down: forward,
 * input gradient, weight gradient) and of the head, for two model sizes, and allocates the memory
 * in which the cublasLt probes run them. Weights are (outputs, inputs) and activations (rows,
 * features), both row-major. */
#ifndef TESTS_PROBE_CUBLASLT_GPT2_H
#define TESTS_PROBE_CUBLASLT_GPT2_H

#include "tests/probe/cublaslt_product.h"

enum { GPT2_PRODUCTS = 30, GPT2_BLOCK_PRODUCTS = 24, GPT2_VOCABULARY = 50304 };

enum Way { FORWARD, DGRAD, WGRAD };

struct Gpt2Product {
    const char *model, *name;
    enum Way way;
    struct Product product;
};

static inline const char *way_name(enum Way way)
{
    return way == FORWARD ? "forward" : way == DGRAD ? "dgrad" : "wgrad";
}

static inline struct Product linear_product(enum Way way, uint64_t rows, uint64_t inputs,
                                            uint64_t outputs)
{
    if (way == FORWARD) return product_shape(outputs, rows, inputs, CUBLAS_OP_T, CUBLAS_OP_N);
    if (way == DGRAD) return product_shape(inputs, rows, outputs, CUBLAS_OP_N, CUBLAS_OP_N);
    return product_shape(inputs, outputs, rows, CUBLAS_OP_N, CUBLAS_OP_T);
}

/* Lists the twelve products of each block, then those of the heads (limited to 16384 rows to save
 * memory). */
static inline void gpt2_products(struct Gpt2Product list[GPT2_PRODUCTS])
{
    static const struct {
        const char *name;
        uint64_t channels, rows;
    } models[2] = {{"124M", 768, 64 * 1024}, {"1558M", 1600, 16 * 1024}};
    static const struct {
        const char *name;
        uint64_t inputs, outputs; /* in multiples of the channels */
    } linears[4] = {{"qkv", 1, 3}, {"proj", 1, 1}, {"up", 1, 4}, {"down", 4, 1}};
    int n = 0;
    for (int m = 0; m < 2; m++)
        for (int l = 0; l < 4; l++)
            for (int way = FORWARD; way <= WGRAD; way++)
                list[n++] = {models[m].name, linears[l].name, (enum Way)way,
                             linear_product((enum Way)way, models[m].rows,
                                            models[m].channels * linears[l].inputs,
                                            models[m].channels * linears[l].outputs)};
    for (int m = 0; m < 2; m++)
        for (int way = FORWARD; way <= WGRAD; way++)
            list[n++] = {
                models[m].name, "head", (enum Way)way,
                linear_product((enum Way)way, 16 * 1024, models[m].channels, GPT2_VOCABULARY)};
}

/* Returns the product with these names, which must be in the list. */
static inline struct Product gpt2_find(const struct Gpt2Product list[GPT2_PRODUCTS],
                                       const char *model, const char *name, enum Way way)
{
    int i = 0;
    while (i < GPT2_PRODUCTS - 1 && (strcmp(list[i].model, model) != 0 ||
                                     strcmp(list[i].name, name) != 0 || list[i].way != way))
        i++;
    return list[i].product;
}

/* Each word holds two bf16 values in [-1, 1); read as an f32, the word is in the same range. */
static __global__ void fill_words(uint32_t *words, size_t n, uint32_t seed)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        uint32_t bits = probe_hash((uint32_t)i ^ seed);
        float low = (float)(int16_t)(bits & 0xffff) / 32768.0f;
        float high = (float)(int16_t)(bits >> 16) / 32768.0f;
        uint32_t l = __bfloat16_as_ushort(__float2bfloat16_rz(low));
        uint32_t h = __bfloat16_as_ushort(__float2bfloat16_rz(high));
        words[i] = h << 16 | l;
    }
}

static inline void fill_random(void *memory, size_t bytes, uint32_t seed, cudaStream_t stream)
{
    fill_words<<<1024, 256, 0, stream>>>((uint32_t *)memory, bytes / 4, seed);
    CUDA_OK(cudaGetLastError());
}

/* The library, and memory for any product of the list. */
struct Bench {
    struct Lt lt;
    cublasLtHandle_t handle;
    cudaStream_t stream;
    size_t a_bytes, b_bytes, d_bytes, bias_bytes, workspace_bytes;
    void *a, *b, *c, *d, *bias, *aux, *workspace;
};

static inline size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Opens the library; ends the probe if that fails. */
static inline void bench_open_library(struct Bench *bench)
{
    char why[256] = "cublasLtCreate";
    if (!lt_open(&bench->lt, why, sizeof why) ||
        bench->lt.create(&bench->handle) != CUBLAS_STATUS_SUCCESS) {
        probe_word("lt", probe_name("failed: %.140s", why));
        exit(PROBE_FAILED);
    }
    CUDA_OK(cudaStreamCreateWithFlags(&bench->stream, cudaStreamNonBlocking));
}

/* Allocates memory for the first `n` products of the list and fills the operands. D and aux have
 * room for f32. If `with_c`, C has memory of its own, of the size of D. */
static inline void bench_open(struct Bench *bench, const struct Gpt2Product *list, int n,
                              size_t workspace_bytes, bool with_c)
{
    memset(bench, 0, sizeof *bench);
    bench_open_library(bench);
    for (int i = 0; i < n; i++) {
        const struct Product *p = &list[i].product;
        bench->a_bytes = larger(bench->a_bytes, p->m * p->k * 2);
        bench->b_bytes = larger(bench->b_bytes, p->k * p->n * 2);
        bench->d_bytes = larger(bench->d_bytes, p->m * p->n * 4);
        bench->bias_bytes = larger(bench->bias_bytes, larger(p->m, p->n) * 4);
    }
    bench->workspace_bytes = workspace_bytes;
    CUDA_OK(cudaMalloc(&bench->a, bench->a_bytes + 256));
    CUDA_OK(cudaMalloc(&bench->b, bench->b_bytes + 256));
    CUDA_OK(cudaMalloc(&bench->d, bench->d_bytes + 256));
    CUDA_OK(cudaMalloc(&bench->aux, bench->d_bytes + 256));
    CUDA_OK(cudaMalloc(&bench->bias, bench->bias_bytes + 256));
    CUDA_OK(cudaMalloc(&bench->workspace, workspace_bytes));
    if (with_c) {
        CUDA_OK(cudaMalloc(&bench->c, bench->d_bytes + 256));
        fill_random(bench->c, bench->d_bytes + 256, 5, bench->stream);
    }
    fill_random(bench->a, bench->a_bytes + 256, 1, bench->stream);
    fill_random(bench->b, bench->b_bytes + 256, 2, bench->stream);
    fill_random(bench->d, bench->d_bytes + 256, 3, bench->stream);
    fill_random(bench->aux, bench->d_bytes + 256, 4, bench->stream);
    fill_random(bench->bias, bench->bias_bytes + 256, 6, bench->stream);
    CUDA_OK(cudaStreamSynchronize(bench->stream));
}

static inline void bench_close(struct Bench *bench)
{
    bench->lt.destroy(bench->handle);
    CUDA_OK(cudaStreamDestroy(bench->stream));
    cudaFree(bench->a);
    cudaFree(bench->b);
    cudaFree(bench->c);
    cudaFree(bench->d);
    cudaFree(bench->aux);
    cudaFree(bench->bias);
    cudaFree(bench->workspace);
}

/* Returns the product with its pointers set; bias and aux only if the epilogue uses them. */
static inline struct Product bench_product(const struct Bench *bench, struct Product p)
{
    int e = p.epilogue;
    p.a = bench->a;
    p.b = bench->b;
    p.d = bench->d;
    p.workspace = bench->workspace;
    p.workspace_bytes = bench->workspace_bytes;
    if (e & (CUBLASLT_EPILOGUE_BIAS | 16 | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB))
        p.bias = bench->bias;
    if (e & 128) p.aux = bench->aux;
    return p;
}

#endif
