/* normal.h -- the random numbers of op_normal, shared by all backends: the same bits on every CPU
 * level and device.
 *
 * Elements 2p and 2p + 1 are computed from one Philox block with counter (p low, p high, stream
 * low, stream high) and key (seed low, seed high). Words 1:0 of the block are the 64-bit draw a,
 * words 3:2 the draw b. u = 1 - (a >> 12) / 2^52 in (0, 1], v = (b >> 12) / 2^52 in [0, 1), radius
 * = sqrt(-2 ln u). Element 2p is radius cos(2 pi v), and element 2p + 1 is radius sin(2 pi v).
 *
 * The arithmetic uses only + - x / and the square root in double, each rounded once. Products and
 * sums are not contracted to fused multiply-adds: -std=c11 prevents this in gcc, -fmad=false in
 * nvcc. A test compares every CPU level with golden bits. */
#ifndef MODEL_KERNELS_NORMAL_H
#define MODEL_KERNELS_NORMAL_H

#include "model/core/host_device.h"
#include "model/core/rng.h"
#include "model/kernels/vmath.h"

/* Computes the four Philox words of pair p: draw a is words 1:0, draw b is words 3:2. */
static HOST_DEVICE inline void normal_words(uint64_t seed, uint64_t stream, uint64_t p,
                                            uint32_t word[4])
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t ctr[4] = {(uint32_t)p, (uint32_t)(p >> 32), (uint32_t)stream,
                             (uint32_t)(stream >> 32)};
    philox4x32(ctr, key, word);
}

/* Returns the 52 high bits as a number in [1, 2). */
static HOST_DEVICE inline double normal_one_to_two(uint64_t bits)
{
    return vmath_from_f64(bits >> 12 | 0x3ff0000000000000u);
}

/* Return sin t and cos t for |t| <= pi / 4 by Taylor series, where t2 = t^2. The first omitted
 * terms are below 5e-17 (sine) and 3e-18 (cosine). */
static HOST_DEVICE inline double normal_sine(double t, double t2)
{
    double p = -1.0 / 1307674368000.0;
    p = p * t2 + 1.0 / 6227020800.0;
    p = p * t2 - 1.0 / 39916800.0;
    p = p * t2 + 1.0 / 362880.0;
    p = p * t2 - 1.0 / 5040.0;
    p = p * t2 + 1.0 / 120.0;
    p = p * t2 - 1.0 / 6.0;
    return t + t * (t2 * p);
}

static HOST_DEVICE inline double normal_cosine(double t2)
{
    double p = 1.0 / 20922789888000.0;
    p = p * t2 - 1.0 / 87178291200.0;
    p = p * t2 + 1.0 / 479001600.0;
    p = p * t2 - 1.0 / 3628800.0;
    p = p * t2 + 1.0 / 40320.0;
    p = p * t2 - 1.0 / 720.0;
    p = p * t2 + 1.0 / 24.0;
    p = p * t2 - 0.5;
    return 1.0 + t2 * p;
}

/* The two normal numbers computed from the draws a and b. */
typedef struct {
    double even, odd;
} NormalPair;

static HOST_DEVICE inline NormalPair normal_pair(uint64_t a, uint64_t b)
{
    double radius = sqrt(-2.0 * log_f64(2.0 - normal_one_to_two(a)));
    double turns = 4.0 * (normal_one_to_two(b) - 1.0); /* angle in quarter turns, exact */
    double shifted = turns + VMATH_ROUND_F64;
    double t = (turns - (shifted - VMATH_ROUND_F64)) * 0x1.921fb54442d18p+0, t2 = t * t;
    uint64_t quarter = vmath_bits_f64(shifted);
    uint64_t s = vmath_bits_f64(normal_sine(t, t2)), c = vmath_bits_f64(normal_cosine(t2));
    uint64_t swap =
        (s ^ c) & (0 - (quarter & 1)); /* an odd quarter turn exchanges sine and cosine */
    s = s ^ swap ^ ((quarter & 2) << 62);
    c = c ^ swap ^ (((quarter + 1) & 2) << 62);
    NormalPair z;
    z.even = radius * vmath_from_f64(c);
    z.odd = radius * vmath_from_f64(s);
    return z;
}

#endif
