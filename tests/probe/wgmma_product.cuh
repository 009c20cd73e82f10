/* wgmma_product.cuh -- a kernel that multiplies matrices by one warpgroup with the wrappers of
 * model/kernels/cuda/ptx_wgmma.cuh. The probe fragments_wgmma_registers runs it on a GPU, and
 * tests/emu on the emulated device, so both use the same descriptors, steps and layouts. */
#ifndef TESTS_PROBE_WGMMA_PRODUCT_CUH
#define TESTS_PROBE_WGMMA_PRODUCT_CUH

#include "model/kernels/cuda/kernel.cuh"
#include "model/kernels/cuda/ptx_hopper.cuh"

enum {
    WG_THREADS = 128,
    WG_M = 64,
    WG_K = 128, /* two panels of a K-major operand */
    WG_PANEL = 64,
    WG_LINE = 128, /* bytes */
    WG_ATOM = 1024
};

/* Where the operand's element is, in bytes from a multiple of 1,024. The operand has `extent` rows
 * (A) or columns (B). */
static __device__ __forceinline__ int wg_byte(bool mn_major, int extent, int mn, int k)
{
    int along = mn_major ? mn : k, across = mn_major ? k : mn, lines = mn_major ? WG_K : extent;
    int at = along / WG_PANEL * lines * WG_LINE + across * WG_LINE + along % WG_PANEL * 2;
    return at ^ (at >> 7 & 7) << 4;
}

/* Writes an operand, x (WG_K, extent) or, if K-major, x (extent, WG_K), to shared memory. */
template <class T>
static __device__ __forceinline__ void wg_fill(unsigned char *to, const T *x, bool mn_major,
                                               int extent)
{
    for (int i = threadIdx.x % WG_THREADS; i < extent * WG_K; i += WG_THREADS) {
        int mn = mn_major ? i % extent : i / WG_K, k = mn_major ? i / extent : i % WG_K;
        *(T *)(to + wg_byte(mn_major, extent, mn, k)) = x[i];
    }
}

/* Loads this thread's fragment of columns 16 step to 16 step + 15 of a (64, WG_K). */
template <class T>
static __device__ __forceinline__ void wg_fragment(uint32_t (&word)[4], const T *a, int step)
{
    int lane = threadIdx.x % WARP, row = threadIdx.x / WARP % 4 * 16 + lane / 4;
    for (int i = 0; i < 4; i++)
        memcpy(&word[i], a + (row + i % 2 * 8) * WG_K + step * 16 + lane % 4 * 2 + i / 2 * 8, 4);
}

/* Writes this thread's part of D to out (64, N). */
template <int N>
static __device__ __forceinline__ void wg_store(float *out, const float (&d)[N / 2])
{
    int lane = threadIdx.x % WARP, row = threadIdx.x / WARP % 4 * 16 + lane / 4;
    for (int i = 0; i < N / 2; i++)
        out[(row + i / 2 % 2 * 8) * N + i / 4 * 8 + lane % 4 * 2 + i % 2] = d[i];
}

/* out (64, N) = start + a (64, WG_K) b. b is (WG_K, N) if B_MN, otherwise its transpose, (N, WG_K).
 */
template <class T, int N, bool REGISTERS, bool B_MN>
__global__ void __launch_bounds__(WG_THREADS)
    wg_product_kernel(float *out, const T *a, const T *b, float start)
{
    DYN_SHARED(unsigned char, shared);
    unsigned char *in_a = shared + (-shared_address(shared) & (WG_ATOM - 1));
    unsigned char *in_b = in_a + WG_M * WG_K * 2;
    float d[N / 2];
    uint32_t fragment[WG_K / 16][4];
    wg_fill(in_a, a, false, WG_M);
    wg_fill(in_b, b, B_MN, N);
    for (int i = 0; i < N / 2; i++)
        d[i] = start;
    for (int i = 0; i < WG_K / 16; i++)
        wg_fragment(fragment[i], a, i);
    proxy_fence();
    __syncthreads();
    uint64_t desc_a = wgmma_descriptor(shared_address(in_a), 16, WG_ATOM);
    uint64_t desc_b = wgmma_descriptor(shared_address(in_b), B_MN ? WG_K * WG_LINE : 16, WG_ATOM);
    wgmma_hold(d);
    wgmma_fence();
    for (int i = 0; i < WG_K / 16; i++) {
        uint64_t b_now = wgmma_step(desc_b, B_MN ? (uint32_t)i * 2048
                                                 : (uint32_t)(i / 4 * N * WG_LINE + i % 4 * 32));
        uint64_t a_now = wgmma_step(desc_a, (uint32_t)(i / 4 * WG_M * WG_LINE + i % 4 * 32));
        if (REGISTERS)
            wgmma_registers<T, N, B_MN>(d, fragment[i], b_now, start != 0 || i > 0);
        else
            wgmma_shared<T, N, B_MN>(d, a_now, b_now, start != 0 || i > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(d);
    wg_store<N>(out, d);
}

#endif
