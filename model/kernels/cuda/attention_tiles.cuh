/* attention_tiles.cuh -- products of tiles in shared memory, in float, for attention without tensor
 * cores.
 *
 * A block is 16 x 16 threads. It owns 16 RA rows (queries, or keys for dk and dv) and walks over
 * tiles of 16 RB rows of the other side. Thread (y, x) has scores of the owned rows y RA + i with
 * the walked rows x + 16 j: a row's scores lie in half a warp, so its sums need no barrier. */
#ifndef MODEL_KERNELS_CUDA_ATTENTION_TILES_CUH
#define MODEL_KERNELS_CUDA_ATTENTION_TILES_CUH

#include "model/kernels/cuda/attention.cuh"

enum { SIDE = 16, THREADS = SIDE * SIDE };

/* Floats from row to row of a tile of `cols` columns: 16-byte aligned, and rows that threads of a
 * warp read at once start 4 banks apart. */
#define TILE_LD(cols) ((cols) + 4)

/* ---- tiles ----------------------------------------------------------------------------------- */

/* to (rows, D) = `real` rows of `cols` columns at `from`, zero beyond both. All threads call it. */
template <class T, int N, int D>
__device__ __forceinline__ void tile_load(float *to, int rows, const T *from, int64_t ld, int real,
                                          int cols)
{
    for (int i = threadIdx.x; i < rows * (D / N); i += THREADS) {
        int row = i / (D / N), col = i % (D / N) * N;
        /* Zeros where there is nothing: such rows take part with weight 0, and 0 times what the
         * memory happened to hold may be NaN. */
        float x[N] = {0};
        if (row < real && col < cols) load(x, from + row * ld + col);
        store(to + row * TILE_LD(D) + col, x);
    }
}

/* s[i][j] += a's row i times b's row 16 j; a and b are the thread's first rows. */
template <int RA, int RB, int D>
__device__ __forceinline__ void tiles_product(float (&s)[RA][RB], const float *a, const float *b)
{
    /* RA + RB loads serve RA RB products. b's rows are 16 apart, so that neighbouring threads read
     * neighbouring rows, 4 banks from each other. */
#pragma unroll 2
    for (int d = 0; d < D; d += 4) {
        float x[RA][4], y[RB][4];
#pragma unroll
        for (int i = 0; i < RA; i++)
            load(x[i], a + i * TILE_LD(D) + d);
#pragma unroll
        for (int j = 0; j < RB; j++)
            load(y[j], b + j * SIDE * TILE_LD(D) + d);
#pragma unroll
        for (int i = 0; i < RA; i++)
#pragma unroll
            for (int j = 0; j < RB; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[i][j] += x[i][e] * y[j][e];
    }
}

/* Columns that thread x has of a row of D: packs of PACK columns, at x * PACK and every STEP
 * columns from there. */
template <int D> struct Columns {
    enum { ALL = D / SIDE, PACK = ALL < 4 ? ALL : 4, PACKS = ALL / PACK, STEP = SIDE * PACK };
};

/* sum[i] += row i of weights p (RA, 16 RB; the thread's first row) times b (16 RB, D), in the
 * thread's columns. */
template <int RA, int RB, int D>
__device__ __forceinline__ void tiles_weigh(float (&sum)[RA][D / SIDE], const float *p,
                                            const float *b)
{
    /* Half a warp reads a row of b from end to end, and its other half the same row: no bank is
     * asked for two words. Its four weights of a row are one address for all of it. */
    typedef Columns<D> C;
    const float *column = b + threadIdx.x % SIDE * C::PACK;
#pragma unroll 1
    for (int k = 0; k < SIDE * RB; k += 4) {
        float w[RA][4];
#pragma unroll
        for (int i = 0; i < RA; i++)
            load(w[i], p + i * TILE_LD(SIDE * RB) + k);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int c = 0; c < C::PACKS; c++) {
                float y[C::PACK];
                load(y, column + (k + e) * TILE_LD(D) + c * C::STEP);
#pragma unroll
                for (int i = 0; i < RA; i++)
#pragma unroll
                    for (int l = 0; l < C::PACK; l++)
                        sum[i][c * C::PACK + l] += w[i][e] * y[l];
            }
    }
}

/* The thread's share of weights p (RA, 16 RB) = s, for tiles_weigh by the same half warp. */
template <int RA, int RB>
__device__ __forceinline__ void weights_share(float *p, const float (&s)[RA][RB])
{
    __syncwarp(); /* the warp may still read the weights before these */
#pragma unroll
    for (int i = 0; i < RA; i++)
#pragma unroll
        for (int j = 0; j < RB; j++)
            p[i * TILE_LD(SIDE * RB) + threadIdx.x % SIDE + j * SIDE] = s[i][j];
    __syncwarp();
}

/* The thread's columns of one row of `cols` at `to` =/+= factor * sum, rounded once. N as in
 * tile_load. */
template <class T, int N, int D>
__device__ __forceinline__ void row_store(T *to, const float (&sum)[D / SIDE], float factor,
                                          int cols, bool accumulate)
{
    typedef Columns<D> C;
    enum { STORE = N == 1 ? 1 : C::PACK };
#pragma unroll
    for (int c = 0; c < C::ALL; c += STORE) {
        /* A pack is before `cols` or past it as a whole: with N > 1 rows hold whole packs. */
        int col = c / C::PACK * C::STEP + threadIdx.x % SIDE * C::PACK + c % C::PACK;
        if (col >= cols) continue;
        float x[STORE] = {0};
        if (accumulate) load(x, to + col);
#pragma unroll
        for (int e = 0; e < STORE; e++)
            x[e] += factor * sum[c + e];
        store(to + col, x);
    }
}

/* Runs the statements with T as the storage type, D as the smallest width of these tiles that holds
 * the head, and N as what moves at once: packs for f32 alone, since 16-bit types come here only for
 * heads that hold no packs, or in tests. */
#define WITH_TILES(dtype, head_size, packs, T, N, D, ...)                                          \
    WITH_STORAGE(dtype, T, WITH_WIDTH(head_size, WIDTH, {                                          \
                     enum { D = WIDTH == 96 ? 128 : WIDTH == 192 ? 256 : WIDTH };                  \
                     if (packs) {                                                                  \
                         enum { N = sizeof(T) == 4 ? 4 : 1 };                                      \
                         __VA_ARGS__;                                                              \
                     } else {                                                                      \
                         enum { N = 1 };                                                           \
                         __VA_ARGS__;                                                              \
                     }                                                                             \
                 }))

#endif
