/* flash_store.cuh -- stores the rows of a result of attention on tensor cores. */
#ifndef MODEL_KERNELS_CUDA_FLASH_STORE_CUH
#define MODEL_KERNELS_CUDA_FLASH_STORE_CUH

#include "model/kernels/cuda/flash_copy.cuh"

/* Returns the sum of x over the four lanes that hold the same rows. All four get the same bits,
 * because each step adds the same two numbers and addition is commutative. */
static __device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Copies the warp's rows of a tile, 8 CT columns wide, to global memory if TO, otherwise from
 * there. In memory the matrix has `real` rows and `cols` columns; elements outside it are skipped.
 */
template <class T, int D, int MT, int CT, bool TO>
__device__ __forceinline__ void rows_move(T *memory, int64_t ld, int real, int cols, T *stage)
{
#pragma unroll 1
    for (int i = threadIdx.x % WARP; i < 16 * MT * CT; i += WARP) {
        int row = i / CT, col = i % CT * CHUNK;
        if (row >= real || col >= cols) continue;
        Pack<T, CHUNK> *outside = (Pack<T, CHUNK> *)(memory + row * ld + col);
        Pack<T, CHUNK> *inside = (Pack<T, CHUNK> *)(stage + row * FLASH_LD(D) + col);
        if (TO)
            *outside = *inside;
        else
            *inside = *outside;
    }
    __syncwarp();
}

/* Stores the warp's rows of the result, rounded once: to (real, cols) = factor[row] * sum (16 MT, 8
 * CT), or += with accumulate. The rows pass through `stage`: 16 MT rows of a tile in shared memory
 * that no other warp uses any more. */
template <class T, int D, int MT, int CT>
__device__ __forceinline__ void rows_store(T *to, int64_t ld, int real, int cols, T *stage,
                                           const float (&sum)[MT][CT][4],
                                           const float (&factor)[MT][2], bool accumulate)
{
    /* A lane's elements are scattered in pieces of 4 bytes. After passing through the tile, each
     * lane stores 16 adjacent bytes. Synchronising the warp is enough, because no other warp uses
     * these rows. */
    __syncwarp();
    if (accumulate) rows_move<T, D, MT, CT, false>(to, ld, real, cols, stage);
    T *mine = stage + threadIdx.x % WARP / 4 * FLASH_LD(D) + threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int c = 0; c < CT; c++) {
                T *at = mine + (m * 16 + i * 8) * FLASH_LD(D) + c * 8;
                float x[2] = {0, 0};
                if (accumulate) load(x, at);
                x[0] += sum[m][c][i * 2] * factor[m][i];
                x[1] += sum[m][c][i * 2 + 1] * factor[m][i];
                store(at, x);
            }
    __syncwarp();
    rows_move<T, D, MT, CT, true>(to, ld, real, cols, stage);
}

/* Like the function above, with one factor for all rows. */
template <class T, int D, int MT, int CT>
__device__ __forceinline__ void rows_store(T *to, int64_t ld, int real, int cols, T *stage,
                                           const float (&sum)[MT][CT][4], float factor,
                                           bool accumulate)
{
    float factors[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++)
        factors[m][0] = factors[m][1] = factor;
    rows_store<T, D>(to, ld, real, cols, stage, sum, factors, accumulate);
}

#endif
