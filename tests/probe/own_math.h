/* own_math.h -- ln, sine and cosine in double and the Box-Muller pair made of them, once for host
 * and device: the operations of model/kernels/cpu/init.c and log_f64 of vmath.h in their order,
 * each rounded once. On the device the explicitly rounded intrinsics keep nvcc from contracting. On
 * the host they are plain operators: right where g++ has no FMA to contract into (x86-64 without
 * -mfma or -march) or is given -Xcompiler -ffp-contract=off; own_math_uncontracted() checks it.
 * The CUDA backend's own functions will take this file's place. */
#ifndef TESTS_PROBE_OWN_MATH_H
#define TESTS_PROBE_OWN_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define OWN_MATH static inline __host__ __device__

OWN_MATH double own_mul(double a, double b)
{
#ifdef __CUDA_ARCH__
    return __dmul_rn(a, b);
#else
    return a * b;
#endif
}

OWN_MATH double own_add(double a, double b)
{
#ifdef __CUDA_ARCH__
    return __dadd_rn(a, b);
#else
    return a + b;
#endif
}

OWN_MATH double own_div(double a, double b)
{
#ifdef __CUDA_ARCH__
    return __ddiv_rn(a, b);
#else
    return a / b;
#endif
}

OWN_MATH double own_sqrt(double a)
{
#ifdef __CUDA_ARCH__
    return __dsqrt_rn(a);
#else
    return sqrt(a);
#endif
}

OWN_MATH uint64_t own_bits(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

OWN_MATH double own_from_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* p z + c, rounded twice. */
OWN_MATH double own_step(double p, double z, double c)
{
    return own_add(own_mul(p, z), c);
}

/* ln x for normal x > 0. x = 2^k m with m in [sqrt(1/2), sqrt(2)), f = m - 1, s = f / (2 + f):
 * ln m = f - s (f - series(s^2)), the series that of 2 atanh(s). */
OWN_MATH double own_log(double x)
{
    const uint64_t low = 0x3fe6a09e667f3bcdu; /* sqrt(1/2) */
    uint64_t u = own_bits(x) + (0x3ff0000000000000u - low);
    double k = own_add(own_from_bits((u >> 52) | 0x4330000000000000u), -(0x1p52 + 1023.0));
    double f = own_add(own_from_bits((u & 0x000fffffffffffffu) + low), -1.0);
    double s = own_div(f, own_add(2.0, f)), z = own_mul(s, s);
    double half = own_mul(own_mul(0.5, f), f), p = 2.0 / 23.0;
    p = own_step(p, z, 2.0 / 21.0);
    p = own_step(p, z, 2.0 / 19.0);
    p = own_step(p, z, 2.0 / 17.0);
    p = own_step(p, z, 2.0 / 15.0);
    p = own_step(p, z, 2.0 / 13.0);
    p = own_step(p, z, 2.0 / 11.0);
    p = own_step(p, z, 2.0 / 9.0);
    p = own_step(p, z, 2.0 / 7.0);
    p = own_step(p, z, 2.0 / 5.0);
    p = own_step(p, z, 2.0 / 3.0);
    p = own_mul(p, z);
    double tail = own_add(own_mul(s, own_add(half, p)), own_mul(k, 0x1.a39ef35793c76p-33));
    return own_add(own_mul(k, 0x1.62e42feep-1), -own_add(own_add(half, -tail), -f));
}

/* Taylor's series for |t| <= pi / 4, t2 = t^2. */
OWN_MATH double own_sine(double t, double t2)
{
    double p = -1.0 / 1307674368000.0;
    p = own_step(p, t2, 1.0 / 6227020800.0);
    p = own_step(p, t2, -1.0 / 39916800.0);
    p = own_step(p, t2, 1.0 / 362880.0);
    p = own_step(p, t2, -1.0 / 5040.0);
    p = own_step(p, t2, 1.0 / 120.0);
    p = own_step(p, t2, -1.0 / 6.0);
    return own_add(t, own_mul(t, own_mul(t2, p)));
}

OWN_MATH double own_cosine(double t2)
{
    double p = 1.0 / 20922789888000.0;
    p = own_step(p, t2, -1.0 / 87178291200.0);
    p = own_step(p, t2, 1.0 / 479001600.0);
    p = own_step(p, t2, -1.0 / 3628800.0);
    p = own_step(p, t2, 1.0 / 40320.0);
    p = own_step(p, t2, -1.0 / 720.0);
    p = own_step(p, t2, 1.0 / 24.0);
    p = own_step(p, t2, -0.5);
    return own_add(1.0, own_mul(t2, p));
}

/* sine and cosine of 2 pi v, v in [0, 1): the nearest quarter turn is taken off exactly. */
OWN_MATH void own_sincos_turn(double v, double *sine, double *cosine)
{
    double turns = own_mul(4.0, v), shifted = own_add(turns, 0x1.8p52);
    double t = own_mul(own_add(turns, -own_add(shifted, -0x1.8p52)), 0x1.921fb54442d18p+0);
    double t2 = own_mul(t, t), s = own_sine(t, t2), c = own_cosine(t2);
    unsigned quarter = (unsigned)own_bits(shifted) & 3;
    double s_turned = quarter & 1 ? c : s, c_turned = quarter & 1 ? s : c;
    *sine = quarter & 2 ? -s_turned : s_turned;
    *cosine = (quarter + 1) & 2 ? -c_turned : c_turned;
}

/* The two normals of the draws a, b: model/kernels/cpu/init.c's with std 1. */
OWN_MATH void own_normals(uint64_t a, uint64_t b, double *even, double *odd)
{
    double u = own_add(2.0, -own_from_bits(a >> 12 | 0x3ff0000000000000u));
    double v = own_add(own_from_bits(b >> 12 | 0x3ff0000000000000u), -1.0);
    double radius = own_sqrt(own_mul(-2.0, own_log(u))), sine, cosine;
    own_sincos_turn(v, &sine, &cosine);
    *even = own_mul(radius, cosine);
    *odd = own_mul(radius, sine);
}

/* Whether this compilation of the host's code rounds a product before it is added to: with
 * x = 1 + 2^-30 the rounded x^2 is 1 + 2^-29, a fused one keeps 2^-60. */
static inline bool own_math_uncontracted(void)
{
    volatile double given = 1.0 + 0x1p-30;
    double x = given;
    return own_step(x, x, -(1.0 + 0x1p-29)) == 0.0;
}

#endif
