/* ptx_wgmma.cuh -- replaces model/kernels/cuda/ptx_wgmma.cuh on the emulated device; see that file
 * for the contracts, and tests/emu/device/wgmma.cc for what is checked. */
#ifndef MODEL_KERNELS_CUDA_PTX_WGMMA_CUH
#define MODEL_KERNELS_CUDA_PTX_WGMMA_CUH

#include "tests/emu/device/wgmma.h"
#include "tests/emu/include/cuda_bf16.h"
#include "tests/emu/include/cuda_fp16.h"
#include "tests/emu/include/cuda_runtime.h"

/* ---- descriptors ----------------------------------------------------------------------------- */

static inline uint32_t shared_address(const void *p)
{
    return emu_shared_address(p);
}

/* Returns bytes / 16. A GPU drops the remainder, so it reads something else than was asked for. */
static inline uint32_t emu_sixteenths(const char *what, uint32_t bytes)
{
    if (bytes % 16 != 0) emu_die("%s is %u; it must be a multiple of 16", what, bytes);
    return bytes / 16;
}

static inline uint64_t wgmma_descriptor(uint32_t address, uint32_t leading_bytes,
                                        uint32_t stride_bytes)
{
    const uint64_t SWIZZLE_128 = 1;
    uint64_t leading = emu_sixteenths("wgmma_descriptor: the leading offset", leading_bytes);
    uint64_t stride = emu_sixteenths("wgmma_descriptor: the stride", stride_bytes);
    return emu_sixteenths("wgmma_descriptor: the address", address % (1u << 18)) + (leading << 16) +
           (stride << 32) + (SWIZZLE_128 << 62);
}

static inline uint64_t wgmma_step(uint64_t descriptor, uint32_t bytes)
{
    uint32_t low = (uint32_t)descriptor + emu_sixteenths("wgmma_step: the number of bytes", bytes);
    return descriptor >> 32 << 32 | low;
}

/* ---- products -------------------------------------------------------------------------------- */

template <class T> constexpr bool EMU_IS_F16 = false;
template <> constexpr bool EMU_IS_F16<__half> = true;

template <class T, int N, bool B_MN>
static inline void wgmma_shared(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate,
                                EMU_HERE)
{
    static_assert(N == 64 || N == 128, "N of a product is 64 or 128");
    emu_wgmma(EmuWgmma{EMU_PLACE("wgmma_shared"), N, EMU_IS_F16<T>, B_MN, accumulate, a, b, NULL},
              d);
}

template <class T, int N, bool B_MN>
static inline void wgmma_registers(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b,
                                   bool accumulate, EMU_HERE)
{
    static_assert(N == 64 || N == 128, "N of a product is 64 or 128");
    emu_wgmma(EmuWgmma{EMU_PLACE("wgmma_registers"), N, EMU_IS_F16<T>, B_MN, accumulate, 0, b, a},
              d);
}

/* ---- order ----------------------------------------------------------------------------------- */

template <int R> static inline void wgmma_hold(float (&)[R])
{
}

template <int K> static inline void wgmma_hold(uint32_t (&)[K][4])
{
}

static inline void wgmma_fence(EMU_HERE)
{
    emu_wgmma_fence(EMU_PLACE("wgmma_fence"));
}

static inline void wgmma_commit(EMU_HERE)
{
    emu_wgmma_commit(EMU_PLACE("wgmma_commit"));
}

template <int PENDING> static inline void wgmma_wait(EMU_HERE)
{
    emu_wgmma_wait(PENDING, EMU_PLACE("wgmma_wait"));
}

#endif
