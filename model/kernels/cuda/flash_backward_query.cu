/* flash_backward_query.cu -- computes dq and delta of attention backward on tensor cores, for bf16
 * and f16. flash_backward.cuh tells how backward is divided into two kernels. */
#include "model/kernels/cuda/flash.cuh"
#include "model/kernels/cuda/flash_backward.cuh"

/* Tile sizes of the kernel whose blocks own queries. A block has WARPS warps, and each warp owns 16
 * MT queries. The block loops over tiles of 8 NT keys and their values. There are two tiles of
 * each: one is used while the other is being loaded. */
template <int D> struct FlashQueries {
    enum { WARPS = 4, N_THREADS = WARPS * WARP, MT = D <= 96 ? 2 : 1, NT = D <= 128 ? 4 : 2 };
    /* Numbers of 16-column pieces of the owned queries and output gradients that stay in
     * registers. */
    enum { Q_HELD = D == 96 || D > 128 ? 0 : D / 16, DOUT_HELD = D == 32 || D == 128 ? D / 16 : 0 };
    enum { OWNED = WARPS * MT * 16, WALKED = NT * 8, CT = D / 8, LD = FLASH_LD(D) };
    enum { STAGE = 2 * WALKED * LD, ELEMENTS = 2 * OWNED * LD + 2 * STAGE };
    static_assert(NT % 2 == 0 && CT % 2 == 0, "ldmatrix_4 loads two right operands");
    static_assert(ELEMENTS * 2 <= SHARED_MOST, "a block's tiles fit in shared memory");
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

/* The warp's queries: the operands of their scores, the thread's statistics, and the sum of dq
 * except for the factor scale. */
template <class T, int D> struct QueryRows {
    typedef FlashQueries<D> F;
    LeftRows<T, D, F::MT, F::Q_HELD> q;
    LeftRows<T, D, F::MT, F::DOUT_HELD> dout;
    float lse[F::MT][2], delta[F::MT][2], dq[F::MT][F::CT][4];
};

/* Fills `own` from the tile of queries at q, the one of output gradients after it, and the queries'
 * o and lse. Stores delta, which flash_backward_key_kernel reads: it runs next on this stream. */
template <class T, int D>
static __device__ __forceinline__ void
queries_begin(QueryRows<T, D> &own, const T *q, const BackwardOperands<T> &in,
              const AttentionShape &s, const BlockPlace &at, int t)
{
    typedef FlashQueries<D> F;
    const T *dout = q + F::OWNED * F::LD, *o = head_at(in.o, in.o_ld, at.b, s.tq, at.head, s);
    deltas<T, D>(own.delta, dout, o + t * in.o_ld, in.o_ld, s.tq - t, s.head_size);
#pragma unroll
    for (int m = 0; m < F::MT; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int query = t + m * 16 + i * 8 + (int)(threadIdx.x % WARP / 4);
            bool real = query < s.tq;
            own.lse[m][i] = real ? in.lse[(int64_t)at.pair * s.tq + query] * LOG2E : 0;
            if (real && threadIdx.x % 4 == 0)
                in.delta[(int64_t)at.local * s.tq + query] = own.delta[m][i];
#pragma unroll
            for (int c = 0; c < F::CT; c++)
                own.dq[m][c][i * 2] = own.dq[m][c][i * 2 + 1] = 0;
        }
    rows_hold(own.q, q);
    rows_hold(own.dout, dout);
}

/* Adds a tile's contribution to dq: (dS / scale) K, for the warp's queries from t on and the keys
 * of the tile from `key` on. `partial` says that some query of the warp does not see all keys of
 * the tile. */
template <class T, int D>
static __device__ __forceinline__ void queries_step(QueryRows<T, D> &own, const T *k_tile,
                                                    const T *v_tile, const AttentionShape &s,
                                                    int64_t b, int t, int key, bool partial)
{
    enum { LD = FLASH_LD(D), MT = FlashQueries<D>::MT, NT = FlashQueries<D>::NT };
    float p[MT][NT][4] = {}, dp[MT][NT][4] = {};
    product_transposed(p, own.q, lane_columns(k_tile, LD));
    /* Scores of hidden keys become -infinity, which makes their weight and gradient 0. This is
     * skipped if all queries of the warp see the whole tile. */
    if (partial) scores_hide(p, s, b, t, key);
    product_transposed(dp, own.dout, lane_columns(v_tile, LD));
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                dp[m][n][e] = exp2_approx(p[m][n][e] * s.scale_log2 - own.lse[m][e / 2]) *
                              (dp[m][n][e] - own.delta[m][e / 2]);
    product_weighed<T, D>(own.dq, dp, lane_rows(k_tile, LD));
}

/* Computes dq (B, Tq, H*D) = dS K, or += with accumulate, and delta (pairs, Tq) = rowsum(dO o), for
 * (batch row, head) pairs from `pair0` on. Each block owns queries of one head and loops over the
 * keys that they see. */
template <class T, int D>
__global__ void __launch_bounds__(FlashQueries<D>::N_THREADS, 1)
    flash_backward_query_kernel(const __grid_constant__ BackwardOperands<T> in,
                                const __grid_constant__ AttentionShape s, int pair0, int pairs)
{
    typedef FlashQueries<D> F;
    enum { MT = F::MT, LD = F::LD, OWNED = F::OWNED, WALKED = F::WALKED, N_THREADS = F::N_THREADS };
    DYN_SHARED(T, q_tile);
    T *walked = q_tile + 2 * OWNED * LD;
    BlockPlace at = queries_place(s, blockIdx.x, pair0, pairs, OWNED);
    int t = at.row, start, stop, stage = 0;
    keys_seen_by(s, at.b, t, OWNED, &start, &stop);
    const T *q = head_at(in.q, in.q_ld, at.b, s.tq, at.head, s) + t * in.q_ld;
    const T *dout = head_at(in.dout, in.dout_ld, at.b, s.tq, at.head, s) + t * in.dout_ld;
    const T *k = head_at(in.k, in.k_ld, at.b, s.tk, at.kv_head, s) + start * in.k_ld;
    const T *v = head_at(in.v, in.v_ld, at.b, s.tk, at.kv_head, s) + start * in.v_ld;
    tiles_copy<T, D, OWNED, N_THREADS>(q_tile, q, in.q_ld, dout, in.dout_ld, s.tq - t, s.head_size);
    tiles_copy<T, D, WALKED, N_THREADS>(walked, k, in.k_ld, v, in.v_ld, s.tk - start, s.head_size);
    cp_async_commit();
    int warp_row = threadIdx.x / WARP * MT * 16, all_first, all_end;
    T *own_tile = q_tile + warp_row * LD;
    t += warp_row;
    QueryRows<T, D> own;
    cp_async_wait<0>();
    __syncthreads();
    queries_begin<T, D>(own, own_tile, in, s, at, t);
    keys_seen_by_all(s, at.b, t, MT * 16, &all_first, &all_end);
    for (int key = start; key < stop; key += WALKED, stage ^= 1) {
        cp_async_wait<0>();
        __syncthreads();
        /* The next tiles overwrite the previous ones, which no warp reads any more after the
         * barrier above. */
        k += WALKED * in.k_ld;
        v += WALKED * in.v_ld;
        if (key + WALKED < stop)
            tiles_copy<T, D, WALKED, N_THREADS>(walked + (stage ^ 1) * F::STAGE, k, in.k_ld, v,
                                                in.v_ld, s.tk - key - WALKED, s.head_size);
        cp_async_commit();
        const T *k_tile = walked + stage * F::STAGE;
        if (key < t + MT * 16 + s.offset)
            queries_step<T, D>(own, k_tile, k_tile + WALKED * LD, s, at.b, t, key,
                               key < all_first || key + WALKED > all_end);
    }
    T *dq = head_at(in.dq, in.dq_ld, at.b, s.tq, at.head, s) + t * in.dq_ld;
    rows_store<T, D>(dq, in.dq_ld, s.tq - t, s.head_size, own_tile, own.dq, s.scale, in.accumulate);
}

template <class T, int D>
static void query_launch(Device *dev, const BackwardCall *c, int pair0, int pairs)
{
    typedef FlashQueries<D> F;
    int64_t pair = (int64_t)pair0 * c->shape.group, n = (int64_t)pairs * c->shape.group;
    LAUNCH((flash_backward_query_kernel<T, D>), n * ceil_div(c->shape.tq, F::OWNED),
           dim3(F::N_THREADS), F::ELEMENTS * sizeof(T), cuda_stream(dev), operands_of<T>(c),
           c->shape, (int)pair, (int)n);
}

void flash_backward_query(Device *dev, const BackwardCall *c, int pair0, int pairs)
{
    with_width(c->shape.head_size, [&](auto width) {
        enum { D = decltype(width)::WIDTH };
        if (c->t->q.dtype == BF16)
            query_launch<bf16, D>(dev, c, pair0, pairs);
        else
            query_launch<f16, D>(dev, c, pair0, pairs);
    });
}
