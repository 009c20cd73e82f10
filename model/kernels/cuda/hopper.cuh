/* hopper.cuh -- contains what the attention kernels for Hopper share: tiles in shared memory and
 * the bulk copies that fill them, the ring of stages, products of warpgroups, masks and the softmax
 * on their accumulators, and stores of results.
 *
 * A warpgroup is four adjacent warps, 128 threads, which multiply together (wgmma). A block has
 * consumer warpgroups, each of which owns 64 rows of the result, and after them one producer
 * warpgroup, of which a single thread starts bulk copies (TMA) of the tiles that the consumers walk
 * over. Barriers in shared memory (mbarrier) connect them: `full` tells the consumers that a stage
 * of the ring has been filled, `empty` tells the producer that all consumers have read it.
 *
 * A tile is ROWS x D elements of 16 bits. It consists of D / 64 panels of ROWS rows of 64 columns,
 * 128 bytes a row. Every panel starts at a multiple of 1,024 bytes, and byte o of a panel is stored
 * at o ^ (o / 128 % 8 * 16), the 128-byte swizzle, so that 8 consecutive rows lie in different
 * banks.
 *
 * Accumulators: let g = lane / 4 and t = lane % 4. Warp w of a warpgroup holds rows 16 w to 16 w +
 * 15 of a product (64 x N): register i of a thread is the element in row 16 w + g + i / 2 % 2 * 8,
 * column i / 4 * 8 + 2 t + i % 2. So a thread holds elements of two rows, and four adjacent lanes
 * share them. */
#ifndef MODEL_KERNELS_CUDA_HOPPER_CUH
#define MODEL_KERNELS_CUDA_HOPPER_CUH

#include "model/kernels/cuda/attention.cuh"
#include "model/kernels/cuda/ptx_hopper.cuh"
#include "model/kernels/cuda/tensor_map.h"

enum { WARPGROUP = 128, GROUP_WARPS = WARPGROUP / WARP, GROUP_ROWS = 64 };
enum { PANEL = 64, PANEL_ROW = 128, TILE_ALIGN = 1024 };

/* Bytes of a tile of `rows` x `cols`. */
#define TILE_BYTES(rows, cols) ((rows) * (cols)*2)

/* Returns the number of the thread's warpgroup in the block. The compiler sees that all lanes of a
 * warp have the same number, so it can keep what follows from it in uniform registers. */
static __device__ __forceinline__ int warpgroup_number()
{
    return __shfl_sync(0xffffffffu, (int)threadIdx.x / WARPGROUP, 0);
}

/* Returns x, which must be the same in all lanes of the warp, by a shuffle from which the compiler
 * sees that all lanes have the same value. */
static __device__ __forceinline__ int uniform(int x)
{
    return __shfl_sync(0xffffffffu, x, 0);
}

/* Returns the first address of a block's dynamic shared memory at which a tile may start. A launch
 * asks for TILE_ALIGN bytes more than its tiles and barriers need. */
static __device__ __forceinline__ unsigned char *tiles_begin(unsigned char *shared)
{
    return shared + (-shared_address(shared) & (TILE_ALIGN - 1));
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Starts the copy of ROWS rows of one head, from row `token` of batch row b on, into a tile. `map`
 * describes the tensor, with boxes of ROWS rows. Rows past the end of the batch row become zeros.
 * The copy arrives at `full` with TILE_BYTES(ROWS, D) bytes, which mbarrier_expect must have
 * announced before. */
template <int ROWS, int D>
__device__ __forceinline__ void tile_load(unsigned char *tile, const CUtensorMap *map,
                                          uint64_t *full, int head, int token, int b)
{
#pragma unroll
    for (int panel = 0; panel < D / PANEL; panel++)
        tma_load_4d(tile + panel * ROWS * PANEL_ROW, map, full, panel * PANEL, head, token, b);
}

/* A position in a ring of STAGES stages. `parity` is that of the phase in which the stage becomes
 * full: consumers wait for `full` with this parity, the producer for `empty` with the other parity.
 * So the producer finds every stage empty in the first round. */
template <int STAGES> struct Ring {
    int stage;
    uint32_t parity;
};

template <int STAGES> __device__ __forceinline__ void ring_next(Ring<STAGES> &at)
{
    at.stage = at.stage + 1 == STAGES ? 0 : at.stage + 1;
    if (at.stage == 0) at.parity ^= 1;
}

/* Tells the producer that this warp has read a stage, and that the products of its warpgroup have
 * read it. All lanes must call it after the wait for these products.
 *
 * Each warp arrives by itself, so `empty` counts the consumers' warps. One arrival for the
 * warpgroup would not be enough: a wait covers only the products that the waiting threads have
 * started, and other warps may not have read yet what they load from the stage themselves. */
static __device__ __forceinline__ void stage_release(uint64_t *empty)
{
    __syncwarp();
    if (threadIdx.x % WARP == 0) mbarrier_arrive(empty);
}

/* Keeps the next wait for products behind the code that precedes this call. ptxas would move that
 * wait up within its basic block, and then nothing would run while the products are computed. This
 * function waits for a barrier in a loop, which begins a new basic block. The stage is already
 * full, so the wait takes no time. */
static __device__ __forceinline__ void stage_wait_again(uint64_t *full, uint32_t parity)
{
    mbarrier_wait(full, parity);
}

/* ---- products -------------------------------------------------------------------------------- */

/* Returns the wgmma descriptor of a tile whose rows are rows of the left operand, or columns of the
 * right one: the inner index of the product runs along the tile's rows in memory. */
static __device__ __forceinline__ uint64_t tile_along(uint32_t address)
{
    return wgmma_descriptor(address, 16, 8 * PANEL_ROW);
}

/* Returns the wgmma descriptor of a tile of ROWS rows whose columns are columns of the right
 * operand: the inner index of the product runs down the tile. */
template <int ROWS> __device__ __forceinline__ uint64_t tile_down(uint32_t address)
{
    return wgmma_descriptor(address, ROWS * PANEL_ROW, 8 * PANEL_ROW);
}

/* Starts s (64, N) = a (64, D) times the transpose of b (N, D). a and b are results of tile_along
 * for tiles of A_ROWS and N rows. */
template <class T, int N, int D, int A_ROWS = GROUP_ROWS>
__device__ __forceinline__ void product_along(float (&s)[N / 2], uint64_t a, uint64_t b)
{
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        wgmma_shared<T, N, false>(s, wgmma_step(a, k / 4 * A_ROWS * PANEL_ROW + k % 4 * 32),
                                  wgmma_step(b, k / 4 * N * PANEL_ROW + k % 4 * 32), k > 0);
}

/* Starts sum (64, D) += weights (64, 16 K) times b (16 K, D). b is a result of tile_down. */
template <class T, int D, int K>
__device__ __forceinline__ void product_down(float (&sum)[D / 2], const uint32_t (&weights)[K][4],
                                             uint64_t b)
{
#pragma unroll
    for (int k = 0; k < K; k++)
        wgmma_registers<T, D, true>(sum, weights[k], wgmma_step(b, k * 16 * PANEL_ROW), true);
}

/* Rounds accumulators (64, 16 K) to T. The result is the left operand of a product: the
 * accumulators of 16 adjacent columns are distributed over the threads in the same way. */
template <class T, int K>
__device__ __forceinline__ void weights_round(uint32_t (&weights)[K][4], const float (&s)[8 * K])
{
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            weights[k][i] = pair<T>(s[k * 8 + i * 2], s[k * 8 + i * 2 + 1]);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* The tiles of KEYS keys that a block walks over, from the diagonal down: tile i begins at key top
 * - i KEYS. */
struct KeyWalk {
    int top, n;
};

/* Returns the tiles that hold the keys seen by the queries [t, t + n) of batch row b, at least one
 * tile. All lanes of a warp must call it. */
template <int KEYS>
__device__ __forceinline__ KeyWalk keys_walk(const AttentionShape &s, int64_t b, int t, int n)
{
    int start, stop;
    keys_seen_by(s, b, t, n, &start, &stop);
    int first = uniform(start) / KEYS, end = (uniform(stop) + KEYS - 1) / KEYS;
    end = max(end, first + 1);
    return {(end - 1) * KEYS, end - first};
}

/* Returns a bit for each of the thread's columns of a row of accumulators, bit 2 n + e for column 8
 * n + 2 t + e of at most 128: 1 if the column is less than `end`. */
static __device__ __forceinline__ uint32_t columns_below(int end)
{
    end = min(max(end, 0), 128);
    int part = min(max(end % 8 - (int)threadIdx.x % 4 * 2, 0), 2), bits = end / 8 * 2 + part;
    return bits == 32 ? 0xffffffffu : (1u << bits) - 1;
}

/* Sets the scores in s (64, N) to -infinity where the query does not see the key. The warp's rows
 * of s are the queries from t on, columns the keys from `key` on. Reads the masks again for every
 * tile: only a few tiles need them, and keeping them would cost registers. */
template <int N>
__device__ __forceinline__ void scores_hide(float (&s)[N / 2], const AttentionShape &shape,
                                            int64_t b, int t, int key)
{
    static_assert(N <= 128, "a thread's columns of a row fit in 32 bits");
    t = unmoved(t) + threadIdx.x % WARP / 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int first, end;
        keys_seen(shape, b, t + i * 8, &first, &end);
        uint32_t seen = columns_below(end - key) & ~columns_below(first - key);
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (!(seen >> (n * 2 + e) & 1)) s[n * 4 + i * 2 + e] = -INFINITY;
    }
}

/* ---- stores ---------------------------------------------------------------------------------- */

/* Copies the warp's 16 rows of a tile of 64 rows to global memory if TO, otherwise from there. In
 * memory the matrix has `real` rows; rows from there on are skipped. `tile` points to the warp's
 * first row in the first panel. */
template <class T, int D, bool TO>
__device__ __forceinline__ void group_rows_move(T *memory, int64_t ld, int real,
                                                unsigned char *tile)
{
    enum { CHUNKS = D / 8 }; /* of 16 bytes in a row */
#pragma unroll 1
    for (int i = threadIdx.x % WARP; i < 16 * CHUNKS; i += WARP) {
        int row = i / CHUNKS, chunk = i % CHUNKS;
        if (row >= real) break;
        T *outside = memory + row * ld + chunk * 8;
        uint4 *inside = (uint4 *)(tile + chunk / 8 * GROUP_ROWS * PANEL_ROW + row * PANEL_ROW +
                                  (chunk % 8 ^ row % 8) * 16);
        if (TO)
            *(uint4 *)outside = *inside;
        else
            *inside = *(const uint4 *)outside;
    }
    __syncwarp();
}

/* Stores the warp's rows of a result (64, D), rounded once: to (real, D) = factor[row] * sum, or +=
 * with accumulate. The rows pass through `tile`, which has 64 rows and is not used any more by any
 * product or other warp: a thread's elements are scattered in pieces of 4 bytes, and after passing
 * through the tile each lane stores 16 adjacent bytes. */
template <class T, int D>
__device__ __forceinline__ void group_rows_store(T *to, int64_t ld, int real, unsigned char *tile,
                                                 const float (&sum)[D / 2],
                                                 const float (&factor)[2], bool accumulate)
{
    int lane = threadIdx.x % WARP, g = lane / 4;
    tile += threadIdx.x % WARPGROUP / WARP * 16 * PANEL_ROW;
    if (accumulate) group_rows_move<T, D, false>(to, ld, real, tile);
    unsigned char *mine = tile + g * PANEL_ROW + lane % 4 * 4;
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            T *at =
                (T *)(mine + n / 8 * GROUP_ROWS * PANEL_ROW + i * 8 * PANEL_ROW + (n % 8 ^ g) * 16);
            float x[2] = {0, 0};
            if (accumulate) load(x, at);
            x[0] += sum[n * 4 + i * 2] * factor[i];
            x[1] += sum[n * 4 + i * 2 + 1] * factor[i];
            *(uint32_t *)at = pair<T>(x[0], x[1]);
        }
    __syncwarp();
    group_rows_move<T, D, true>(to, ld, real, tile);
}

#endif
