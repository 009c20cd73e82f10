/* test_activations.cu -- tests the activation functions of model/kernels/cuda/activation.cuh before
 * their results are rounded to 16 bits: how far the functions that use approximate instructions are
 * from exact values, for every argument that a 16-bit type has, and whether extreme arguments give
 * the same infinities and NaNs as with exact divisions. So rounded results have the bits of an
 * exact division, except close to a tie. On emulated devices the instructions err as far as the PTX
 * ISA allows. Skipped if there is no CUDA device. */
#include "model/kernels/cuda/activation.cuh"
#include "tests/support/device/kernel_test.cuh"

/* The unit of the bounds: the largest spacing of f32, relative to the number. */
static const double UNIT = 0x1p-23;

enum { ARGUMENTS = 1 << 16 };

/* ---- the functions of the gate ----------------------------------------------------------------
 */

template <class T>
__global__ void __launch_bounds__(WARP)
    gates_kernel(float *s, float *slope, const float *v, const float *u, int n)
{
    for (int i = threadIdx.x; i < n; i += WARP) {
        s[i] = logistic<T>(v[i]);
        slope[i] = gated_derivative<T>(v[i], u[i]);
    }
}

template <class T> static void run_gates(float *s, float *slope, float *v, float *u, int n)
{
    float *on_v = on_device(v, n), *on_u = on_device(u, n);
    float *on_s = on_device<float>(NULL, n), *on_slope = on_device<float>(NULL, n);
    LAUNCH(gates_kernel<T>, 1, WARP, 0, 0, on_s, on_slope, on_v, on_u, n);
    back(s, on_s, n);
    back(slope, on_slope, n);
    CUDA_CHECK(cudaFree(on_v));
    CUDA_CHECK(cudaFree(on_u));
}

/* With correctly rounded results, each operation errs by half a unit. 2^-v errs by 2 units more and
 * 1/x by 1 more, so logistic errs by at most 2.5 + 0.5 + 1.5 units. The second term of the
 * derivative has two factors s, one e and four roundings: 2 x 4.5 + 2.5 + 4 x 0.5 units. Where 2^-v
 * is limited to 1e34, that term is 1e-34 u, although exactly it would be smaller. */
static void test_logistic_and_gated_derivative_err_by_a_few_f32_roundings(void **)
{
    need_gpu();
    static float v[ARGUMENTS], u[ARGUMENTS], s[ARGUMENTS], slope[ARGUMENTS];
    for (int i = 0; i < ARGUMENTS; i++) {
        double span = i % 2 ? 125.9 : 4;
        v[i] = (float)(span * (2 * drawn((uint32_t)i) - 1));
        u[i] = (float)(40 * drawn((uint32_t)i + ARGUMENTS) - 20);
    }
    run_gates<bf16>(s, slope, v, u, ARGUMENTS);
    for (int i = 0; i < ARGUMENTS; i++) {
        double e = exp2(-(double)v[i]), exact = 1 / (1 + e), bent = exact * (e * exact) * u[i];
        if (!(fabs(s[i] - exact) <= 5 * UNIT * exact))
            fail_msg("logistic(%a) is %a, not %a", (double)v[i], (double)s[i], exact);
        double bound = UNIT * (5 * exact + 14 * fabs(bent)) + 1e-34 * (1 + fabs((double)u[i]));
        if (!(fabs(slope[i] - (exact + bent)) <= bound))
            fail_msg("gated_derivative(%a, %a) is %a, not %a", (double)v[i], (double)u[i],
                     (double)slope[i], exact + bent);
    }
}

static void test_logistic_and_gated_derivative_are_right_at_extreme_arguments(void **)
{
    need_gpu();
    enum { ENDS = 8 };
    const float infinite = INFINITY, nan = NAN;
    float v[ENDS] = {infinite, 1000, 127, -127, -1000, -infinite, nan, 0}, u[ENDS];
    const double want[ENDS] = {1, 1, 1, 0, 0, 0, NAN, 0.5};
    float s[ENDS], slope[ENDS];
    for (int i = 0; i < ENDS; i++)
        u[i] = 1;
    run_gates<f16>(s, slope, v, u, ENDS);
    for (int i = 0; i < ENDS; i++) {
        double bend = v[i] == 0 ? 0.25 : 0, unit = 16 * UNIT;
        if (isnan(want[i]) ? !isnan(s[i]) : !(fabs(s[i] - want[i]) <= unit * want[i]))
            fail_msg("logistic(%g) is %g", (double)v[i], (double)s[i]);
        if (isnan(want[i]) ? !isnan(slope[i]) : !(fabs(slope[i] - want[i] - bend) <= unit))
            fail_msg("gated_derivative(%g, 1) is %g", (double)v[i], (double)slope[i]);
    }
}

/* ---- all arguments of a 16-bit type -----------------------------------------------------------
 */

enum { GELU, GELU_SLOPE, SILU, SILU_SLOPE, FUNCTIONS };

/* Computes all functions of x[i] as for results of type T. */
template <class T>
__global__ void __launch_bounds__(WARP) functions_kernel(float *y, const float *x, int n)
{
    for (int i = threadIdx.x; i < n; i += WARP) {
        y[GELU * n + i] = activate<T, ACTIVATION_GELU>(x[i]);
        y[GELU_SLOPE * n + i] = derivative<T, ACTIVATION_GELU>(x[i]);
        y[SILU * n + i] = silu<T>(x[i]);
        y[SILU_SLOPE * n + i] = silu_derivative<T>(x[i]);
    }
}

/* Sets *exact to the function of x, and returns how far the result may be from it. The argument of
 * the exponential, `gate`, is rounded four times, and so is u, the factor of the derivative's
 * second term. Results of less than 2^-125 |x| may be 0, and the second term is at least 1e-34 u.
 */
static double bound_of(int function, double x, double *exact)
{
    bool gelu = function == GELU || function == GELU_SLOPE;
    double linear = gelu ? GELU_LINEAR : 1, cubic = gelu ? GELU_CUBIC : 0;
    double gate = x * (linear + cubic * x * x), e = exp(-gate), s = 1 / (1 + e);
    double rounding = 2 * fabs(gate) * UNIT, u = x * (linear + 3 * cubic * x * x);
    if (function == GELU || function == SILU) {
        *exact = x * s;
        return fabs(*exact) * (6 * UNIT + rounding) + fabs(x) * 0x1p-125;
    }
    double bend = isinf(e) ? 0 : s * (e * s) * u;
    *exact = s + bend;
    return s * (6 * UNIT + rounding) + fabs(bend) * (16 * UNIT + 3 * rounding) +
           2e-34 * (1 + fabs(u));
}

template <class T> static void check_arguments(DType dtype)
{
    static float x[ARGUMENTS], y[FUNCTIONS * ARGUMENTS], divided[FUNCTIONS * ARGUMENTS];
    const char *const name[] = {"gelu", "gelu'", "silu", "silu'"};
    for (int i = 0; i < ARGUMENTS; i++) {
        uint16_t bits = (uint16_t)i;
        x[i] = (float)dtype_get(dtype, &bits, 0);
    }
    float *on_x = on_device(x, ARGUMENTS), *on_y = on_device<float>(NULL, FUNCTIONS * ARGUMENTS);
    LAUNCH(functions_kernel<T>, 1, WARP, 0, 0, on_y, on_x, (int)ARGUMENTS);
    back(y, on_y, FUNCTIONS * ARGUMENTS);
    on_y = on_device<float>(NULL, FUNCTIONS * ARGUMENTS);
    LAUNCH(functions_kernel<float>, 1, WARP, 0, 0, on_y, on_x, (int)ARGUMENTS);
    back(divided, on_y, FUNCTIONS * ARGUMENTS);
    CUDA_CHECK(cudaFree(on_x));
    for (int at = 0; at < FUNCTIONS * ARGUMENTS; at++) {
        float arg = x[at % ARGUMENTS];
        double exact, bound = bound_of(at / ARGUMENTS, arg, &exact);
        if (!isfinite(divided[at]) || !isfinite(exact)) {
            if (isnan(divided[at]) ? !isnan(y[at]) : y[at] != divided[at])
                fail_msg("%s(%a) is %a, but %a with an exact division", name[at / ARGUMENTS],
                         (double)arg, (double)y[at], (double)divided[at]);
        } else if (!(fabs(y[at] - exact) <= bound)) {
            fail_msg("%s(%a) is %a, not %a", name[at / ARGUMENTS], (double)arg, (double)y[at],
                     exact);
        }
    }
}

static void test_activations_of_every_16_bit_argument_are_within_their_bounds(void **)
{
    need_gpu();
    check_arguments<bf16>(BF16);
    check_arguments<f16>(F16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logistic_and_gated_derivative_err_by_a_few_f32_roundings),
        cmocka_unit_test(test_logistic_and_gated_derivative_are_right_at_extreme_arguments),
        cmocka_unit_test(test_activations_of_every_16_bit_argument_are_within_their_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
