/* ptx_wgmma.cuh -- wraps Hopper's matrix products of a warpgroup (wgmma.mma_async, sm_90a only). A
 * warpgroup is four adjacent warps, the first of which has a multiple of 4 as its number. All 128
 * threads must make the same calls with the same descriptors. A product
 *
 *   D (64 x N, f32) = A (64 x 16, T) B (16 x N, T), or D += A B
 *
 * is asynchronous: it reads A and B, and writes D, at any time between its call and the wgmma_wait
 * that covers it. T is bf16 or f16; N is 64 or 128.
 *
 * Registers. Warp w of the warpgroup holds rows 16 w to 16 w + 15 of A and D. With g = lane / 4 and
 * t = lane % 4:
 *
 *   D  d[i] = D[16 w + g + 8 (i / 2 % 2)][8 (i / 4) + 2 t + i % 2]
 *   A  as in ptx.cuh: a[0] = A[16 w + g][2t, 2t+1], a[1] = the same of row g + 8,
 *      a[2] = A[16 w + g][2t+8, 2t+9], a[3] = the same of row g + 8
 *
 * So columns 16 j to 16 j + 15 of D, rounded to T, are an A fragment: a[i] = pair(d[8 j + 2 i],
 * d[8 j + 2 i + 1]).
 *
 * Shared memory. An operand is a panel of lines of 128 bytes (64 elements), or several panels. The
 * lines start at a multiple of 1,024 bytes, and the byte that belongs at address o lies at o ^ (o /
 * 128 % 8) * 16 (the 128-byte swizzle, as TMA writes it). Operands are of two kinds, described
 * below; both have a stride of 1,024 bytes, which is 8 lines.
 *
 *   K-major   a line holds 64 elements of one row of A or column of B. The next 16 of K start 32
 *             bytes further in the same lines, and after four such steps in the next panel. The
 *             leading offset is unused.
 *   MN-major  (B only) a line holds 64 columns of one row of B. The next 16 of K start 2,048 bytes
 *             further. The leading offset is the number of bytes from one panel of 64 columns to
 *             the next; it is used only if N > 64.
 *
 * Order. wgmma_fence must come before the first product, and before each product of which D or A
 * was accessed by other instructions since the last fence; products that add to the same D in turn
 * need none between them. Until the wait, D must not be read or written, and A's registers and the
 * operands' shared memory must not be written. Shared memory that threads have written, rather than
 * TMA, needs proxy_fence by each writer and then a barrier before the product.
 *
 * ptxas executes the products one by one ("serialized", C7510 to C7512) unless D stays in the same
 * registers from the first product to the wait. wgmma_hold on all of D right before wgmma_fence and
 * right after wgmma_wait prevents it from moving other accesses of D between the two.
 *
 * The emulated device replaces this file (tests/emu/include). */
#ifndef MODEL_KERNELS_CUDA_PTX_WGMMA_CUH
#define MODEL_KERNELS_CUDA_PTX_WGMMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

/* ---- descriptors ----------------------------------------------------------------------------- */

/* Returns the address of p, which points to shared memory, in the shared window. */
static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Returns the descriptor of an operand at `address` with the 128-byte swizzle. Offsets are in
 * bytes; all three are multiples of 16. */
static __device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address,
                                                            uint32_t leading_bytes,
                                                            uint32_t stride_bytes)
{
    return (uint64_t)((address & 0x3ffffu) >> 4) | (uint64_t)(leading_bytes >> 4) << 16 |
           (uint64_t)(stride_bytes >> 4) << 32 | (uint64_t)1 << 62;
}

/* Returns the descriptor of the operand that starts `bytes` further, a multiple of 16. */
static __device__ __forceinline__ uint64_t wgmma_step(uint64_t descriptor, uint32_t bytes)
{
    return (descriptor & 0xffffffff00000000u) | (uint32_t)((uint32_t)descriptor + (bytes >> 4));
}

/* ---- operand lists --------------------------------------------------------------------------- */

/* WGMMA_LISTn is the list "%0,%1,..." of the first n operands, WGMMA_Dn(0) are their constraints:
 * the registers of D. tests/probe also uses them. */
#define WGMMA_N4(t, a, b, c, d) "%" t #a ",%" t #b ",%" t #c ",%" t #d
#define WGMMA_N10(t)            WGMMA_N4(t, 0, 1, 2, 3) "," WGMMA_N4(t, 4, 5, 6, 7) ",%" t "8,%" t "9,"
#define WGMMA_LIST32            WGMMA_N10("") WGMMA_N10("1") WGMMA_N10("2") "%30,%31"
#define WGMMA_FIRST60                                                                              \
    WGMMA_N10("")                                                                                  \
    WGMMA_N10("1") WGMMA_N10("2") WGMMA_N10("3") WGMMA_N10("4") WGMMA_N10("5")
#define WGMMA_LIST64 WGMMA_FIRST60 WGMMA_N4("6", 0, 1, 2, 3)

#define WGMMA_D4(i)  "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define WGMMA_D8(i)  WGMMA_D4(i), WGMMA_D4((i) + 4)
#define WGMMA_D16(i) WGMMA_D8(i), WGMMA_D8((i) + 8)
#define WGMMA_D32(i) WGMMA_D16(i), WGMMA_D16((i) + 16)
#define WGMMA_D64(i) WGMMA_D32(i), WGMMA_D32((i) + 32)

/* The instruction for N = `n` with `regs` registers of D; the following arguments are the numbers
 * of the operands after D. If `keep` is 0, the previous D is not added. */
#define WGMMA_START(keep)   "{\n.reg .pred keep;\nsetp.ne.b32 keep, %" #keep ", 0;\n"
#define WGMMA_NAME(n, type) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " "
#define WGMMA_SHARED(n, regs, type, op_a, op_b, keep, mn)                                          \
    asm volatile(WGMMA_START(keep) WGMMA_NAME(n, type) "{" WGMMA_LIST##regs                        \
                 "}, %" #op_a ", %" #op_b ", keep, 1, 1, 0, %" #mn ";\n}"                          \
                 : WGMMA_D##regs(0)                                                                \
                 : "l"(a), "l"(b), "r"((int)accumulate), "n"((int)B_MN))
#define WGMMA_REGISTERS(n, regs, type, a0, a1, a2, a3, op_b, keep, mn)                             \
    asm volatile(WGMMA_START(keep) WGMMA_NAME(n, type) "{" WGMMA_LIST##regs                        \
                 "}, {%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}, %" #op_b ", keep, 1, 1, %" #mn ";\n}"  \
                 : WGMMA_D##regs(0)                                                                \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)accumulate),       \
                   "n"((int)B_MN))

template <class T> constexpr bool WGMMA_IS_F16 = false;
template <> constexpr bool WGMMA_IS_F16<__half> = true;

/* ---- products -------------------------------------------------------------------------------- */

/* Starts D = A B or, if `accumulate`, D += A B. The descriptor a gives A (K-major), b gives B,
 * which is MN-major if B_MN, otherwise K-major. */
template <class T, int N, bool B_MN>
static __device__ __forceinline__ void wgmma_shared(float (&d)[N / 2], uint64_t a, uint64_t b,
                                                    bool accumulate)
{
    static_assert(N == 64 || N == 128, "N of a product is 64 or 128");
    if constexpr (N == 64 && !WGMMA_IS_F16<T>) WGMMA_SHARED(64, 32, "bf16", 32, 33, 34, 35);
    if constexpr (N == 64 && WGMMA_IS_F16<T>) WGMMA_SHARED(64, 32, "f16", 32, 33, 34, 35);
    if constexpr (N == 128 && !WGMMA_IS_F16<T>) WGMMA_SHARED(128, 64, "bf16", 64, 65, 66, 67);
    if constexpr (N == 128 && WGMMA_IS_F16<T>) WGMMA_SHARED(128, 64, "f16", 64, 65, 66, 67);
}

/* Like wgmma_shared, with the fragment of A in registers, which must not change until the wait. */
template <class T, int N, bool B_MN>
static __device__ __forceinline__ void wgmma_registers(float (&d)[N / 2], const uint32_t (&a)[4],
                                                       uint64_t b, bool accumulate)
{
    static_assert(N == 64 || N == 128, "N of a product is 64 or 128");
    if constexpr (N == 64 && !WGMMA_IS_F16<T>)
        WGMMA_REGISTERS(64, 32, "bf16", 32, 33, 34, 35, 36, 37, 38);
    if constexpr (N == 64 && WGMMA_IS_F16<T>)
        WGMMA_REGISTERS(64, 32, "f16", 32, 33, 34, 35, 36, 37, 38);
    if constexpr (N == 128 && !WGMMA_IS_F16<T>)
        WGMMA_REGISTERS(128, 64, "bf16", 64, 65, 66, 67, 68, 69, 70);
    if constexpr (N == 128 && WGMMA_IS_F16<T>)
        WGMMA_REGISTERS(128, 64, "f16", 64, 65, 66, 67, 68, 69, 70);
}

/* ---- order ----------------------------------------------------------------------------------- */

/* Keeps each element in its register here: the compiler cannot move an access of d over this. */
template <int R> static __device__ __forceinline__ void wgmma_hold(float (&d)[R])
{
#pragma unroll
    for (int i = 0; i < R; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* Like the function above, for fragments of A that the next products read: it makes the compiler
 * compute them before the fence. */
template <int K> static __device__ __forceinline__ void wgmma_hold(uint32_t (&a)[K][4])
{
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("" : "+r"(a[k][i])::"memory");
}

/* Orders accesses of registers before it with the products after it. */
static __device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Closes a group with the products since the previous group. */
static __device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most PENDING of the most recent groups are incomplete. */
template <int PENDING> static __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

#endif
