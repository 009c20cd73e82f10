/* cublaslt_splitk.cu -- measures how much workspace and split-K speed up GPT-2's weight gradients
 * (f32, accumulated): the first proposal of the heuristics, which the backend takes, and the best
 * of the first 16, for each workspace limit and for each mask of reduction schemes with 128 MiB.
 * The backend's mask is inplace+compute_type, and compute_type for 16-bit results. Whether one of
 * them shuts out split-K is seen in the number of splits of its plans, beside those of "any". */
#include "tests/probe/cublaslt_gpt2.h"

enum { MOST_MIB = 512, USUAL_MIB = 128 };

static const int LIMITS_MIB[] = {0, 32, USUAL_MIB, MOST_MIB};

static const struct {
    const char *name;
    uint32_t mask;
} REDUCTIONS[] = {
    {"none", CUBLASLT_REDUCTION_SCHEME_NONE},
    {"compute_type", CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE},
    {"inplace", CUBLASLT_REDUCTION_SCHEME_INPLACE},
    {"inplace+compute_type", REDUCTIONS_OF_BACKEND},
    {"output_type", CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE},
    {"any", CUBLASLT_REDUCTION_SCHEME_MASK},
};

static void print_plan(const struct Bench *bench, const struct ProductPlans *plans, int plan,
                       double seconds, const char *name)
{
    char kernels[PRODUCT_TEXT], words[PRODUCT_TEXT], unit[3 * PRODUCT_TEXT];
    product_kernels(plans, plan, bench->stream, kernels);
    plan_words(plans, plan, words);
    snprintf(unit, sizeof unit, "TFLOP/s (%.1f us, %s, %s)", 1e6 * seconds, kernels, words);
    probe_number(name, 1e-12 * product_flops(&plans->product) / seconds, unit);
}

/* Prints the best plan as NAME, and the first one as NAME.first. */
static void time_weight_gradient(const struct Bench *bench, struct Product product,
                                 const char *name)
{
    static struct ProductPlans plans;
    char first[128];
    int plan = 0;
    cublasStatus_t status = product_open(&plans, &bench->lt, bench->handle, &product);
    double seconds = -1, of_first = -1;
    fill_random(bench->d, product.m * product.n * 4, 3, bench->stream);
    if (status == CUBLAS_STATUS_SUCCESS)
        seconds = product_fastest(&plans, PRODUCT_PLANS, bench->stream, &plan);
    if (seconds > 0) of_first = product_steady(&plans, 0, bench->stream, seconds);
    snprintf(first, sizeof first, "%s.first", name);
    if (of_first > 0)
        print_plan(bench, &plans, 0, of_first, first);
    else
        probe_word(first, probe_name("not supported (status %d)", (int)status));
    if (seconds > 0)
        print_plan(bench, &plans, plan, seconds, name);
    else
        probe_word(name, probe_name("not supported (status %d)", (int)status));
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
