/* planted_tma.cuh -- kernels that use Hopper's barriers, tiled copies and warpgroups, each with one
 * bug or none: the emulation must detect the bugs and accept the right ones. */
#ifndef TESTS_EMU_DEVICE_PLANTED_TMA_CUH
#define TESTS_EMU_DEVICE_PLANTED_TMA_CUH

#include "model/kernels/cuda/kernel.cuh"
#include "tests/probe/ring.cuh"

/* ---- barriers -------------------------------------------------------------------------------- */

typedef enum {
    BARRIER_RIGHT,
    COUNT_OF_0,
    MISALIGNED,
    NOT_INITIALISED,
    NOT_FENCED,
    NO_BLOCK_BARRIER, /* between the initialisation and the first use by another thread */
    INITIALISED_TWICE,
    STORED_OVER, /* something else is stored where the barrier is */
    BARRIERS_65,
    NOT_GONE_ON,    /* a second phase completes while a thread still waits for the first */
    TOO_MANY,       /* arrivals of two phases before anybody waits */
    ARRIVES_EXTRA,  /* an arrival more than the count, while bytes are expected */
    ARRIVES_ALONE,  /* one of two, and nobody waits */
    NOBODY_ARRIVES, /* at a barrier that others wait for */
    PARITY_OF_2,
    TOO_MANY_BYTES
} BarrierBug;

/* All 64 threads arrive at a barrier and wait for its first phase. */
template <BarrierBug BUG> __global__ void __launch_bounds__(64) barrier_kernel(int *out)
{
    DYN_SHARED(unsigned char, shared);
    uint64_t *bar = reinterpret_cast<uint64_t *>(shared + (BUG == MISALIGNED ? 4 : 0));
    int thread = threadIdx.x;
    if (thread == 0 && BUG != NOT_INITIALISED) {
        mbarrier_init(bar, BUG == COUNT_OF_0 ? 0 : BUG == TOO_MANY ? 16 : 64);
        mbarrier_init(bar + 1, BUG == ARRIVES_ALONE ? 2 : 1);
        if (BUG == INITIALISED_TWICE) mbarrier_init(bar, 64);
        for (int i = 2; BUG == BARRIERS_65 && i < 65; i++)
            mbarrier_init(bar + i, 1);
        if (BUG != NOT_FENCED) mbarrier_init_fence();
        if (BUG == STORED_OVER) *reinterpret_cast<int *>(bar) = 1;
    }
    if (BUG != NO_BLOCK_BARRIER) __syncthreads();
    if (BUG == NOT_GONE_ON && thread == 0) mbarrier_wait(bar + 1, 0);
    for (int i = 0; BUG == NOT_GONE_ON && thread == 63 && i < 2; i++) {
        mbarrier_arrive(bar + 1);
        mbarrier_wait(bar + 1, i);
    }
    if (BUG == ARRIVES_EXTRA && thread == 0) mbarrier_expect(bar + 1, 16);
    if (BUG == ARRIVES_EXTRA && thread == 1) mbarrier_arrive(bar + 1);
    if (BUG == TOO_MANY_BYTES && thread == 0) mbarrier_expect(bar + 1, 1 << 20);
    if (BUG == ARRIVES_ALONE && thread == 0) mbarrier_arrive(bar + 1);
    mbarrier_arrive(bar);
    if (BUG == TOO_MANY) __syncthreads();
    mbarrier_wait(BUG == NOBODY_ARRIVES ? bar + 1 : bar, BUG == PARITY_OF_2 ? 2 : 0);
    out[thread] = 1;
}

/* ---- copies ---------------------------------------------------------------------------------- */

typedef enum {
    COPY_RIGHT,
    NOT_WAITED,  /* reads the tile without waiting for it */
    NOT_ALIGNED, /* assumes that shared memory is aligned to 1,024 bytes */
    ALIGNED_TO_512,
    NOT_EXPECTED,   /* the barrier expects half of the bytes */
    EXPECTED_LATER, /* ... and is told of them after the copy */
    EXPECTED_TOO_MUCH,
    NO_MAP,       /* the map is all zeros, which is no tensor map */
    NEVER_WAITED, /* nobody waits before the kernel ends */
    WRONG_HEAD,   /* a coordinate past the last head */
    PAST_MEMORY,  /* the tile ends past the block's shared memory */
    TWICE         /* a second copy to the same place, before the first is complete */
} CopyBug;

/* Copies the box at (c0, head, token, row) of a map to out (ROWS, COLUMNS), as it lies in shared
 * memory. */
template <CopyBug BUG>
__global__ void __launch_bounds__(GROUP)
    tile_kernel(uint16_t *out, const __grid_constant__ CUtensorMap map, int c0, int head, int token,
                int row)
{
    DYN_SHARED(unsigned char, shared);
    uint16_t *tile = BUG == NOT_ALIGNED ? reinterpret_cast<uint16_t *>(shared) : tiles_of(shared);
    if (BUG == ALIGNED_TO_512)
        tile = reinterpret_cast<uint16_t *>((reinterpret_cast<uintptr_t>(shared) + 511) &
                                            ~(uintptr_t)511);
    uint64_t *full = reinterpret_cast<uint64_t *>(tile + TILE);
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int bytes = BUG == NOT_EXPECTED        ? TILE_BYTES / 2
                    : BUG == EXPECTED_TOO_MUCH ? TILE_BYTES + 128
                    : BUG == TWICE             ? 2 * TILE_BYTES
                                               : TILE_BYTES;
        if (BUG != EXPECTED_LATER) mbarrier_expect(full, bytes);
        tma_load_4d(tile + (BUG == PAST_MEMORY ? TILE : 0), &map, full, c0,
                    BUG == WRONG_HEAD ? head + 100 : head, token, row);
        if (BUG == TWICE) tma_load_4d(tile, &map, full, c0, head, token, row);
        if (BUG == EXPECTED_LATER) mbarrier_expect(full, bytes);
    }
    if (BUG == NEVER_WAITED) return;
    if (BUG != NOT_WAITED || threadIdx.x == 0) mbarrier_wait(full, 0);
    for (int i = threadIdx.x; i < TILE; i += GROUP)
        out[i] = tile[i];
}

/* ---- the proxies ----------------------------------------------------------------------------- */

typedef enum { PROXY_RIGHT, PROXY_NOT_FENCED, FENCED_BEFORE, UNDER_WAY } ProxyBug;

/* Stores to shared memory what the async proxy then reads: emu_proxy_check stands for a product. */
template <ProxyBug BUG>
__global__ void __launch_bounds__(GROUP) proxy_kernel(const __grid_constant__ CUtensorMap map)
{
    DYN_SHARED(unsigned char, shared);
    uint16_t *tile = tiles_of(shared);
    uint64_t *full = reinterpret_cast<uint64_t *>(tile + TILE);
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        mbarrier_init_fence();
        mbarrier_expect(full, TILE_BYTES);
        tma_load_4d(tile, &map, full, 0, 0, 0, 0);
    }
    __syncthreads();
    if (BUG != UNDER_WAY) mbarrier_wait(full, 0);
    if (BUG == FENCED_BEFORE) proxy_fence();
    if (BUG != UNDER_WAY) tile[threadIdx.x] = (uint16_t)(tile[threadIdx.x] + 1);
    if (BUG == PROXY_RIGHT) proxy_fence();
    __syncthreads();
    emu_proxy_check(tile, TILE_BYTES);
    mbarrier_wait(full, 0);
}

/* ---- stages that copies and stores fill ------------------------------------------------------ */

/* For each tile i of `tiles`, a copy writes the tile to a stage (a buffer in shared memory), and
 * each thread t of a producer warpgroup stores 1,000 i + t in the same stage. Each thread t of the
 * other warpgroup adds up, over all tiles, element t of the tile and the number of a producer
 * thread, t + 32 modulo 128, and writes the sum to out[t]. With COUNTED, a stage is full when the
 * copy and each warp of the producer have arrived; otherwise the warps that store do not arrive. */
template <bool COUNTED>
__global__ void __launch_bounds__(2 * GROUP)
    mixed_ring_kernel(unsigned *out, const __grid_constant__ CUtensorMap map, int tiles)
{
    DYN_SHARED(unsigned char, shared);
    uint16_t *tile = tiles_of(shared);
    unsigned *stored = reinterpret_cast<unsigned *>(tile + STAGES * TILE);
    uint64_t *full = reinterpret_cast<uint64_t *>(stored + STAGES * GROUP), *empty = full + STAGES;
    int member = threadIdx.x % GROUP;
    unsigned sum = 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(full + i, COUNTED ? 1 + GROUP / WARP : 1);
            mbarrier_init(empty + i, GROUP / WARP);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    for (int i = 0; i < tiles; i++) {
        int stage = i % STAGES;
        uint32_t parity = i / STAGES & 1;
        if (threadIdx.x >= GROUP) {
            mbarrier_wait(empty + stage, parity ^ 1);
            if (member == 0) {
                mbarrier_expect(full + stage, TILE_BYTES);
                tma_load_4d(tile + stage * TILE, &map, full + stage, 0, 1, i * ROWS, 0);
            }
            stored[stage * GROUP + member] = 1000 * (unsigned)i + (unsigned)member;
            __syncwarp();
            if (COUNTED && member % WARP == 0) mbarrier_arrive(full + stage);
        } else {
            mbarrier_wait(full + stage, parity);
            /* A word that the producer warp with the next number has stored. */
            int other = (member + WARP) % GROUP;
            sum += stored[stage * GROUP + other] + tile[stage * TILE + member];
            __syncwarp();
            if (member % WARP == 0) mbarrier_arrive(empty + stage);
        }
    }
    if (threadIdx.x < GROUP) out[member] = sum;
}

/* ---- warpgroups ------------------------------------------------------------------------------ */

typedef enum {
    NAMED_RIGHT,
    BARRIER_0,
    BARRIER_16,
    NO_WHOLE_WARPS,
    MORE_THAN_THE_BLOCK,
    OTHER_COUNT,   /* two groups that disagree about the number of threads */
    PART_OF_WARPS, /* half of each warp arrives */
    NAMED_TWICE,   /* a thread arrives again before the barrier completes */
    NOBODY_SYNCS,  /* arrivals are left when the kernel ends */
    NAMED_TOO_FEW  /* a group waits and the other never arrives */
} NamedBug;

/* The first warpgroup arrives at a barrier for which the second one waits. */
template <NamedBug BUG> __global__ void __launch_bounds__(2 * GROUP) named_kernel(int *out)
{
    DYN_SHARED(int, shared);
    int thread = threadIdx.x, id = BUG == BARRIER_0 ? 0 : BUG == BARRIER_16 ? 16 : 3;
    int threads = BUG == NO_WHOLE_WARPS        ? 200
                  : BUG == MORE_THAN_THE_BLOCK ? 512
                  : BUG == PART_OF_WARPS       ? GROUP
                                               : 2 * GROUP;
    if (BUG == PART_OF_WARPS && thread % WARP >= WARP / 2) return;
    if (thread < GROUP) {
        shared[thread] = thread;
        if (BUG != NAMED_TOO_FEW) named_barrier_arrive(id, threads);
        if (BUG == NAMED_TWICE) named_barrier_arrive(id, threads);
        return;
    }
    if (BUG == NOBODY_SYNCS) return;
    named_barrier_sync(id, BUG == OTHER_COUNT ? GROUP : threads);
    out[thread - GROUP] = shared[thread - GROUP];
}

typedef enum {
    REGISTERS_RIGHT,
    TAKEN_TOO_MANY, /* more than the others give */
    TAKEN_TWICE,    /* a warpgroup changes its registers again */
    TAKEN_UNEQUAL,  /* the warps of a warpgroup take different numbers */
    TAKEN_BY_SOME,  /* one warp of the warpgroup takes none */
    TAKEN_BY_LANES, /* one lane of a warp takes none */
    TAKEN_FEWER,    /* fewer than the launch gave */
    GIVEN_MORE      /* more than the launch gave */
} RegistersBug;

/* Three warpgroups start with 168 registers per thread. One keeps only 24, and the other two take
 * 240 each. */
template <RegistersBug BUG>
__global__ void __launch_bounds__(RING_THREADS, 1) registers_kernel(int *out)
{
    int group = threadIdx.x / GROUP, warp = threadIdx.x / WARP;
    if (group == CONSUMERS) {
        if (BUG == GIVEN_MORE)
            registers_give<176>();
        else
            registers_give<24>();
        return;
    }
    if (BUG == TAKEN_TOO_MANY)
        registers_take<248>();
    else if (BUG == TAKEN_FEWER)
        registers_take<160>();
    else if (BUG == TAKEN_UNEQUAL && warp == 2)
        registers_take<232>();
    else if (!(BUG == TAKEN_BY_SOME && warp == 2) && !(BUG == TAKEN_BY_LANES && threadIdx.x == 40))
        registers_take<240>();
    if (BUG == TAKEN_TWICE) registers_take<240>();
    out[threadIdx.x] = 1;
}

/* Four warpgroups start with 128 registers per thread. One keeps only 32, and the other three take
 * TAKEN each, which is possible up to 160. */
template <int TAKEN>
__global__ void __launch_bounds__(4 * GROUP, 1) registers_of_four_kernel(int *out)
{
    if (threadIdx.x >= 3 * GROUP) {
        registers_give<32>();
    } else {
        registers_take<TAKEN>();
        out[threadIdx.x] = 1;
    }
}

#endif
