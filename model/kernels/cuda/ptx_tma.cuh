/* ptx_tma.cuh -- wraps the instructions of Hopper (sm_90a) that move tiles into shared memory and
 * synchronise the warps that use them: barriers in shared memory (mbarrier), tiled copies by a
 * tensor map (cp.async.bulk.tensor), the fence between the two ways to shared memory, named
 * barriers of a part of the block, and registers that move from one warpgroup to another
 * (setmaxnreg). tests/emu has a file of the same name that runs on the CPU and ends the program
 * where the rules below are broken.
 *
 * A barrier counts phases. A phase completes when `count` arrivals have come and all bytes that
 * mbarrier_expect announced have been copied; then the next one begins. mbarrier_wait(bar, parity)
 * returns when the phase of that parity, 0 for the first one, has completed: before any phase has
 * completed, parity 1 passes at once. In a ring of S stages, use number i (i = 0, 1, ...; its stage
 * is i % S) therefore waits for the stage to be full with parity (i / S) & 1, and for it to be
 * empty with parity ((i / S) & 1) ^ 1.
 *
 * Shared memory is accessed in two ways: by ordinary loads and stores (the generic proxy), and by
 * tiled copies and products of warpgroups (the async proxy). A thread's stores are visible to the
 * second only after its proxy_fence and a barrier. What a copy wrote is visible to both after
 * mbarrier_wait. */
#ifndef MODEL_KERNELS_CUDA_PTX_TMA_CUH
#define MODEL_KERNELS_CUDA_PTX_TMA_CUH

#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>

/* ---- barriers in shared memory --------------------------------------------------------------- */

/* Initialises the barrier, 8 bytes of shared memory aligned to 8. One thread does this, once;
 * mbarrier_init_fence and a barrier of the block must follow before other threads or copies use it.
 */
static __device__ __forceinline__ void mbarrier_init(uint64_t *bar, int count)
{
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"((uint32_t)__cvta_generic_to_shared(bar)),
        "r"(count)
        : "memory");
}

static __device__ __forceinline__ void mbarrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Announces that copies will bring `bytes` bytes (less than 2^20) in this phase, and arrives. Must
 * come before the copies. A copy counts with the bytes of its whole box, even if a part of the box
 * is outside the tensor. */
static __device__ __forceinline__ void mbarrier_expect(uint64_t *bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(bar)),
                 "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void mbarrier_arrive(uint64_t *bar)
{
    asm volatile(
        "mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"((uint32_t)__cvta_generic_to_shared(bar))
        : "memory");
}

/* Waits until the phase of this parity (0 or 1) has completed. */
static __device__ __forceinline__ void mbarrier_wait(uint64_t *bar, uint32_t parity)
{
    asm volatile("{\n.reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}" ::"r"((uint32_t)__cvta_generic_to_shared(bar)),
                 "r"(parity)
                 : "memory");
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Starts a copy of the box at these coordinates, given in elements from the innermost dimension
 * outwards, to shared memory, and tells the barrier when it is there. One thread calls this.
 * `shared` is aligned to 128 bytes, and to 1,024 if the map swizzles by 128. Elements outside the
 * tensor become 0. The map is a kernel's parameter, `const __grid_constant__ CUtensorMap`. */
static __device__ __forceinline__ void tma_load_4d(void *shared, const CUtensorMap *map,
                                                   uint64_t *bar, int c0, int c1, int c2, int c3)
{
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
        "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"((uint32_t)__cvta_generic_to_shared(bar))
        : "memory");
}

/* Makes the calling thread's stores to shared memory visible to copies and products that are
 * started after a barrier that follows. */
static __device__ __forceinline__ void proxy_fence()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- warpgroups ------------------------------------------------------------------------------ */

/* Changes the number of registers of each thread of a warpgroup to N, a multiple of 8 from 24 to
 * 256: registers_take raises it and waits until others have given enough, registers_give lowers it.
 * All warps of the warpgroup call the same function once. The sum over the block stays within what
 * the launch was given: threads x the count that __launch_bounds__ allows. ptxas ignores both
 * (remark C7508) unless the kernel also says how many blocks share an SM:
 * __launch_bounds__(threads, 1). */
template <int N> static __device__ __forceinline__ void registers_take()
{
    static_assert(N >= 24 && N <= 256 && N % 8 == 0, "a count that setmaxnreg accepts");
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void registers_give()
{
    static_assert(N >= 24 && N <= 256 && N % 8 == 0, "a count that setmaxnreg accepts");
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* Wait at, or only arrive at, named barrier `id`, 1 to 15 (0 is __syncthreads). It completes when
 * `threads` threads, a multiple of 32, have called either of the two; all calls pass the same
 * number, and all lanes of a warp make the call together. */
static __device__ __forceinline__ void named_barrier_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

static __device__ __forceinline__ void named_barrier_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Loads two adjacent floats from shared memory (aligned to 8) exactly at this point of the program:
 * the compiler does not move this load, so it cannot fetch the values of a whole tile in advance
 * and keep them in registers. */
static __device__ __forceinline__ void load_pair(float (&x)[2], const float *shared)
{
    asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(x[0]), "=f"(x[1])
                 : "r"((uint32_t)__cvta_generic_to_shared(shared)));
}

#endif
