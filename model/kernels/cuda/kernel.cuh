/* kernel.cuh -- contains the basics that all kernels use: storage types, packs of elements, sums
 * over a warp or a block, and launches. Every .cu file includes it first.
 *
 * Kernels compute in float. The storage type T is float, bf16 or f16; the gradient type G is T or
 * float. A pack is a group of adjacent elements that are loaded or stored together: up to 16 bytes
 * if pointers and strides are aligned for it, otherwise a single element. Kernels are templates
 * over the number of elements in a pack. */
#ifndef MODEL_KERNELS_CUDA_KERNEL_CUH
#define MODEL_KERNELS_CUDA_KERNEL_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <string.h>

#include "model/core/host_device.h"

/* Functions that both backends share are compiled for the host and for devices. */
#undef HOST_DEVICE
#define HOST_DEVICE __host__ __device__

#include "model/kernels/cuda/cuda.h"
#include "model/kernels/cuda/launch.cuh"
#include "model/kernels/cuda/launch_size.cuh"
#include "model/kernels/cuda/ptx.cuh"

typedef __nv_bfloat16 bf16;
typedef __half f16;

enum { WARP = 32 };

/* log2(e): the hardware computes powers of 2, and e^x is 2^(x log2(e)). */
static constexpr double LOG2_E = 1.4426950408889634;

/* ---- storage --------------------------------------------------------------------------------- */

static __device__ __forceinline__ float to_float(float x)
{
    return x;
}

static __device__ __forceinline__ float to_float(bf16 x)
{
    return __bfloat162float(x);
}

static __device__ __forceinline__ float to_float(f16 x)
{
    return __half2float(x);
}

/* Returns one of the two elements in a word: the lower half or the upper one. */
template <class T> __device__ __forceinline__ float half_of(uint32_t word, bool upper);

template <> __device__ __forceinline__ float half_of<bf16>(uint32_t word, bool upper)
{
    return __uint_as_float(upper ? word & 0xffff0000u : word << 16);
}

template <> __device__ __forceinline__ float half_of<f16>(uint32_t word, bool upper)
{
    return to_float(__ushort_as_half((unsigned short)(upper ? word >> 16 : word)));
}

template <class T> __device__ __forceinline__ T from_float(float x);

template <> __device__ __forceinline__ float from_float<float>(float x)
{
    return x;
}

template <> __device__ __forceinline__ bf16 from_float<bf16>(float x)
{
    return __float2bfloat16_rn(x);
}

template <> __device__ __forceinline__ f16 from_float<f16>(float x)
{
    return __float2half_rn(x);
}

/* Returns x rounded to T, as it will be read back from storage. */
template <class T> __device__ __forceinline__ float rounded(float x)
{
    return to_float(from_float<T>(x));
}

/* N adjacent elements that one instruction loads or stores. */
template <class T, int N> struct alignas(sizeof(T) * N) Pack {
    T at[N];
};

/* Sets x to the elements of a pack. Those of 2 bytes are taken from whole words: otherwise the
 * compiler first moves each into a register of its own. */
template <class T, int N>
__device__ __forceinline__ void unpack(float (&x)[N], const Pack<T, N> &pack)
{
    if constexpr (sizeof(T) == 2 && N % 2 == 0) {
        uint32_t word[N / 2];
        memcpy(word, &pack, sizeof word);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = half_of<T>(word[i / 2], i % 2);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = to_float(pack.at[i]);
    }
}

/* Loads x from the N elements at p, which must be aligned to N elements. */
template <int N, class T> __device__ __forceinline__ void load(float (&x)[N], const T *p)
{
    Pack<T, N> pack = *reinterpret_cast<const Pack<T, N> *>(p);
    unpack(x, pack);
}

/* Sets word to the bits of x, rounded to nearest even in type T, as they will be stored. */
template <class T, int N, int WORDS>
__device__ __forceinline__ void words_of(uint32_t (&word)[WORDS], const float (&x)[N])
{
    static_assert(WORDS * 4 == N * (int)sizeof(T), "the elements fill the words");
#pragma unroll
    for (int i = 0; i < WORDS; i++)
        if constexpr (sizeof(T) == sizeof(float))
            word[i] = __float_as_uint(x[i]);
        else
            word[i] = pair<T>(x[2 * i], x[2 * i + 1]);
}

/* Stores x in the N elements at p, rounded to nearest even; p must be aligned to N elements. Stores
 * to shared memory use this function, those to global memory store_global. */
template <int N, class T> __device__ __forceinline__ void store(T *p, const float (&x)[N])
{
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; i++)
        pack.at[i] = from_float<T>(x[i]);
    *reinterpret_cast<Pack<T, N> *>(p) = pack;
}

/* Like store, for elements in global memory, with a single instruction. */
template <int N, class T> __device__ __forceinline__ void store_global(T *p, const float (&x)[N])
{
    if constexpr (N * sizeof(T) > sizeof(uint32_t)) {
        uint32_t word[N * sizeof(T) / sizeof(uint32_t)];
        words_of<T>(word, x);
        store_words(p, word);
    } else {
        store(p, x);
    }
}

/* Rounds every x to T, as it will be read back from storage, two elements at a time if N is even.
 */
template <class T, int N> __device__ __forceinline__ void round_all(float (&x)[N])
{
    if constexpr (sizeof(T) < sizeof(float) && N % 2 == 0) {
        uint32_t word[N / 2];
        Pack<T, N> pack;
        words_of<T>(word, x);
        memcpy(&pack, word, sizeof pack);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = to_float(pack.at[i]);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = rounded<T>(x[i]);
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Returns the sum of x over each team of `lanes` adjacent lanes of a warp (a power of two), in
 * every lane of the team. The first step adds across the halves of the team, the last step adds
 * adjacent lanes. All 32 lanes must call it. */
template <class X> static __device__ __forceinline__ X lanes_sum(X x, int lanes)
{
#pragma unroll
    for (int step = lanes / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* Returns the maximum of x over each team of lanes; called like lanes_sum. */
template <class X> static __device__ __forceinline__ X lanes_max(X x, int lanes)
{
#pragma unroll
    for (int step = lanes / 2; step > 0; step /= 2)
        x = max(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

template <class X> static __device__ __forceinline__ X warp_sum(X x)
{
    return lanes_sum(x, WARP);
}

template <class X> static __device__ __forceinline__ X warp_max(X x)
{
    return lanes_max(x, WARP);
}

/* Returns the sum of x over a block of whole warps (at most 32), in every thread. `shared` holds 32
 * values that no other code uses during the call; it may be reused right after the call. */
template <class X> static __device__ __forceinline__ X block_sum(X x, X *shared)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    x = warp_sum(x);
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    x = lane < warps ? shared[lane] : X(0);
    x = warp_sum(x);
    __syncthreads();
    return x;
}

static __device__ __forceinline__ float block_max(float x, float *shared)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    x = warp_max(x);
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    x = lane < warps ? shared[lane] : -INFINITY;
    x = warp_max(x);
    __syncthreads();
    return x;
}

/* ---- launches -------------------------------------------------------------------------------- */

/* Largest dynamic shared memory that a kernel can use without a special request. */
#define SHARED_DEFAULT ((size_t)48 << 10)

/* The list of all kernels that the program contains. Each LAUNCH adds its kernel before main
 * begins, so cuda_load_kernels finds them all. */
struct KernelNode {
    const void *kernel;
    const char *name; /* the text that KernelOf::name returns */
    const KernelNode *next;
    static const KernelNode *first;
    KernelNode(const void *added, const char *named) : kernel(added), name(named), next(first)
    {
        first = this;
    }
};

template <auto KERNEL> struct KernelOf {
    static KernelNode node;
    /* Returns a text for messages that contains the kernel's name and its template arguments. */
    static const char *name()
    {
        const char *text = __PRETTY_FUNCTION__, *arguments = strchr(text, '[');
        return arguments ? arguments : text;
    }
};
template <auto KERNEL> KernelNode KernelOf<KERNEL>::node((const void *)KERNEL, name());

/* Starts kernel<<<grid, block, shared bytes, stream>>>(arguments) and checks for launch errors. A
 * kernel with several template arguments must be written in parentheses. Every kernel must declare
 * __launch_bounds__(threads). The grid is a signed number of blocks or a LaunchGrid; it and the
 * block are checked against CUDA's limits (launch_size.cuh). */
#define LAUNCH(kernel, grid, block, shared, stream, ...)                                           \
    do {                                                                                           \
        (void)&KernelOf<(kernel)>::node;                                                           \
        size_t launch_shared = (shared);                                                           \
        if (launch_shared > SHARED_DEFAULT)                                                        \
            CUDA_CHECK(cudaFuncSetAttribute((const void *)(kernel),                                \
                                            cudaFuncAttributeMaxDynamicSharedMemorySize,           \
                                            (int)launch_shared));                                  \
        const char *launch_name = KernelOf<(kernel)>::name();                                      \
        KERNEL_START(kernel, launch_name, launch_grid(LaunchGrid(grid), launch_name),              \
                     launch_block(block, launch_name), launch_shared, stream, __VA_ARGS__);        \
        CUDA_CHECK(cudaGetLastError());                                                            \
    } while (0)

/* Stand for a type and a number as arguments of generic lambdas, which read the type as typename
 * decltype(t)::Type. */
template <class T> struct TypeName {
    typedef T Type;
};

template <int N> struct Number {
    constexpr operator int() const
    {
        return N;
    }
};

/* Calls f(t) with the storage type T that dtype names: t is TypeName<T>. */
template <class F> static inline void with_storage(DType dtype, F f)
{
    switch (dtype) {
    case F32: f(TypeName<float>{}); break;
    case BF16: f(TypeName<bf16>{}); break;
    case F16: f(TypeName<f16>{}); break;
    default: CHECK(0, "CUDA kernels have no %s", dtype_name(dtype));
    }
}

/* Calls f(t, n) with the storage type T that dtype names and a pack size N: the elements of T in 16
 * bytes if `whole`, otherwise 1. t is TypeName<T>, n is Number<N>. */
template <class F> static inline void with_packs(DType dtype, bool whole, F f)
{
    with_storage(dtype, [&](auto t) {
        constexpr int FULL = (int)(16 / sizeof(typename decltype(t)::Type));
        if (whole)
            f(t, Number<FULL>{});
        else
            f(t, Number<1>{});
    });
}

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Returns true if every row of t starts on a boundary of n elements and its length is a multiple of
 * n. True for an absent tensor. */
static inline bool packs_fit(Tensor t, int64_t n)
{
    if (!tensor_present(t)) return true;
    size_t bytes = (size_t)n * dtype_size(t.dtype);
    return (uintptr_t)t.data % bytes == 0 && tensor_cols(t) % n == 0 &&
           (tensor_rows(t) == 1 || t.ld % n == 0);
}

/* Returns true if packs_fit(t, n) is true for each of the tensors t. */
template <class... Tensors> static inline bool all_fit(int64_t n, Tensors... t)
{
    return (packs_fit(t, n) && ...);
}

/* Returns the number of elements of this type in 16 bytes, the largest pack. */
static inline int pack_size(DType dtype)
{
    return (int)(16 / dtype_size(dtype));
}

#endif
