/* flash_backward_key.cu -- computes dk and dv of attention backward on tensor cores, for bf16 and
 * f16. flash_backward.cuh tells how backward is divided into two kernels. */
#include "model/kernels/cuda/flash.cuh"
#include "model/kernels/cuda/flash_backward.cuh"
#include "model/kernels/cuda/query_walk.cuh"

/* Tile sizes of the kernel whose blocks own keys and loop over tiles of queries and output
 * gradients. Each block sums dk and dv in registers. Heads of more than 128 columns would need too
 * many registers, so they are split into PARTS ranges of columns, one per block. A warp computes 8
 * NT of the WALKED queries of a tile at a time: with fewer scores in registers, there is room for
 * some of its keys and values (K_HELD, V_HELD); the others are loaded again for every tile. */
template <int D> struct FlashKeys {
    enum { WARPS = D <= 192 ? 4 : 2, N_THREADS = WARPS * WARP };
    enum { MT = D <= 64 ? 2 : 1, NT = D == 96 || D == 128 ? 4 : 2, PARTS = D <= 128 ? 1 : 2 };
    /* Numbers of 16-column pieces of the owned keys and values that stay in registers. */
    enum { K_HELD = D == 128 ? 6 : D <= 64 ? D / 16 : 0, V_HELD = D == 32 ? 2 : D == 64 ? 2 : 0 };
    enum {
        OWNED = WARPS * MT * 16,
        WALKED = D <= 128 ? 32 : 16,
        CT = D / 8 / PARTS,
        LD = FLASH_LD(D)
    };
    enum { STAGE = 2 * WALKED * LD, ELEMENTS = 2 * OWNED * LD + 2 * STAGE };
    static_assert(NT % 2 == 0 && CT % 2 == 0, "ldmatrix_4 loads two right operands");
    static_assert(WALKED % (NT * 8) == 0, "a tile is walked in whole steps");
};

/* Values that belong to the N queries of a tile. */
template <int N> struct alignas(16) QueryStats {
    float lse[N]; /* times log2 e; infinity past the last query, which makes all weights 0 */
    float delta[N];
    int first[N];
};

/* The shared memory of a block, in bytes: tiles of elements of 2 bytes, then the QueryStats of two
 * tiles of queries. */
template <int D> struct KeysShared {
    typedef FlashKeys<D> F;
    enum { STATS = F::ELEMENTS * 2, BYTES = STATS + 2 * sizeof(QueryStats<F::WALKED>) };
    static_assert((int)BYTES <= SHARED_MOST, "a block's tiles fit in shared memory");
    static_assert(STATS % alignof(QueryStats<F::WALKED>) == 0, "the QueryStats are aligned");
    static_assert(3 * F::WALKED <= F::N_THREADS, "each thread loads one word of a QueryStats");
    static_assert(sizeof(QueryStats<F::WALKED>) == 3 * F::WALKED * sizeof(int), "no padding");
};

/* The warp's keys: the operands of their scores, and the sums for dv and for dk (without the factor
 * scale). */
template <class T, int D> struct KeyRows {
    typedef FlashKeys<D> F;
    LeftRows<T, D, F::MT, F::K_HELD> k;
    LeftRows<T, D, F::MT, F::V_HELD> v;
    float dk[F::MT][F::CT][4], dv[F::MT][F::CT][4];
};

template <class T, int D>
static __device__ __forceinline__ void keys_begin(KeyRows<T, D> &own, const T *k, const T *v)
{
    typedef FlashKeys<D> F;
#pragma unroll
    for (int m = 0; m < F::MT; m++)
#pragma unroll
        for (int c = 0; c < F::CT; c++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                own.dk[m][c][e] = own.dv[m][c][e] = 0;
    rows_hold(own.k, k);
    rows_hold(own.v, v);
}

/* The tile of queries that a block is working on, from query t on. lse, delta and first are those
 * of QueryStats. partial: some query of the tile does not see all of the warp's keys. */
template <class T> struct QueryTile {
    const T *q, *dout;
    const float *lse, *delta;
    const int *first;
    int t;
    bool partial;
};

/* Adds the contribution of 8 NT queries, from query i of the tile on, to the gradients of the
 * warp's keys from `key` on: dV += P^T dO and dK += (dS / scale)^T Q, for the columns from `column`
 * on. */
template <class T, int D>
static __device__ __forceinline__ void keys_step(KeyRows<T, D> &own, const QueryTile<T> &tile,
                                                 int column, const AttentionShape &s, int key,
                                                 int i)
{
    enum { MT = FlashKeys<D>::MT, NT = FlashKeys<D>::NT, LD = FLASH_LD(D) };
    const T *q = tile.q + i * LD, *dout = tile.dout + i * LD;
    float p[MT][NT][4] = {}, dp[MT][NT][4] = {};
    product_transposed(p, own.k, lane_columns(q, LD));
    /* Hidden scores become -infinity, which makes their weight and gradient 0. Past the last query
     * lse is infinite, with the same effect. */
    if (tile.partial) scores_hide_transposed(p, s, tile.first + i, key, tile.t + i);
    product_transposed(dp, own.v, lane_columns(dout, LD));
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int query = i + n * 8 + threadIdx.x % 4 * 2 + e;
            float lse = tile.lse[query], delta = tile.delta[query];
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    float *x = &p[m][n][j * 2 + e], *y = &dp[m][n][j * 2 + e];
                    *x = exp2_approx(*x * s.scale_log2 - lse);
                    *y = *x * (*y - delta);
                }
        }
    /* dp still lacks the factor scale: it is applied once, when dk is stored. */
    product_weighed<T, D>(own.dv, p, lane_rows(dout + column, LD));
    product_weighed<T, D>(own.dk, dp, lane_rows(q + column, LD));
}

/* Loads the thread's word of the tile's QueryStats. The first WALKED threads load lse, the next
 * delta, and the next the first keys, so that each thread needs only one register for them. */
template <class T, int WALKED>
static __device__ __forceinline__ int stats_word(const QueryWalk &w, const BackwardOperands<T> &in,
                                                 const AttentionShape &s, int b, int pair0)
{
    int query = w.t + (int)threadIdx.x % WALKED, kind = (int)threadIdx.x / WALKED;
    int pair = b * s.heads + w.head;
    if (kind == 0) {
        float lse = INFINITY;
        if (query < s.tq) lse = in.lse[(int64_t)pair * s.tq + query] * LOG2E;
        return (int)__float_as_uint(lse);
    }
    if (kind == 1 && query < s.tq)
        return (int)__float_as_uint(in.delta[(int64_t)(pair - pair0 * s.group) * s.tq + query]);
    if (kind == 2 && query < s.tq && s.first_key) return s.first_key[(int64_t)b * s.tq + query];
    return 0;
}

/* Starts an asynchronous copy of the tile's queries and output gradients, and returns the thread's
 * word of its QueryStats. */
template <class T, int D>
static __device__ __forceinline__ int walk_copy(const QueryWalk &w, T *tile,
                                                const BackwardOperands<T> &in,
                                                const AttentionShape &s, int b, int pair0)
{
    enum { WALKED = FlashKeys<D>::WALKED, N_THREADS = FlashKeys<D>::N_THREADS };
    const T *q = head_at(in.q, in.q_ld, b, s.tq, w.head, s) + w.t * in.q_ld;
    const T *dout = head_at(in.dout, in.dout_ld, b, s.tq, w.head, s) + w.t * in.dout_ld;
    tiles_copy<T, D, WALKED, N_THREADS>(tile, q, in.q_ld, dout, in.dout_ld, s.tq - w.t,
                                        s.head_size);
    return stats_word<T, WALKED>(w, in, s, b, pair0);
}

template <int N> static __device__ __forceinline__ void walk_put(int word, QueryStats<N> *stats)
{
    if (threadIdx.x < 3 * N) ((int *)stats)[threadIdx.x] = word;
}

/* Stores dk and dv of the warp's keys from `key` on, columns from `column` on. k and v are the
 * warp's rows of the tiles. */
template <class T, int D>
static __device__ __forceinline__ void
keys_store(const KeyRows<T, D> &own, T *k, T *v, const BackwardOperands<T> &in,
           const AttentionShape &s, int b, int kv_head, int key, int column)
{
    T *dk = head_at(in.dk, in.dk_ld, b, s.tk, kv_head, s) + key * in.dk_ld + column;
    T *dv = head_at(in.dv, in.dv_ld, b, s.tk, kv_head, s) + key * in.dv_ld + column;
    int real = s.tk - key, cols = s.head_size - column;
    rows_store<T, D>(dk, in.dk_ld, real, cols, k, own.dk, s.scale, in.accumulate);
    rows_store<T, D>(dv, in.dv_ld, real, cols, v, own.dv, 1, in.accumulate);
}

/* Computes dk and dv (B, Tk, G*D), or adds to them with accumulate, for (batch row, kv head) pairs
 * from `pair0` on. Reads delta (pairs * H / G, Tq), which the query kernel has stored. Each block
 * owns keys and loops over the query heads of its group and their queries, both in ascending order.
 */
template <class T, int D>
__global__ void __launch_bounds__(FlashKeys<D>::N_THREADS, 2)
    flash_backward_key_kernel(const __grid_constant__ BackwardOperands<T> in,
                              const __grid_constant__ AttentionShape s, int pair0, int pairs)
{
    typedef FlashKeys<D> F;
    enum { MT = F::MT, LD = F::LD, OWNED = F::OWNED, WALKED = F::WALKED };
    DYN_SHARED(T, k_tile);
    T *walked = k_tile + 2 * OWNED * LD;
    QueryStats<WALKED> *stats = (QueryStats<WALKED> *)(walked + 2 * F::STAGE);
    int warp_row = threadIdx.x / WARP * MT * 16, stage = 0;
    T *k_rows = k_tile + warp_row * LD, *v_rows = k_rows + OWNED * LD;
    BlockPlace at = keys_place(s, blockIdx.x / F::PARTS, pair0, pairs, OWNED);
    int b = (int)at.b, key = at.row, column = (int)(blockIdx.x % F::PARTS) * F::CT * 8;
    const T *k = head_at(in.k, in.k_ld, b, s.tk, at.kv_head, s) + key * in.k_ld;
    const T *v = head_at(in.v, in.v_ld, b, s.tk, at.kv_head, s) + key * in.v_ld;
    tiles_copy<T, D, OWNED, F::N_THREADS>(k_tile, k, in.k_ld, v, in.v_ld, s.tk - key, s.head_size);
    QueryWalk w = walk_begin<WALKED>(s, at, OWNED);
    /* The first tile is loaded here. In the loop below, the copy of the next tile overlaps with the
     * work on the current one. */
    if (w.head < w.heads_end) {
        int word = walk_copy<T, D>(w, walked, in, s, b, pair0);
        walk_put(word, stats);
    }
    cp_async_commit();
    KeyRows<T, D> own;
    cp_async_wait<0>();
    __syncthreads();
    keys_begin<T, D>(own, k_rows, v_rows);
    for (; w.head < w.heads_end; stage ^= 1) {
        int me = unmoved(key) + warp_row, all_first, all_end;
        const T *q = walked + stage * F::STAGE;
        const QueryStats<WALKED> *of = stats + stage;
        QueryTile<T> tile = {q, q + WALKED * LD, of->lse, of->delta, of->first, w.t};
        cp_async_wait<0>();
        __syncthreads();
        w.t += WALKED;
        walk_find<WALKED>(w, s, b, key, OWNED);
        bool more = w.head < w.heads_end;
        int word = 0;
        if (more) word = walk_copy<T, D>(w, walked + (stage ^ 1) * F::STAGE, in, s, b, pair0);
        cp_async_commit();
        keys_seen_by_all(s, b, tile.t, WALKED, &all_first, &all_end);
        tile.partial = me < all_first || me + MT * 16 > all_end;
        if (me < tile.t + WALKED + s.offset)
#pragma unroll 1
            for (int i = 0; i < WALKED; i += F::NT * 8)
                keys_step<T, D>(own, tile, column, s, me, i);
        /* The statistics are stored only after the products, so that their loads had time to
         * finish. The barrier of the next round makes them visible to all threads. */
        if (more) walk_put(word, stats + (stage ^ 1));
    }
    cp_async_wait<0>();
    __syncthreads();
    keys_store<T, D>(own, k_rows, v_rows, in, s, b, w.heads_end / s.group - 1, key + warp_row,
                     column);
}

template <class T, int D>
static void key_launch(Device *dev, const BackwardCall *c, int pair0, int pairs)
{
    typedef FlashKeys<D> F;
    LAUNCH((flash_backward_key_kernel<T, D>),
           (int64_t)pairs * ceil_div(c->shape.tk, F::OWNED) * F::PARTS, dim3(F::N_THREADS),
           KeysShared<D>::BYTES, cuda_stream(dev), operands_of<T>(c), c->shape, pair0, pairs);
}

void flash_backward_key(Device *dev, const BackwardCall *c, int pair0, int pairs)
{
    with_width(c->shape.head_size, [&](auto width) {
        enum { D = decltype(width)::WIDTH };
        if (c->t->q.dtype == BF16)
            key_launch<bf16, D>(dev, c, pair0, pairs);
        else
            key_launch<f16, D>(dev, c, pair0, pairs);
    });
}
