/* planted.cuh -- kernels with one bug each, and correct versions of them: the emulation must detect
 * the bugs and accept the correct ones. The template parameter RIGHT selects the correct version.
 * Blocks have 64 threads unless noted. */
#ifndef TESTS_EMU_DEVICE_PLANTED_CUH
#define TESTS_EMU_DEVICE_PLANTED_CUH

#include "model/kernels/cuda/kernel.cuh"
#include "model/kernels/cuda/ptx.cuh"

enum { THREADS = 64 };

/* ---- barriers -------------------------------------------------------------------------------- */

/* Reverses x through shared memory. */
template <bool RIGHT>
__global__ void __launch_bounds__(THREADS) reverse_kernel(float *out, const float *x)
{
    DYN_SHARED(float, shared);
    int i = threadIdx.x;
    shared[i] = x[i];
    if (RIGHT) __syncthreads();
    out[i] = shared[THREADS - 1 - i];
}

/* Each thread sums what all threads wrote, in two rounds. Without the second barrier, some threads
 * overwrite in the second round what others have not yet read in the first. */
template <bool RIGHT>
__global__ void __launch_bounds__(THREADS) reuse_kernel(float *out, const float *x)
{
    DYN_SHARED(float, shared);
    float sum = 0;
    for (int round = 0; round < 2; round++) {
        shared[threadIdx.x] = x[threadIdx.x] + round;
        __syncthreads();
        for (int i = 0; i < THREADS; i++)
            sum += shared[i];
        if (RIGHT) __syncthreads();
    }
    out[threadIdx.x] = sum;
}

/* Sums over the block in two rounds, with the warps' sums in shared memory. Without the barrier at
 * the end of a round, a fast warp writes its second sum before a slow one has read the first.
 * Between them there are collectives, so a schedule that switches threads at each collective would
 * hide the bug. */
template <bool RIGHT>
__global__ void __launch_bounds__(THREADS) run_ahead_kernel(float *out, const float *x)
{
    DYN_SHARED(float, sums);
    float total = 0;
    for (int round = 0; round < 2; round++) {
        float sum = warp_sum(x[threadIdx.x] + round);
        if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = sum;
        __syncthreads();
        for (int warp = 0; warp < THREADS / WARP; warp++)
            total += sums[warp];
        if (RIGHT) __syncthreads();
    }
    out[threadIdx.x] = total;
}

static __global__ void __launch_bounds__(THREADS) divergent_barrier_kernel(float *out)
{
    if (threadIdx.x < WARP) {
        __syncthreads();
        out[threadIdx.x] = 1;
    } else {
        __syncthreads();
        out[threadIdx.x] = 2;
    }
}

static __global__ void __launch_bounds__(THREADS) early_exit_kernel(float *out, int n)
{
    if ((int)threadIdx.x >= n) return;
    __syncthreads();
    out[threadIdx.x] = 1;
}

/* One warp waits for the block, and half of the other waits for its warp. */
static __global__ void __launch_bounds__(THREADS) deadlock_kernel(float *out)
{
    if (threadIdx.x < WARP / 2)
        __syncwarp();
    else
        __syncthreads();
    out[threadIdx.x] = 1;
}

/* ---- warps ----------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS) mask_without_caller_kernel(float *out)
{
    out[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1.0f, 1);
}

/* Lanes 0 to 7 wait for lanes 8 to 15, which wait for the whole warp. */
static __global__ void __launch_bounds__(THREADS) different_masks_kernel(float *out)
{
    unsigned mask = threadIdx.x % WARP < 8 ? 0x0000ffffu : 0xffffffffu;
    out[threadIdx.x] = __shfl_xor_sync(mask, 1.0f, 1);
}

static __global__ void __launch_bounds__(THREADS) source_outside_kernel(float *out)
{
    if (threadIdx.x % WARP < 16) out[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1.0f, 16);
}

/* Lanes 24 to 31 have exited. */
static __global__ void __launch_bounds__(THREADS) source_gone_kernel(float *out)
{
    if (threadIdx.x % WARP >= 24) return;
    out[threadIdx.x] = __shfl_down_sync(0xffffffffu, 1.0f, 4);
}

static __global__ void __launch_bounds__(THREADS) different_calls_kernel(float *out)
{
    if (threadIdx.x % WARP < 16)
        out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
    else
        out[threadIdx.x] = (float)__ballot_sync(0xffffffffu, 1);
}

/* Runs every collective once, in all lanes and in halves. The bits of `wrong` show which failed. */
static __global__ void __launch_bounds__(THREADS) collectives_kernel(int *wrong)
{
    int lane = threadIdx.x % WARP, bad = 0;
    unsigned half = lane < 16 ? 0x0000ffffu : 0xffff0000u, all = 0xffffffffu;
    bad |= (__shfl_sync(all, lane, 5) != 5) << 0;
    bad |= (__shfl_sync(all, lane, 3, 8) != (lane & ~7) + 3) << 1;
    bad |= (__shfl_xor_sync(half, lane, 7) != (lane ^ 7)) << 2;
    bad |= (__shfl_up_sync(all, lane, 2) != (lane < 2 ? lane : lane - 2)) << 3;
    bad |= (__shfl_down_sync(all, (double)lane, 4) != (lane > 27 ? lane : lane + 4)) << 4;
    bad |= (__ballot_sync(all, lane % 2) != 0xaaaaaaaau) << 5;
    bad |= (__ballot_sync(half, lane % 2) != (0xaaaaaaaau & half)) << 6;
    bad |= (__any_sync(all, lane == 7) != 1 || __any_sync(all, 0) != 0) << 7;
    bad |= (__all_sync(all, lane >= 0) != 1 || __all_sync(all, lane > 0) != 0) << 8;
    bad |= (__reduce_add_sync(all, lane) != 496) << 9;
    bad |= (__reduce_max_sync(all, -lane) != 0 || __reduce_min_sync(half, lane) != (lane & 16))
           << 10;
    bad |= (warp_sum(1.0f) != 32 || warp_sum(0.5) != 16 || warp_max((float)-lane) != 0) << 11;
    if (bad != 0) atomicOr(wrong, bad);
}

/* ---- shared memory --------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS) shared_write_kernel(float *out, int at)
{
    DYN_SHARED(float, shared);
    if (threadIdx.x == 0) shared[at] = 1;
    __syncthreads();
    out[threadIdx.x] = shared[at];
}

template <bool RIGHT> __global__ void __launch_bounds__(THREADS) fresh_sum_kernel(float *out)
{
    DYN_SHARED(float, sum);
    if (RIGHT && threadIdx.x == 0) *sum = 0;
    __syncthreads();
    if (threadIdx.x == 0) *sum += 1;
    __syncthreads();
    out[threadIdx.x] = *sum;
}

/* ---- global memory --------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS) write_kernel(float *out, int at)
{
    if (threadIdx.x == 5) out[at] = 1;
}

static __global__ void __launch_bounds__(THREADS) read_kernel(float *out, const float *x, int at)
{
    if (threadIdx.x == 5) out[0] = x[at];
}

/* Reads four floats at once from x + at. */
static __global__ void __launch_bounds__(THREADS) vector_kernel(float *out, const float *x, int at)
{
    float4 v = *reinterpret_cast<const float4 *>(x + at);
    out[threadIdx.x] = v.x + v.w;
}

/* Stores four words at out + at or, if at < 0, at the start of shared memory. */
static __global__ void __launch_bounds__(THREADS) pack_store_kernel(float *out, int at)
{
    DYN_SHARED(float, shared);
    uint32_t word[4] = {0, 0, 0, 0};
    store_words(at < 0 ? shared : out + at, word);
}

/* ---- asynchronous copies --------------------------------------------------------------------- */

/* out = x (2, THREADS * 4) in two groups of copies. LEFT groups may be incomplete when the second
 * is read; only 0 is correct. */
template <int LEFT>
__global__ void __launch_bounds__(THREADS) copy_kernel(float *out, const float *x)
{
    DYN_SHARED(float, shared);
    const int half = THREADS * 4;
    int at = threadIdx.x * 4;
    for (int i = 0; i < 2; i++) {
        cp_async_16(shared + i * half + at, x + i * half + at);
        cp_async_commit();
    }
    cp_async_wait<1>();
    __syncthreads();
    for (int i = threadIdx.x; i < half; i += THREADS)
        out[i] = shared[i];
    cp_async_wait<LEFT>();
    __syncthreads();
    for (int i = threadIdx.x; i < half; i += THREADS)
        out[half + i] = shared[half + i];
    cp_async_wait<0>();
}

static __global__ void __launch_bounds__(THREADS) copy_forgotten_kernel(const float *x)
{
    DYN_SHARED(float, shared);
    cp_async_16(shared + threadIdx.x * 4, x + threadIdx.x * 4);
    cp_async_commit();
}

/* Each thread copies 0, 4, 8, 12 or 16 bytes; the rest of its 16 bytes must become zeros. */
static __global__ void __launch_bounds__(THREADS) copy_part_kernel(float *out, const float *x)
{
    DYN_SHARED(float, shared);
    int at = threadIdx.x * 4;
    cp_async_16(shared + at, x + at, (int)(threadIdx.x % 5) * 4);
    cp_async_commit();
    cp_async_wait<0>();
    for (int i = 0; i < 4; i++)
        out[at + i] = shared[at + i];
}

static __global__ void __launch_bounds__(THREADS) copy_misaligned_kernel(const float *x)
{
    DYN_SHARED(float, shared);
    cp_async_16(shared + threadIdx.x * 4, x + threadIdx.x * 4 + 1);
}

/* ---- fragments ------------------------------------------------------------------------------- */

typedef enum { FRAGMENT_RIGHT, FRAGMENT_SWAPPED, FRAGMENT_NOT_TRANSPOSED, ROW_MISALIGNED } Layout;

/* d (16, 8) = a (16, 16) b (16, 8), all row-major, by one warp and one mma. */
template <class T, Layout LAYOUT>
__global__ void __launch_bounds__(WARP) fragment_kernel(float *d, const T *a, const T *b)
{
    DYN_SHARED(T, shared);
    int lane = threadIdx.x;
    for (int i = lane; i < 16 * 24; i += WARP)
        shared[i] = i < 256 ? a[i] : b[i - 256];
    __syncwarp();
    uint32_t fa[4], fb[2];
    float fd[4] = {0, 0, 0, 0};
    ldmatrix_4(fa, shared + lane % 16 * 16 + lane / 16 * 8 + (LAYOUT == ROW_MISALIGNED ? 4 : 0));
    if (LAYOUT == FRAGMENT_NOT_TRANSPOSED)
        ldmatrix_2(fb, shared + 256 + lane % 16 * 8);
    else
        ldmatrix_2_trans(fb, shared + 256 + lane % 16 * 8);
    if (LAYOUT == FRAGMENT_SWAPPED) {
        uint32_t keep = fa[1];
        fa[1] = fa[2];
        fa[2] = keep;
    }
    mma<T>(fd, fa, fb[0], fb[1]);
    for (int i = 0; i < 4; i++)
        d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = fd[i];
}

/* Only half of the warp takes part in the product. */
static __global__ void __launch_bounds__(WARP) half_product_kernel(float *d)
{
    uint32_t a[4] = {0, 0, 0, 0};
    float sum[4] = {0, 0, 0, 0};
    if (threadIdx.x < 16) mma<bf16>(sum, a, 0, 0);
    d[threadIdx.x] = sum[0];
}

/* Uses an accumulator as an A fragment: d (16, 8) = (a b) c for a, b (16, 16), c (16, 8),
 * row-major. */
template <class T>
__global__ void __launch_bounds__(WARP) chain_kernel(float *d, const T *a, const T *b, const T *c)
{
    DYN_SHARED(T, shared);
    int lane = threadIdx.x;
    for (int i = lane; i < 16 * 40; i += WARP)
        shared[i] = i < 256 ? a[i] : i < 512 ? b[i - 256] : c[i - 512];
    __syncwarp();
    uint32_t fa[4], fb[4], fc[2];
    float left[4] = {0, 0, 0, 0}, right[4] = {0, 0, 0, 0}, fd[4] = {0, 0, 0, 0};
    ldmatrix_4(fa, shared + lane % 16 * 16 + lane / 16 * 8);
    ldmatrix_4_trans(fb, shared + 256 + lane % 16 * 16 + lane / 16 * 8);
    ldmatrix_2_trans(fc, shared + 512 + lane % 16 * 8);
    mma<T>(left, fa, fb[0], fb[1]);
    mma<T>(right, fa, fb[2], fb[3]);
    uint32_t product[4] = {pair<T>(left[0], left[1]), pair<T>(left[2], left[3]),
                           pair<T>(right[0], right[1]), pair<T>(right[2], right[3])};
    mma<T>(fd, product, fc[0], fc[1]);
    for (int i = 0; i < 4; i++)
        d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = fd[i];
}

#endif
