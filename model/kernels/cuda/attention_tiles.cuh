/* attention_tiles.cuh -- multiplies tiles in shared memory in float, for attention without tensor
 * cores.
 *
 * A block has 16 x 16 threads. It owns 16 RA rows (queries, or keys when it computes dk and dv) and
 * loops over tiles of 16 RB rows of the other side, called the walked rows. Thread (y, x) computes
 * the scores of the owned rows y RA + i with the walked rows x + 16 j. So all scores of an owned
 * row are in the same half of a warp, and summing over the row needs no barrier. */
#ifndef MODEL_KERNELS_CUDA_ATTENTION_TILES_CUH
#define MODEL_KERNELS_CUDA_ATTENTION_TILES_CUH

#include "model/kernels/cuda/attention.cuh"

enum { SIDE = 16, THREADS = SIDE * SIDE };

/* Row stride of a tile of `cols` columns, in floats. Rows are 16-byte aligned, and adjacent rows
 * start 4 banks apart, because the threads of a warp read them at the same time. */
#define TILE_LD(cols) ((cols) + 4)

/* ---- tiles ----------------------------------------------------------------------------------- */

/* Loads `real` rows of `cols` columns from `from` into the tile `to` (rows, D), and fills the rest
 * of the tile with zeros. All threads must call it. */
template <class T, int N, int D>
__device__ __forceinline__ void tile_load(float *to, int rows, const T *from, int64_t ld, int real,
                                          int cols)
{
    for (int i = threadIdx.x; i < rows * (D / N); i += THREADS) {
        int row = i / (D / N), col = i % (D / N) * N;
        /* Rows beyond the matrix take part in products with weight 0. They are zeroed because stale
         * memory may hold a NaN, and 0 times NaN is NaN. */
        float x[N] = {0};
        if (row < real && col < cols) load(x, from + row * ld + col);
        store(to + row * TILE_LD(D) + col, x);
    }
}

/* Adds the dot product of a's row i and b's row 16 j to s[i][j]. a and b point to the thread's
 * first rows. */
template <int RA, int RB, int D>
__device__ __forceinline__ void tiles_product(float (&s)[RA][RB], const float *a, const float *b)
{
    /* Each round of RA + RB loads is used for RA RB products. A thread's rows of b are 16 apart, so
     * that adjacent threads read adjacent rows, which start 4 banks apart. */
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

/* The columns of a row of D that thread x holds: packs of PACK columns, the first at x * PACK, the
 * others at intervals of STEP. */
template <int D> struct Columns {
    enum { ALL = D / SIDE, PACK = ALL < 4 ? ALL : 4, PACKS = ALL / PACK, STEP = SIDE * PACK };
};

/* Adds row i of the weights p (RA, 16 RB) times b (16 RB, D) to sum[i], for the thread's columns. p
 * points to the thread's first row of weights. */
template <int RA, int RB, int D>
__device__ __forceinline__ void tiles_weigh(float (&sum)[RA][D / SIDE], const float *p,
                                            const float *b)
{
    /* Both halves of a warp read the same full row of b, so no bank has to deliver two different
     * words. The four weights of a row are at the same address for every thread of a half warp. */
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

/* Stores s, the thread's elements of the weights p (RA, 16 RB). The same half warp reads the
 * weights in tiles_weigh. */
template <int RA, int RB>
__device__ __forceinline__ void weights_share(float *p, const float (&s)[RA][RB])
{
    __syncwarp(); /* the warp may still be reading the previous weights */
#pragma unroll
    for (int i = 0; i < RA; i++)
#pragma unroll
        for (int j = 0; j < RB; j++)
            p[i * TILE_LD(SIDE * RB) + threadIdx.x % SIDE + j * SIDE] = s[i][j];
    __syncwarp();
}

/* Stores the thread's columns of one row, rounded once: to = factor * sum, or += with accumulate.
 * The row has `cols` columns. N is the number of elements that are stored at once, as in tile_load.
 */
template <class T, int N, int D>
__device__ __forceinline__ void row_store(T *to, const float (&sum)[D / SIDE], float factor,
                                          int cols, bool accumulate)
{
    typedef Columns<D> C;
    enum { STORE = N == 1 ? 1 : C::PACK };
#pragma unroll
    for (int c = 0; c < C::ALL; c += STORE) {
        /* A pack is entirely before or entirely after column `cols`, because rows consist of whole
         * packs if N > 1. */
        int col = c / C::PACK * C::STEP + threadIdx.x % SIDE * C::PACK + c % C::PACK;
        if (col >= cols) continue;
        float x[STORE] = {0};
        if (accumulate) load(x, to + col);
#pragma unroll
        for (int e = 0; e < STORE; e++)
            x[e] += factor * sum[c + e];
        store_global(to + col, x);
    }
}

/* A storage type, the number of elements that are loaded or stored at once, and a tile width. */
template <class T, int N, int D> struct TileTypes {
    typedef T Storage;
    enum { PACK = N, WIDTH = D };
};

/* Calls f with the TileTypes for a call: WIDTH is the smallest tile width that is at least
 * head_size. Only f32 uses packs. 16-bit types reach these kernels only in tests, or if the tensors
 * are not aligned for packs. */
template <class F> static void with_tiles(DType dtype, int64_t head_size, bool packs, F f)
{
    with_storage(dtype, [&](auto t) {
        with_width(head_size, [&](auto width) {
            typedef typename decltype(t)::Type T;
            enum { W = decltype(width)::WIDTH, D = W == 96 ? 128 : W == 192 ? 256 : W };
            if (sizeof(T) == 4 && packs)
                f(TileTypes < T, sizeof(T) == 4 ? 4 : 1, D > ());
            else
                f(TileTypes<T, 1, D>());
        });
    });
}

#endif
