/* ptx.cuh -- instructions that CUDA C++ has no words for: products of fragments, loads of 8 x 8
 * matrices, copies that run beside the computation. The only file with inline PTX; tests/emu has a
 * twin of it under the same name that runs on the CPU; tests/cuda/test_ptx*.cu hold both to the
 * ISA.
 *
 * A fragment is a small matrix spread over a warp, two 16-bit elements to a register, the element
 * of the lower column (A, D) or row (B) in the low half. With g = lane / 4 and t = lane % 4:
 *
 *   A (16 x 16)  a[0] = A[g    ][2t, 2t+1]   a[2] = A[g    ][2t+8, 2t+9]
 *                a[1] = A[g + 8][2t, 2t+1]   a[3] = A[g + 8][2t+8, 2t+9]
 *   B (16 x 8)   b0   = B[2t, 2t+1][g]       b1   = B[2t+8, 2t+9][g]
 *   D (16 x 8)   d[0], d[1] = D[g][2t, 2t+1] d[2], d[3] = D[g + 8][2t, 2t+1]   (f32)
 *
 * So two D fragments side by side, rounded to T, are an A fragment: a[0] = pair(d[0], d[1]), a[1] =
 * pair(d[2], d[3]), and a[2], a[3] the same of the right one.
 *
 * All 32 lanes of the warp must call mma and ldmatrix together. */
#ifndef MODEL_KERNELS_CUDA_PTX_CUH
#define MODEL_KERNELS_CUDA_PTX_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

/* ---- products -------------------------------------------------------------------------------- */

/* d (16 x 8, f32) += a (16 x 16, T) b (16 x 8, T); T is bf16 or f16. Sums of one product of depth
 * 16 run in an order of the hardware's choosing, always the same. */
template <class T>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1);

template <>
__device__ __forceinline__ void mma<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4],
                                                   uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void mma<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two elements of a fragment in one register, rounded to nearest even. */
template <class T> __device__ __forceinline__ uint32_t pair(float low, float high);

template <> __device__ __forceinline__ uint32_t pair<__nv_bfloat16>(float low, float high)
{
    uint32_t bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

template <> __device__ __forceinline__ uint32_t pair<__half>(float low, float high)
{
    uint32_t bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

/* ---- fragments out of shared memory ---------------------------------------------------------- */

/* r[i] = matrix i of four (two) 8 x 8 matrices of 16-bit elements in shared memory, spread so that
 * with g = lane / 4 and t = lane % 4 it holds M[g][2t, 2t+1]; with _trans, M[2t, 2t+1][g]. `row` is
 * lane l's pointer to row l % 8 of matrix l / 8: 16 bytes, aligned to 16 (ldmatrix_2: lanes 16 to
 * 31 give any such pointer into shared memory).
 *   A from row-major memory:  matrices are the quarters top left, bottom left, top right, bottom
 *                             right, plain.
 *   B from memory that holds its transpose (rows are columns of B): k 0..7, k 8..15, plain.
 *   B from row-major memory:  k 0..7, k 8..15, _trans. */
static __device__ __forceinline__ void ldmatrix_4(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

static __device__ __forceinline__ void ldmatrix_4_trans(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

static __device__ __forceinline__ void ldmatrix_2(uint32_t (&r)[2], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

static __device__ __forceinline__ void ldmatrix_2_trans(uint32_t (&r)[2], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* ---- copies beside the computation ----------------------------------------------------------- */

/* Starts a copy of the first `bytes` of 16 bytes from global to shared memory and fills the rest
 * with zeros: 16 copies all, 0 reads nothing. Both pointers are aligned to 16, and `global` is one
 * into device memory even when nothing is read. The bytes are there for the calling thread after a
 * cp_async_wait that covers the copy, for the block after a barrier after that. */
static __device__ __forceinline__ void cp_async_16(void *shared, const void *global, int bytes = 16)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
}

/* Closes the group of the copies that this thread has started since the last one; it may be empty.
 */
static __device__ __forceinline__ void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most N of this thread's youngest groups are still under way. */
template <int N> static __device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* ---- functions ------------------------------------------------------------------------------- */

/* x. What follows from it is computed where it stands: the compiler cannot know that x stays the
 * same, so it does not move the computation in front of a loop to keep the results in registers. */
static __device__ __forceinline__ int unmoved(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* 2^x to about 2 ulp, results below 2^-126 are 0: one instruction. 2^-infinity is 0. */
static __device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
