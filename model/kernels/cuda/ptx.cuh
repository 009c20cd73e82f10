/* ptx.cuh -- wraps the instructions that CUDA C++ does not offer: products of fragments (mma),
 * loads of 8 x 8 matrices (ldmatrix), asynchronous copies to shared memory (cp.async), stores of
 * whole packs, and approximate functions. Only this file and ptx_*.cuh, which need Hopper, contain
 * inline PTX. tests/emu has a file of the same name that runs on the CPU, and
 * tests/cuda/test_ptx*.cu check both against the PTX ISA.
 *
 * A fragment is a small matrix that is spread over the 32 lanes of a warp. Each register holds two
 * 16-bit elements; the one of the lower column (A, D) or row (B) is in the low half. With g = lane
 * / 4 and t = lane % 4:
 *
 *   A (16 x 16)  a[0] = A[g    ][2t, 2t+1]   a[2] = A[g    ][2t+8, 2t+9]
 *                a[1] = A[g + 8][2t, 2t+1]   a[3] = A[g + 8][2t+8, 2t+9]
 *   B (16 x 8)   b0   = B[2t, 2t+1][g]       b1   = B[2t+8, 2t+9][g]
 *   D (16 x 8)   d[0], d[1] = D[g][2t, 2t+1] d[2], d[3] = D[g + 8][2t, 2t+1]   (f32)
 *
 * So two adjacent D fragments, rounded to T, form an A fragment: a[0] = pair(d[0], d[1]) and a[1] =
 * pair(d[2], d[3]) of the left one, a[2] and a[3] likewise of the right one.
 *
 * All 32 lanes of the warp must call mma and ldmatrix together. */
#ifndef MODEL_KERNELS_CUDA_PTX_CUH
#define MODEL_KERNELS_CUDA_PTX_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

/* ---- products -------------------------------------------------------------------------------- */

/* Adds a (16 x 16, T) times b (16 x 8, T) to d (16 x 8, f32); T is bf16 or f16. The hardware
 * chooses the order in which the 16 terms are added, and it is always the same. */
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

/* Packs two elements into one register, each rounded to nearest even. This is one instruction,
 * which executes four times as fast as the conversion of a single element. */
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

/* ---- loading fragments from shared memory ---------------------------------------------------- */

/* Loads four (ldmatrix_2: two) 8 x 8 matrices M of 16-bit elements from shared memory; r[i] gets
 * this lane's part of matrix i. With g = lane / 4 and t = lane % 4 that part is M[g][2t, 2t+1], or
 * M[2t, 2t+1][g] with _trans. Lane l passes in `row` the address of row l % 8 of matrix l / 8: 16
 * bytes, aligned to 16. For ldmatrix_2, lanes 16 to 31 pass any such address in shared memory. To
 * load
 *   A from row-major memory:  pass the quarters top left, bottom left, top right, bottom
 *                             right; plain.
 *   B from memory that holds its transpose (rows are columns of B): k 0..7, k 8..15; plain.
 *   B from row-major memory:  k 0..7, k 8..15; _trans. */
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

/* ---- asynchronous copies --------------------------------------------------------------------- */

/* Starts an asynchronous copy of `bytes` bytes from global to shared memory and fills the rest of
 * the 16 bytes with zeros: 16 copies everything, 0 reads nothing. Both pointers must be aligned to
 * 16, and `global` must point to device memory even if nothing is read. The calling thread sees the
 * data after a cp_async_wait that covers the copy, the whole block after a barrier that follows it.
 */
static __device__ __forceinline__ void cp_async_16(void *shared, const void *global, int bytes = 16)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
}

/* Closes a group with the copies that this thread has started since the previous group; the group
 * may be empty. */
static __device__ __forceinline__ void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most N of this thread's most recent groups are still in progress. */
template <int N> static __device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* ---- stores to global memory ----------------------------------------------------------------- */

/* Store four (two) 32-bit words at p in one instruction; p must point to global memory and be
 * aligned to 16 (8) bytes. The compiler splits an ordinary store of this size if its words were
 * computed one by one. */
static __device__ __forceinline__ void store_words(void *p, const uint32_t (&word)[4])
{
    asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(__cvta_generic_to_global(p)),
                 "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3])
                 : "memory");
}

static __device__ __forceinline__ void store_words(void *p, const uint32_t (&word)[2])
{
    asm volatile("st.global.v2.b32 [%0], {%1,%2};" ::"l"(__cvta_generic_to_global(p)), "r"(word[0]),
                 "r"(word[1])
                 : "memory");
}

/* ---- functions ------------------------------------------------------------------------------- */

/* Returns x, but hides from the compiler that the value is unchanged. The compiler therefore cannot
 * move computations that depend on the result out of a loop, where they would occupy registers. */
static __device__ __forceinline__ int unmoved(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* Computes 2^x in one instruction. By the PTX ISA the result is at most 2 ulp from the correctly
 * rounded one. Results below 2^-126 become 0, and so does 2^-infinity; 2^0 is 1. */
static __device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Computes 1/x in one instruction. By the PTX ISA the error is at most 1 ulp; tests allow for
 * results that are 1 ulp from the correctly rounded one. Arguments and results of less than 2^-126
 * count as 0, and 1/infinity is 0. */
static __device__ __forceinline__ float reciprocal_approx(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
