/* ring.cuh -- a kernel with the structure of attention for Hopper: a warpgroup that copies tiles
 * into a ring of stages by tensor map, and two that read them, with barriers in shared memory,
 * named barriers and registers that move between warpgroups. The probe ring_tma runs it on a GPU,
 * and the emulator's tests run it on the CPU, also with planted bugs. */
#ifndef TESTS_PROBE_RING_CUH
#define TESTS_PROBE_RING_CUH

#include "model/kernels/cuda/launch.cuh"
#include "model/kernels/cuda/ptx_tma.cuh"

enum { COLUMNS = 64, ROWS = 16, TILE = COLUMNS * ROWS, TILE_BYTES = 2 * TILE, GROUP = 128 };

/* Returns shared memory from a multiple of 1,024 on. */
static __device__ __forceinline__ uint16_t *tiles_of(unsigned char *shared)
{
    return reinterpret_cast<uint16_t *>((reinterpret_cast<uintptr_t>(shared) + 1023) &
                                        ~(uintptr_t)1023);
}

typedef enum {
    RING_RIGHT,
    EMPTY_NOT_WAITED,  /* the producer does not wait until a stage was read */
    EMPTY_NOT_ARRIVED, /* a warpgroup does not say that it has read a stage */
    GROUP_NOT_SYNCED,  /* it says so while some of its threads still read */
    ARRIVED_BY_TWO,    /* two of its threads say so */
    STALE_PARITY,      /* consumers wait with the parity of the first round */
    FULL_NOT_WAITED
} RingBug;

enum { STAGES = 2, CONSUMERS = 2, RING_THREADS = (CONSUMERS + 1) * GROUP };

/* Starts a copy of tile i when its stage is empty. */
template <RingBug BUG>
static __device__ __forceinline__ void ring_fill(uint16_t *tile, uint64_t *full, uint64_t *empty,
                                                 const CUtensorMap *map, int i)
{
    int stage = i % STAGES;
    if (BUG != EMPTY_NOT_WAITED) mbarrier_wait(empty + stage, (i / STAGES & 1) ^ 1);
    mbarrier_expect(full + stage, TILE_BYTES);
    tma_load_4d(tile + stage * TILE, map, full + stage, 0, 1, i * ROWS, 0);
}

/* Sets out[t] for each thread t of two warpgroups to the sum over `tiles` tiles of the elements t %
 * 128, t % 128 + 128, ... of the tile. A third warpgroup fetches the tiles. */
template <RingBug BUG>
__global__ void __launch_bounds__(RING_THREADS, 1)
    ring_kernel(unsigned *out, const __grid_constant__ CUtensorMap map, int tiles)
{
    DYN_SHARED(unsigned char, shared);
    uint16_t *tile = tiles_of(shared);
    uint64_t *full = reinterpret_cast<uint64_t *>(tile + STAGES * TILE), *empty = full + STAGES;
    int group = threadIdx.x / GROUP, member = threadIdx.x % GROUP;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(full + i, 1);
            mbarrier_init(empty + i, CONSUMERS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    if (group == CONSUMERS) {
        registers_give<24>();
        for (int i = 0; i < tiles && member == 0; i++)
            ring_fill<BUG>(tile, full, empty, &map, i);
        return;
    }
    registers_take<240>();
    unsigned sum = 0;
    for (int i = 0; i < tiles; i++) {
        int stage = i % STAGES;
        if (BUG != FULL_NOT_WAITED)
            mbarrier_wait(full + stage, BUG == STALE_PARITY ? 0 : i / STAGES & 1);
        for (int k = member; k < TILE; k += GROUP)
            sum += tile[stage * TILE + k];
        if (BUG != GROUP_NOT_SYNCED) named_barrier_sync(1 + group, GROUP);
        if (member == 0 && !(BUG == EMPTY_NOT_ARRIVED && group == 1))
            mbarrier_arrive(empty + stage);
        if (BUG == ARRIVED_BY_TWO && member == 1) mbarrier_arrive(empty + stage);
    }
    out[threadIdx.x] = sum;
}

#endif
