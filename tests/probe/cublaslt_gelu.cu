/* cublaslt_gelu.cu -- determines which GELU the epilogues compute: the tanh or the erf form,
 * applied to the f32 sum or to the value rounded to D's type. It also determines what aux receives,
 * and which derivative is computed. The operands are chosen so that the sums are 65,536 known
 * numbers, exact in f32: -8 + i / 4096. */
#include "tests/probe/cublaslt_gpt2.h"

/* Only a corner of CORNER x CORNER outputs is compared. The product is large enough that the
 * library chooses its usual kernels. */
enum { CORNER = 256, OUTPUTS = 3072, ROWS = 8192, INPUTS = 768, FORMS = 4 };

static const char *const FORM_NAMES[FORMS] = {"tanh_of_sum", "erf_of_sum", "tanh_of_rounded",
                                              "erf_of_rounded"};

struct Counts {
    unsigned equal[FORMS];      /* outputs that equal the formula's value, rounded to D's type */
    unsigned aux;               /* aux entries that equal the sum, rounded to D's type */
    unsigned error_bits[FORMS]; /* the largest absolute error, as the bits of a float */
};

/* Returns the sum that output (i, j) of the corner has in the forward product. The derivative uses
 * the same value as aux. */
static __device__ float corner_value(uint64_t i, uint64_t j)
{
    return (float)((int)(j % CORNER) - CORNER / 2) / 16.0f + (float)(i % CORNER) / 4096.0f;
}

/* Sets the operands. Forward: each sum has two terms that are not 0, and together they give
 * corner_value. Derivative: each sum has a single term, 1. */
static __global__ void set_operands(struct Product p, bool derivative)
{
    __nv_bfloat16 *a = (__nv_bfloat16 *)p.a, *b = (__nv_bfloat16 *)p.b;
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    uint64_t from = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (uint64_t at = from; at < p.m * p.k; at += step) {
        uint64_t i = p.op_a == CUBLAS_OP_N ? at % p.m : at / p.k;
        uint64_t k = p.op_a == CUBLAS_OP_N ? at / p.m : at % p.k;
        float value = k == 0 ? 1.0f : 0.0f;
        if (k == 1 && !derivative) value = (float)(i % CORNER) / 4096.0f;
        a[at] = __float2bfloat16(value);
    }
    for (uint64_t at = from; at < p.k * p.n; at += step) {
        uint64_t j = at / p.k, k = at % p.k;
        float value = k == 1 && !derivative ? 1.0f : 0.0f;
        if (k == 0) value = derivative ? 1.0f : (float)((int)(j % CORNER) - CORNER / 2) / 16.0f;
        b[at] = __float2bfloat16(value);
    }
    for (uint64_t at = from; p.aux && at < p.m * p.n; at += step) {
        float value = derivative ? corner_value(at % p.m, at / p.m) : 0.0f;
        if (p.out == CUDA_R_32F)
            ((float *)p.aux)[at] = value;
        else
            ((__nv_bfloat16 *)p.aux)[at] = __float2bfloat16(value);
    }
}

static __device__ double gelu_form(double x, bool erf_form, bool derivative)
{
    const double root = 0.79788456080286535588; /* sqrt(2 / pi) */
    if (erf_form) {
        double phi = 0.5 * (1 + erf(x / sqrt(2.0)));
        return derivative ? phi + x * exp(-0.5 * x * x) * 0.5 * root : x * phi;
    }
    double t = tanh(root * (x + 0.044715 * x * x * x));
    if (!derivative) return 0.5 * x * (1 + t);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
}

static __device__ float at_type(double value, bool f32)
{
    return f32 ? (float)value : __bfloat162float(__double2bfloat16(value));
}

static __device__ float load(const void *memory, uint64_t at, bool f32)
{
    return f32 ? ((const float *)memory)[at]
               : __bfloat162float(((const __nv_bfloat16 *)memory)[at]);
}

static __global__ void compare_corner(struct Product p, bool derivative, struct Counts *counts)
{
    uint64_t i = threadIdx.x, j = blockIdx.x, at = i + j * p.m;
    bool f32 = p.out == CUDA_R_32F;
    float sum = corner_value(i, j), got = load(p.d, at, f32), rounded = at_type(sum, false);
    for (int form = 0; form < FORMS; form++) {
        double want = gelu_form(form < 2 ? sum : rounded, form % 2 != 0, derivative);
        float error = (float)fabs((double)got - want);
        if (got == at_type(want, f32)) atomicAdd(&counts->equal[form], 1u);
        atomicMax(&counts->error_bits[form], __float_as_uint(error));
    }
    if (p.aux && load(p.aux, at, f32) == at_type(sum, f32)) atomicAdd(&counts->aux, 1u);
}

static void print_counts(const struct Counts *c, const char *name, bool with_aux)
{
    for (int form = 0; form < FORMS; form++) {
        float error;
        memcpy(&error, &c->error_bits[form], sizeof error);
        probe_word(probe_name("%s.%s", name, FORM_NAMES[form]),
                   probe_name("%u of %d equal, largest error %.3g", c->equal[form], CORNER * CORNER,
                              (double)error));
    }
    if (with_aux)
        probe_word(probe_name("%s.aux_is_the_rounded_sum", name),
                   probe_name("%u of %d", c->aux, CORNER * CORNER));
}

/* Runs every plan, prints the counts of the first one, and prints how many plans give the same
 * counts. */
static void ask_form(const struct Bench *bench, struct Product p, const char *name, bool derivative)
{
    static struct ProductPlans plans;
    struct Counts *counts, first, got;
    int same = 0;
    cublasStatus_t status;
    p = bench_product(bench, p);
    status = product_open(&plans, &bench->lt, bench->handle, &p);
    if (status != CUBLAS_STATUS_SUCCESS)
        probe_word(name, probe_name("not supported (status %d)", (int)status));
    CUDA_OK(cudaMalloc((void **)&counts, sizeof *counts));
    memset(&first, 0, sizeof first);
    CUDA_OK(cudaMemsetAsync(bench->bias, 0, bench->bias_bytes, bench->stream));
    for (int plan = 0; plan < plans.n; plan++) {
        CUDA_OK(cudaMemsetAsync(counts, 0, sizeof *counts, bench->stream));
        set_operands<<<1024, 256, 0, bench->stream>>>(p, derivative);
        CUDA_OK(cudaMemsetAsync(bench->d, 0xff, p.m * p.n * 2, bench->stream));
        status = product_call(&plans, plan, bench->stream);
        compare_corner<<<CORNER, CORNER, 0, bench->stream>>>(p, derivative, counts);
        CUDA_OK(cudaGetLastError());
        CUDA_OK(cudaStreamSynchronize(bench->stream));
        CUDA_OK(cudaMemcpy(&got, counts, sizeof got, cudaMemcpyDeviceToHost));
        if (plan == 0) first = got;
        if (plan == 0 && status == CUBLAS_STATUS_SUCCESS)
            print_counts(&first, name, p.aux && !derivative);
        same += status == CUBLAS_STATUS_SUCCESS && memcmp(&first, &got, sizeof first) == 0;
    }
    if (plans.n)
        probe_word(probe_name("%s.plans_that_agree", name), probe_name("%d of %d", same, plans.n));
    CUDA_OK(cudaFree(counts));
    product_close(&plans);
}

int main(void)
{
    static const struct {
        const char *name;
        cublasLtEpilogue_t epilogue;
        bool derivative;
    } cases[] = {{"gelu", CUBLASLT_EPILOGUE_GELU, false},
                 {"gelu_aux", CUBLASLT_EPILOGUE_GELU_AUX, false},
                 {"gelu_aux_bias", CUBLASLT_EPILOGUE_GELU_AUX_BIAS, false},
                 {"dgelu", CUBLASLT_EPILOGUE_DGELU, true}};
    struct Bench bench;
    struct Gpt2Product shapes[2] = {
        {"", "", FORWARD, linear_product(FORWARD, ROWS, INPUTS, OUTPUTS)},
        {"", "", DGRAD, linear_product(DGRAD, ROWS, OUTPUTS, INPUTS)}};
    probe_device();
    bench_open(&bench, shapes, 2, (size_t)128 << 20, false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int f32 = 0; f32 < 2; f32++) {
            struct Product p = shapes[cases[i].derivative].product;
            char name[64];
            snprintf(name, sizeof name, "lt.form.%s.%s", cases[i].name, f32 ? "f32" : "bf16");
            p.epilogue = cases[i].epilogue;
            p.out = f32 ? CUDA_R_32F : CUDA_R_16BF;
            ask_form(&bench, p, name, cases[i].derivative);
        }
    bench_close(&bench);
    return 0;
}
