/* cuda_bf16.h -- bfloat16 on the CPU: storage and conversions, none of CUDA's arithmetic, since
 * kernels compute in float. No implicit conversions: CUDA's would hide a rounding. */
#ifndef TESTS_EMU_CUDA_BF16_H
#define TESTS_EMU_CUDA_BF16_H

#include "tests/emu/include/cuda_runtime.h"

struct __nv_bfloat16_raw {
    unsigned short x;
};

struct alignas(2) __nv_bfloat16 {
    unsigned short bits;
};

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

static inline float __bfloat162float(__nv_bfloat16 x)
{
    return __uint_as_float((unsigned)x.bits << 16);
}

/* To nearest even; every NaN becomes 0x7fff, as on a GPU. */
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

/* Double to bfloat16 in one rounding: by way of a float rounded to odd. */
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

static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 low, __nv_bfloat16 high)
{
    return __nv_bfloat162{low, high};
}

static inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high)
{
    return __nv_bfloat162{__float2bfloat16_rn(low), __float2bfloat16_rn(high)};
}

static inline __nv_bfloat162 __float22bfloat162_rn(float2 x)
{
    return __floats2bfloat162_rn(x.x, x.y);
}

static inline float2 __bfloat1622float2(__nv_bfloat162 x)
{
    return make_float2(__bfloat162float(x.x), __bfloat162float(x.y));
}

static inline float __low2float(__nv_bfloat162 x)
{
    return __bfloat162float(x.x);
}

static inline float __high2float(__nv_bfloat162 x)
{
    return __bfloat162float(x.y);
}

#endif
