/* cublaslt.cu -- surveys what cuBLASLt offers for the matrix products of a GPT-2 block and of the
 * head, with each epilogue, bf16 and f32 outputs, and beta 0 and 1. It prints one line per
 * combination: TFLOP/s of the best of the first 16 heuristics, its time in microseconds and its
 * kernels, or that it is not supported. For each product it prints the algorithm of the fastest
 * combination. */
#include "tests/probe/cublaslt_gpt2.h"
#include <time.h>

/* PROBE_SHARE gives the probe's time budget in seconds. After the fraction HASTE of it, only the
 * first heuristic of a combination is timed, so that all combinations get a result. After the
 * fraction END, no more combinations are timed; the remaining ones are listed as such. */
enum { WORKSPACE_MIB = 128, USUAL_SHARE = 100 };
static const double HASTE = 0.6, END = 0.85;

/* The survey's clock, and the number of combinations that it had no time for. */
struct Survey {
    double from, share;
    int not_asked;
};

static const struct {
    const char *name;
    cublasLtEpilogue_t epilogue;
} EPILOGUES[] = {
    {"none", CUBLASLT_EPILOGUE_DEFAULT},
    {"bias", CUBLASLT_EPILOGUE_BIAS},
    {"gelu", CUBLASLT_EPILOGUE_GELU},
    {"gelu_aux", CUBLASLT_EPILOGUE_GELU_AUX},
    {"gelu_aux_bias", CUBLASLT_EPILOGUE_GELU_AUX_BIAS},
    {"dgelu", CUBLASLT_EPILOGUE_DGELU},
    {"bgrada", CUBLASLT_EPILOGUE_BGRADA},
    {"bgradb", CUBLASLT_EPILOGUE_BGRADB},
    {"dgelu_bgrad", CUBLASLT_EPILOGUE_DGELU_BGRAD},
};

static double wall_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The fastest combination of one product so far. */
struct Fastest {
    double tflops;
    char combination[PRODUCT_TEXT], plan[PRODUCT_TEXT];
};

/* Times one combination, prints its line, and records it if it is the product's fastest so far. */
static void survey_combination(const struct Bench *bench, struct Product product, const char *name,
                               const char *combination, bool in_haste, struct Fastest *fastest)
{
    static struct ProductPlans plans;
    char kernels[PRODUCT_TEXT], unit[2 * PRODUCT_TEXT], line[PRODUCT_TEXT];
    int plan = 0;
    cublasStatus_t status;
    product = bench_product(bench, product);
    snprintf(line, sizeof line, "%s.%s", name, combination);
    fill_random(bench->d, product.m * product.n * 4, 3, bench->stream);
    if (product.aux) fill_random(bench->aux, product.m * product.n * 4, 4, bench->stream);
    if (product.bias) fill_random(bench->bias, bench->bias_bytes, 6, bench->stream);
    status = product_open(&plans, &bench->lt, bench->handle, &product);
    if (status == CUBLAS_STATUS_SUCCESS) {
        double seconds =
            product_fastest(&plans, in_haste ? 1 : PRODUCT_PLANS, bench->stream, &plan);
        double tflops = 1e-12 * product_flops(&product) / seconds;
        if (seconds > 0) {
            product_kernels(&plans, plan, bench->stream, kernels);
            snprintf(unit, sizeof unit, "TFLOP/s (%.1f us, %s%s)", 1e6 * seconds, kernels,
                     in_haste ? ", first heuristic only" : "");
            probe_number(line, tflops, unit);
        } else {
            probe_word(line, probe_name("failed: none of %d heuristics runs", plans.n));
        }
        if (seconds > 0 && tflops > fastest->tflops) {
            fastest->tflops = tflops;
            snprintf(fastest->combination, sizeof fastest->combination, "%s", combination);
            plan_words(&plans, plan, fastest->plan);
        }
    } else {
        probe_word(line, probe_name("not supported (status %d)", (int)status));
    }
    product_close(&plans);
}

static void survey_product(const struct Bench *bench, const struct Gpt2Product *row,
                           struct Survey *survey)
{
    static struct Fastest fastest;
    char name[64];
    memset(&fastest, 0, sizeof fastest);
    snprintf(name, sizeof name, "lt.%s.%s.%s", row->model, row->name, way_name(row->way));
    fprintf(stderr, "%5.1f s: %s, m %llu n %llu k %llu\n", wall_seconds() - survey->from, name,
            (unsigned long long)row->product.m, (unsigned long long)row->product.n,
            (unsigned long long)row->product.k);
    for (size_t e = 0; e < sizeof EPILOGUES / sizeof *EPILOGUES; e++)
        for (int f32 = 0; f32 < 2; f32++)
            for (int beta = 0; beta < 2; beta++) {
                struct Product product = row->product;
                double used = (wall_seconds() - survey->from) / survey->share;
                const char *combination =
                    probe_name("%s.%s.beta%d", EPILOGUES[e].name, f32 ? "f32" : "bf16", beta);
                if (used > END) {
                    probe_word(probe_name("%s.%s", name, combination),
                               "not asked: the time was over");
                    survey->not_asked++;
                    continue;
                }
                product.epilogue = EPILOGUES[e].epilogue;
                product.out = f32 ? CUDA_R_32F : CUDA_R_16BF;
                product.beta = (float)beta;
                survey_combination(bench, product, name, combination, used > HASTE, &fastest);
            }
    if (fastest.tflops > 0)
        probe_word(probe_name("%s.fastest", name),
                   probe_name("%s: %s", fastest.combination, fastest.plan));
}

int main(void)
{
    static struct Gpt2Product list[GPT2_PRODUCTS];
    struct Bench bench;
    const char *share = getenv("PROBE_SHARE");
    struct Survey survey = {wall_seconds(), USUAL_SHARE, 0};
    if (share && atoi(share) > 0) survey.share = atoi(share);
    probe_device();
    gpt2_products(list);
    bench_open(&bench, list, GPT2_PRODUCTS, (size_t)WORKSPACE_MIB << 20, false);
    for (int i = 0; i < GPT2_PRODUCTS; i++)
        survey_product(&bench, &list[i], &survey);
    probe_number("lt.survey", wall_seconds() - survey.from, "s");
    probe_number("lt.not_asked", survey.not_asked, "combinations");
    bench_close(&bench);
    return 0;
}
