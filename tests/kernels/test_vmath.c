/* test_vmath.c -- tests that the errors of exp, tanh and log are at most those stated in vmath.h,
 * in units in the last place of the exact result, and the results at the ends of their ranges. f32
 * is compared with the double functions of the C library, f64 with the long double ones. */
#include "model/kernels/vmath.h"

#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

/* Returns the distance from x to the next larger number of the type. */
static double ulp_f32(double x)
{
    float a = fabsf((float)x);
    return (double)(nextafterf(a, INFINITY) - a);
}

static long double ulp_f64(long double x)
{
    double a = fabs((double)x);
    return (long double)(nextafter(a, (double)INFINITY) - a);
}

typedef struct {
    const char *name;
    float (*narrow)(float);
    double (*wide)(double);
    double (*exact_f32)(double);
    long double (*exact_f64)(long double);
    double low, high, bound; /* the range of arguments; the bound in ulp */
} Claim;

static const Claim claims[] = {
    {"exp", exp_f32, exp_f64, exp, expl, -87.3, 88.7, 1},
    {"tanh", tanh_f32, tanh_f64, tanh, tanhl, -25, 25, 3},
    {"log", log_f32, log_f64, log, logl, 0, 100, 1},
};

enum { CLAIMS = 3, DRAWN = 100000 };

/* Tests every 1009th f32 of the range. */
static void f32_errors_are_within_the_documented_bounds(void **state)
{
    (void)state;
    for (int c = 0; c < CLAIMS; c++) {
        const Claim *k = &claims[c];
        double worst = 0;
        for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 1009) {
            float x = vmath_from_f32((uint32_t)bits);
            if (!((double)x >= k->low && (double)x <= k->high) || x == 0) continue;
            double exact = k->exact_f32((double)x),
                   error = fabs((double)k->narrow(x) - exact) / ulp_f32(exact);
            if (!(error <= k->bound))
                fail_msg("%s_f32(%a): %a, exact %a, %.3g ulp", k->name, (double)x,
                         (double)k->narrow(x), exact, error);
            worst = fmax(worst, error);
        }
        print_message("%s_f32: at most %.3f ulp\n", k->name, worst);
    }
}

/* Tests random arguments of the range, and random exponents for functions that are delicate at
 * small arguments. */
static void f64_errors_are_within_the_documented_bounds(void **state)
{
    (void)state;
    for (int c = 0; c < CLAIMS; c++) {
        const Claim *k = &claims[c];
        double worst = 0, stretch = c == 0 ? 8 : 1; /* exp: +-700 */
        for (int64_t i = 0; i < 2 * DRAWN; i++) {
            double x = stretch * (k->low + (k->high - k->low) * drawn_uniform((uint64_t)c, i));
            if (i >= DRAWN) x = ldexp(x, -(int)(60 * drawn_uniform(9, i)));
            if (c == 2 && i % 3 == 0) x = ldexp(x, (int)(900 * drawn_uniform(10, i)));
            if (x == 0 || (c == 0 && fabs(x) > 708)) continue;
            long double exact = k->exact_f64((long double)x);
            double error = (double)(fabsl((long double)k->wide(x) - exact) / ulp_f64(exact));
            if (!(error <= k->bound))
                fail_msg("%s_f64(%a): %a, exact %La, %.3g ulp", k->name, x, k->wide(x), exact,
                         error);
            worst = fmax(worst, error);
        }
        print_message("%s_f64: at most %.3f ulp\n", k->name, worst);
    }
}

static void exp_tanh_and_log_are_right_at_the_ends_of_their_ranges(void **state)
{
    (void)state;
    const double inf = (double)INFINITY, nan = (double)NAN;
    assert_true(exp_f32(0) == 1 && exp_f32(INFINITY) == INFINITY && exp_f32(-INFINITY) == 0);
    assert_true(exp_f32(89) == INFINITY && exp_f32(-88) == 0 && isfinite(exp_f32(88.7f)) &&
                exp_f32(-87.3f) > 0);
    assert_true(exp_f64(0) == 1 && exp_f64(inf) == inf && exp_f64(-inf) == 0);
    assert_true(exp_f64(710) == inf && exp_f64(-709) == 0 && isfinite(exp_f64(709.7)) &&
                exp_f64(-708.3) > 0);
    assert_true(tanh_f32(0) == 0 && signbit(tanh_f32(-0.0f)) && tanh_f32(INFINITY) == 1 &&
                tanh_f32(-INFINITY) == -1);
    assert_true(tanh_f64(0) == 0 && signbit(tanh_f64(-0.0)) && tanh_f64(inf) == 1 &&
                tanh_f64(-inf) == -1);
    assert_true(log_f32(1) == 0 && log_f32(0) == -INFINITY && log_f32(INFINITY) == INFINITY &&
                isnan(log_f32(-1)));
    assert_true(log_f64(1) == 0 && log_f64(0) == -inf && log_f64(inf) == inf && isnan(log_f64(-1)));
    assert_true(isnan(exp_f32(NAN)) && isnan(tanh_f32(NAN)) && isnan(log_f32(NAN)));
    assert_true(isnan(exp_f64(nan)) && isnan(tanh_f64(nan)) && isnan(log_f64(nan)));
    assert_true(fabs((double)log_f32(0x1p-149f) - log(0x1p-149)) < 1e-5 &&
                fabs(log_f64(0x1p-1074) - log(0x1p-1074)) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_errors_are_within_the_documented_bounds),
        cmocka_unit_test(f64_errors_are_within_the_documented_bounds),
        cmocka_unit_test(exp_tanh_and_log_are_right_at_the_ends_of_their_ranges),
    };
    return cmocka_run_group_tests_name("vector functions", tests, NULL, NULL);
}
