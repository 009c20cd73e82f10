/* cuda_fp16.h -- implements half precision on the CPU: storage and conversions. CUDA's arithmetic
 * is left out, because kernels compute in float. So are CUDA's implicit conversions, because they
 * would hide a rounding. */
#ifndef TESTS_EMU_CUDA_FP16_H
#define TESTS_EMU_CUDA_FP16_H

#include "tests/emu/include/cuda_runtime.h"

struct alignas(2) __half {
    unsigned short bits;
};

static inline float __half2float(__half x)
{
    return (float)emu_bits<_Float16>(x.bits);
}

/* Rounds to nearest even; every NaN becomes 0x7fff, as on a GPU. */
static inline __half __float2half_rn(float x)
{
    if (x != x) return __half{0x7fff};
    return __half{emu_bits<unsigned short>((_Float16)x)};
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
