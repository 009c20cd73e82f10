/* flash.cuh -- attention on tensor cores: tiles of 16-bit elements in shared memory and products of
 * a warp's rows with them. Dao, arXiv:2307.08691, in the form that needs no exchange between warps.
 *
 * A block owns rows (queries, or keys for dk and dv), 16 MT of them to each warp, and walks over
 * tiles of the other side's rows. A warp's scores, owned rows by walked rows, are accumulators of
 * one product; rounded to T they are the left operand of the next, which sums over the walked rows.
 * So both directions are made of two products:
 *
 *   scores (owned, walked)  = owned (owned, D) times the walked tile's transpose
 *   sum    (owned, D)      += weights (owned, walked) times a walked tile
 *
 * With g = lane / 4 and t = lane % 4 a thread has, of each 8 columns of an accumulator, columns
 * 2t and 2t + 1 of rows g (elements 0, 1) and g + 8 (elements 2, 3). */
#ifndef MODEL_KERNELS_CUDA_FLASH_CUH
#define MODEL_KERNELS_CUDA_FLASH_CUH

#include "model/kernels/cuda/attention.cuh"
#include "model/kernels/cuda/ptx.cuh"

/* Elements that one asynchronous copy moves. */
enum { CHUNK = 8 };

/* Elements from row to row of a tile: 16 bytes more than the row, so that 8 rows of a matrix start
 * in different banks. */
#define FLASH_LD(cols) ((cols) + CHUNK)

#define LOG2E 1.4426950408889634f

/* The lane's pointer into a 16 x 16 piece of a tile, for ldmatrix_4, which makes the piece a left
 * operand, and for ldmatrix_4_trans, which makes it two right operands of a product with the tile.
 */
template <class T> __device__ __forceinline__ const T *lane_rows(const T *tile, int ld)
{
    /* Lanes 8i to 8i + 7 name the rows of matrix i, which comes in register i; a left operand wants
     * the upper rows, the lower rows, then both again 8 columns further. */
    int lane = threadIdx.x % WARP;
    return tile + lane % 16 * ld + lane / 16 * 8;
}

/* The same for ldmatrix_4 where the piece is to be two right operands of a product with the tile's
 * transpose. */
template <class T> __device__ __forceinline__ const T *lane_columns(const T *tile, int ld)
{
    /* A right operand is two registers, 8 columns apart on the same 8 rows: so columns go first
     * here. */
    int lane = threadIdx.x % WARP;
    return tile + (lane / 16 * 8 + lane % 8) * ld + lane / 8 % 2 * 8;
}

/* Starts to copy `rows` rows of `cols` columns, D with zeros after them, into a tile; rows from
 * `real` on are zeros. real > 0; cols is a multiple of CHUNK. All threads of the block call it. */
template <class T, int D, int ROWS, int N_THREADS>
__device__ __forceinline__ void tile_copy(T *tile, const T *from, int64_t ld, int real, int cols)
{
    enum { CHUNKS = D / CHUNK };
#pragma unroll 1
    for (int i = 0; i < (ROWS * CHUNKS + N_THREADS - 1) / N_THREADS; i++) {
        int at = i * N_THREADS + threadIdx.x, row = at / CHUNKS, col = at % CHUNKS * CHUNK;
        if (ROWS * CHUNKS % N_THREADS != 0 && row >= ROWS) break;
        /* A copy of 0 bytes writes zeros, and its address, though not read, must be a valid one. */
        bool there = row < real && col < cols;
        cp_async_16(tile + row * FLASH_LD(D) + col, there ? from + row * ld + col : from,
                    there ? 16 : 0);
    }
}

/* s (16 MT, 8 NT) += a (16 MT, D) times the transpose of b (8 NT, D); a from lane_rows of the
 * warp's first row, b from lane_columns. */
template <class T, int D, int MT, int NT>
__device__ __forceinline__ void product_transposed(float (&s)[MT][NT][4], const T *a, const T *b)
{
    /* a, too, is read anew for every walked tile: kept, it would take D MT / 4 registers. Each load
     * of b serves the MT rows of tiles that the warp owns. */
#pragma unroll 8
    for (int k = 0; k < D; k += 16) {
        uint32_t x[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
            ldmatrix_4(x[m], a + m * 16 * FLASH_LD(D) + k);
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

/* sum (16 MT, 8 CT) += weights (16 MT, 8 NT), rounded to T, times b (8 NT, 8 CT of D columns); b
 * from lane_rows. */
template <class T, int D, int MT, int NT, int CT>
__device__ __forceinline__ void product_weighed(float (&sum)[MT][CT][4],
                                                const float (&weights)[MT][NT][4], const T *b)
{
#pragma unroll
    for (int n = 0; n < NT; n += 2) {
        /* A lane's part of two accumulators side by side is its part of a left operand of 16
         * columns: the weights need no exchange and no shared memory, only rounding. */
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

/* The sum over the four lanes that share rows, with the same bits in all of them: neighbours first,
 * and a + b is b + a. */
static __device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* The warp's rows of a tile, 8 CT columns, to (real, cols) of memory, or from there. */
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

/* The warp's rows of the result: to (real, cols) =/+= factor[row] * sum (16 MT, 8 CT), rounded
 * once, in whole rows by way of `stage`, 16 MT rows of a tile that only this warp still uses. */
template <class T, int D, int MT, int CT>
__device__ __forceinline__ void rows_store(T *to, int64_t ld, int real, int cols, T *stage,
                                           const float (&sum)[MT][CT][4],
                                           const float (&factor)[MT][2], bool accumulate)
{
    /* A lane has 4 bytes of a row here and 4 there; by way of the tile rows leave in 16 bytes a
     * lane. The barriers are the warp's: nobody else uses these rows. */
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

#endif
