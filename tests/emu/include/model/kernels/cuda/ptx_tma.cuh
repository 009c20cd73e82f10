/* ptx_tma.cuh -- replaces model/kernels/cuda/ptx_tma.cuh on the emulated device; see that file for
 * the contracts. A call that breaks a contract ends the program with a message. */
#ifndef MODEL_KERNELS_CUDA_PTX_TMA_CUH
#define MODEL_KERNELS_CUDA_PTX_TMA_CUH

#include "tests/emu/device/hopper.h"
#include "tests/emu/include/cuda_runtime.h"

static inline void emu_check_argument(const EmuLaunch *launch, const CUtensorMap &map)
{
    emu_check_map(launch, &map);
}

static inline void mbarrier_init(uint64_t *bar, int count, EMU_HERE)
{
    emu_mbarrier_init(bar, count, EMU_PLACE("mbarrier_init"));
}

static inline void mbarrier_init_fence(EMU_HERE)
{
    emu_mbarrier_init_fence(EMU_PLACE("mbarrier_init_fence"));
}

static inline void mbarrier_expect(uint64_t *bar, uint32_t bytes, EMU_HERE)
{
    emu_mbarrier_expect(bar, bytes, EMU_PLACE("mbarrier_expect"));
}

static inline void mbarrier_arrive(uint64_t *bar, EMU_HERE)
{
    emu_mbarrier_arrive(bar, EMU_PLACE("mbarrier_arrive"));
}

static inline void mbarrier_wait(uint64_t *bar, uint32_t parity, EMU_HERE)
{
    emu_mbarrier_wait(bar, parity, EMU_PLACE("mbarrier_wait"));
}

static inline void tma_load_4d(void *shared, const CUtensorMap *map, uint64_t *bar, int c0, int c1,
                               int c2, int c3, EMU_HERE)
{
    emu_tma_load(shared, map, bar, {c0, c1, c2, c3}, EMU_PLACE("tma_load_4d"));
}

static inline void proxy_fence(EMU_HERE)
{
    emu_proxy_fence(EMU_PLACE("proxy_fence"));
}

template <int N> static inline void registers_take(EMU_HERE)
{
    static_assert(N >= 24 && N <= 256 && N % 8 == 0, "a count that setmaxnreg accepts");
    emu_registers(N, true, EMU_PLACE("registers_take"));
}

template <int N> static inline void registers_give(EMU_HERE)
{
    static_assert(N >= 24 && N <= 256 && N % 8 == 0, "a count that setmaxnreg accepts");
    emu_registers(N, false, EMU_PLACE("registers_give"));
}

static inline void named_barrier_sync(int id, int threads, EMU_HERE)
{
    emu_named_barrier(id, threads, true, EMU_PLACE("named_barrier_sync"));
}

static inline void named_barrier_arrive(int id, int threads, EMU_HERE)
{
    emu_named_barrier(id, threads, false, EMU_PLACE("named_barrier_arrive"));
}

static inline void load_pair(float (&x)[2], const float *shared, EMU_HERE)
{
    EmuPlace place = EMU_PLACE("load_pair");
    emu_thread->place = place;
    if ((uintptr_t)shared % 8 != 0)
        emu_die("%s: address %p is not a multiple of 8", place.what, (const void *)shared);
    emu_check_shared(shared, 8, place.what);
    x[0] = shared[0];
    x[1] = shared[1];
}

#endif
