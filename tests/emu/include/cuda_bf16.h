/* cuda_bf16.h -- implements bfloat16 on the CPU: storage and conversions. CUDA's arithmetic is left
 * out, because kernels compute in float. So are CUDA's implicit conversions, because they would
 * hide a rounding. */
#ifndef TESTS_EMU_CUDA_BF16_H
#define TESTS_EMU_CUDA_BF16_H

#include "tests/emu/include/cuda_runtime.h"

struct alignas(2) __nv_bfloat16 {
    unsigned short bits;
};

static inline float __bfloat162float(__nv_bfloat16 x)
{
    return __uint_as_float((unsigned)x.bits << 16);
}

/* Rounds to nearest even; every NaN becomes 0x7fff, as on a GPU. */
static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    unsigned bits = __float_as_uint(x);
    if (x != x) return __nv_bfloat16{0x7fff};
    return __nv_bfloat16{(unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

static inline __nv_bfloat16 __float2bfloat16(float x)
{
    return __float2bfloat16_rn(x);
}

/* Converts double to bfloat16 with a single rounding, by way of a float that is rounded to odd. */
static inline __nv_bfloat16 __double2bfloat16(double x)
{
    float near = (float)x;
    unsigned bits = __float_as_uint(near);
    bool inexact = (double)near != x && isfinite(near);
    if (inexact && fabs((double)near) > fabs(x)) bits--;
    return __float2bfloat16_rn(__uint_as_float(inexact ? bits | 1 : bits));
}

static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x)
{
    return x.bits;
}

static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits)
{
    return __nv_bfloat16{bits};
}

#endif
