/* flash_product.cuh -- multiplies a warp's rows by a tile in shared memory, for attention on tensor
 * cores. flash.cuh explains how accumulators are spread over the lanes. */
#ifndef MODEL_KERNELS_CUDA_FLASH_PRODUCT_CUH
#define MODEL_KERNELS_CUDA_FLASH_PRODUCT_CUH

#include "model/kernels/cuda/flash_copy.cuh"

/* Returns the address that this lane passes to ldmatrix_4 or ldmatrix_4_trans to load a 16 x 16
 * piece of a tile. ldmatrix_4 loads the piece as a left operand. ldmatrix_4_trans loads it as two
 * right operands of a product with the tile. */
template <class T> __device__ __forceinline__ const T *lane_rows(const T *tile, int ld)
{
    /* Lanes 8i to 8i + 7 give the row addresses of 8 x 8 matrix i, which is loaded into register i.
     * A left operand needs the upper 8 rows, then the lower 8 rows, then the same rows 8 columns
     * further right. */
    int lane = threadIdx.x % WARP;
    return tile + lane % 16 * ld + lane / 16 * 8;
}

/* Returns the address that this lane passes to ldmatrix_4 to load a 16 x 16 piece of a tile as two
 * right operands of a product with the tile's transpose. */
template <class T> __device__ __forceinline__ const T *lane_columns(const T *tile, int ld)
{
    /* The two registers of a right operand hold the same 8 rows, 8 columns apart. So the addresses
     * step through columns before rows. */
    int lane = threadIdx.x % WARP;
    return tile + (lane / 16 * 8 + lane % 8) * ld + lane / 8 % 2 * 8;
}

/* The left operand of product_transposed: 16 MT rows of D columns of a tile. The first 16 HELD
 * columns are kept in registers, 4 MT HELD of them; the others are loaded again for every product.
 */
template <class T, int D, int MT, int HELD> struct LeftRows {
    const T *rows; /* result of lane_rows for the first row */
    uint32_t held[HELD > 0 ? HELD : 1][MT][4];
};

template <class T, int D, int MT, int HELD>
__device__ __forceinline__ void rows_hold(LeftRows<T, D, MT, HELD> &a, const T *tile)
{
    a.rows = lane_rows(tile, FLASH_LD(D));
#pragma unroll
    for (int k = 0; k < HELD; k++)
#pragma unroll
        for (int m = 0; m < MT; m++)
            ldmatrix_4(a.held[k][m], a.rows + m * 16 * FLASH_LD(D) + k * 16);
}

/* Adds a product to s (16 MT, 8 NT): a (16 MT, D) times the transpose of b (8 NT, D). `b` is the
 * result of lane_columns. Every load of b is used for all MT groups of 16 rows. */
template <class T, int D, int MT, int NT, int HELD>
__device__ __forceinline__ void product_transposed(float (&s)[MT][NT][4],
                                                   const LeftRows<T, D, MT, HELD> &a, const T *b)
{
#pragma unroll HELD ? D / 16 : 8
    for (int k = 0; k < D; k += 16) {
        uint32_t x[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
            if (k < 16 * HELD)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    x[m][i] = a.held[k / 16][m][i];
            else
                ldmatrix_4(x[m], a.rows + m * 16 * FLASH_LD(D) + k);
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            uint32_t y[4];
            ldmatrix_4(y, b + n * 8 * FLASH_LD(D) + k);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma<T>(s[m][n], x[m], y[0], y[1]);
                mma<T>(s[m][n + 1], x[m], y[2], y[3]);
            }
        }
    }
}

/* Adds weights (16 MT, 8 NT), rounded to T, times b (8 NT, 8 CT of its D columns) to sum (16 MT, 8
 * CT). `b` is the result of lane_rows. */
template <class T, int D, int MT, int NT, int CT>
__device__ __forceinline__ void product_weighed(float (&sum)[MT][CT][4],
                                                const float (&weights)[MT][NT][4], const T *b)
{
#pragma unroll
    for (int n = 0; n < NT; n += 2) {
        /* Two adjacent accumulators are distributed over the lanes in the same way as a left
         * operand of 16 columns. So the weights only need to be rounded: no exchange between lanes
         * and no shared memory. */
        uint32_t x[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[m][i] =
                    pair<T>(weights[m][n + i / 2][i % 2 * 2], weights[m][n + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int c = 0; c < CT; c += 2) {
            uint32_t y[4];
            ldmatrix_4_trans(y, b + n * 8 * FLASH_LD(D) + c * 8);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma<T>(sum[m][c], x[m], y[0], y[1]);
                mma<T>(sum[m][c + 1], x[m], y[2], y[3]);
            }
        }
    }
}

#endif
