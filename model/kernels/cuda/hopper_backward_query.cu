/* hopper_backward_query.cu -- computes dq and delta of attention backward on Hopper.
 * hopper_backward.cuh tells how backward is divided into two kernels. */
#include "model/kernels/cuda/hopper_backward.cuh"

/* The shared memory of a block that owns queries, in bytes: queries and output gradients of the
 * consumers, then the stages, each a tile of keys and one of values, then the barriers. */
template <int D> struct HopperQueries {
    enum { WALKED = BACKWARD_WALKED(D), TILE = TILE_BYTES(WALKED, D), STAGE = 2 * TILE };
    enum { OWN = TILE_BYTES(GROUP_ROWS, D), STAGES_AT = 2 * BACKWARD_CONSUMERS * OWN };
    enum { BARRIERS_AT = STAGES_AT + BACKWARD_STAGES * STAGE };
    enum { BYTES = BARRIERS_AT + (int)sizeof(BackwardBarriers) + TILE_ALIGN };
};

/* What a block's threads know: its shared memory, its queries, and the keys that they see. */
struct QueryBlock {
    unsigned char *own, *stages;
    BackwardBarriers *barriers;
    BlockPlace at;
    int start, stop;
};

template <int D>
static __device__ __forceinline__ QueryBlock query_block(unsigned char *shared,
                                                         const AttentionShape &s, int pair0,
                                                         int pairs)
{
    typedef HopperQueries<D> F;
    QueryBlock block;
    block.own = tiles_begin(shared);
    block.stages = block.own + F::STAGES_AT;
    block.barriers = (BackwardBarriers *)(block.own + F::BARRIERS_AT);
    block.at = queries_place(s, blockIdx.x, pair0, pairs, BACKWARD_OWNED);
    int start, stop;
    keys_seen_by(s, block.at.b, block.at.row, BACKWARD_OWNED, &start, &stop);
    block.start = uniform(start);
    block.stop = uniform(stop);
    return block;
}

/* The producer: one thread loads the owned rows and then the tiles of keys and values. */
template <int D>
static __device__ __forceinline__ void queries_produce(const QueryBlock &block,
                                                       const BackwardMaps &maps, int consumers)
{
    typedef HopperQueries<D> F;
    const BlockPlace &at = block.at;
    int b = (int)at.b;
    owned_load<D>(block.own, consumers, &maps.q, &maps.dout, &block.barriers->own, at.head, at.row,
                  b);
    BackwardRing ring = {0, 0};
#pragma unroll 1
    for (int key = block.start; key < block.stop; key += F::WALKED, ring_next(ring)) {
        unsigned char *tile = block.stages + ring.stage * F::STAGE;
        uint64_t *full = block.barriers->full + ring.stage;
        mbarrier_wait(block.barriers->empty + ring.stage, ring.parity ^ 1);
        mbarrier_expect(full, F::STAGE);
        boxes_load<F::WALKED, D>(tile, &maps.k, full, at.kv_head, key, b);
        boxes_load<F::WALKED, D>(tile + F::TILE, &maps.v, full, at.kv_head, key, b);
    }
}

/* A consumer's queries: the first one, the thread's statistics, and the sum of dq except for the
 * factor scale. */
template <int D> struct QuerySums {
    int t;
    float lse[2], delta[2], dq[D / 2];
};

/* Sets the statistics of the thread's queries and clears dq. Stores delta = rowsum(dO o), which
 * the key kernel reads: it runs next on this stream. */
template <class T, int D>
static __device__ __forceinline__ void queries_begin(QuerySums<D> &own,
                                                     const BackwardOperands<T> &in,
                                                     const AttentionShape &s, const BlockPlace &at)
{
    const T *o = head_at(in.o, in.o_ld, at.b, s.tq, at.head, s);
    const T *dout = head_at(in.dout, in.dout_ld, at.b, s.tq, at.head, s);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int query = own.t + warp_row() + i * 8 + (int)(threadIdx.x % WARP) / 4;
        bool real = query < s.tq;
        float sum = 0;
        for (int c = threadIdx.x % 4 * 8; real && c < D; c += 4 * 8) {
            float x[8], y[8];
            load(x, dout + query * in.dout_ld + c);
            load(y, o + query * in.o_ld + c);
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum += x[e] * y[e];
        }
        own.delta[i] = lanes_sum(sum, 4);
        own.lse[i] = real ? in.lse[(int64_t)at.pair * s.tq + query] * LOG2E : 0;
        if (real && threadIdx.x % 4 == 0) in.delta[(int64_t)at.local * s.tq + query] = own.delta[i];
    }
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        own.dq[i] = 0;
}

/* Adds a tile's contribution to dq: (dS / scale) K, for the keys from `key` on. q and dout are the
 * addresses of the consumer's tiles, k and v those of the walked tiles. The walked tiles' stage is
 * full in the phase of `parity`. partial: some query of the consumer does not see all of the
 * keys. */
template <class T, int D>
static __device__ __forceinline__ void queries_step(QuerySums<D> &own, uint32_t q, uint32_t dout,
                                                    uint32_t k, uint32_t v, const AttentionShape &s,
                                                    int64_t b, int key, bool partial,
                                                    uint64_t *full, uint32_t parity)
{
    enum { N = BACKWARD_WALKED(D) };
    float p[N / 2], dp[N / 2];
    wgmma_fence();
    product_along<T, N, D>(p, tile_along(q), tile_along(k));
    wgmma_commit();
    product_along<T, N, D>(dp, tile_along(dout), tile_along(v));
    wgmma_commit();
    wgmma_wait<1>();
    wgmma_hold(p);
    /* Scores of hidden keys become -infinity, which makes their weight and gradient 0. */
    if (partial) scores_hide<N>(p, s, b, own.t + warp_row(), key);
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        p[i] = exp2_approx(p[i] * s.scale_log2 - own.lse[i / 2 % 2]);
    stage_wait_again(full, parity);
    wgmma_wait<0>();
    wgmma_hold(dp);
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        dp[i] = p[i] * (dp[i] - own.delta[i / 2 % 2]);
    uint32_t weights[N / 16][4];
    weights_round<T>(weights, dp);
    wgmma_hold(weights);
    wgmma_hold(own.dq);
    wgmma_fence();
    product_down<T, D>(own.dq, weights, tile_down<N>(k));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(own.dq);
}

/* A consumer: computes and stores dq of the 64 queries of its group. */
template <class T, int D>
static __device__ __forceinline__ void
queries_consume(const QueryBlock &block, int group, const BackwardOperands<T> &in,
                const BiasPartials &bias, const AttentionShape &s)
{
    typedef HopperQueries<D> F;
    const BlockPlace &at = block.at;
    unsigned char *tile = block.own + group * 2 * F::OWN;
    uint32_t q = shared_address(tile), stages = shared_address(block.stages);
    QuerySums<D> own;
    own.t = at.row + group * GROUP_ROWS;
    queries_begin<T, D>(own, in, s, at);
    int all_first, all_end;
    keys_seen_by_all(s, at.b, own.t, GROUP_ROWS, &all_first, &all_end);
    mbarrier_wait(&block.barriers->own, 0);
    BackwardRing ring = {0, 0};
#pragma unroll 1
    for (int key = block.start; key < block.stop; key += F::WALKED, ring_next(ring)) {
        uint32_t k = stages + ring.stage * F::STAGE;
        bool partial = uniform(key < all_first || key + F::WALKED > all_end);
        uint64_t *full = block.barriers->full + ring.stage;
        mbarrier_wait(full, ring.parity);
        if (key < own.t + GROUP_ROWS + s.offset)
            queries_step<T, D>(own, q, q + F::OWN, k, k + F::TILE, s, at.b, key, partial, full,
                               ring.parity);
        stage_release(block.barriers->empty + ring.stage);
    }
    /* After this barrier no warp reads the tile of queries any more. */
    named_barrier_sync(1 + group, WARPGROUP);
    int row = own.t + warp_row();
    T *dq = head_at(in.dq, in.dq_ld, at.b, s.tq, at.head, s) + row * in.dq_ld;
    const float factor[2] = {s.scale, s.scale};
    group_rows_store<T, D>(dq, in.dq_ld, s.tq - row, tile, own.dq, factor, in.accumulate);
    if (bias.sums) columns_sum<T, D>(bias, tile, at.b, own.t, at.head * D, s.tq - own.t, 1 + group);
}

/* Computes dq (B, Tq, H*D) = dS K, or += with accumulate, and delta (pairs, Tq) = rowsum(dO o), for
 * (batch row, head) pairs from `pair0` on. Each block owns queries of one head and loops over the
 * keys that they see. */
template <class T, int D>
__global__ void __launch_bounds__(BACKWARD_THREADS, 1)
    hopper_backward_query_kernel(const __grid_constant__ BackwardMaps maps,
                                 const __grid_constant__ BackwardOperands<T> in,
                                 const __grid_constant__ BiasPartials bias,
                                 const __grid_constant__ AttentionShape s, int pair0, int pairs)
{
    DYN_SHARED(unsigned char, shared);
    QueryBlock block = query_block<D>(shared, s, pair0, pairs);
    int group = warpgroup_number(), consumers = consumers_of(s.tq - block.at.row);
    barriers_begin(block.barriers, 1, consumers);
    if (group == BACKWARD_CONSUMERS) {
        registers_give<PRODUCER_REGISTERS>();
        if (threadIdx.x % WARPGROUP == 0) queries_produce<D>(block, maps, consumers);
    } else {
        registers_take<CONSUMER_REGISTERS>();
        if (group < consumers) queries_consume<T, D>(block, group, in, bias, s);
    }
}

template <class T, int D>
static void query_launch(Device *dev, const BackwardCall *c, const BackwardMaps *maps,
                         const BiasPartials *bias, int pair0, int pairs)
{
    int64_t pair = (int64_t)pair0 * c->shape.group, n = (int64_t)pairs * c->shape.group;
    LAUNCH((hopper_backward_query_kernel<T, D>), n * ceil_div(c->shape.tq, BACKWARD_OWNED),
           dim3(BACKWARD_THREADS), HopperQueries<D>::BYTES, cuda_stream(dev), *maps,
           operands_of<T>(c), *bias, c->shape, (int)pair, (int)n);
}

void hopper_backward_query(Device *dev, const BackwardCall *c, const BackwardMaps *maps,
                           const BackwardBiases *biases, int pair0, int pairs)
{
    with_hopper_types(c, [&](auto t, auto width) {
        query_launch<typename decltype(t)::Type, decltype(width)::WIDTH>(dev, c, maps, &biases->q,
                                                                         pair0, pairs);
    });
}
