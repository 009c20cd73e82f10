/* ordered_sum.cuh -- sums doubles in ascending order, rounding after every addition, with a whole
 * block. The result has the same bits as a single thread that adds one number after the other, but
 * does not wait for each addition. So the sum equals the CPU's and does not depend on how the
 * numbers are split into calls.
 *
 * A total in the binade [2^e, 2^(e + 1)) equals T u, where u = 2^(e - 52) and T is an integer of 53
 * bits. While the total stays in the binade, adding x >= 0 increases T by x / u, rounded to an
 * integer. This step depends on T only if x / u is halfway between two integers: then the new T is
 * even. So a number acts as a function from the parity of T to a step. Such functions can be
 * composed in any grouping: here as a tree, in exact integers.
 *
 * A tile of numbers is added one by one if the total leaves the binade, or if a number is negative
 * or not finite. A growing sum leaves a binade once for each power of two. */
#ifndef MODEL_KERNELS_CUDA_ORDERED_SUM_CUH
#define MODEL_KERNELS_CUDA_ORDERED_SUM_CUH

#include "model/kernels/cuda/kernel.cuh"

#include <math.h>
#include <string.h>

enum { ORDERED_THREADS = 1024 };

static_assert(ORDERED_THREADS == WARP * WARP,
              "a block has a warp for each lane of the warp that composes their steps");

/* The steps by which T increases: `even` if T is even, `odd` if T is odd. */
typedef struct {
    int64_t even, odd;
} Steps;

/* Shared memory of the kernel: a tile of numbers, sums over the block, and the steps of its warps.
 */
typedef struct {
    double number[ORDERED_THREADS], sums[WARP];
    Steps steps[WARP];
} OrderedShared;

/* Returns the composition of two functions: a is applied first, then b. */
static __device__ __forceinline__ Steps steps_then(Steps a, Steps b)
{
    /* If a's step is odd, it changes the parity of the T to which b is applied. */
    Steps both;
    both.even = a.even + (a.even % 2 ? b.odd : b.even);
    both.odd = a.odd + (a.odd % 2 ? b.even : b.odd);
    return both;
}

/* Returns the steps of a number that equals y units. If the number cannot be represented as steps,
 * returns a step that is certain to leave the binade. */
static __device__ __forceinline__ Steps steps_of(double y)
{
    /* T is at least 2^52, so this step takes it to 2^53 or beyond. The sum of a whole tile of such
     * steps is still below 2^63. */
    Steps steps = {(int64_t)1 << 52, (int64_t)1 << 52};
    if (!(y >= 0.0 && y < 0x1p52)) return steps;
    int64_t whole = (int64_t)y, up = y - (double)whole > 0.5;
    bool half = y - (double)whole == 0.5;
    /* Halfway cases round to the even sum: if T + whole is odd, the step rounds up. */
    steps.even = whole + (half ? whole % 2 : up);
    steps.odd = whole + (half ? 1 - whole % 2 : up);
    return steps;
}

/* Composes the steps of the warp's lanes in order. Lane 0 gets the result. */
static __device__ __forceinline__ Steps warp_steps(Steps mine)
{
    /* Composition is associative, but its order matters: a lane appends the steps of later lanes,
     * never those of earlier ones. The last lanes have no later lanes, so only lane 0 gets the
     * complete result. */
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        Steps next;
        next.even = __shfl_down_sync(0xffffffffu, mine.even, step);
        next.odd = __shfl_down_sync(0xffffffffu, mine.odd, step);
        mine = steps_then(mine, next);
    }
    return mine;
}

/* Returns 1 / u = 2^52 / 2^e for a total in the binade e. Returns 0 if the total is not positive
 * and finite, or is extremely large or small. */
static __device__ __forceinline__ double units_per_one(double total)
{
    /* These bounds are far from the limits of double, so the scale and its inverse are normal
     * numbers. */
    if (!(total > 0x1p-900 && total < 0x1p900)) return 0.0;
    uint64_t bits;
    memcpy(&bits, &total, sizeof bits);
    bits = (uint64_t)(2 * 1023 + 52) * (1ull << 52) - (bits & 0x7ff0000000000000u);
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

/* Returns the total after adding the threads' numbers x in order, in every thread. `count` of the
 * numbers are valid. */
static __device__ double ordered_tile(double total, double x, int count, OrderedShared *shared)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    /* The scale is a power of two. So x * scale is exact, unless it is so large or so small that
     * the error does not matter. */
    double scale = units_per_one(total);
    Steps steps = warp_steps(steps_of(x * scale));
    if (lane == 0) shared->steps[warp] = steps;
    shared->number[threadIdx.x] = x;
    __syncthreads();
    if (warp == 0) {
        steps = warp_steps(shared->steps[lane]);
        if (lane == 0) {
            /* In units of its last bit the total is an integer, and so is every step. The sum is
             * exact while it stays below 2^53. Otherwise this thread adds the numbers of the tile
             * one by one, as a CPU would. */
            int64_t t = scale != 0.0 ? (int64_t)(total * scale) : 0;
            t += t % 2 ? steps.odd : steps.even;
            /* T never decreases. So if it ends in the binade, it has never left it. */
            bool stays = scale != 0.0 && t < (int64_t)1 << 53;
            for (int i = 0; !stays && i < count; i++)
                total += shared->number[i];
            shared->sums[0] = stays ? (double)t / scale : total;
        }
    }
    __syncthreads();
    total = shared->sums[0];
    __syncthreads(); /* all threads have read the total before the next tile overwrites it */
    return total;
}

/* Returns x[i] and increments *counted. If i is out of range or the target is negative, returns 0,
 * which does not change the total. */
template <class X>
static __device__ __forceinline__ double ordered_number(const X *x, const int32_t *targets,
                                                        int64_t i, int64_t n, int64_t *counted)
{
    if (i >= n || (targets && targets[i] < 0)) return 0.0;
    ++*counted;
    return (double)x[i];
}

/* Adds x[0], ..., x[n - 1] to sum[0] in ascending order. If there are targets, skips every x with a
 * negative target and adds the number of the others to sum[1]. Runs in one block, whose speed is
 * limited by latency; it therefore loads the next tile while it adds the current one. */
template <class X>
static __global__ void __launch_bounds__(ORDERED_THREADS)
    ordered_sum_kernel(double *sum, const X *x, const int32_t *targets, int64_t n)
{
    DYN_SHARED(OrderedShared, shared);
    double total = sum[0];
    int64_t counted = 0;
    double next = ordered_number(x, targets, threadIdx.x, n, &counted);
    for (int64_t first = 0; first < n; first += ORDERED_THREADS) {
        int count = n - first < ORDERED_THREADS ? (int)(n - first) : (int)ORDERED_THREADS;
        double number = next; /* the next tile is loaded while this one is added */
        next = ordered_number(x, targets, first + ORDERED_THREADS + threadIdx.x, n, &counted);
        total = ordered_tile(total, number, count, shared);
    }
    double all = block_sum((double)counted, shared->sums);
    if (threadIdx.x != 0) return;
    sum[0] = total;
    if (targets) sum[1] += all;
}

#endif
