/* cuda_runtime.h -- provides CUDA C++ for kernels that run on the CPU: qualifiers, indices,
 * barriers, warp collectives, atomics. Static __shared__ memory is deliberately undefined, so that
 * it does not compile. The emulated build includes this file before every .cu file. */
#ifndef TESTS_EMU_CUDA_RUNTIME_H
#define TESTS_EMU_CUDA_RUNTIME_H

#include "tests/emu/include/cuda_runtime_api.h"

#include <math.h>
#include <string.h>

#include "tests/emu/device/emu.h"
#include "tests/emu/include/vector_types.h"

#define __global__
#define __grid_constant__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))

/* Records the bound, `threads`, in the compiled code: the kernel's first instruction is preceded by
 * that many empty ones. emu_launch_bounds counts them. */
#define __launch_bounds__(threads, ...)                                                            \
    __attribute__((patchable_function_entry((int)(threads), (int)(threads))))

#define threadIdx (emu_thread->index)
#define blockIdx  (emu_thread->block->index)
#define blockDim  (emu_thread->block->launch->block)
#define gridDim   (emu_thread->block->launch->grid)
#define warpSize  32

/* Default arguments that give the file and line of the call. */
#define EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define EMU_PLACE(what)                                                                            \
    EmuPlace                                                                                       \
    {                                                                                              \
        what, file, line                                                                           \
    }

/* ---- barriers and fences --------------------------------------------------------------------- */

static inline void __syncthreads(EMU_HERE)
{
    emu_barrier(EMU_PLACE("__syncthreads"));
}

static inline void emu_nothing(EmuWarp *, uint32_t)
{
}

static inline void __syncwarp(uint32_t mask = 0xffffffffu, EMU_HERE)
{
    emu_collective(mask, EMU_PLACE("__syncwarp"), NULL, emu_nothing);
}

static inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void __threadfence_block()
{
}

static inline void __threadfence_system()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* ---- warp collectives ------------------------------------------------------------------------ */

template <class T>
static inline T emu_shuffle_any(uint32_t mask, T x, int source, const EmuPlace &place)
{
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &x, sizeof x);
    bits = emu_shuffle(mask, bits, source, place);
    memcpy((void *)&x, &bits, sizeof x);
    return x;
}

template <class T>
static inline T __shfl_sync(uint32_t mask, T x, int source, int width = 32, EMU_HERE)
{
    int segment = emu_thread->lane & -width;
    return emu_shuffle_any(mask, x, segment | (source & (width - 1)), EMU_PLACE("__shfl_sync"));
}

template <class T>
static inline T __shfl_xor_sync(uint32_t mask, T x, int with, int width = 32, EMU_HERE)
{
    int lane = emu_thread->lane, source = lane ^ with;
    if (source >= (lane & -width) + width) source = lane;
    return emu_shuffle_any(mask, x, source, EMU_PLACE("__shfl_xor_sync"));
}

template <class T>
static inline T __shfl_down_sync(uint32_t mask, T x, unsigned by, int width = 32, EMU_HERE)
{
    int lane = emu_thread->lane, source = lane + (int)by;
    if (source >= (lane & -width) + width) source = lane;
    return emu_shuffle_any(mask, x, source, EMU_PLACE("__shfl_down_sync"));
}

template <class T>
static inline T __shfl_up_sync(uint32_t mask, T x, unsigned by, int width = 32, EMU_HERE)
{
    int lane = emu_thread->lane, source = lane - (int)by;
    if (source < (lane & -width)) source = lane;
    return emu_shuffle_any(mask, x, source, EMU_PLACE("__shfl_up_sync"));
}

static inline unsigned __ballot_sync(uint32_t mask, int predicate, EMU_HERE)
{
    return emu_ballot(mask, predicate, EMU_PLACE("__ballot_sync"));
}

static inline int __any_sync(uint32_t mask, int predicate, EMU_HERE)
{
    return emu_ballot(mask, predicate, EMU_PLACE("__any_sync")) != 0;
}

static inline int __all_sync(uint32_t mask, int predicate, EMU_HERE)
{
    return emu_ballot(mask, !predicate, EMU_PLACE("__all_sync")) == 0;
}

/* Reduces integers over the lanes of the mask. Like CUDA, it has no version for floats. */
enum class EmuReduce { ADD, MIN, MAX, AND, OR, XOR };
uint32_t emu_reduce(uint32_t mask, uint32_t x, EmuReduce how, bool is_signed, EmuPlace place);

#define EMU_REDUCE(name, how, type, is_signed)                                                     \
    static inline type name(uint32_t mask, type x, EMU_HERE)                                       \
    {                                                                                              \
        return (type)emu_reduce(mask, (uint32_t)x, EmuReduce::how, is_signed, EMU_PLACE(#name));   \
    }
EMU_REDUCE(__reduce_add_sync, ADD, unsigned, false)
EMU_REDUCE(__reduce_add_sync, ADD, int, true)
EMU_REDUCE(__reduce_min_sync, MIN, unsigned, false)
EMU_REDUCE(__reduce_min_sync, MIN, int, true)
EMU_REDUCE(__reduce_max_sync, MAX, unsigned, false)
EMU_REDUCE(__reduce_max_sync, MAX, int, true)
EMU_REDUCE(__reduce_and_sync, AND, unsigned, false)
EMU_REDUCE(__reduce_or_sync, OR, unsigned, false)
EMU_REDUCE(__reduce_xor_sync, XOR, unsigned, false)
#undef EMU_REDUCE

/* ---- atomics, for integers only: float sums would depend on the order ------------------------ */

#define EMU_ATOMICS(type)                                                                          \
    static inline type atomicAdd(type *p, type x)                                                  \
    {                                                                                              \
        return __atomic_fetch_add(p, x, __ATOMIC_RELAXED);                                         \
    }                                                                                              \
    static inline type atomicExch(type *p, type x)                                                 \
    {                                                                                              \
        return __atomic_exchange_n(p, x, __ATOMIC_RELAXED);                                        \
    }                                                                                              \
    static inline type atomicCAS(type *p, type expected, type x)                                   \
    {                                                                                              \
        __atomic_compare_exchange_n(p, &expected, x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);   \
        return expected;                                                                           \
    }                                                                                              \
    static inline type atomicMax(type *p, type x)                                                  \
    {                                                                                              \
        type old = __atomic_load_n(p, __ATOMIC_RELAXED);                                           \
        while (old < x && !__atomic_compare_exchange_n(p, &old, x, true, __ATOMIC_RELAXED,         \
                                                       __ATOMIC_RELAXED)) {                        \
        }                                                                                          \
        return old;                                                                                \
    }                                                                                              \
    static inline type atomicMin(type *p, type x)                                                  \
    {                                                                                              \
        type old = __atomic_load_n(p, __ATOMIC_RELAXED);                                           \
        while (x < old && !__atomic_compare_exchange_n(p, &old, x, true, __ATOMIC_RELAXED,         \
                                                       __ATOMIC_RELAXED)) {                        \
        }                                                                                          \
        return old;                                                                                \
    }                                                                                              \
    static inline type atomicOr(type *p, type x)                                                   \
    {                                                                                              \
        return __atomic_fetch_or(p, x, __ATOMIC_RELAXED);                                          \
    }                                                                                              \
    static inline type atomicAnd(type *p, type x)                                                  \
    {                                                                                              \
        return __atomic_fetch_and(p, x, __ATOMIC_RELAXED);                                         \
    }
EMU_ATOMICS(int)
EMU_ATOMICS(unsigned)
EMU_ATOMICS(unsigned long long)
#undef EMU_ATOMICS

#include "tests/emu/include/device_functions.h"

#endif
