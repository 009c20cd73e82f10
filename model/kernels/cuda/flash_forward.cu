/* flash_forward.cu -- computes attention forward on tensor cores, for bf16 and f16. */
#include "model/kernels/cuda/flash.cuh"

/* Tile sizes. A block has WARPS warps, and each warp owns 16 MT queries; a tile holds 8 NT keys.
 * With MT = 2, a warp reads half as many keys and values per product. For heads of more than 128
 * columns there are not enough registers for that. */
template <int D> struct FlashForward {
    enum { WARPS = 4, N_THREADS = WARPS * WARP, MT = D <= 128 ? 2 : 1, NT = D <= 64 ? 8 : 4 };
    enum { QUERIES = WARPS * MT * 16, KEYS = NT * 8, CT = D / 8 };
    enum { ELEMENTS = (QUERIES + 2 * KEYS) * FLASH_LD(D) };
    static_assert(NT % 2 == 0 && CT % 2 == 0, "ldmatrix_4 loads two right operands");
    static_assert(ELEMENTS * 2 <= SHARED_MOST, "a block's tiles fit in shared memory");
};

/* State of the softmax for the thread's rows: the largest score so far, and the thread's part of
 * the sum of the weights relative to it (softmax_step). */
template <int MT> struct FlashRows {
    float top[MT][2], sum[MT][2];
};

template <int MT> static __device__ __forceinline__ void rows_begin(FlashRows<MT> &rows)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            rows.top[m][i] = -INFINITY;
            rows.sum[m][i] = 0;
        }
}

/* Turns the scores s into weights 2^(scale (s - top)), where top is the row's largest score so far
 * and `scale` includes log2(e). If top has grown, rescales the sums of earlier keys. */
template <int MT, int NT, int CT>
static __device__ __forceinline__ void softmax_step(float (&s)[MT][NT][4], FlashRows<MT> &rows,
                                                    float (&out)[MT][CT][4], float scale)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float top = rows.top[m][i];
#pragma unroll
            for (int n = 0; n < NT; n++)
                top = fmaxf(top, fmaxf(s[m][n][i * 2], s[m][n][i * 2 + 1]));
            /* The four lanes that share a row must all use the same maximum. */
            top = lanes_max(top, 4);
            float base = top > -INFINITY ? top * scale : 0;
            float rescale = exp2_approx(rows.top[m][i] * scale - base);
            rows.top[m][i] = top;
            /* Sums only this lane's columns. The sums of the four lanes are added once, after the
             * last tile. */
            rows.sum[m][i] *= rescale;
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int e = i * 2; e < i * 2 + 2; e++) {
                    s[m][n][e] = exp2_approx(s[m][n][e] * scale - base);
                    rows.sum[m][i] += s[m][n][e];
                }
#pragma unroll
            for (int c = 0; c < CT; c++) {
                out[m][c][i * 2] *= rescale;
                out[m][c][i * 2 + 1] *= rescale;
            }
        }
}

/* Stores o = out / sum and lse = log sum exp of the scores, for the warp's queries from t on. `own`
 * is their tile, which is not read any more. */
template <class T, int D, int MT, int CT>
static __device__ __forceinline__ void
forward_store(const ForwardOperands<T> &in, const AttentionShape &s, const BlockPlace &at, int t,
              T *own, const FlashRows<MT> &rows, const float (&out)[MT][CT][4])
{
    float factor[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float sum = quad_sum(rows.sum[m][i]);
            int query = t + m * 16 + i * 8 + (int)(threadIdx.x % WARP / 4);
            factor[m][i] = 1 / sum;
            if (threadIdx.x % 4 == 0 && query < s.tq)
                in.lse[(int64_t)at.pair * s.tq + query] = rows.top[m][i] * s.scale + logf(sum);
        }
    T *o = head_at(in.o, in.o_ld, at.b, s.tq, at.head, s) + t * in.o_ld;
    rows_store<T, D>(o, in.o_ld, s.tq - t, s.head_size, own, out, factor, false);
}

/* Computes o (B, Tq, H*D) = softmax(scale q k^T) v and lse (B, H, Tq) = log sum exp of the scores.
 * Scores and sums are f32; weights are rounded to T for their product with v. Each block owns
 * queries of one head and loops over the keys that they see, so every sum has one owner and a fixed
 * order. The values are loaded while the scores are computed, and the next keys while the values
 * are summed. */
template <class T, int D>
__global__ void __launch_bounds__(FlashForward<D>::N_THREADS, 1)
    flash_forward_kernel(const __grid_constant__ ForwardOperands<T> in,
                         const __grid_constant__ AttentionShape s, int pairs)
{
    typedef FlashForward<D> F;
    enum { MT = F::MT, NT = F::NT, LD = FLASH_LD(D), N_THREADS = F::N_THREADS };
    DYN_SHARED(T, q_tile);
    T *k_tile = q_tile + F::QUERIES * LD, *v_tile = k_tile + F::KEYS * LD;
    BlockPlace at = queries_place(s, blockIdx.x, 0, pairs, F::QUERIES);
    int t = at.row, start, stop;
    keys_seen_by(s, at.b, t, F::QUERIES, &start, &stop);
    const T *q = head_at(in.q, in.q_ld, at.b, s.tq, at.head, s) + t * in.q_ld;
    const T *k = head_at(in.k, in.k_ld, at.b, s.tk, at.kv_head, s) + start * in.k_ld;
    const T *v = head_at(in.v, in.v_ld, at.b, s.tk, at.kv_head, s) + start * in.v_ld;
    tile_copy<T, D, F::QUERIES, N_THREADS>(q_tile, q, in.q_ld, s.tq - t, s.head_size);
    tile_copy<T, D, F::KEYS, N_THREADS>(k_tile, k, in.k_ld, s.tk - start, s.head_size);
    cp_async_commit();
    int warp_row = threadIdx.x / WARP * MT * 16;
    T *own = q_tile + warp_row * LD;
    t += warp_row;
    FlashRows<MT> rows;
    rows_begin(rows);
    LeftRows<T, D, MT, 0> queries;
    rows_hold(queries, own);
    int all_first, all_end;
    keys_seen_by_all(s, at.b, t, MT * 16, &all_first, &all_end);
    float out[MT][F::CT][4] = {};
    for (int key = start; key < stop; key += F::KEYS, v += F::KEYS * in.v_ld) {
        /* The keys have arrived, and no warp still reads the values of the previous round. */
        cp_async_wait<0>();
        __syncthreads();
        tile_copy<T, D, F::KEYS, N_THREADS>(v_tile, v, in.v_ld, s.tk - key, s.head_size);
        cp_async_commit();
        float score[MT][NT][4] = {};
        product_transposed(score, queries, lane_columns(k_tile, LD));
        cp_async_wait<0>();
        __syncthreads();
        /* The values have arrived, and no warp still reads the keys, so the next keys can overwrite
         * them. */
        k += F::KEYS * in.k_ld;
        if (key + F::KEYS < stop)
            tile_copy<T, D, F::KEYS, N_THREADS>(k_tile, k, in.k_ld, s.tk - key - F::KEYS,
                                                s.head_size);
        cp_async_commit();
        if (key >= t + MT * 16 + s.offset)
            continue; /* not even the warp's last query sees the tile
                       */
        if (key < all_first || key + F::KEYS > all_end) scores_hide(score, s, at.b, t, key);
        softmax_step(score, rows, out, s.scale_log2);
        product_weighed<T, D>(out, score, lane_rows(v_tile, LD));
    }
    cp_async_wait<0>(); /* if no query sees a key, the copy of the queries may not have finished yet
                         */
    __syncthreads();
    forward_store<T, D>(in, s, at, t, own, rows, out);
}

template <class T, int D>
static void forward_launch(Device *dev, const ForwardOperands<T> &in, int64_t pairs,
                           AttentionShape s)
{
    typedef FlashForward<D> F;
    LAUNCH((flash_forward_kernel<T, D>), pairs * ceil_div(s.tq, F::QUERIES), dim3(F::N_THREADS),
           F::ELEMENTS * sizeof(T), cuda_stream(dev), in, s, (int)pairs);
}

void flash_attention_forward(Device *dev, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                             Attention attention, Tensor first_key)
{
    AttentionShape s = shape_of(q, k, attention, first_key);
    int64_t pairs = q.dim[0] * s.heads;
    with_width(attention.head_size, [&](auto width) {
        enum { D = decltype(width)::WIDTH };
        if (q.dtype == BF16)
            forward_launch<bf16, D>(dev, operands_of<bf16>(o, lse, q, k, v), pairs, s);
        else
            forward_launch<f16, D>(dev, operands_of<f16>(o, lse, q, k, v), pairs, s);
    });
}
