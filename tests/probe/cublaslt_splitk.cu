/* cublaslt_splitk.cu -- measures how much workspace and split-K speed up GPT-2's weight gradients
 * (f32, accumulated): the best of the first 16 heuristics for each workspace limit, and for each
 * mask of reduction schemes with 128 MiB. */
#include "tests/probe/cublaslt_gpt2.h"

enum { MOST_MIB = 512, USUAL_MIB = 128 };

static const int LIMITS_MIB[] = {0, 32, USUAL_MIB, MOST_MIB};

static const struct {
    const char *name;
    uint32_t mask;
} REDUCTIONS[] = {
    {"none", CUBLASLT_REDUCTION_SCHEME_NONE},
    {"inplace", CUBLASLT_REDUCTION_SCHEME_INPLACE},
    {"output_type", CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE},
    {"any", CUBLASLT_REDUCTION_SCHEME_MASK},
};

static void time_weight_gradient(const struct Bench *bench, struct Product product,
                                 const char *name)
{
    static struct ProductPlans plans;
    char kernels[PRODUCT_TEXT], words[PRODUCT_TEXT], unit[3 * PRODUCT_TEXT];
    int plan = 0;
    cublasStatus_t status = product_open(&plans, &bench->lt, bench->handle, &product);
    double seconds = -1;
    fill_random(bench->d, product.m * product.n * 4, 3, bench->stream);
    if (status == CUBLAS_STATUS_SUCCESS)
        seconds = product_fastest(&plans, PRODUCT_PLANS, bench->stream, &plan);
    if (seconds > 0) {
        product_kernels(&plans, plan, bench->stream, kernels);
        plan_words(&plans, plan, words);
        snprintf(unit, sizeof unit, "TFLOP/s (%.1f us, %s, %s)", 1e6 * seconds, kernels, words);
        probe_number(name, 1e-12 * product_flops(&product) / seconds, unit);
    } else {
        probe_word(name, probe_name("not supported (status %d)", (int)status));
    }
    product_close(&plans);
}

static void try_limits(const struct Bench *bench, const struct Gpt2Product *row)
{
    struct Product product = bench_product(bench, row->product);
    char name[64];
    snprintf(name, sizeof name, "lt.splitk.%s.%s", row->model, row->name);
    product.out = CUDA_R_32F;
    product.beta = 1;
    for (size_t i = 0; i < sizeof LIMITS_MIB / sizeof *LIMITS_MIB; i++) {
        product.workspace_bytes = (size_t)LIMITS_MIB[i] << 20;
        time_weight_gradient(bench, product, probe_name("%s.workspace%dMiB", name, LIMITS_MIB[i]));
    }
    product.workspace_bytes = (size_t)USUAL_MIB << 20;
    for (size_t i = 0; i < sizeof REDUCTIONS / sizeof *REDUCTIONS; i++) {
        product.reductions = REDUCTIONS[i].mask;
        time_weight_gradient(bench, product,
                             probe_name("%s.reduction.%s", name, REDUCTIONS[i].name));
    }
}

int main(void)
{
    static struct Gpt2Product list[GPT2_PRODUCTS];
    struct Bench bench;
    probe_device();
    gpt2_products(list);
    bench_open(&bench, list, GPT2_BLOCK_PRODUCTS, (size_t)MOST_MIB << 20, false);
    for (int i = 0; i < GPT2_BLOCK_PRODUCTS; i++)
        if (list[i].way == WGRAD) try_limits(&bench, &list[i]);
    bench_close(&bench);
    return 0;
}
