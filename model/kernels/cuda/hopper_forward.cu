/* hopper_forward.cu -- computes attention forward on Hopper's tensor cores (wgmma), for bf16 and
 * f16 and head sizes of 64 and 128. hopper.cuh explains the terms.
 *
 * The algorithm is FlashAttention-3 (Shah et al., arXiv:2407.08608), without its ping-pong of
 * warpgroups. A producer warpgroup copies tiles. Each consumer warpgroup first starts the scores of
 * the next tile, and then the product of the current tile's weights and values. This product runs
 * beside the softmax of the next tile's scores. Starting these scores even earlier, before the
 * softmax of the current tile, would need two score matrices; the registers hold only one. */
#include "model/kernels/cuda/hopper.cuh"

/* Sizes of a block. The registers of an SM suffice for 512 threads of 128 registers, or 384 of 168.
 * The producer gives most of its registers to the consumers (setmaxnreg). */
template <int D> struct HopperForward {
    enum { CONSUMERS = D == 64 ? 3 : 2, N_THREADS = (CONSUMERS + 1) * WARPGROUP };
    enum { QUERIES = CONSUMERS * GROUP_ROWS, KEYS = 128, STAGES = 2, K = KEYS / 16 };
    enum { CONSUMER_REGISTERS = D == 64 ? 160 : 240, PRODUCER_REGISTERS = D == 64 ? 32 : 24 };
    enum { GROUP_BYTES = TILE_BYTES(GROUP_ROWS, D), STAGE_BYTES = TILE_BYTES(KEYS, D) };
    enum { TILES_BYTES = CONSUMERS * GROUP_BYTES + 2 * STAGES * STAGE_BYTES };
    enum { SHARED_BYTES = 2 * TILE_ALIGN + TILES_BYTES };
    static_assert((1 + 4 * STAGES) * 8 <= TILE_ALIGN, "the barriers fit before the tiles");
};

/* What the kernel reads and writes. The maps describe q in boxes of 64 rows, k and v in boxes of
 * KEYS rows. */
template <class T> struct HopperForwardOperands {
    CUtensorMap q, k, v;
    T *o;
    float *lse;
    int64_t o_ld;
};

/* A block's shared memory. The queries of each consumer are a tile of their own. */
template <int D> struct HopperForwardShared {
    unsigned char *q, *k, *v;
    uint64_t *full_q, *full_k, *full_v, *empty_k, *empty_v;
};

/* Divides the shared memory. The barriers come first, where the compiler knows their addresses; the
 * tiles after them are aligned at run time. */
template <int D>
static __device__ __forceinline__ HopperForwardShared<D> forward_shared(unsigned char *bytes)
{
    typedef HopperForward<D> F;
    HopperForwardShared<D> at;
    at.full_q = (uint64_t *)bytes;
    at.full_k = at.full_q + 1;
    at.full_v = at.full_k + F::STAGES;
    at.empty_k = at.full_v + F::STAGES;
    at.empty_v = at.empty_k + F::STAGES;
    at.q = tiles_begin(bytes) + TILE_ALIGN;
    at.k = at.q + F::CONSUMERS * F::GROUP_BYTES;
    at.v = at.k + F::STAGES * F::STAGE_BYTES;
    return at;
}

template <int D>
static __device__ __forceinline__ void barriers_begin(const HopperForwardShared<D> &shared,
                                                      int consumers)
{
    mbarrier_init(shared.full_q, 1);
#pragma unroll
    for (int i = 0; i < HopperForward<D>::STAGES; i++) {
        mbarrier_init(shared.full_k + i, 1);
        mbarrier_init(shared.full_v + i, 1);
        mbarrier_init(shared.empty_k + i, consumers * GROUP_WARPS);
        mbarrier_init(shared.empty_v + i, consumers * GROUP_WARPS);
    }
    mbarrier_init_fence();
}

/* ---- the producer ---------------------------------------------------------------------------- */

/* Copies the keys or values of one tile into the next stage of their ring, when it is empty. */
template <int D>
static __device__ __forceinline__ void
stage_fill(Ring<HopperForward<D>::STAGES> &ring, unsigned char *stages, const CUtensorMap *map,
           uint64_t *full, uint64_t *empty, int head, int key, int b)
{
    typedef HopperForward<D> F;
    mbarrier_wait(empty + ring.stage, ring.parity ^ 1);
    mbarrier_expect(full + ring.stage, F::STAGE_BYTES);
    tile_load<F::KEYS, D>(stages + ring.stage * F::STAGE_BYTES, map, full + ring.stage, head, key,
                          b);
    ring_next(ring);
}

/* Copies the queries of `consumers` warpgroups and all tiles of the walk. Copies the keys of each
 * tile before the values of the previous tile, because the consumers need them, and release their
 * stages, in this order. Called by one thread. */
template <class T, int D>
static __device__ __forceinline__ void
forward_produce(const HopperForwardOperands<T> &in, const HopperForwardShared<D> &shared,
                const BlockPlace &at, KeyWalk walk, int consumers)
{
    typedef HopperForward<D> F;
    int b = (int)at.b;
    mbarrier_expect(shared.full_q, consumers * F::GROUP_BYTES);
    for (int i = 0; i < consumers; i++)
        tile_load<GROUP_ROWS, D>(shared.q + i * F::GROUP_BYTES, &in.q, shared.full_q, at.head,
                                 at.row + i * GROUP_ROWS, b);
    Ring<F::STAGES> keys = {0, 0}, values = {0, 0};
#pragma unroll 1
    for (int i = 0, key = walk.top; i <= walk.n; i++, key -= F::KEYS) {
        if (i < walk.n)
            stage_fill<D>(keys, shared.k, &in.k, shared.full_k, shared.empty_k, at.kv_head, key, b);
        if (i > 0)
            stage_fill<D>(values, shared.v, &in.v, shared.full_v, shared.empty_v, at.kv_head,
                          key + F::KEYS, b);
    }
}

/* ---- a consumer ------------------------------------------------------------------------------ */

/* State of the softmax for the thread's two rows: the largest score so far, and the thread's part
 * of the sum of the weights relative to it (softmax_step). */
struct SoftmaxRows {
    float top[2], sum[2];
};

/* Turns the scores s (64, N) into weights 2^(scale (s - top)), where top is the row's largest score
 * so far and `scale` includes log2(e). Sets `rescale` to the factors by which sums of earlier keys
 * shrink because top has grown. */
template <int N>
static __device__ __forceinline__ void softmax_step(float (&s)[N / 2], SoftmaxRows &rows,
                                                    float (&rescale)[2], float scale)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top = rows.top[i];
#pragma unroll
        for (int n = 0; n < N / 8; n++)
            top = fmaxf(top, fmaxf(s[n * 4 + i * 2], s[n * 4 + i * 2 + 1]));
        /* The four lanes that share a row must all use the same maximum. */
        top = lanes_max(top, 4);
        float base = top > -INFINITY ? top * scale : 0;
        rescale[i] = exp2_approx(rows.top[i] * scale - base);
        rows.top[i] = top;
        /* Sums only this lane's columns. The sums of the four lanes are added once, after the last
         * tile. */
        rows.sum[i] *= rescale[i];
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int e = n * 4 + i * 2; e < n * 4 + i * 2 + 2; e++) {
                s[e] = exp2_approx(s[e] * scale - base);
                rows.sum[i] += s[e];
            }
    }
}

/* The queries of a warp, and the keys that every one of them sees. Only tiles with other keys need
 * a mask. */
struct WarpQueries {
    int t, all_first, all_end;
};

static __device__ __forceinline__ WarpQueries warp_queries(const AttentionShape &s, int64_t b,
                                                           int t)
{
    WarpQueries w;
    w.t = t + (int)threadIdx.x % WARPGROUP / WARP * 16;
    keys_seen_by_all(s, b, w.t, 16, &w.all_first, &w.all_end);
    return w;
}

/* Sets scores to -infinity where the warp's queries do not see one of the KEYS keys from `key`
 * on. */
template <int KEYS>
static __device__ __forceinline__ void scores_mask(float (&score)[KEYS / 2],
                                                   const AttentionShape &s, int64_t b,
                                                   const WarpQueries &w, int key)
{
    if (key < w.all_first || key + KEYS > w.all_end) scores_hide<KEYS>(score, s, b, w.t, key);
}

/* Stores o = out / sum and lse = log sum exp of the scores, for the warpgroup's queries from t on.
 * `own` is their tile, which is not read any more. */
template <class T, int D>
static __device__ __forceinline__ void
forward_store(const HopperForwardOperands<T> &in, const AttentionShape &s, const BlockPlace &at,
              int t, unsigned char *own, const SoftmaxRows &rows, const float (&out)[D / 2])
{
    float factor[2];
    t += (int)threadIdx.x % WARPGROUP / WARP * 16;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum = lanes_sum(rows.sum[i], 4);
        int query = t + i * 8 + (int)(threadIdx.x % WARP / 4);
        factor[i] = 1 / sum;
        if (threadIdx.x % 4 == 0 && query < s.tq)
            in.lse[(int64_t)at.pair * s.tq + query] = rows.top[i] * s.scale + logf(sum);
    }
    T *o = head_at(in.o, in.o_ld, at.b, s.tq, at.head, s) + t * in.o_ld;
    group_rows_store<T, D>(o, in.o_ld, s.tq - t, own, out, factor, false);
}

/* What a thread of a consumer keeps: descriptors of its queries and of the first stages, scores
 * that become weights, the weights rounded to T, and the sums of weighed values. */
template <class T, int D> struct ForwardConsumer {
    typedef HopperForward<D> F;
    uint64_t q, k, v;
    WarpQueries queries;
    SoftmaxRows rows;
    float score[F::KEYS / 2], out[D / 2];
    uint32_t weights[F::K][4];
};

/* Starts the scores of the keys in `stage`. */
template <class T, int D>
static __device__ __forceinline__ void scores_start(ForwardConsumer<T, D> &own, int stage)
{
    typedef HopperForward<D> F;
    wgmma_hold(own.score);
    wgmma_fence();
    product_along<T, F::KEYS, D>(own.score, own.q, wgmma_step(own.k, stage * F::STAGE_BYTES));
    wgmma_commit();
}

/* Starts out += the weights times the values in `stage`. */
template <class T, int D>
static __device__ __forceinline__ void values_start(ForwardConsumer<T, D> &own, int stage)
{
    wgmma_hold(own.weights);
    wgmma_hold(own.out);
    wgmma_fence();
    product_down<T, D>(own.out, own.weights,
                       wgmma_step(own.v, stage * HopperForward<D>::STAGE_BYTES));
    wgmma_commit();
}

/* Computes the sums and the state of the softmax of the 64 queries from t on. Before the call the
 * sums are 0 and no key has been seen. */
template <class T, int D>
static __device__ __forceinline__ void
forward_consume(ForwardConsumer<T, D> &own, const AttentionShape &s,
                const HopperForwardShared<D> &shared, int64_t b, int t, KeyWalk walk)
{
    typedef HopperForward<D> F;
    enum { KEYS = F::KEYS };
    Ring<F::STAGES> ring = {0, 0};
    int left = walk.n, key = walk.top;
    float rescale[2];
    if (left > 1 && key >= t + GROUP_ROWS + s.offset) {
        /* None of the warpgroup's queries sees the first tile. At most one tile can be skipped in
         * this way, because the other warpgroups together have no more queries than a tile has
         * keys. */
        mbarrier_wait(shared.full_k, 0);
        stage_release(shared.empty_k);
        mbarrier_wait(shared.full_v, 0);
        stage_release(shared.empty_v);
        ring_next(ring);
        left--, key -= KEYS;
    }
    mbarrier_wait(shared.full_q, 0);
    mbarrier_wait(shared.full_k + ring.stage, ring.parity);
    scores_start(own, ring.stage);
    wgmma_wait<0>();
    wgmma_hold(own.score);
    stage_release(shared.empty_k + ring.stage);
    scores_mask<KEYS>(own.score, s, b, own.queries, key);
    softmax_step<KEYS>(own.score, own.rows, rescale, s.scale_log2);
    weights_round<T>(own.weights, own.score);
#pragma unroll 1
    while (--left > 0) {
        /* The weights are those of the tile in stage `before`. Their product with the values runs
         * while the softmax of the next scores is computed. */
        Ring<F::STAGES> before = ring;
        ring_next(ring);
        key -= KEYS;
        mbarrier_wait(shared.full_k + ring.stage, ring.parity);
        scores_start(own, ring.stage);
        mbarrier_wait(shared.full_v + before.stage, before.parity);
        values_start(own, before.stage);
        wgmma_wait<1>();
        wgmma_hold(own.score);
        stage_release(shared.empty_k + ring.stage);
        scores_mask<KEYS>(own.score, s, b, own.queries, key);
        softmax_step<KEYS>(own.score, own.rows, rescale, s.scale_log2);
        stage_wait_again(shared.full_v + before.stage, before.parity);
        wgmma_wait<0>();
        wgmma_hold(own.out);
        stage_release(shared.empty_v + before.stage);
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            own.out[i] *= rescale[i / 2 % 2];
        weights_round<T>(own.weights, own.score);
    }
    mbarrier_wait(shared.full_v + ring.stage, ring.parity);
    values_start(own, ring.stage);
    wgmma_wait<0>();
    wgmma_hold(own.out);
}

/* Computes and stores the results of the queries that warpgroup `group` of the block owns. */
template <class T, int D>
static __device__ __forceinline__ void
forward_group(const HopperForwardOperands<T> &in, const AttentionShape &s,
              const HopperForwardShared<D> &shared, const BlockPlace &at, KeyWalk walk, int group)
{
    typedef HopperForward<D> F;
    int t = at.row + group * GROUP_ROWS;
    unsigned char *tile = shared.q + group * F::GROUP_BYTES;
    ForwardConsumer<T, D> own;
    own.q = tile_along(shared_address(tile));
    own.k = tile_along(shared_address(shared.k));
    own.v = tile_down<F::KEYS>(shared_address(shared.v));
    own.queries = warp_queries(s, at.b, t);
    own.rows = {{-INFINITY, -INFINITY}, {0, 0}};
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        own.out[i] = 0;
    forward_consume(own, s, shared, at.b, t, walk);
    /* The tile of queries can be overwritten when all four warps have finished their products: the
     * PTX ISA does not say which warp reads which rows. */
    named_barrier_sync(1 + group, WARPGROUP);
    forward_store<T, D>(in, s, at, t, tile, own.rows, own.out);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* Computes o (B, Tq, H*D) = softmax(scale q k^T) v and lse (B, H, Tq) = log sum exp of the scores.
 * Scores and sums are f32; weights are rounded to T for their product with v. Each block owns
 * QUERIES queries of one head, so every sum has one owner and a fixed order. It walks over the keys
 * that they see from the last key down, so that only the first tiles are cut by the diagonal. */
template <class T, int D>
__global__ void __launch_bounds__(HopperForward<D>::N_THREADS, 1)
    hopper_forward_kernel(const __grid_constant__ HopperForwardOperands<T> in,
                          const __grid_constant__ AttentionShape s, int pairs)
{
    typedef HopperForward<D> F;
    DYN_SHARED(unsigned char, bytes);
    HopperForwardShared<D> shared = forward_shared<D>(bytes);
    BlockPlace at = queries_place(s, blockIdx.x, 0, pairs, F::QUERIES);
    KeyWalk walk = keys_walk<F::KEYS>(s, at.b, at.row, F::QUERIES);
    /* Warpgroups whose queries all lie past the end have nothing to do. */
    int consumers = min((s.tq - at.row + GROUP_ROWS - 1) / GROUP_ROWS, (int)F::CONSUMERS);
    int group = warpgroup_number();
    if (threadIdx.x == 0) barriers_begin<D>(shared, consumers);
    __syncthreads();
    if (group == F::CONSUMERS) {
        registers_give<F::PRODUCER_REGISTERS>();
        if (threadIdx.x % WARPGROUP == 0) forward_produce<T, D>(in, shared, at, walk, consumers);
    } else {
        registers_take<F::CONSUMER_REGISTERS>();
        if (group < consumers) forward_group<T, D>(in, s, shared, at, walk, group);
    }
}

template <class T, int D>
static void forward_launch(Device *dev, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                           AttentionShape s)
{
    typedef HopperForward<D> F;
    HopperForwardOperands<T> in = {{}, {}, {}, (T *)o.data, (float *)lse.data, o.ld};
    tensor_map_heads(dev, &in.q, q, s.heads, D, GROUP_ROWS);
    tensor_map_heads(dev, &in.k, k, s.kv_heads, D, F::KEYS);
    tensor_map_heads(dev, &in.v, v, s.kv_heads, D, F::KEYS);
    int64_t pairs = q.dim[0] * s.heads;
    LAUNCH((hopper_forward_kernel<T, D>), pairs * ceil_div(s.tq, F::QUERIES), dim3(F::N_THREADS),
           F::SHARED_BYTES, cuda_stream(dev), in, s, (int)pairs);
}

void hopper_attention_forward(Device *dev, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                              Attention attention, Tensor first_key)
{
    AttentionShape s = shape_of(q, k, attention, first_key);
    auto launch = [&](auto head) {
        enum { D = decltype(head)::WIDTH };
        if (q.dtype == BF16)
            forward_launch<bf16, D>(dev, o, lse, q, k, v, s);
        else
            forward_launch<f16, D>(dev, o, lse, q, k, v, s);
    };
    CHECK(s.head_size == 64 || s.head_size == 128, "attention for Hopper with heads of %d",
          s.head_size);
    if (s.head_size == 64)
        launch(Width<64>());
    else
        launch(Width<128>());
}
