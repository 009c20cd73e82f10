/* attention_forward.cu -- computes attention forward in float, without tensor cores. */
#include "model/kernels/cuda/attention_tiles.cuh"

/* RA and RB: the queries that a block owns and the keys of a tile, in units of 16, chosen to fit in
 * 99 KB of shared memory. */
template <int D> struct ForwardTiles {
    enum { RA = D <= 128 ? 4 : 2, RB = D <= 64 ? 4 : D <= 128 ? 2 : 1 };
    enum { QUERIES = SIDE * RA, KEYS = SIDE * RB };
    enum { FLOATS = (QUERIES + 2 * KEYS) * TILE_LD(D) + QUERIES * TILE_LD(KEYS) };
    static_assert(FLOATS * 4 <= SHARED_MOST, "a block's tiles fit in shared memory");
};

/* State of the softmax for the thread's rows: the largest score so far, and the sum of exp(score -
 * top). */
template <int RA> struct SoftmaxRows {
    float top[RA], sum[RA];
};

/* Turns the scores of a tile, whose keys start at `key`, into weights relative to the row's largest
 * score so far. If this tile has raised the largest score, rescales the sums of earlier keys. */
template <int RA, int RB, int COLS>
static __device__ __forceinline__ void softmax_step(float (&s)[RA][RB], SoftmaxRows<RA> &x,
                                                    float (&out)[RA][COLS], const int (&first)[RA],
                                                    const int (&end)[RA], int key, float scale)
{
#pragma unroll
    for (int i = 0; i < RA; i++) {
        float top = -INFINITY, sum = 0;
#pragma unroll
        for (int j = 0; j < RB; j++) {
            int at = key + (int)(threadIdx.x % SIDE) + j * SIDE;
            s[i][j] = at >= first[i] && at < end[i] ? s[i][j] * scale : -INFINITY;
            top = fmaxf(top, s[i][j]);
        }
        top = fmaxf(lanes_max(top, SIDE), x.top[i]);
        /* -infinity minus itself is NaN, so a query that has not seen a key yet uses base 0. */
        float base = top > -INFINITY ? top : 0, rescale = expf(x.top[i] - base);
#pragma unroll
        for (int j = 0; j < RB; j++) {
            s[i][j] = expf(s[i][j] - base);
            sum += s[i][j];
        }
        x.top[i] = top;
        x.sum[i] = x.sum[i] * rescale + lanes_sum(sum, SIDE);
#pragma unroll
        for (int c = 0; c < COLS; c++)
            out[i][c] *= rescale;
    }
}

/* Computes o (B, Tq, H*D) = softmax(scale q k^T) v and lse (B, H, Tq) = log sum exp of the scores.
 * Milakov, Gimelshein, arXiv:1805.02867; Dao et al., arXiv:2205.14135. Each block owns QUERIES
 * queries of one head and loops over the keys that they see, so every sum has one owner and a fixed
 * order. */
template <class T, int N, int D>
__global__ void __launch_bounds__(THREADS, 1)
    attention_forward_kernel(const __grid_constant__ ForwardOperands<T> in,
                             const __grid_constant__ AttentionShape s, int pairs)
{
    typedef ForwardTiles<D> Tiles;
    enum { RA = Tiles::RA, RB = Tiles::RB, QUERIES = Tiles::QUERIES, KEYS = Tiles::KEYS };
    DYN_SHARED(float, q_tile);
    float *k_tile = q_tile + QUERIES * TILE_LD(D), *v_tile = k_tile + KEYS * TILE_LD(D);
    float *weights = v_tile + KEYS * TILE_LD(D);
    int y = threadIdx.x / SIDE * RA, x = threadIdx.x % SIDE;
    BlockPlace at = queries_place(s, blockIdx.x, 0, pairs, QUERIES);
    int t = at.row;
    const T *q = head_at(in.q, in.q_ld, at.b, s.tq, at.head, s) + t * in.q_ld;
    const T *k = head_at(in.k, in.k_ld, at.b, s.tk, at.kv_head, s);
    const T *v = head_at(in.v, in.v_ld, at.b, s.tk, at.kv_head, s);
    T *o = head_at(in.o, in.o_ld, at.b, s.tq, at.head, s) + t * in.o_ld;
    tile_load<T, N, D>(q_tile, QUERIES, q, in.q_ld, s.tq - t, s.head_size);
    SoftmaxRows<RA> state;
    float out[RA][D / SIDE] = {};
    int first[RA], end[RA], start, stop;
#pragma unroll
    for (int i = 0; i < RA; i++) {
        keys_seen(s, at.b, t + y + i, &first[i], &end[i]);
        state.top[i] = -INFINITY;
        state.sum[i] = 0;
    }
    keys_seen_by(s, at.b, t, QUERIES, &start, &stop);
    for (int key = start; key < stop; key += KEYS) {
        /* The first barrier waits until no thread reads the previous tiles, the second until all
         * threads have filled the new ones. */
        __syncthreads();
        tile_load<T, N, D>(k_tile, KEYS, k + key * in.k_ld, in.k_ld, s.tk - key, s.head_size);
        tile_load<T, N, D>(v_tile, KEYS, v + key * in.v_ld, in.v_ld, s.tk - key, s.head_size);
        __syncthreads();
        float score[RA][RB] = {};
        tiles_product<RA, RB, D>(score, q_tile + y * TILE_LD(D), k_tile + x * TILE_LD(D));
        softmax_step(score, state, out, first, end, key, s.scale);
        weights_share(weights + y * TILE_LD(KEYS), score);
        tiles_weigh<RA, RB, D>(out, weights + y * TILE_LD(KEYS), v_tile);
    }
#pragma unroll
    for (int i = 0; i < RA; i++) {
        /* Rows past the last query were computed from zeros and do not exist in o. */
        if (t + y + i >= s.tq) continue;
        row_store<T, N, D>(o + (y + i) * in.o_ld, out[i], 1 / state.sum[i], s.head_size, false);
        if (x == 0) in.lse[(int64_t)at.pair * s.tq + t + y + i] = state.top[i] + logf(state.sum[i]);
    }
}

template <class T, int N, int D>
static void forward_launch(Device *dev, const ForwardOperands<T> &x, int64_t pairs,
                           AttentionShape s)
{
    typedef ForwardTiles<D> Tiles;
    LAUNCH((attention_forward_kernel<T, N, D>), pairs * ceil_div(s.tq, Tiles::QUERIES),
           dim3(THREADS), Tiles::FLOATS * sizeof(float), cuda_stream(dev), x, s, (int)pairs);
}

void plain_attention_forward(Device *dev, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                             Attention attention, Tensor first_key)
{
    Tensor operand[] = {q, k, v, o};
    bool packs = heads_in_packs(operand, 4, attention.head_size);
    AttentionShape s = shape_of(q, k, attention, first_key);
    with_tiles(q.dtype, attention.head_size, packs, [&](auto tile) {
        typedef decltype(tile) Tile;
        forward_launch<typename Tile::Storage, Tile::PACK, Tile::WIDTH>(
            dev, operands_of<typename Tile::Storage>(o, lse, q, k, v), q.dim[0] * s.heads, s);
    });
}
