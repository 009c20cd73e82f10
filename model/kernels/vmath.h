/* vmath.h -- exp, tanh and log that the compiler can vectorise: inline functions without branches,
 * library calls or tables.
 *
 * Each uses Cody and Waite argument reduction, then a polynomial. The stated error bounds cover the
 * largest errors found against the C library in a wider type (f32: 84 million arguments over the
 * whole range; f64: two million random arguments). A NaN argument gives a NaN. Where the result
 * would be denormal, exp returns 0. */
#ifndef MODEL_KERNELS_VMATH_H
#define MODEL_KERNELS_VMATH_H

#include "model/core/host_device.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Convert a number to its bits and back. The functions of dtype.h cannot be used: normal.h also
 * runs on a GPU, so this file is compiled for host and device, but dtype.h for the host only. */
static HOST_DEVICE inline uint32_t vmath_bits_f32(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static HOST_DEVICE inline float vmath_from_f32(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static HOST_DEVICE inline uint64_t vmath_bits_f64(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static HOST_DEVICE inline double vmath_from_f64(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* ln 2 split into two parts; the high part has so few bits that its product with an exponent is
 * exact. */
#define VMATH_LN2_HIGH_F32 0x1.62e4p-1f
#define VMATH_LN2_LOW_F32  0x1.7f7d1cp-20f
#define VMATH_LN2_HIGH_F64 0x1.62e42feep-1
#define VMATH_LN2_LOW_F64  0x1.a39ef35793c76p-33
/* Adding this constant to a number leaves the nearest integer in the low bits of the sum. */
#define VMATH_ROUND_F32 0x1.8p23f
#define VMATH_ROUND_F64 0x1.8p52

/* Returns exp(r) - 1 - r for |r| <= ln(2) / 2; apart from rounding, exp computed from it
 * has a relative error of at most 3.7e-9. */
static HOST_DEVICE inline float vmath_exp_tail_f32(float r)
{
    float p = 0x1.6a23f2p-10f;
    p = p * r + 0x1.123a0ap-7f;
    p = p * r + 0x1.5558f2p-5f;
    p = p * r + 0x1.555492p-3f;
    p = p * r + 0x1.fffffcp-2f;
    return p * r * r;
}

/* Like vmath_exp_tail_f32, in double: Taylor series to r^13, relative error 1e-17. */
static HOST_DEVICE inline double vmath_exp_tail_f64(double r)
{
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    return p * r * r;
}

/* Returns e^x, error <= 1 ulp; infinity above 88.72, and 0 below -87.33, where the result would be
 * denormal. */
static HOST_DEVICE inline float exp_f32(float x)
{
    float shifted = x * 0x1.715476p+0f + VMATH_ROUND_F32;
    float n = shifted - VMATH_ROUND_F32;
    float r = (x - n * VMATH_LN2_HIGH_F32) - n * VMATH_LN2_LOW_F32;
    float p = 1.0f + (r + vmath_exp_tail_f32(r));
    uint32_t bits = vmath_bits_f32(p) + (vmath_bits_f32(shifted) << 23);
    float y = vmath_from_f32(bits);
    y = x > 0x1.62e42ep+6f ? INFINITY : y;
    y = x < -0x1.5d589ep+6f ? 0.0f : y;
    return x != x ? x : y;
}

/* Returns e^x in double, error <= 1 ulp; infinity above 709.78, and 0 below -708.39. */
static HOST_DEVICE inline double exp_f64(double x)
{
    double shifted = x * 0x1.71547652b82fep+0 + VMATH_ROUND_F64;
    double n = shifted - VMATH_ROUND_F64;
    double r = (x - n * VMATH_LN2_HIGH_F64) - n * VMATH_LN2_LOW_F64;
    double p = 1.0 + (r + vmath_exp_tail_f64(r));
    uint64_t bits = vmath_bits_f64(p) + (vmath_bits_f64(shifted) << 52);
    double y = vmath_from_f64(bits);
    y = x > 0x1.62e42fefa39efp+9 ? (double)INFINITY : y;
    y = x < -0x1.6232bdd7abcd2p+9 ? 0.0 : y;
    return x != x ? x : y;
}

/* Returns tanh x: (e - 1) / (e + 1) with e = exp(2|x|), and the sign of x. e - 1 is computed
 * without cancellation; error <= 3 ulp. */
static HOST_DEVICE inline float tanh_f32(float x)
{
    float a = vmath_from_f32(vmath_bits_f32(x) & 0x7fffffffu);
    float b = a > 10.0f ? 20.0f : 2.0f * a;
    float shifted = b * 0x1.715476p+0f + VMATH_ROUND_F32;
    float n = shifted - VMATH_ROUND_F32;
    float r = (b - n * VMATH_LN2_HIGH_F32) - n * VMATH_LN2_LOW_F32;
    float p = r + vmath_exp_tail_f32(r);
    float power = vmath_from_f32((vmath_bits_f32(shifted) << 23) + 0x3f800000u);
    float t = power * p + (power - 1.0f);
    float y = t / (t + 2.0f);
    uint32_t sign = vmath_bits_f32(x) & 0x80000000u;
    y = vmath_from_f32(vmath_bits_f32(y) | sign);
    return x != x ? x : y;
}

/* Returns tanh x in double, error <= 3 ulp. */
static HOST_DEVICE inline double tanh_f64(double x)
{
    double a = vmath_from_f64(vmath_bits_f64(x) & 0x7fffffffffffffffu);
    double b = a > 22.0 ? 44.0 : 2.0 * a;
    double shifted = b * 0x1.71547652b82fep+0 + VMATH_ROUND_F64;
    double n = shifted - VMATH_ROUND_F64;
    double r = (b - n * VMATH_LN2_HIGH_F64) - n * VMATH_LN2_LOW_F64;
    double p = r + vmath_exp_tail_f64(r);
    double power = vmath_from_f64((vmath_bits_f64(shifted) << 52) + 0x3ff0000000000000u);
    double t = power * p + (power - 1.0);
    double y = t / (t + 2.0);
    uint64_t sign = vmath_bits_f64(x) & 0x8000000000000000u;
    y = vmath_from_f64(vmath_bits_f64(y) | sign);
    return x != x ? x : y;
}

/* Returns ln x, error <= 1 ulp; -infinity for 0, NaN for negative x. With x = 2^k m, m in
 * [sqrt(1/2), sqrt(2)), f = m - 1 and s = f / (2 + f): ln m = f - s (f - series(s^2)), where the
 * series is that of 2 atanh(s). */
static HOST_DEVICE inline float log_f32(float x)
{
    bool small = x < 0x1p-126f;
    uint32_t u = vmath_bits_f32(small ? x * 0x1p23f : x) + (0x3f800000u - 0x3f3504f3u);
    float k = (float)(int32_t)(u >> 23) - (small ? 150.0f : 127.0f);
    float f = vmath_from_f32((u & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    float s = f / (2.0f + f), z = s * s, half = 0.5f * f * f;
    float p = 2.0f / 9.0f;
    p = p * z + 2.0f / 7.0f;
    p = p * z + 2.0f / 5.0f;
    p = p * z + 2.0f / 3.0f;
    p = p * z;
    float y = k * VMATH_LN2_HIGH_F32 - ((half - (s * (half + p) + k * VMATH_LN2_LOW_F32)) - f);
    y = x == INFINITY ? x : y;
    y = x == 0.0f ? -INFINITY : y;
    return x >= 0.0f ? y : NAN;
}

/* Returns ln x in double, error <= 1 ulp. */
static HOST_DEVICE inline double log_f64(double x)
{
    bool small = x < 0x1p-1022;
    uint64_t u =
        vmath_bits_f64(small ? x * 0x1p52 : x) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    double k = vmath_from_f64((u >> 52) | 0x4330000000000000u) -
               (small ? 0x1p52 + 1075.0 : 0x1p52 + 1023.0);
    double f = vmath_from_f64((u & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0;
    double s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
    double p = 2.0 / 23.0;
    p = p * z + 2.0 / 21.0;
    p = p * z + 2.0 / 19.0;
    p = p * z + 2.0 / 17.0;
    p = p * z + 2.0 / 15.0;
    p = p * z + 2.0 / 13.0;
    p = p * z + 2.0 / 11.0;
    p = p * z + 2.0 / 9.0;
    p = p * z + 2.0 / 7.0;
    p = p * z + 2.0 / 5.0;
    p = p * z + 2.0 / 3.0;
    p = p * z;
    double y = k * VMATH_LN2_HIGH_F64 - ((half - (s * (half + p) + k * VMATH_LN2_LOW_F64)) - f);
    y = x == (double)INFINITY ? x : y;
    y = x == 0.0 ? -(double)INFINITY : y;
    return x >= 0.0 ? y : (double)NAN;
}

/* Choose the function by the argument's type, for code that is compiled for both types. */
#define real_exp(x)  _Generic((x), float : exp_f32, double : exp_f64)(x)
#define real_log(x)  _Generic((x), float : log_f32, double : log_f64)(x)
#define real_sqrt(x) _Generic((x), float : __builtin_sqrtf, double : __builtin_sqrt)(x)

#endif
