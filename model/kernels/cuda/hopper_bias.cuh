/* hopper_bias.cuh -- sums the columns of the gradients that the kernels of attention backward for
 * Hopper store. These sums are the gradients of the biases that were added to q, k and v.
 *
 * A gradient passes through a tile in shared memory on its way to global memory (group_rows_store),
 * so its columns are summed there, as stored. This needs neither another pass nor registers during
 * the loops before. The sum of a column has two stages of fixed order: each warpgroup adds up its
 * 64 rows, and cuda_partials_sum then adds up the warpgroups' sums. */
#ifndef MODEL_KERNELS_CUDA_HOPPER_BIAS_CUH
#define MODEL_KERNELS_CUDA_HOPPER_BIAS_CUH

#include "model/kernels/cuda/hopper.cuh"

/* Where the first stage puts its sums: row b * tiles + i of `sums` is for the rows of batch row b
 * from 64 i on. Rows of `sums` are ld elements apart. `sums` is NULL if the kernels must not sum
 * the columns: the gradients of the biases are not requested, or the workspace has no room for
 * these sums. */
struct BiasPartials {
    float *sums;
    int64_t ld;
    int tiles;
};

/* Sums the columns of the warpgroup's tile, of which the first `real` rows exist. The tile holds
 * the rows of batch row b from `row` on and the columns from `column` on, which determines where in
 * `to` the sums are stored. The tile must be as group_rows_store has left it; it is overwritten.
 * All threads of the warpgroup must call this function. `barrier` is the number of a named barrier
 * of the warpgroup. */
template <class T, int D>
static __device__ __forceinline__ void columns_sum(const BiasPartials &to, unsigned char *tile,
                                                   int64_t b, int row, int column, int real,
                                                   int barrier)
{
    enum { PANELS = D / PANEL, WARP_BYTES = 16 * PANEL_ROW };
    int lane = threadIdx.x % WARP, warp = (int)threadIdx.x % WARPGROUP / WARP;
    int me = threadIdx.x % WARPGROUP;
    unsigned char *mine = tile + warp * WARP_BYTES;
    float sum[PANELS][2] = {};
    /* A lane adds two columns of each panel. In each row it reads the 4 bytes of its columns from
     * where the swizzle has put them. */
#pragma unroll 1
    for (int r = 0; r < min(real - warp * 16, 16); r++)
#pragma unroll
        for (int p = 0; p < PANELS; p++) {
            float x[2];
            load(x, (const T *)(mine + p * GROUP_ROWS * PANEL_ROW + r * PANEL_ROW +
                                (lane / 4 ^ r % 8) * 16 + lane % 4 * 4));
            sum[p][0] += x[0];
            sum[p][1] += x[1];
        }
    __syncwarp();
#pragma unroll
    for (int p = 0; p < PANELS; p++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            ((float *)mine)[p * PANEL + lane * 2 + e] = sum[p][e];
    named_barrier_sync(barrier, WARPGROUP);
    if (me >= D) return;
    float total = 0;
#pragma unroll
    for (int w = 0; w < GROUP_WARPS; w++)
        total += ((const float *)(tile + w * WARP_BYTES))[me];
    to.sums[(b * to.tiles + row / GROUP_ROWS) * to.ld + column + me] = total;
}

#endif
