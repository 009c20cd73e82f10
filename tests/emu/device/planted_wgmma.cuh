/* planted_wgmma.cuh -- kernels that use products of warpgroups, with one bug each, which the
 * emulation must detect, and correct versions of them. */
#ifndef TESTS_EMU_DEVICE_PLANTED_WGMMA_CUH
#define TESTS_EMU_DEVICE_PLANTED_WGMMA_CUH

#include "tests/probe/wgmma_product.cuh"

/* ---- one product ----------------------------------------------------------------------------- */

/* Returns the descriptor of the first multiple of 1,024 in shared memory. */
static __device__ __forceinline__ uint64_t wg_first(const unsigned char *shared, int leading)
{
    uint32_t address = (shared_address(shared) + WG_ATOM - 1) & -WG_ATOM;
    return wgmma_descriptor(address, (uint32_t)leading, WG_ATOM);
}

/* Computes one product. The bits invert_a and invert_b of its descriptors are inverted. */
template <int N, bool B_MN>
__global__ void __launch_bounds__(2 * WG_THREADS)
    wg_descriptor_kernel(float *out, uint64_t invert_a, uint64_t invert_b)
{
    DYN_SHARED(unsigned char, shared);
    uint64_t desc = wg_first(shared, 8 * WG_ATOM);
    float d[N / 2];
    wgmma_fence();
    wgmma_shared<bf16, N, B_MN>(d, desc ^ invert_a, desc ^ invert_b, false);
    wgmma_commit();
    wgmma_wait<0>();
    out[threadIdx.x] = d[0];
}

/* Describes an operand by these numbers, and one `step` bytes further. */
static __global__ void __launch_bounds__(WG_THREADS)
    wg_described_kernel(uint64_t *out, uint32_t address, uint32_t leading, uint32_t stride,
                        uint32_t step)
{
    out[threadIdx.x] = wgmma_step(wgmma_descriptor(address, leading, stride), step);
}

static __global__ void __launch_bounds__(WG_THREADS) wg_address_kernel(float *out)
{
    uint32_t address = shared_address(out);
    out[threadIdx.x] = (float)address;
}

/* ---- the warpgroup --------------------------------------------------------------------------- */

typedef enum {
    GROUP_RIGHT,
    WARP_LEAVES_OUT, /* the last warp leaves out the product and the wait */
    WARP_IS_GONE,    /* the last warp has exited before */
    OTHER_DESCRIPTOR,
    OTHER_SHAPE,
    OTHER_PLACE,
    OTHER_SUM,   /* one thread adds to D, the others do not */
    OTHER_GROUP, /* one thread closes an empty group before */
    OTHER_D,     /* in the second product, all threads but one use D of the first again */
    EARLIER_D,   /* in the second product, only one thread uses D of the first again */
    OTHER_WAIT,
    ONE_MORE, /* one thread requests a second product */
} Divergence;

/* Two products of zeros, in which one thread or warp is different. */
template <Divergence D>
__global__ void __launch_bounds__(WG_THREADS) wg_diverging_kernel(float *out)
{
    DYN_SHARED(unsigned char, shared);
    int i = threadIdx.x;
    bool odd = i == 77, odd_warp = i / WARP == 3;
    uint64_t desc = wg_first(shared, 16);
    float d[64], e[64];
    if (D == WARP_IS_GONE && odd_warp) return;
    wgmma_fence();
    if (D == WARP_LEAVES_OUT && odd_warp) return;
    if (D == OTHER_GROUP && odd) wgmma_commit();
    if (D == OTHER_SHAPE && odd)
        wgmma_shared<bf16, 128, false>(d, desc, desc, false);
    else if (D == OTHER_PLACE && odd)
        wgmma_shared<bf16, 64, false>((float(&)[32])d, desc, desc, false);
    else
        wgmma_shared<bf16, 64, false>((float(&)[32])d, desc,
                                      wgmma_step(desc, D == OTHER_DESCRIPTOR && odd ? 32 : 0),
                                      D == OTHER_SUM && odd);
    bool other = (D == OTHER_D && odd) || (D == EARLIER_D && !odd);
    wgmma_shared<bf16, 64, false>(other ? (float(&)[32])e : (float(&)[32])d, desc, desc, true);
    if (D == ONE_MORE && odd) wgmma_shared<bf16, 64, false>((float(&)[32])d, desc, desc, true);
    wgmma_commit();
    if (D == OTHER_WAIT && odd)
        wgmma_wait<0>();
    else
        wgmma_wait<0>();
    out[i] = d[0];
}

/* ---- order ----------------------------------------------------------------------------------- */

typedef enum {
    ORDER_RIGHT,
    NO_FENCE,
    NO_FENCE_AFTER_WAIT,
    NO_PROXY_FENCE,
    OPERAND_LATE,         /* B is written after the product is requested */
    OPERAND_OVERWRITTEN,  /* B is overwritten before the wait */
    D_READ,               /* before its wait */
    D_READ_IN_NEXT_GROUP, /* after a wait that leaves its group out */
    D_WRITTEN,
    D_OTHER_SHAPE,
    A_WRITTEN,
    NO_COMMIT,
    NO_WAIT,
    TOO_MANY,
    TOO_MANY_CHAINS,
} Order;

static __device__ __forceinline__ void wg_order_use(float *out, const float (&d)[32])
{
    wg_store<64>(out, d);
}

/* out (2, 64, 64): the product of the first 16 columns of a (64, WG_K) and b (64, WG_K), and the
 * same plus the product of the next 16. */
template <Order FAULT>
__global__ void __launch_bounds__(WG_THREADS)
    wg_order_kernel(float *out, const bf16 *a, const bf16 *b)
{
    DYN_SHARED(unsigned char, shared);
    unsigned char *in_b = shared + (-shared_address(shared) & (WG_ATOM - 1));
    uint64_t desc = wg_first(shared, 16);
    float d[32], e[64];
    uint32_t first[4], second[4];
    if (FAULT != OPERAND_LATE) wg_fill(in_b, b, false, 64);
    wg_fragment(first, a, 0);
    wg_fragment(second, a, 1);
    if (FAULT != NO_PROXY_FENCE) proxy_fence();
    __syncthreads();
    if (FAULT != NO_FENCE) wgmma_fence();
    wgmma_registers<bf16, 64, false>(d, first, desc, false);
    if (FAULT == OPERAND_LATE) wg_fill(in_b, b, false, 64);
    proxy_fence();
    __syncthreads();
    wgmma_commit();
    wgmma_registers<bf16, 64, false>((float(&)[32])e, first, desc, false);
    wgmma_registers<bf16, 64, false>((float(&)[32])e, second, wgmma_step(desc, 32), true);
    if (FAULT == D_OTHER_SHAPE) wgmma_registers<bf16, 128, false>(e, first, desc, false);
    for (int i = 0; FAULT == TOO_MANY && i < 128; i++)
        wgmma_registers<bf16, 64, false>((float(&)[32])e, first, desc, true);
    float more[17][32];
    for (int i = 0; FAULT == TOO_MANY_CHAINS && i < 17; i++)
        wgmma_registers<bf16, 64, false>(more[i], first, desc, false);
    if (FAULT == D_WRITTEN) e[5] = 1;
    if (FAULT == A_WRITTEN) second[1]++;
    if (FAULT == OPERAND_OVERWRITTEN) {
        __syncthreads();
        wg_fill(in_b, a, false, 64);
        proxy_fence();
    }
    if (FAULT != NO_COMMIT) wgmma_commit();
    if (FAULT == D_READ) wg_order_use(out, d);
    if (FAULT != NO_WAIT && FAULT != NO_COMMIT) wgmma_wait<1>();
    if (FAULT != D_READ) wg_order_use(out, d);
    if (FAULT == D_READ_IN_NEXT_GROUP) wg_order_use(out + 64 * 64, (const float(&)[32])e);
    if (FAULT != NO_WAIT) wgmma_wait<0>();
    if (FAULT == NO_FENCE_AFTER_WAIT) wgmma_registers<bf16, 64, false>(d, first, desc, false);
    if (FAULT != D_READ_IN_NEXT_GROUP) wg_order_use(out + 64 * 64, (const float(&)[32])e);
}

/* ---- several groups and warpgroups ----------------------------------------------------------- */

/* out (2, 64, 64): two warpgroups each compute the product of a (64, WG_K) and its transpose (WG_K,
 * 64), at different times; a third one computes nothing. Each closes a group of products after
 * every 16 columns of a, and waits first for all groups but the last, so that D is in use until the
 * end. The second one computes the whole product twice and drops the first result. */
static __global__ void __launch_bounds__(3 * WG_THREADS)
    wg_several_kernel(float *out, const bf16 *a)
{
    DYN_SHARED(unsigned char, shared);
    unsigned char *in = shared + (-shared_address(shared) & (WG_ATOM - 1));
    uint64_t desc = wgmma_descriptor(shared_address(in), 16, WG_ATOM);
    int group = threadIdx.x / WG_THREADS;
    float d[32];
    if (group == 2) wg_fill(in, a, false, WG_M);
    proxy_fence();
    __syncthreads();
    for (int round = 0; group < 2 && round <= group; round++) {
        wgmma_fence();
        for (int i = 0; i < WG_K / 16; i++) {
            uint64_t now = wgmma_step(desc, (uint32_t)(i / 4 * WG_M * WG_LINE + i % 4 * 32));
            wgmma_shared<bf16, 64, false>(d, now, now, i > 0);
            wgmma_commit();
        }
        wgmma_wait<1>();
        wgmma_wait<0>();
    }
    if (group < 2) wg_store<64>(out + group * WG_M * 64, d);
}

typedef enum {
    RELEASE_RIGHT,
    RELEASE_BEFORE_WAIT,
    RELEASE_FOR_ALL, /* warp `one` says that all four have read b */
} Release;

/* out (64, 64): the product of the first 16 columns of a (64, WG_K) and b (64, WG_K). A second
 * warpgroup overwrites b in shared memory as soon as a barrier tells it that all warps of the first
 * one have read it. */
template <Release FAULT>
__global__ void __launch_bounds__(2 * WG_THREADS)
    wg_release_kernel(float *out, const bf16 *a, const bf16 *b, int one)
{
    DYN_SHARED(unsigned char, shared);
    unsigned char *in_b = shared + (-shared_address(shared) & (WG_ATOM - 1));
    uint64_t *empty = (uint64_t *)(in_b + 64 * WG_K * 2);
    bool arrives = threadIdx.x % WARP == 0;
    if (FAULT == RELEASE_FOR_ALL) arrives = (int)threadIdx.x == one * WARP;
    if (threadIdx.x == 0) {
        mbarrier_init(empty, FAULT == RELEASE_FOR_ALL ? 1 : WG_THREADS / WARP);
        mbarrier_init_fence();
    }
    wg_fill(in_b, b, false, 64);
    proxy_fence();
    __syncthreads();
    if (threadIdx.x < WG_THREADS) {
        uint32_t first[4];
        float d[32];
        wg_fragment(first, a, 0);
        wgmma_fence();
        wgmma_registers<bf16, 64, false>(d, first, wg_first(shared, 16), false);
        wgmma_commit();
        if (FAULT == RELEASE_BEFORE_WAIT && arrives) mbarrier_arrive(empty);
        wgmma_wait<0>();
        __syncwarp();
        if (FAULT != RELEASE_BEFORE_WAIT && arrives) mbarrier_arrive(empty);
        wg_store<64>(out, d);
    } else {
        mbarrier_wait(empty, 0);
        wg_fill(in_b, a, false, 64);
        proxy_fence();
    }
}

/* out (64, 64): the product of the first 16 columns of a (64, WG_K) and of its transpose. Then each
 * warp overwrites its own rows of a in shared memory, which other warps' products may still read,
 * unless a barrier has told it that they have ended. */
template <bool BARRIER>
__global__ void __launch_bounds__(WG_THREADS) wg_own_rows_kernel(float *out, const bf16 *a)
{
    DYN_SHARED(unsigned char, shared);
    unsigned char *in = shared + (-shared_address(shared) & (WG_ATOM - 1));
    uint64_t desc = wg_first(shared, 16);
    float d[32];
    wg_fill(in, a, false, WG_M);
    proxy_fence();
    __syncthreads();
    wgmma_fence();
    wgmma_shared<bf16, 64, false>(d, desc, desc, false);
    wgmma_commit();
    wgmma_wait<0>();
    if (BARRIER) named_barrier_sync(1, WG_THREADS);
    uint32_t *row = (uint32_t *)(in + threadIdx.x / WARP * 16 * WG_LINE);
    for (int i = threadIdx.x % WARP; i < 16 * WG_LINE / 4; i += WARP)
        row[i] = 0;
    wg_store<64>(out, d);
}

#endif
