/* ordered_sum.cuh -- sums of doubles in ascending order, rounded after every addition, by a whole
 * block: the bits of one thread that adds number after number, without waiting for each. So a sum
 * does not depend on how its numbers are cut into calls, and equals the CPU's.
 *
 * A total in [2^e, 2^(e + 1)) is T u with u = 2^(e - 52) and T an integer of 53 bits, and stays one
 * while it stays in that binade. Adding x >= 0 moves T by x / u, rounded; only where that lies
 * halfway between two integers does the step depend on T: the new T is even. So a number is a
 * function from T's parity to a step, and functions are composed in any grouping, here as a tree,
 * in exact integers. A tile of numbers that leaves the binade, or in which one is negative or not
 * finite, is added one by one: sums that grow do so for one tile in each power of two. */
#ifndef MODEL_KERNELS_CUDA_ORDERED_SUM_CUH
#define MODEL_KERNELS_CUDA_ORDERED_SUM_CUH

#include "model/kernels/cuda/kernel.cuh"

#include <math.h>
#include <string.h>

enum { ORDERED_THREADS = 1024 };

/* How far T moves from an even and from an odd T. */
typedef struct {
    int64_t even, odd;
} Steps;

/* Shared memory of the kernel: a tile of numbers, the steps of its warps, sums over the block. */
typedef struct {
    double number[ORDERED_THREADS], sums[WARP];
    Steps steps[WARP];
} OrderedShared;

/* First a, then b. */
static __device__ __forceinline__ Steps steps_then(Steps a, Steps b)
{
    /* An odd step leaves the parity that b meets changed. */
    Steps both;
    both.even = a.even + (a.even % 2 ? b.odd : b.even);
    both.odd = a.odd + (a.odd % 2 ? b.even : b.odd);
    return both;
}

/* The steps of a number of y units; out of the binade when there are no such. */
static __device__ __forceinline__ Steps steps_of(double y)
{
    /* T is 2^52 at least, so this step takes it to 2^53 or beyond; and a whole tile of such steps
     * is below 2^63. */
    Steps steps = {(int64_t)1 << 52, (int64_t)1 << 52};
    if (!(y >= 0.0 && y < 0x1p52)) return steps;
    int64_t whole = (int64_t)y, up = y - (double)whole > 0.5;
    bool half = y - (double)whole == 0.5;
    /* Halfway: to the even sum, which is up from an odd one. */
    steps.even = whole + (half ? whole % 2 : up);
    steps.odd = whole + (half ? 1 - whole % 2 : up);
    return steps;
}

/* The steps of the warp's lanes one after the other, in lane 0. */
static __device__ __forceinline__ Steps warp_steps(Steps mine)
{
    /* Composition is associative but keeps its order: a lane takes what follows it, never what goes
     * before. Lanes near the end have no such followers, and lane 0 alone is complete. */
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        Steps next;
        next.even = __shfl_down_sync(0xffffffffu, mine.even, step);
        next.odd = __shfl_down_sync(0xffffffffu, mine.odd, step);
        mine = steps_then(mine, next);
    }
    return mine;
}

/* 2^52 / 2^e = 1 / u of a total in the binade e; 0 where it is in none, or far out. */
static __device__ __forceinline__ double units_per_one(double total)
{
    /* Bounds far from the range's ends: the scale and its inverse are then normal numbers. */
    if (!(total > 0x1p-900 && total < 0x1p900)) return 0.0;
    uint64_t bits;
    memcpy(&bits, &total, sizeof bits);
    bits = (uint64_t)(2 * 1023 + 52) * (1ull << 52) - (bits & 0x7ff0000000000000u);
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

/* The total after adding the threads' numbers x, of which `count` are there, in order; in every
 * thread. */
static __device__ double ordered_tile(double total, double x, int count, OrderedShared *shared)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    /* A power of two: x scale is exact, or so large or so small that it does not matter. */
    double scale = units_per_one(total);
    Steps steps = warp_steps(steps_of(x * scale));
    if (lane == 0) shared->steps[warp] = steps;
    shared->number[threadIdx.x] = x;
    __syncthreads();
    if (warp == 0) {
        steps = warp_steps(shared->steps[lane]);
        if (lane == 0) {
            /* In units of its last bit the total is an integer, and so is every step: exact, as
             * long as it stays below 2^53. Else this thread adds the tile's numbers as a CPU would.
             */
            int64_t t = scale != 0.0 ? (int64_t)(total * scale) : 0;
            t += t % 2 ? steps.odd : steps.even;
            /* What was added never takes T down, so if it ends in the binade it never left it. */
            bool stays = scale != 0.0 && t < (int64_t)1 << 53;
            for (int i = 0; !stays && i < count; i++)
                total += shared->number[i];
            shared->sums[0] = stays ? (double)t / scale : total;
        }
    }
    __syncthreads();
    total = shared->sums[0];
    __syncthreads(); /* all have read it before the next tile writes */
    return total;
}

/* x[i] where it counts, else 0, which moves no total. */
template <class X>
static __device__ __forceinline__ double ordered_number(const X *x, const int32_t *targets,
                                                        int64_t i, int64_t n, int64_t *counted)
{
    if (i >= n || (targets && targets[i] < 0)) return 0.0;
    ++*counted;
    return (double)x[i];
}

/* sum[0] += x[0] + ... + x[n - 1] in ascending order. With targets those x whose target is negative
 * are left out, and sum[1] += the number of the others. One block, the next tile's numbers under
 * way meanwhile; bound by latency. */
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
        double number = next; /* loads of the next tile run while this one is added */
        next = ordered_number(x, targets, first + ORDERED_THREADS + threadIdx.x, n, &counted);
        total = ordered_tile(total, number, count, shared);
    }
    double all = block_sum((double)counted, shared->sums);
    if (threadIdx.x != 0) return;
    sum[0] = total;
    if (targets) sum[1] += all;
}

#endif
