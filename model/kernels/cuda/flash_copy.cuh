/* flash_copy.cuh -- copies tiles of 16-bit elements to shared memory, for attention on tensor
 * cores.
 */
#ifndef MODEL_KERNELS_CUDA_FLASH_COPY_CUH
#define MODEL_KERNELS_CUDA_FLASH_COPY_CUH

#include "model/kernels/cuda/attention.cuh"
#include "model/kernels/cuda/ptx.cuh"

/* Number of 16-bit elements that one asynchronous copy moves. */
enum { CHUNK = 8 };

/* Row stride of a tile in elements. Each row is padded by 16 bytes, so that 8 consecutive rows
 * start in different banks of shared memory. */
#define FLASH_LD(cols) ((cols) + CHUNK)

/* Does what tile_copy does, for widths D whose number of chunks in a row does not divide the number
 * of threads. */
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

/* Starts an asynchronous copy of ROWS rows from x and from y, two operands of a head, into two
 * consecutive tiles; `real` and `cols` as in tile_copy. */
template <class T, int D, int ROWS, int N_THREADS>
__device__ __forceinline__ void tiles_copy(T *tile, const T *x, int64_t x_ld, const T *y,
                                           int64_t y_ld, int real, int cols)
{
    tile_copy<T, D, ROWS, N_THREADS>(tile, x, x_ld, real, cols);
    tile_copy<T, D, ROWS, N_THREADS>(tile + ROWS * FLASH_LD(D), y, y_ld, real, cols);
}

#endif
