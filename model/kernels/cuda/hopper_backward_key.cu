/* hopper_backward_key.cu -- computes dk and dv of attention backward on Hopper.
 * hopper_backward.cuh tells how backward is divided into two kernels. */
#include "model/kernels/cuda/hopper_backward.cuh"
#include "model/kernels/cuda/query_walk.cuh"

/* What belongs to the N queries of a walked tile. The producer writes it with ordinary stores and
 * the consumers read it with ordinary loads, so the barriers of the stage suffice. (Operands of
 * products that threads have written would also need a fence between proxies; see ptx_tma.cuh.) */
template <int N> struct alignas(16) TileStats {
    float lse[N]; /* times log2 e; infinity past the last query, which makes all weights 0 */
    float delta[N];
    float first[N]; /* first key that the query sees: the bits of an int, so that it is loaded like
                       the others */
    int t;          /* first query of the tile; WALK_END after the last tile */
    int all_first, all_end; /* the keys that all of the queries see */
};

enum { WALK_END = -1 };

/* The shared memory of a block that owns keys, in bytes: keys and values of the consumers, then the
 * stages, each a tile of queries and one of output gradients, then the TileStats of the stages and
 * the barriers. */
template <int D> struct HopperKeys {
    enum { WALKED = BACKWARD_WALKED(D), TILE = TILE_BYTES(WALKED, D), STAGE = 2 * TILE };
    enum { OWN = TILE_BYTES(GROUP_ROWS, D), STAGES_AT = 2 * BACKWARD_CONSUMERS * OWN };
    enum { STATS_AT = STAGES_AT + BACKWARD_STAGES * STAGE };
    enum { BARRIERS_AT = STATS_AT + BACKWARD_STAGES * (int)sizeof(TileStats<WALKED>) };
    enum { BYTES = BARRIERS_AT + (int)sizeof(BackwardBarriers) + TILE_ALIGN };
    /* The number of arrivals that make a stage full: one for its copies, and one from each warp of
     * the producer. */
    enum { FILLS = 1 + GROUP_WARPS };
    static_assert((int)WALKED <= (int)WARPGROUP,
                  "each thread of the producer carries at most one query");
};

/* The shared memory of a block. */
template <int D> struct KeyBlock {
    unsigned char *own, *stages;
    TileStats<BACKWARD_WALKED(D)> *stats;
    BackwardBarriers *barriers;
};

template <int D> static __device__ __forceinline__ KeyBlock<D> key_block(unsigned char *shared)
{
    typedef HopperKeys<D> F;
    KeyBlock<D> block;
    block.own = tiles_begin(shared);
    block.stages = block.own + F::STAGES_AT;
    block.stats = (TileStats<F::WALKED> *)(block.own + F::STATS_AT);
    block.barriers = (BackwardBarriers *)(block.own + F::BARRIERS_AT);
    return block;
}

/* ---- the producer ---------------------------------------------------------------------------- */

/* The values of one query, which a thread of the producer carries from global memory to a stage. */
struct QueryValues {
    float lse, delta;
    int first;
};

template <class T>
static __device__ __forceinline__ QueryValues values_load(const BackwardOperands<T> &in,
                                                          const AttentionShape &s, int b,
                                                          const QueryWalk &w, int pair0)
{
    QueryValues x = {INFINITY, 0, 0};
    int query = w.t + (int)threadIdx.x % WARPGROUP, pair = b * s.heads + w.head;
    if (query >= s.tq) return x;
    x.lse = in.lse[(int64_t)pair * s.tq + query] * LOG2E;
    x.delta = in.delta[(int64_t)(pair - pair0 * s.group) * s.tq + query];
    if (s.first_key) x.first = s.first_key[(int64_t)b * s.tq + query];
    return x;
}

/* Writes the values of the query that the calling thread carries into a tile's TileStats; one warp
 * computes the other fields, which its first lane writes. */
template <int N>
static __device__ __forceinline__ void values_put(TileStats<N> *stats, const QueryValues &x,
                                                  const AttentionShape &s, int b, int t)
{
    int me = threadIdx.x % WARPGROUP, all_first, all_end;
    if (me < N) {
        stats->lse[me] = x.lse;
        stats->delta[me] = x.delta;
        stats->first[me] = __int_as_float(x.first);
    }
    if (me >= WARP) return;
    keys_seen_by_all(s, b, t, N, &all_first, &all_end);
    if (me > 0) return;
    stats->t = t;
    stats->all_first = all_first;
    stats->all_end = all_end;
}

/* Starts the copies of a tile's queries and output gradients. Called by one thread. */
template <int D>
static __device__ __forceinline__ void walk_load(unsigned char *tile, const BackwardMaps &maps,
                                                 uint64_t *full, const QueryWalk &w, int b)
{
    typedef HopperKeys<D> F;
    mbarrier_expect(full, F::STAGE);
    boxes_load<F::WALKED, D>(tile, &maps.q, full, w.head, w.t, b);
    boxes_load<F::WALKED, D>(tile + F::TILE, &maps.dout, full, w.head, w.t, b);
}

/* The producer: loads the owned rows and then all tiles of the walk. One thread starts the copies,
 * and each thread carries one query's values. */
template <class T, int D>
static __device__ __forceinline__ void
keys_produce(const KeyBlock<D> &block, const BackwardMaps &maps, const BackwardOperands<T> &in,
             const AttentionShape &s, const BlockPlace &at, int pair0, int consumers)
{
    typedef HopperKeys<D> F;
    bool copies = threadIdx.x % WARPGROUP == 0, arrives = threadIdx.x % WARP == 0;
    int b = (int)at.b, key = at.row;
    BackwardBarriers *barriers = block.barriers;
    if (copies)
        owned_load<D>(block.own, consumers, &maps.k, &maps.v, &barriers->own, at.kv_head, key, b);
    QueryWalk w = walk_begin<F::WALKED>(s, at, BACKWARD_OWNED);
    BackwardRing ring = {0, 0};
#pragma unroll 1
    for (; w.head < w.heads_end; ring_next(ring)) {
        /* Keeps the compiler from computing addresses that depend on b before the loop: there are
         * no registers to hold them. */
        b = unmoved(b);
        uint64_t *full = barriers->full + ring.stage;
        QueryValues x = values_load(in, s, b, w, pair0);
        mbarrier_wait(barriers->empty + ring.stage, ring.parity ^ 1);
        if (copies) walk_load<D>(block.stages + ring.stage * F::STAGE, maps, full, w, b);
        values_put(block.stats + ring.stage, x, s, b, w.t);
        __syncwarp();
        if (arrives) mbarrier_arrive(full);
        w.t += F::WALKED;
        walk_find<F::WALKED>(w, s, b, key, BACKWARD_OWNED);
    }
    /* Fills one more stage without a tile (WALK_END), which ends the consumers' loops. */
    mbarrier_wait(barriers->empty + ring.stage, ring.parity ^ 1);
    if (copies) block.stats[ring.stage].t = WALK_END;
    if (copies) mbarrier_arrive(barriers->full + ring.stage);
    if (arrives) mbarrier_arrive(barriers->full + ring.stage);
}

/* ---- a consumer ------------------------------------------------------------------------------ */

/* Sums of a consumer's keys: dk, except for the factor scale, and dv. */
template <int D> struct KeySums {
    float dk[D / 2], dv[D / 2];
};

/* Sets transposed scores to -infinity where the query does not see the key. The thread's rows of p
 * are the keys `key` and key + 8; its columns are queries. `first` points to the first key that the
 * query of the thread's first column sees (then follow those of the next queries), and `last` is
 * the last key that this query sees. */
template <int N>
static __device__ __forceinline__ void scores_hide_transposed(float (&p)[N / 2], const float *first,
                                                              int key, int last)
{
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        float bits[2];
        load_pair(bits, first + n * 8);
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int at = key + i * 8;
                if (at < __float_as_int(bits[e]) || at > last + n * 8 + e)
                    p[n * 4 + i * 2 + e] = -INFINITY;
            }
    }
}

/* Adds a tile's contribution to the gradients of the consumer's keys: dV += P^T dO and dK += (dS /
 * scale)^T Q. k and v are the consumer's tiles, q and dout the walked ones, as addresses. partial:
 * some query of the tile does not see all of the consumer's keys. The thread's first row is that of
 * key `key`. Its first column is column `column` of the tile, and `last` is the last key that this
 * column's query sees. */
template <class T, int D>
static __device__ __forceinline__ void
keys_step(KeySums<D> &own, uint32_t k, uint32_t v, uint32_t q, uint32_t dout,
          const TileStats<BACKWARD_WALKED(D)> *stats, int column, float scale_log2, bool partial,
          int key, int last)
{
    enum { N = BACKWARD_WALKED(D), HALF = 64 };
    uint32_t weights[N / 16][4], gradients[N / 16][4];
    float p[N / 2];
    wgmma_fence();
    product_along<T, N, D>(p, tile_along(k), tile_along(q));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(p);
    /* Hidden scores become -infinity, which makes their weight and gradient 0. Past the last query
     * lse is infinite, with the same effect. */
    if (partial) scores_hide_transposed<N>(p, stats->first + column, key, last);
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        float lse[2];
        load_pair(lse, stats->lse + column + n * 8);
#pragma unroll
        for (int e = 0; e < 4; e++)
            p[n * 4 + e] = exp2_approx(p[n * 4 + e] * scale_log2 - lse[e % 2]);
    }
    /* Only half of the gradients of 128 weights fit in the registers at a time. */
#pragma unroll
    for (int h = 0; h < N / HALF; h++) {
        float dp[HALF / 2];
        wgmma_fence();
        product_along<T, HALF, D>(dp, tile_along(v), tile_along(dout + h * HALF * PANEL_ROW));
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_hold(dp);
#pragma unroll
        for (int n = 0; n < HALF / 8; n++) {
            float delta[2];
            load_pair(delta, stats->delta + column + h * HALF + n * 8);
#pragma unroll
            for (int e = 0; e < 4; e++)
                dp[n * 4 + e] = p[h * HALF / 2 + n * 4 + e] * (dp[n * 4 + e] - delta[e % 2]);
        }
#pragma unroll
        for (int j = 0; j < HALF / 16; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = j * 8 + i * 2, of = h * HALF / 2 + at;
                gradients[h * HALF / 16 + j][i] = pair<T>(dp[at], dp[at + 1]);
                weights[h * HALF / 16 + j][i] = pair<T>(p[of], p[of + 1]);
            }
    }
    wgmma_hold(weights);
    wgmma_hold(gradients);
    wgmma_hold(own.dv);
    wgmma_hold(own.dk);
    wgmma_fence();
    product_down<T, D>(own.dv, weights, tile_down<N>(dout));
    /* dk still lacks the factor scale: it is applied once, when dk is stored. */
    product_down<T, D>(own.dk, gradients, tile_down<N>(q));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(own.dv);
    wgmma_hold(own.dk);
}

/* Stores dk and dv of the consumer's keys from `first` on, through its tiles. */
template <class T, int D>
static __device__ __forceinline__ void keys_store(const KeySums<D> &own, unsigned char *tile,
                                                  const BackwardOperands<T> &in,
                                                  const BiasPartials &bias, const AttentionShape &s,
                                                  const BlockPlace &at, int first, int group)
{
    int key = first + warp_row();
    T *dk = head_at(in.dk, in.dk_ld, at.b, s.tk, at.kv_head, s) + key * in.dk_ld;
    T *dv = head_at(in.dv, in.dv_ld, at.b, s.tk, at.kv_head, s) + key * in.dv_ld;
    const float scale[2] = {s.scale, s.scale}, one[2] = {1, 1};
    group_rows_store<T, D>(dk, in.dk_ld, s.tk - key, tile, own.dk, scale, in.accumulate);
    group_rows_store<T, D>(dv, in.dv_ld, s.tk - key, tile + HopperKeys<D>::OWN, own.dv, one,
                           in.accumulate);
    if (bias.sums == NULL) return;
    int column = at.kv_head * D, real = s.tk - first;
    columns_sum<T, D>(bias, tile, at.b, first, column, real, 1 + group);
    columns_sum<T, D>(bias, tile + HopperKeys<D>::OWN, at.b, first, s.kv_heads * D + column, real,
                      1 + group);
}

/* A consumer: computes and stores dk and dv of the 64 keys from `key` on. */
template <class T, int D>
static __device__ __forceinline__ void
keys_consume(const KeyBlock<D> &block, int group, const BackwardOperands<T> &in,
             const BiasPartials &bias, const AttentionShape &s, const BlockPlace &at)
{
    typedef HopperKeys<D> F;
    int first = at.row + group * GROUP_ROWS, lane = threadIdx.x % WARP;
    unsigned char *tile = block.own + group * 2 * F::OWN;
    uint32_t k = shared_address(tile), stages = shared_address(block.stages);
    KeySums<D> own;
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        own.dk[i] = own.dv[i] = 0;
    mbarrier_wait(&block.barriers->own, 0);
    BackwardRing ring = {0, 0};
#pragma unroll 1
    for (;; ring_next(ring)) {
        const TileStats<F::WALKED> *stats = block.stats + ring.stage;
        uint32_t q = stages + ring.stage * F::STAGE;
        mbarrier_wait(block.barriers->full + ring.stage, ring.parity);
        int t = uniform(stats->t);
        if (t == WALK_END) break;
        bool partial = uniform(first < stats->all_first || first + GROUP_ROWS > stats->all_end);
        int column = lane % 4 * 2, key = first + warp_row() + lane / 4;
        if (first < t + F::WALKED + s.offset)
            keys_step<T, D>(own, k, k + F::OWN, q, q + F::TILE, stats, column, s.scale_log2,
                            partial, key, t + s.offset + column);
        stage_release(block.barriers->empty + ring.stage);
    }
    /* After this barrier no warp reads the tiles of keys and values any more. */
    named_barrier_sync(1 + group, WARPGROUP);
    keys_store<T, D>(own, tile, in, bias, s, at, first, group);
}

/* Computes dk and dv (B, Tk, G*D), or adds to them with accumulate, for (batch row, kv head) pairs
 * from `pair0` on. Reads delta (pairs * H / G, Tq), which the query kernel has stored. Each block
 * owns keys and loops over the query heads of its group and their queries, both in ascending order.
 */
template <class T, int D>
__global__ void __launch_bounds__(BACKWARD_THREADS, 1)
    hopper_backward_key_kernel(const __grid_constant__ BackwardMaps maps,
                               const __grid_constant__ BackwardOperands<T> in,
                               const __grid_constant__ BiasPartials bias,
                               const __grid_constant__ AttentionShape s, int pair0, int pairs)
{
    DYN_SHARED(unsigned char, shared);
    KeyBlock<D> block = key_block<D>(shared);
    BlockPlace at = keys_place(s, blockIdx.x, pair0, pairs, BACKWARD_OWNED);
    int group = warpgroup_number(), consumers = consumers_of(s.tk - at.row);
    barriers_begin(block.barriers, HopperKeys<D>::FILLS, consumers);
    if (group == BACKWARD_CONSUMERS) {
        registers_give<PRODUCER_REGISTERS>();
        keys_produce<T, D>(block, maps, in, s, at, pair0, consumers);
    } else {
        registers_take<CONSUMER_REGISTERS>();
        if (group < consumers) keys_consume<T, D>(block, group, in, bias, s, at);
    }
}

template <class T, int D>
static void key_launch(Device *dev, const BackwardCall *c, const BackwardMaps *maps,
                       const BiasPartials *bias, int pair0, int pairs)
{
    LAUNCH((hopper_backward_key_kernel<T, D>),
           (int64_t)pairs * ceil_div(c->shape.tk, BACKWARD_OWNED), dim3(BACKWARD_THREADS),
           HopperKeys<D>::BYTES, cuda_stream(dev), *maps, operands_of<T>(c), *bias, c->shape, pair0,
           pairs);
}

void hopper_backward_key(Device *dev, const BackwardCall *c, const BackwardMaps *maps,
                         const BackwardBiases *biases, int pair0, int pairs)
{
    with_hopper_types(c, [&](auto t, auto width) {
        key_launch<typename decltype(t)::Type, decltype(width)::WIDTH>(dev, c, maps, &biases->kv,
                                                                       pair0, pairs);
    });
}
