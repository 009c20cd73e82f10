/* functions.cu -- measures the error of the device's f32 functions, exact and approximate, against
 * the C library's functions in double. It prints the largest and the mean error in units in the
 * last place of the exact result, and the argument with the largest error, over a million arguments
 * in the range that training uses. The program's own f32 functions must stay within errors of this
 * size. */
#include "tests/probe/probe.h"
#include <math.h>

enum { N = 1000000, BLOCK = 256, BLOCKS = (N + BLOCK - 1) / BLOCK };

static __device__ float ex2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ float tanh_approx(float x)
{
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* GELU computes 0.5 x (1 + erf(x / sqrt 2)). It is measured by itself because cancellation
 * increases the error of erf. */
static __device__ float gelu_erf(float x)
{
    return 0.5f * x * (1.0f + erff(x * 0.70710678f));
}

static double gelu_erf_exact(double x)
{
    return 0.5 * x * erfc(-x * 0.70710678118654752440);
}

static double rsqrt_exact(double x)
{
    return 1.0 / sqrt(x);
}

static double reciprocal_exact(double x)
{
    return 1.0 / x;
}

/* Name, the device's expression in x, the exact function, the range, and whether the arguments are
 * spread evenly on a logarithmic scale. */
#define FUNCTIONS(F)                                                                               \
    F(expf, expf(x), exp, -87.0, 0.0, false)                                                       \
    F(fast_expf, __expf(x), exp, -87.0, 0.0, false)                                                \
    F(fast_expf_near, __expf(x), exp, -1.0, 1.0, false)                                            \
    F(exp2f, exp2f(x), exp2, -126.0, 0.0, false)                                                   \
    F(ex2_approx, ex2_approx(x), exp2, -126.0, 0.0, false)                                         \
    F(logf, logf(x), log, 1.0, 1e6, true)                                                          \
    F(fast_logf, __logf(x), log, 1.0, 1e6, true)                                                   \
    F(tanhf, tanhf(x), tanh, -10.0, 10.0, false)                                                   \
    F(tanh_approx, tanh_approx(x), tanh, -10.0, 10.0, false)                                       \
    F(erff, erff(x), erf, -5.0, 5.0, false)                                                        \
    F(gelu_erf, gelu_erf(x), gelu_erf_exact, -5.0, 5.0, false)                                     \
    F(rsqrtf, rsqrtf(x), rsqrt_exact, 1e-12, 1e6, true)                                            \
    F(rsqrt_rounded, __frsqrt_rn(x), rsqrt_exact, 1e-12, 1e6, true)                                \
    F(sqrtf, sqrtf(x), sqrt, 1e-30, 1e6, true)                                                     \
    F(divide, 1.0f / x, reciprocal_exact, 1e-12, 1e12, true)                                       \
    F(fast_divide, __fdividef(1.0f, x), reciprocal_exact, 1e-12, 1e12, true)

#define DEFINE_KERNEL(name, expression, exact, low, high, by_log)                                  \
    static __global__ void name##_kernel(float *y, const float *from)                              \
    {                                                                                              \
        uint32_t i = blockIdx.x * BLOCK + threadIdx.x;                                             \
        if (i >= N) return;                                                                        \
        float x = from[i];                                                                         \
        y[i] = expression;                                                                         \
    }
FUNCTIONS(DEFINE_KERNEL)

typedef struct {
    const char *name;
    void (*kernel)(float *, const float *);
    double (*exact)(double);
    double low, high;
    bool by_log;
} Function;

/* Returns |value - exact| in units in the last place of an f32 of the size of `exact`. */
static double ulps(float value, double exact)
{
    int exponent;
    if (exact == 0.0) return value == 0.0f ? 0.0 : HUGE_VAL;
    frexp(exact, &exponent);
    return fabs((double)value - exact) / ldexp(1.0, exponent - 24 < -149 ? -149 : exponent - 24);
}

static void print_errors(const Function *f, const float *x, const float *y)
{
    double most = 0, sum = 0, at = 0;
    for (int i = 0; i < N; i++) {
        double error = ulps(y[i], f->exact((double)x[i]));
        sum += error;
        if (!(error <= most)) {
            most = error;
            at = (double)x[i];
        }
    }
    probe_number(probe_name("error.%s.max", f->name), most, "ulp");
    probe_number(probe_name("error.%s.max_at", f->name), at, "");
    probe_number(probe_name("error.%s.mean", f->name), sum / N, "ulp");
}

static void ask_function(const Function *f, float *x, float *y, float *d_x, float *d_y)
{
    const double low = f->by_log ? log(f->low) : f->low, high = f->by_log ? log(f->high) : f->high;
    for (uint32_t i = 0; i < N; i++) {
        double at = low + (high - low) * (double)probe_hash(i) * 0x1p-32;
        x[i] = (float)(f->by_log ? exp(at) : at);
    }
    CUDA_OK(cudaMemcpy(d_x, x, sizeof(float) * N, cudaMemcpyHostToDevice));
    f->kernel<<<BLOCKS, BLOCK>>>(d_y, d_x);
    cudaError_t code = cudaGetLastError();
    if (code == cudaSuccess) code = cudaMemcpy(y, d_y, sizeof(float) * N, cudaMemcpyDeviceToHost);
    if (code != cudaSuccess) {
        probe_word(probe_name("error.%s.max", f->name),
                   probe_name("failed: %s", cudaGetErrorString(code)));
    } else {
        print_errors(f, x, y);
    }
}

int main(void)
{
#define FUNCTION_ROW(name, expression, exact, low, high, by_log)                                   \
    {#name, name##_kernel, exact, low, high, by_log},
    const Function functions[] = {FUNCTIONS(FUNCTION_ROW)};
    probe_device();
    float *x = (float *)malloc(sizeof(float) * N), *y = (float *)malloc(sizeof(float) * N);
    float *d_x, *d_y;
    if (!x || !y) return PROBE_FAILED;
    CUDA_OK(cudaMalloc(&d_x, sizeof(float) * N));
    CUDA_OK(cudaMalloc(&d_y, sizeof(float) * N));
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        ask_function(functions + i, x, y, d_x, d_y);
    CUDA_OK(cudaFree(d_x));
    CUDA_OK(cudaFree(d_y));
    free(x);
    free(y);
    return 0;
}
