/* attention_backward.cu -- computes the gradients of attention in float, without tensor cores. With
 * S the scores, P = exp(S - lse) the weights and delta = rowsum(dO o):
 *
 *   dV = P^T dO    dP = dO V^T    dS = P (dP - delta) scale    dQ = dS K    dK = dS^T Q
 *
 * P is computed again, tile by tile (Dao et al., arXiv:2205.14135).
 *
 * There are two kernels. Blocks of the first own queries and compute dQ. Blocks of the second own
 * keys and compute dK and dV, over all query heads of their group. This takes seven matrix products
 * instead of five. In return every element has one owner and a fixed order of summation, without
 * atomics or sums in global memory. */
#include "model/kernels/cuda/attention_tiles.cuh"

/* RA and RB: the rows that a block owns and the rows of the tiles that it loops over, in units of
 * 16, chosen to fit in 99 KB of shared memory. */
template <int D> struct BackwardTiles {
    enum { RA = D <= 64 ? 4 : D <= 128 ? 2 : 1, RB = RA, OWNED = SIDE * RA, WALKED = SIDE * RB };
    enum { FLOATS = 2 * (OWNED + WALKED) * TILE_LD(D) + OWNED * TILE_LD(WALKED) };
    static_assert(FLOATS * 4 <= SHARED_MOST, "a block's tiles fit in shared memory");
};

/* Replaces *score by its weight P and *dp by dS. Both become 0 if the query does not see the key.
 */
static __device__ __forceinline__ void score_gradient(float *score, float *dp, bool seen, float lse,
                                                      float delta, float scale)
{
    float p = seen ? expf(*score * scale - lse) : 0;
    *score = p;
    *dp = seen ? p * (*dp - delta) * scale : 0;
}

/* Applies score_gradient to all of the thread's scores. Rows are queries, columns are the keys from
 * `key` on. */
template <int RA, int RB>
static __device__ __forceinline__ void tile_gradient(float (&score)[RA][RB], float (&dp)[RA][RB],
                                                     const int (&first)[RA], const int (&end)[RA],
                                                     const float (&lse)[RA],
                                                     const float (&delta)[RA], int key, float scale)
{
#pragma unroll
    for (int i = 0; i < RA; i++)
#pragma unroll
        for (int j = 0; j < RB; j++) {
            int me = key + (int)(threadIdx.x % SIDE) + j * SIDE;
            score_gradient(&score[i][j], &dp[i][j], me >= first[i] && me < end[i], lse[i], delta[i],
                           scale);
        }
}

/* Computes delta = rowsum(dO o) for the thread's queries. dout points to their rows of a tile, o to
 * their rows in global memory. */
template <class T, int RA, int D>
static __device__ __forceinline__ void deltas(float (&delta)[RA], const float *dout, const T *o,
                                              int64_t o_ld, int real, int cols)
{
#pragma unroll
    for (int i = 0; i < RA; i++) {
        float sum = 0;
        for (int c = threadIdx.x % SIDE; i < real && c < cols; c += SIDE)
            sum += dout[i * TILE_LD(D) + c] * to_float(o[i * o_ld + c]);
        delta[i] = lanes_sum(sum, SIDE);
    }
}

/* Computes dq (B, Tq, H*D) = dS K, or += with accumulate, and delta (pairs, Tq) = rowsum(dO o), for
 * (batch row, head) pairs from `pair0` on. Each block owns OWNED queries of one head and loops over
 * the keys that they see. */
template <class T, int N, int D>
__global__ void __launch_bounds__(THREADS, 1)
    attention_backward_query_kernel(const __grid_constant__ BackwardOperands<T> in,
                                    const __grid_constant__ AttentionShape s, int pair0, int pairs)
{
    typedef BackwardTiles<D> Tiles;
    enum { RA = Tiles::RA, RB = Tiles::RB, OWNED = Tiles::OWNED, WALKED = Tiles::WALKED };
    DYN_SHARED(float, q_tile);
    float *dout_tile = q_tile + OWNED * TILE_LD(D), *k_tile = dout_tile + OWNED * TILE_LD(D);
    float *v_tile = k_tile + WALKED * TILE_LD(D), *weights = v_tile + WALKED * TILE_LD(D);
    int y = threadIdx.x / SIDE * RA, x = threadIdx.x % SIDE;
    BlockPlace at = queries_place(s, blockIdx.x, pair0, pairs, OWNED);
    int t = at.row, start, stop;
    float *delta_of = in.delta + (int64_t)at.local * s.tq + t;
    const float *lse_of = in.lse + (int64_t)at.pair * s.tq + t;
    const T *q = head_at(in.q, in.q_ld, at.b, s.tq, at.head, s);
    const T *dout = head_at(in.dout, in.dout_ld, at.b, s.tq, at.head, s);
    const T *o = head_at(in.o, in.o_ld, at.b, s.tq, at.head, s);
    const T *k = head_at(in.k, in.k_ld, at.b, s.tk, at.kv_head, s);
    const T *v = head_at(in.v, in.v_ld, at.b, s.tk, at.kv_head, s);
    tile_load<T, N, D>(q_tile, OWNED, q + t * in.q_ld, in.q_ld, s.tq - t, s.head_size);
    tile_load<T, N, D>(dout_tile, OWNED, dout + t * in.dout_ld, in.dout_ld, s.tq - t, s.head_size);
    float lse[RA], delta[RA], sum[RA][D / SIDE] = {};
    int first[RA], end[RA];
#pragma unroll
    for (int i = 0; i < RA; i++) {
        keys_seen(s, at.b, t + y + i, &first[i], &end[i]);
        lse[i] = t + y + i < s.tq ? lse_of[y + i] : 0;
    }
    T *dq = head_at(in.dq, in.dq_ld, at.b, s.tq, at.head, s) + t * in.dq_ld;
    __syncthreads();
    deltas<T, RA, D>(delta, dout_tile + y * TILE_LD(D), o + (t + y) * in.o_ld, in.o_ld,
                     s.tq - t - y, s.head_size);
#pragma unroll
    for (int i = 0; i < RA; i++)
        /* delta is stored for attention_backward_key_kernel, which runs next on this stream. */
        if (x == 0 && t + y + i < s.tq) delta_of[y + i] = delta[i];
    keys_seen_by(s, at.b, t, OWNED, &start, &stop);
    for (int key = start; key < stop; key += WALKED) {
        /* The first barrier waits until no thread reads the previous tiles, the second until all
         * threads have filled the new ones. */
        __syncthreads();
        tile_load<T, N, D>(k_tile, WALKED, k + key * in.k_ld, in.k_ld, s.tk - key, s.head_size);
        tile_load<T, N, D>(v_tile, WALKED, v + key * in.v_ld, in.v_ld, s.tk - key, s.head_size);
        __syncthreads();
        float score[RA][RB] = {}, dp[RA][RB] = {};
        tiles_product<RA, RB, D>(score, q_tile + y * TILE_LD(D), k_tile + x * TILE_LD(D));
        tiles_product<RA, RB, D>(dp, dout_tile + y * TILE_LD(D), v_tile + x * TILE_LD(D));
        tile_gradient(score, dp, first, end, lse, delta, key, s.scale);
        weights_share(weights + y * TILE_LD(WALKED), dp);
        tiles_weigh<RA, RB, D>(sum, weights + y * TILE_LD(WALKED), k_tile);
    }
#pragma unroll
    for (int i = 0; i < RA; i++)
        if (t + y + i < s.tq)
            row_store<T, N, D>(dq + (y + i) * in.dq_ld, sum[i], 1, s.head_size, in.accumulate);
}

/* The tiles of a block that owns keys, in shared memory. */
struct BlockTiles {
    float *k, *v, *q, *dout, *weights;
};

template <class Tiles, int D>
static __device__ __forceinline__ BlockTiles tiles_place(float *shared)
{
    BlockTiles tiles;
    tiles.k = shared;
    tiles.v = tiles.k + Tiles::OWNED * TILE_LD(D);
    tiles.q = tiles.v + Tiles::OWNED * TILE_LD(D);
    tiles.dout = tiles.q + Tiles::WALKED * TILE_LD(D);
    tiles.weights = tiles.dout + Tiles::WALKED * TILE_LD(D);
    return tiles;
}

/* Adds the contribution of WALKED queries of one head to the gradients of the block's keys: dV +=
 * P^T dO and dK += dS^T Q. Rows are the keys from `key` on, columns the queries from t on. */
template <class T, int D, class Tiles>
static __device__ __forceinline__ void
keys_step(float (&dk)[Tiles::RA][D / SIDE], float (&dv)[Tiles::RA][D / SIDE],
          const BlockTiles &tiles, const float *lse_of, const float *delta_of,
          const AttentionShape &s, int64_t b, int key, int t)
{
    enum { RA = Tiles::RA, RB = Tiles::RB };
    int y = threadIdx.x / SIDE * RA, x = threadIdx.x % SIDE;
    float score[RA][RB] = {}, dp[RA][RB] = {};
    tiles_product<RA, RB, D>(score, tiles.k + y * TILE_LD(D), tiles.q + x * TILE_LD(D));
    tiles_product<RA, RB, D>(dp, tiles.v + y * TILE_LD(D), tiles.dout + x * TILE_LD(D));
#pragma unroll
    for (int j = 0; j < RB; j++) {
        int query = x + j * SIDE, first, end;
        bool real = t + query < s.tq;
        float lse = real ? lse_of[query] : 0, delta = real ? delta_of[query] : 0;
        keys_seen(s, b, t + query, &first, &end);
#pragma unroll
        for (int i = 0; i < RA; i++) {
            int me = key + y + i;
            score_gradient(&score[i][j], &dp[i][j], me >= first && me < end, lse, delta, s.scale);
        }
    }
    /* The same tile holds first P, then dS. Each half warp writes and reads only its own rows of
     * it, so no barrier is needed. */
    float *weights = tiles.weights + y * TILE_LD(Tiles::WALKED);
    weights_share(weights, score);
    tiles_weigh<RA, RB, D>(dv, weights, tiles.dout);
    weights_share(weights, dp);
    tiles_weigh<RA, RB, D>(dk, weights, tiles.q);
}

/* Computes dk and dv (B, Tk, G*D), or adds to them with accumulate, for (batch row, kv head) pairs
 * from `pair0` on. Reads delta (pairs * H / G, Tq), which the query kernel has stored. Each block
 * owns OWNED keys and loops over the query heads of its group and their queries, both in ascending
 * order. */
template <class T, int N, int D>
__global__ void __launch_bounds__(THREADS, 1)
    attention_backward_key_kernel(const __grid_constant__ BackwardOperands<T> in,
                                  const __grid_constant__ AttentionShape s, int pair0, int pairs)
{
    typedef BackwardTiles<D> Tiles;
    enum { RA = Tiles::RA, OWNED = Tiles::OWNED, WALKED = Tiles::WALKED };
    DYN_SHARED(float, shared);
    BlockTiles tiles = tiles_place<Tiles, D>(shared);
    BlockPlace at = keys_place(s, blockIdx.x, pair0, pairs, OWNED);
    int key = at.row, y = threadIdx.x / SIDE * RA;
    const T *k = head_at(in.k, in.k_ld, at.b, s.tk, at.kv_head, s) + key * in.k_ld;
    const T *v = head_at(in.v, in.v_ld, at.b, s.tk, at.kv_head, s) + key * in.v_ld;
    tile_load<T, N, D>(tiles.k, OWNED, k, in.k_ld, s.tk - key, s.head_size);
    tile_load<T, N, D>(tiles.v, OWNED, v, in.v_ld, s.tk - key, s.head_size);
    float dk_sum[RA][D / SIDE] = {}, dv_sum[RA][D / SIDE] = {};
    /* Query heads and queries are visited in ascending order, which fixes the order of the sums. */
    for (int h = 0; h < s.group; h++) {
        const T *q = head_at(in.q, in.q_ld, at.b, s.tq, at.head + h, s);
        const T *dout = head_at(in.dout, in.dout_ld, at.b, s.tq, at.head + h, s);
        const float *lse = in.lse + ((int64_t)at.pair * s.group + h) * s.tq;
        const float *delta = in.delta + ((int64_t)at.local * s.group + h) * s.tq;
        for (int t = max(key - s.offset, 0) / WALKED * WALKED; t < s.tq; t += WALKED) {
            int start, stop;
            keys_seen_by(s, at.b, t, WALKED, &start, &stop);
            /* start and stop are the same for all threads, so the whole block skips the tile, and
             * no thread misses a barrier below. */
            if (start >= key + OWNED || stop <= key) continue;
            __syncthreads();
            tile_load<T, N, D>(tiles.q, WALKED, q + t * in.q_ld, in.q_ld, s.tq - t, s.head_size);
            tile_load<T, N, D>(tiles.dout, WALKED, dout + t * in.dout_ld, in.dout_ld, s.tq - t,
                               s.head_size);
            __syncthreads();
            keys_step<T, D, Tiles>(dk_sum, dv_sum, tiles, lse + t, delta + t, s, at.b, key, t);
        }
    }
    T *dk = head_at(in.dk, in.dk_ld, at.b, s.tk, at.kv_head, s) + (key + y) * in.dk_ld;
    T *dv = head_at(in.dv, in.dv_ld, at.b, s.tk, at.kv_head, s) + (key + y) * in.dv_ld;
#pragma unroll
    for (int i = 0; i < RA; i++) {
        if (key + y + i >= s.tk) continue;
        row_store<T, N, D>(dk + i * in.dk_ld, dk_sum[i], 1, s.head_size, in.accumulate);
        row_store<T, N, D>(dv + i * in.dv_ld, dv_sum[i], 1, s.head_size, in.accumulate);
    }
}

/* Launches the two kernels for as many (batch row, kv head) pairs at a time as have room for their
 * delta in the workspace. */
template <class T, int N, int D> static void backward_launch(Device *dev, BackwardCall c)
{
    typedef BackwardTiles<D> Tiles;
    size_t shared = Tiles::FLOATS * sizeof(float);
    const AttentionShape &s = c.shape;
    int64_t group = s.group, all = c.t->q.dim[0] * s.kv_heads;
    int64_t portion = attention_portion(dev, group * s.tq, all);
    c.delta = (float *)cuda_workspace(dev, (size_t)(portion * group * s.tq) * sizeof(float));
    for (int64_t pair = 0; pair < all; pair += portion) {
        int64_t n = portion < all - pair ? portion : all - pair;
        LAUNCH((attention_backward_query_kernel<T, N, D>), n * group * ceil_div(s.tq, Tiles::OWNED),
               dim3(THREADS), shared, cuda_stream(dev), operands_of<T>(&c), s, (int)(pair * group),
               (int)(n * group));
        LAUNCH((attention_backward_key_kernel<T, N, D>), n * ceil_div(s.tk, Tiles::OWNED),
               dim3(THREADS), shared, cuda_stream(dev), operands_of<T>(&c), s, (int)pair, (int)n);
    }
}

void plain_attention_backward(Device *dev, const AttentionTensors *t, bool accumulate,
                              Attention attention)
{
    Tensor operand[] = {t->q, t->k, t->v, t->o, t->dout, t->dq, t->dk, t->dv};
    bool packs = heads_in_packs(operand, 8, attention.head_size);
    with_tiles(t->q.dtype, attention.head_size, packs, [&](auto tile) {
        typedef decltype(tile) Tile;
        backward_launch<typename Tile::Storage, Tile::PACK, Tile::WIDTH>(
            dev, backward_call(t, accumulate, attention));
    });
}
