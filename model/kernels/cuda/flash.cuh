/* flash.cuh -- contains the parts of attention on tensor cores: copying tiles of 16-bit elements to
 * shared memory, and multiplying a warp's rows by such a tile. The algorithm is FlashAttention-2
 * (Dao, arXiv:2307.08691), in the form in which warps exchange no data.
 *
 * A block owns rows: queries, or keys when it computes dk and dv. Each of its warps owns 16 MT
 * rows. The block loops over tiles of the other side's rows, called the walked rows here. A warp's
 * scores (owned rows by walked rows) are the accumulators of one product. Rounded to T, they are
 * the left operand of the next product, which sums over the walked rows. So forward and backward
 * both consist of two kinds of product:
 *
 *   scores (owned, walked)  = owned (owned, D) times the walked tile's transpose
 *   sum    (owned, D)      += weights (owned, walked) times a walked tile
 *
 * Let g = lane / 4 and t = lane % 4. Of every 8 columns of an accumulator, a thread holds columns
 * 2t and 2t + 1: those of row g in elements 0 and 1, those of row g + 8 in elements 2 and 3. */
#ifndef MODEL_KERNELS_CUDA_FLASH_CUH
#define MODEL_KERNELS_CUDA_FLASH_CUH

#include "model/kernels/cuda/attention.cuh"
#include "model/kernels/cuda/ptx.cuh"

/* Number of 16-bit elements that one asynchronous copy moves. */
enum { CHUNK = 8 };

/* Row stride of a tile in elements. Each row is padded by 16 bytes, so that 8 consecutive rows
 * start in different banks of shared memory. */
#define FLASH_LD(cols) ((cols) + CHUNK)

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

/* The same for widths whose rows take a number of chunks that does not divide the threads. */
template <class T, int D, int ROWS, int N_THREADS>
__device__ __forceinline__ void tile_copy_odd(T *tile, const T *from, int64_t ld, int real,
                                              int cols)
{
    enum { CHUNKS = D / CHUNK };
#pragma unroll 1
    for (int i = 0; i < (ROWS * CHUNKS + N_THREADS - 1) / N_THREADS; i++) {
        int at = i * N_THREADS + threadIdx.x, row = at / CHUNKS, col = at % CHUNKS * CHUNK;
        if (ROWS * CHUNKS % N_THREADS != 0 && row >= ROWS) break;
        bool there = row < real && col < cols;
        cp_async_16(tile + row * FLASH_LD(D) + col, there ? from + row * ld + col : from,
                    there ? 16 : 0);
    }
}

/* Starts an asynchronous copy of ROWS rows of `cols` columns into a tile of D columns. Fills the
 * columns from `cols` on and the rows from `real` on with zeros. `real` must be positive and `cols`
 * a multiple of CHUNK. All threads of the block must call it. */
template <class T, int D, int ROWS, int N_THREADS>
__device__ __forceinline__ void tile_copy(T *tile, const T *from, int64_t ld, int real, int cols)
{
    enum { CHUNKS = D / CHUNK, LD = FLASH_LD(D) };
    if constexpr (N_THREADS % CHUNKS != 0) {
        tile_copy_odd<T, D, ROWS, N_THREADS>(tile, from, ld, real, cols);
    } else {
        /* A thread copies chunks of one column, STEP rows apart, so from one chunk to the next its
         * pointers only need an addition. */
        enum { STEP = N_THREADS / CHUNKS, COPIES = ROWS / STEP };
        static_assert(ROWS % STEP == 0, "every thread copies the same number of chunks");
        int row = threadIdx.x / CHUNKS, col = threadIdx.x % CHUNKS * CHUNK;
        T *to = tile + row * LD + col;
        if (real >= ROWS && cols == D) {
            from += row * ld + col;
#pragma unroll
            for (int i = 0; i < COPIES; i++, from += STEP * ld)
                cp_async_16(to + i * STEP * LD, from);
            return;
        }
        /* A copy of 0 bytes fills 16 bytes with zeros. It does not read its source, but the source
         * address must still be valid, so `from` does not advance past the last row. */
        bool inside = col < cols;
        from += (row < real ? row * ld : 0) + (inside ? col : 0);
#pragma unroll 1
        for (int i = 0; i < COPIES; i++, row += STEP) {
            cp_async_16(to + i * STEP * LD, from, inside && row < real ? 16 : 0);
            if (row + STEP < real) from += STEP * ld;
        }
    }
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

#endif
