/* wgmma.h -- runs one wgmma.mma_async m64nNk16 (bf16, f32 sums) of one warpgroup for the probes.
 * Both operands are in shared memory, which is filled with images given by the host, so any layout
 * can be tried, and any N. The lists of registers are those of model/kernels/cuda/ptx_wgmma.cuh. */
#ifndef TESTS_PROBE_WGMMA_H
#define TESTS_PROBE_WGMMA_H

#include "model/kernels/cuda/ptx_wgmma.cuh"
#include "tests/probe/probe.h"

/* Elements of one operand's image; bytes of shared memory for two images, aligned to 1024 bytes. */
enum { WG_THREADS = 128, WG_IMAGE = 8192, WG_SPACE = 2 * 2 * WG_IMAGE + 1024 };

#define WG_LIST4   WGMMA_N4("", 0, 1, 2, 3)
#define WG_LIST8   WG_LIST4 "," WGMMA_N4("", 4, 5, 6, 7)
#define WG_LIST16  WGMMA_N10("") WGMMA_N4("1", 0, 1, 2, 3) ",%14,%15"
#define WG_LIST32  WGMMA_LIST32
#define WG_LIST64  WGMMA_LIST64
#define WG_NEXT40  WGMMA_N10("6") WGMMA_N10("7") WGMMA_N10("8") WGMMA_N10("9")
#define WG_NEXT20  WGMMA_N10("10") WGMMA_N10("11")
#define WG_LAST8   WGMMA_N4("12", 0, 1, 2, 3) "," WGMMA_N4("12", 4, 5, 6, 7)
#define WG_LIST128 WGMMA_FIRST60 WG_NEXT40 WG_NEXT20 WG_LAST8

#define WG_D4   WGMMA_D4(0)
#define WG_D8   WGMMA_D8(0)
#define WG_D16  WGMMA_D16(0)
#define WG_D32  WGMMA_D32(0)
#define WG_D64  WGMMA_D64(0)
#define WG_D128 WGMMA_D64(0), WGMMA_D64(64)

/* The instruction for N = `n` with `regs` accumulators; a, b, ta, tb are the numbers of the
 * operands after the accumulators. */
#define WG_MMA(n, regs, a, b, ta, tb)                                                              \
    asm volatile("{\n.reg .pred keep;\nsetp.eq.u32 keep, 1, 1;\n"                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" WG_LIST##regs        \
                 "}, %" #a ", %" #b ", keep, 1, 1, %" #ta ", %" #tb ";\n}"                         \
                 : WG_D##regs                                                                      \
                 : "l"(desc_a), "l"(desc_b), "n"(TA), "n"(TB))

template <int N, int TA, int TB>
static __device__ void wg_mma(float (&d)[N / 2], uint64_t desc_a, uint64_t desc_b)
{
    wgmma_hold(d);
    wgmma_fence();
    if constexpr (N == 8) WG_MMA(8, 4, 4, 5, 6, 7);
    if constexpr (N == 16) WG_MMA(16, 8, 8, 9, 10, 11);
    if constexpr (N == 32) WG_MMA(32, 16, 16, 17, 18, 19);
    if constexpr (N == 64) WG_MMA(64, 32, 32, 33, 34, 35);
    if constexpr (N == 128) WG_MMA(128, 64, 64, 65, 66, 67);
    if constexpr (N == 256) WG_MMA(256, 128, 128, 129, 130, 131);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(d);
}

/* Computes out[thread * N / 2 + register] = A B. In the descriptors desc_a and desc_b, the address
 * field counts from the start of the image. TA and TB are 0 for a K-major operand and 1 for an
 * MN-major one. */
template <int N, int TA, int TB>
static __global__ void __launch_bounds__(WG_THREADS)
    wg_kernel(float *out, const uint16_t *a, const uint16_t *b, uint64_t desc_a, uint64_t desc_b)
{
    extern __shared__ uint8_t shared[];
    const uint32_t raw = (uint32_t)__cvta_generic_to_shared(shared), base = (raw + 1023) & ~1023u;
    uint16_t *image = (uint16_t *)(shared + (base - raw));
    float d[N / 2];
    for (int i = (int)threadIdx.x; i < WG_IMAGE; i += WG_THREADS) {
        image[i] = a[i];
        image[WG_IMAGE + i] = b[i];
    }
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        d[i] = 0;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    desc_a += base >> 4;
    desc_b += (base + 2 * WG_IMAGE) >> 4;
    wg_mma<N, TA, TB>(d, desc_a, desc_b);
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        out[(int)threadIdx.x * (N / 2) + i] = d[i];
}

#endif
