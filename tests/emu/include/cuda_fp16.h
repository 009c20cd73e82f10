/* cuda_fp16.h -- implements half precision on the CPU: storage and conversions. CUDA's arithmetic
 * is left out, because kernels compute in float. So are CUDA's implicit conversions, because they
 * would hide a rounding. */
#ifndef TESTS_EMU_CUDA_FP16_H
#define TESTS_EMU_CUDA_FP16_H

#include "tests/emu/include/cuda_runtime.h"

struct alignas(2) __half {
    unsigned short bits;
};

/* The conversions from and to float are written out, because for processors without F16C the
 * compiler calls a library function per number, which took a tenth of the time of f16 kernels. */

static inline float __half2float(__half x)
{
    enum : unsigned { BIAS = (127 - 15) << 23, INFINITE = 0x1f << 23, LEAST = 1 << 23 };
    unsigned sign = (x.bits & 0x8000u) << 16, size = (x.bits & 0x7fffu) << 13;
    if (size >= INFINITE) return __uint_as_float(sign | 0x7f800000u | size);
    if (size >= LEAST) return __uint_as_float(sign | (size + BIAS));
    /* Below the least normal number, compute (that number + the fraction) - that number. */
    float f = __uint_as_float(size + BIAS + LEAST) - __uint_as_float(BIAS + LEAST);
    return __uint_as_float(sign | __float_as_uint(f));
}

/* Rounds to nearest even; every NaN becomes 0x7fff, as on a GPU. */
static inline __half __float2half_rn(float x)
{
    unsigned bits = __float_as_uint(x), size = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
    enum : unsigned { BIAS = (127 - 15) << 23, LEAST = BIAS + (1 << 23), INFINITE = 143 << 23 };
    if (x != x) return __half{0x7fff};
    if (size >= INFINITE)
        size = 0x7c00;
    else if (size >= LEAST)
        size = (size - BIAS + 0xfff + (size >> 13 & 1)) >> 13;
    else /* The last bit of 0.5 is that of the least half, so the sum is rounded to halves. */
        size = __float_as_uint(__uint_as_float(size) + 0.5f) - __float_as_uint(0.5f);
    return __half{(unsigned short)(sign | size)};
}

static inline __half __float2half(float x)
{
    return __float2half_rn(x);
}

static inline __half __double2half(double x)
{
    if (x != x) return __half{0x7fff};
    return __half{emu_bits<unsigned short>((_Float16)x)};
}

static inline unsigned short __half_as_ushort(__half x)
{
    return x.bits;
}

static inline __half __ushort_as_half(unsigned short bits)
{
    return __half{bits};
}

#endif
