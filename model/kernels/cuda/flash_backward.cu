/* flash_backward.cu -- computes the gradients of attention on tensor cores, for bf16 and f16. It
 * uses the formulas and the division into two kernels of attention_backward.cu.
 *
 * The two kernels compute seven matrix products where a single kernel would need five. In return,
 * every sum has one owner and a fixed order, without atomics, semaphores or sums in global memory.
 * A single kernel could also fix the order, if one block looped over all keys of a head, but it
 * would need many heads to keep a GPU busy. */
#include "model/kernels/cuda/flash_mask.cuh"

/* Tile sizes of the kernel whose blocks own queries. A block has WARPS warps, and each warp owns 16
 * MT queries. The block loops over tiles of 8 NT keys and their values. There are two tiles of
 * each: one is used while the other is being loaded. Every variant fits in 99 KB of shared memory,
 * the smallest limit per block among GPUs of compute capability 8. */
template <int D> struct FlashQueries {
    enum { WARPS = 4, N_THREADS = WARPS * WARP, MT = D <= 96 ? 2 : 1, NT = D <= 128 ? 4 : 2 };
    /* 16-column pieces of the owned queries and output gradients that stay in registers. */
    enum { Q_HELD = D == 96 || D > 128 ? 0 : D / 16, DOUT_HELD = D == 32 || D == 128 ? D / 16 : 0 };
    enum { OWNED = WARPS * MT * 16, WALKED = NT * 8, CT = D / 8, LD = FLASH_LD(D) };
    enum { STAGE = 2 * WALKED * LD, ELEMENTS = 2 * OWNED * LD + 2 * STAGE };
};

/* Tile sizes of the kernel whose blocks own keys and loop over tiles of queries and output
 * gradients. Each block sums dk and dv in registers. Heads of more than 128 columns would need too
 * many registers, so they are split into PARTS ranges of columns, one per block. A warp computes 8
 * NT of the WALKED queries of a tile at a time: with fewer scores in registers, there is room for
 * its keys and values, which it would otherwise load again for every tile. */
template <int D> struct FlashKeys {
    enum { WARPS = D <= 192 ? 4 : 2, N_THREADS = WARPS * WARP };
    enum { MT = D <= 64 ? 2 : 1, NT = D == 96 || D == 128 ? 4 : 2, PARTS = D <= 128 ? 1 : 2 };
    /* 16-column pieces of the owned keys and values that stay in registers. */
    enum { K_HELD = D == 128 ? 6 : D <= 64 ? D / 16 : 0, V_HELD = D == 32 ? 2 : D == 64 ? 2 : 0 };
    enum {
        OWNED = WARPS * MT * 16,
        WALKED = D <= 128 ? 32 : 16,
        CT = D / 8 / PARTS,
        LD = FLASH_LD(D)
    };
    enum { STAGE = 2 * WALKED * LD, ELEMENTS = 2 * OWNED * LD + 2 * STAGE };
};

/* Values that belong to the N queries of a tile. */
template <int N> struct alignas(16) QueryStats {
    float lse[N]; /* times log2 e; infinity past the last query, which makes all weights 0 */
    float delta[N];
    int first[N];
};

/* Computes delta = rowsum(dO o) for the thread's rows. dout points to the warp's rows of a tile, o
 * to global memory. */
template <class T, int D, int MT>
static __device__ __forceinline__ void deltas(float (&delta)[MT][2], const T *dout, const T *o,
                                              int64_t o_ld, int real, int cols)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = m * 16 + i * 8 + (int)(threadIdx.x % WARP / 4);
            float sum = 0;
            for (int c = threadIdx.x % 4 * CHUNK; row < real && c < cols; c += 4 * CHUNK) {
                float x[CHUNK], y[CHUNK];
                load(x, dout + row * FLASH_LD(D) + c);
                load(y, o + row * o_ld + c);
#pragma unroll
                for (int e = 0; e < CHUNK; e++)
                    sum += x[e] * y[e];
            }
            delta[m][i] = quad_sum(sum);
        }
}

/* Starts an asynchronous copy of rows [at, at + ROWS) of x and of y, two operands of a head, into
 * two consecutive tiles. */
template <class T, int D, int ROWS, int N_THREADS>
static __device__ __forceinline__ void tiles_copy(T *tile, const T *x, int64_t x_ld, const T *y,
                                                  int64_t y_ld, int real, int cols)
{
    tile_copy<T, D, ROWS, N_THREADS>(tile, x, x_ld, real, cols);
    tile_copy<T, D, ROWS, N_THREADS>(tile + ROWS * FLASH_LD(D), y, y_ld, real, cols);
}

/* Adds a tile's contribution to dq, except for the factor scale: sum += (dS / scale) K, for the
 * warp's queries and the keys of the tile. `partial` says that some query of the warp does not see
 * all keys of the tile. */
template <class T, int D, int MT, int CT>
static __device__ __forceinline__ void
queries_step(float (&sum)[MT][CT][4], const float (&lse)[MT][2], const float (&delta)[MT][2],
             const LeftRows<T, D, MT, FlashQueries<D>::Q_HELD> &q,
             const LeftRows<T, D, MT, FlashQueries<D>::DOUT_HELD> &dout, const T *k_tile,
             const T *v_tile, const AttentionShape &s, int64_t b, int t, int key, bool partial)
{
    enum { LD = FLASH_LD(D), NT = FlashQueries<D>::NT };
    float p[MT][NT][4] = {}, dp[MT][NT][4] = {};
    product_transposed(p, q, lane_columns(k_tile, LD));
    /* Scores of hidden keys become -infinity, which makes their weight and gradient 0. This is
     * skipped if all queries of the warp see the whole tile. */
    if (partial) scores_hide(p, s, b, t, key);
    product_transposed(dp, dout, lane_columns(v_tile, LD));
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                dp[m][n][e] = exp2_approx(p[m][n][e] * s.scale_log2 - lse[m][e / 2]) *
                              (dp[m][n][e] - delta[m][e / 2]);
    product_weighed<T, D>(sum, dp, lane_rows(k_tile, LD));
}

/* Computes dq (B, Tq, H*D) = dS K, or += with accumulate, and delta (pairs, Tq) = rowsum(dO o), for
 * (batch row, head) pairs from `pair0` on. Each block owns queries of one head and loops over the
 * keys that they see. */
template <class T, int D>
__global__ void __launch_bounds__(FlashQueries<D>::N_THREADS, 1)
    flash_backward_query_kernel(T *dq, int64_t dq_ld, bool accumulate, float *delta_of,
                                const float *lse_of, BackwardOperands<T> in, AttentionShape s,
                                int pair0, int pairs)
{
    typedef FlashQueries<D> F;
    enum { MT = F::MT, LD = F::LD, OWNED = F::OWNED, WALKED = F::WALKED, N_THREADS = F::N_THREADS };
    DYN_SHARED(T, q_tile);
    T *walked = q_tile + 2 * OWNED * LD;
    BlockPlace at = queries_place(s, blockIdx.x, pair0, pairs, OWNED);
    int t = at.row, start, stop, stage = 0;
    const T *q = head_at(in.q, in.q_ld, at.b, s.tq, at.head, s);
    const T *dout = head_at(in.dout, in.dout_ld, at.b, s.tq, at.head, s);
    const T *k = head_at(in.k, in.k_ld, at.b, s.tk, at.kv_head, s);
    const T *v = head_at(in.v, in.v_ld, at.b, s.tk, at.kv_head, s);
    keys_seen_by(s, at.b, t, OWNED, &start, &stop);
    k += start * in.k_ld;
    v += start * in.v_ld;
    tiles_copy<T, D, OWNED, N_THREADS>(q_tile, q + t * in.q_ld, in.q_ld, dout + t * in.dout_ld,
                                       in.dout_ld, s.tq - t, s.head_size);
    tiles_copy<T, D, WALKED, N_THREADS>(walked, k, in.k_ld, v, in.v_ld, s.tk - start, s.head_size);
    cp_async_commit();
    int warp_row = threadIdx.x / WARP * MT * 16, all_first, all_end;
    T *own = q_tile + warp_row * LD;
    t += warp_row;
    float lse[MT][2], delta[MT][2], factor[MT][2], sum[MT][F::CT][4] = {};
    cp_async_wait<0>();
    __syncthreads();
    deltas<T, D>(delta, own + OWNED * LD,
                 head_at(in.o, in.o_ld, at.b, s.tq, at.head, s) + t * in.o_ld, in.o_ld, s.tq - t,
                 s.head_size);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int query = t + m * 16 + i * 8 + (int)(threadIdx.x % WARP / 4);
            bool real = query < s.tq;
            lse[m][i] = real ? lse_of[(int64_t)at.pair * s.tq + query] * LOG2E : 0;
            /* delta is stored for flash_backward_key_kernel, which runs next on this stream. */
            if (real && threadIdx.x % 4 == 0)
                delta_of[(int64_t)at.local * s.tq + query] = delta[m][i];
            factor[m][i] = s.scale;
        }
    keys_seen_by_all(s, at.b, t, MT * 16, &all_first, &all_end);
    LeftRows<T, D, MT, F::Q_HELD> queries;
    LeftRows<T, D, MT, F::DOUT_HELD> douts;
    rows_hold(queries, own);
    rows_hold(douts, own + OWNED * LD);
    for (int key = start; key < stop; key += WALKED, stage ^= 1) {
        cp_async_wait<0>();
        __syncthreads();
        /* The next tiles overwrite the previous ones. After the barrier above, no warp reads those
         * any more. */
        k += WALKED * in.k_ld;
        v += WALKED * in.v_ld;
        if (key + WALKED < stop)
            tiles_copy<T, D, WALKED, N_THREADS>(walked + (stage ^ 1) * F::STAGE, k, in.k_ld, v,
                                                in.v_ld, s.tk - key - WALKED, s.head_size);
        cp_async_commit();
        const T *k_tile = walked + stage * F::STAGE;
        if (key < t + MT * 16 + s.offset)
            queries_step<T, D>(sum, lse, delta, queries, douts, k_tile, k_tile + WALKED * LD, s,
                               at.b, t, key, key < all_first || key + WALKED > all_end);
    }
    rows_store<T, D>(head_at(dq, dq_ld, at.b, s.tq, at.head, s) + t * dq_ld, dq_ld, s.tq - t,
                     s.head_size, own, sum, factor, accumulate);
}

/* Adds a tile's contribution to the gradients of the warp's keys: dV += P^T dO and dK += (dS /
 * scale)^T Q. Rows are the keys from `key` on, columns the queries from t on. `partial` says that
 * some query of the tile does not see all of the warp's keys. */
template <class T, int D, int MT, int NT, int CT>
static __device__ __forceinline__ void
keys_step(float (&dk)[MT][CT][4], float (&dv)[MT][CT][4],
          const LeftRows<T, D, MT, FlashKeys<D>::K_HELD> &k,
          const LeftRows<T, D, MT, FlashKeys<D>::V_HELD> &v, const T *q_tile, const T *dout_tile,
          int column, const QueryStats<FlashKeys<D>::WALKED> *stats, int at,
          const AttentionShape &s, int key, int t, bool partial, int rows, int columns)
{
    enum { LD = FLASH_LD(D) };
    float p[MT][NT][4] = {}, dp[MT][NT][4] = {};
    product_transposed(p, k, q_tile + columns);
    /* Hidden scores become -infinity, which makes their weight and gradient 0. Past the last query
     * lse is infinite, with the same effect. */
    if (partial) scores_hide_transposed(p, s, stats->first + at, key, t);
    product_transposed(dp, v, dout_tile + columns);
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int query = at + n * 8 + threadIdx.x % 4 * 2 + e;
            float lse = stats->lse[query], delta = stats->delta[query];
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float *x = &p[m][n][i * 2 + e], *y = &dp[m][n][i * 2 + e];
                    *x = exp2_approx(*x * s.scale_log2 - lse);
                    *y = *x * (*y - delta);
                }
        }
    /* dp still lacks the factor scale: it is applied once, when dk is stored. */
    product_weighed<T, D>(dv, p, dout_tile + column + rows);
    product_weighed<T, D>(dk, dp, q_tile + column + rows);
}

/* A block's position in its loop over tiles of queries. */
typedef struct {
    int head, heads_end; /* query head; end of the heads of the group */
    int t;               /* first query of the tile */
    int word;            /* the thread's word of the QueryStats of the tile that is being copied */
} QueryWalk;

/* Finds the next tile of queries, starting with (head, t) itself, in which some query sees one of
 * the keys [key, key + n). Goes through the heads of the group, and the queries of each head, in
 * ascending order. If there is none, head becomes heads_end. All warps get the same result. */
template <int WALKED>
static __device__ __forceinline__ void walk_find(QueryWalk &w, const AttentionShape &s, int64_t b,
                                                 int key, int n)
{
    for (; w.head < w.heads_end; w.head++) {
        for (; w.t < s.tq; w.t += WALKED) {
            int first, end;
            keys_seen_by(s, b, w.t, WALKED, &first, &end);
            if (first < key + n && end > key) return;
        }
        w.t = max(key - s.offset, 0) / WALKED * WALKED;
    }
}

/* Loads the thread's word of the tile's QueryStats. The first WALKED threads load lse, the next
 * delta, and the next the first keys, so that each thread needs only one register for them. */
template <int WALKED>
static __device__ __forceinline__ int stats_word(const QueryWalk &w, const float *lse_of,
                                                 const float *delta_of, const AttentionShape &s,
                                                 int b, int pair0)
{
    int query = w.t + (int)threadIdx.x % WALKED, kind = (int)threadIdx.x / WALKED;
    int pair = b * s.heads + w.head;
    if (kind == 0) {
        float lse = INFINITY;
        if (query < s.tq) lse = lse_of[(int64_t)pair * s.tq + query] * LOG2E;
        return (int)__float_as_uint(lse);
    }
    if (kind == 1 && query < s.tq)
        return (int)__float_as_uint(delta_of[(int64_t)(pair - pair0 * s.group) * s.tq + query]);
    if (kind == 2 && query < s.tq && s.first_key) return s.first_key[(int64_t)b * s.tq + query];
    return 0;
}

/* Starts an asynchronous copy of the tile's queries and output gradients. */
template <class T, int D>
static __device__ __forceinline__ void walk_copy(const QueryWalk &w, T *tile,
                                                 const BackwardOperands<T> &in,
                                                 const AttentionShape &s, int b)
{
    enum { WALKED = FlashKeys<D>::WALKED, N_THREADS = FlashKeys<D>::N_THREADS };
    tiles_copy<T, D, WALKED, N_THREADS>(
        tile, head_at(in.q, in.q_ld, b, s.tq, w.head, s) + w.t * in.q_ld, in.q_ld,
        head_at(in.dout, in.dout_ld, b, s.tq, w.head, s) + w.t * in.dout_ld, in.dout_ld, s.tq - w.t,
        s.head_size);
}

template <int N>
static __device__ __forceinline__ void walk_put(const QueryWalk &w, QueryStats<N> *stats)
{
    if (threadIdx.x < 3 * N) ((int *)stats)[threadIdx.x] = w.word;
}

/* Computes dk and dv (B, Tk, G*D), or adds to them with accumulate, for (batch row, kv head) pairs
 * from `pair0` on. Reads delta (pairs * H / G, Tq), which the query kernel has stored. Each block
 * owns keys and loops over the query heads of its group and their queries, both in ascending order.
 */
template <class T, int D>
__global__ void __launch_bounds__(FlashKeys<D>::N_THREADS, 2)
    flash_backward_key_kernel(T *dk, int64_t dk_ld, T *dv, int64_t dv_ld, bool accumulate,
                              const float *delta_of, const float *lse_of, BackwardOperands<T> in,
                              AttentionShape s, int pair0, int pairs)
{
    typedef FlashKeys<D> F;
    enum { MT = F::MT, LD = F::LD, OWNED = F::OWNED, WALKED = F::WALKED, CT = F::CT };
    DYN_SHARED(T, k_tile);
    T *walked = k_tile + 2 * OWNED * LD;
    QueryStats<WALKED> *stats = (QueryStats<WALKED> *)(walked + 2 * F::STAGE);
    int warp_row = threadIdx.x / WARP * MT * 16, stage = 0;
    T *k = k_tile + warp_row * LD, *v = k + OWNED * LD;
    BlockPlace at = keys_place(s, blockIdx.x / F::PARTS, pair0, pairs, OWNED);
    tiles_copy<T, D, OWNED, F::N_THREADS>(
        k_tile, head_at(in.k, in.k_ld, at.b, s.tk, at.kv_head, s) + at.row * in.k_ld, in.k_ld,
        head_at(in.v, in.v_ld, at.b, s.tk, at.kv_head, s) + at.row * in.v_ld, in.v_ld,
        s.tk - at.row, s.head_size);
    int b = (int)at.b, key = at.row, part = (int)(blockIdx.x % F::PARTS) * CT * 8;
    QueryWalk w = {at.head, at.head + s.group, max(key - s.offset, 0) / WALKED * WALKED};
    walk_find<WALKED>(w, s, b, key, OWNED);
    /* The first tile is loaded here. In the loop below, the copy of the next tile overlaps with the
     * work on the current one. */
    if (w.head < w.heads_end) {
        walk_copy<T, D>(w, walked, in, s, b);
        w.word = stats_word<WALKED>(w, lse_of, delta_of, s, b, pair0);
        walk_put(w, stats);
    }
    cp_async_commit();
    float dk_sum[MT][CT][4] = {}, dv_sum[MT][CT][4] = {}, one[MT][2], scale[MT][2];
    LeftRows<T, D, MT, F::K_HELD> keys;
    LeftRows<T, D, MT, F::V_HELD> values;
    cp_async_wait<0>();
    __syncthreads();
    int rows = unmoved((int)(lane_rows(k_tile, LD) - k_tile)),
        columns = unmoved((int)(lane_columns(k_tile, LD) - k_tile));
    rows_hold(keys, k);
    rows_hold(values, v);
    for (; w.head < w.heads_end; stage ^= 1) {
        int t = w.t, me = unmoved(key) + warp_row, all_first, all_end;
        cp_async_wait<0>();
        __syncthreads();
        w.t += WALKED;
        walk_find<WALKED>(w, s, b, key, OWNED);
        bool more = w.head < w.heads_end;
        if (more) {
            walk_copy<T, D>(w, walked + (stage ^ 1) * F::STAGE, in, s, b);
            w.word = stats_word<WALKED>(w, lse_of, delta_of, s, b, pair0);
        }
        cp_async_commit();
        keys_seen_by_all(s, b, t, WALKED, &all_first, &all_end);
        const T *q_tile = walked + stage * F::STAGE;
        bool partial = me < all_first || me + MT * 16 > all_end;
        if (me < t + WALKED + s.offset)
#pragma unroll 1
            for (int i = 0; i < WALKED; i += F::NT * 8)
                keys_step<T, D, MT, F::NT>(dk_sum, dv_sum, keys, values, q_tile + i * LD,
                                           q_tile + (WALKED + i) * LD, part, stats + stage, i, s,
                                           me, t + i, partial, rows, columns);
        /* lse and delta are stored only after the products, so that their loads had time to finish.
         * The barrier of the next round makes them visible to all threads. */
        if (more) walk_put(w, stats + (stage ^ 1));
    }
    cp_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int m = 0; m < MT; m++) {
        one[m][0] = one[m][1] = 1;
        scale[m][0] = scale[m][1] = s.scale;
    }
    int me = key + warp_row, kv_head = w.heads_end / s.group - 1;
    dk = head_at(dk, dk_ld, b, s.tk, kv_head, s) + me * dk_ld + part;
    dv = head_at(dv, dv_ld, b, s.tk, kv_head, s) + me * dv_ld + part;
    rows_store<T, D>(dk, dk_ld, s.tk - me, s.head_size - part, k, dk_sum, scale, accumulate);
    rows_store<T, D>(dv, dv_ld, s.tk - me, s.head_size - part, v, dv_sum, one, accumulate);
}

/* Launches the two kernels for as many (batch row, kv head) pairs at a time as have room for their
 * delta in the workspace. */
template <class T, int D>
static void backward_launch(Device *dev, const BackwardTensors *c, AttentionShape s)
{
    typedef FlashQueries<D> Q;
    typedef FlashKeys<D> K;
    size_t stats = 2 * sizeof(QueryStats<K::WALKED>);
    int64_t group = s.heads / s.kv_heads, all = c->q.dim[0] * s.kv_heads;
    int64_t portion = attention_portion(dev, group * s.tq, all);
    float *delta = (float *)cuda_workspace(dev, (size_t)(portion * group * s.tq) * sizeof(float));
    for (int64_t pair = 0; pair < all; pair += portion) {
        int64_t n = portion < all - pair ? portion : all - pair;
        LAUNCH((flash_backward_query_kernel<T, D>), n * group * ceil_div(s.tq, Q::OWNED),
               dim3(Q::N_THREADS), Q::ELEMENTS * sizeof(T), cuda_stream(dev), (T *)c->dq.data,
               c->dq.ld, c->accumulate, delta, (const float *)c->lse.data, operands_of<T>(c), s,
               (int)(pair * group), (int)(n * group));
        LAUNCH((flash_backward_key_kernel<T, D>), n * ceil_div(s.tk, K::OWNED) * K::PARTS,
               dim3(K::N_THREADS), K::ELEMENTS * sizeof(T) + stats, cuda_stream(dev),
               (T *)c->dk.data, c->dk.ld, (T *)c->dv.data, c->dv.ld, c->accumulate, delta,
               (const float *)c->lse.data, operands_of<T>(c), s, (int)pair, (int)n);
    }
}

void flash_attention_backward(Device *dev, Tensor dq, Tensor dk, Tensor dv, bool accumulate,
                              Tensor dout, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse,
                              Attention attention, Tensor first_key)
{
    BackwardTensors call = {dq, dk, dv, dout, q, k, v, o, lse, accumulate};
    AttentionShape s = shape_of(q, k, attention, first_key);
    WITH_WIDTH(attention.head_size, D, {
        if (q.dtype == BF16)
            backward_launch<bf16, D>(dev, &call, s);
        else
            backward_launch<f16, D>(dev, &call, s);
    });
}
