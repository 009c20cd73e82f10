/* attention.cuh -- contains what all attention kernels share: the shape of a call, the keys that a
 * query sees, and the assignment of work to blocks. */
#ifndef MODEL_KERNELS_CUDA_ATTENTION_CUH
#define MODEL_KERNELS_CUDA_ATTENTION_CUH

#include <limits.h>

#include "model/kernels/cuda/kernel.cuh"

#include "model/kernels/cuda/attention.h"

/* Bytes of shared memory that a block can use on every GPU of compute capability 8 or more. */
enum { SHARED_MOST = 99 << 10 };

/* ---- shape ----------------------------------------------------------------------------------- */

#define LOG2E ((float)LOG2_E)

/* Shape and masks of one call. Query t sees the keys from first_key[t] (0 if first_key is NULL) up
 * to, but not including, min(t + offset + 1, tk). */
typedef struct {
    int heads, kv_heads, head_size, tq, tk, offset;
    int group;               /* query heads per kv head */
    float scale, scale_log2; /* scale_log2: scale times log2 e */
    const int32_t *first_key;
    int section; /* number of (batch row, head) pairs whose blocks run at the same time */
} AttentionShape;

/* A section is a group of pairs whose blocks run at the same time. It has as many pairs as possible
 * whose keys and values take at most SECTION_BYTES in all (but at least the heads of one kv head),
 * so that the keys and values stay in the L2 cache. */
#define SECTION_BYTES ((int64_t)16 << 20)

static inline AttentionShape shape_of(Tensor q, Tensor k, Attention a, Tensor first_key)
{
    int64_t tq = q.dim[1], tk = k.dim[1];
    int64_t bytes = 2 * tk * a.head_size * (int64_t)dtype_size(k.dtype);
    int64_t fitting = bytes < SECTION_BYTES ? SECTION_BYTES / bytes : 1;
    fitting = fitting < q.dim[0] * a.kv_heads ? fitting : q.dim[0] * a.kv_heads;
    CHECK(tq + tk < INT_MAX && q.dim[0] * a.heads < INT_MAX,
          "attention of %lld batch rows, %lld queries, %lld keys", (long long)q.dim[0],
          (long long)tq, (long long)tk);
    AttentionShape s = {.heads = (int)a.heads,
                        .kv_heads = (int)a.kv_heads,
                        .head_size = (int)a.head_size,
                        .tq = (int)tq,
                        .tk = (int)tk,
                        .offset = (int)(a.causal_offset < tk ? a.causal_offset : tk),
                        .group = (int)(a.heads / a.kv_heads),
                        .scale = (float)a.scale,
                        .scale_log2 = (float)a.scale * LOG2E,
                        .first_key = (const int32_t *)first_key.data,
                        .section = (int)(fitting * (a.heads / a.kv_heads))};
    return s;
}

/* Sets [*first, *end) to the keys that query t of batch row b sees. The range is empty if t >= tq.
 */
static __device__ __forceinline__ void keys_seen(const AttentionShape &s, int64_t b, int t,
                                                 int *first, int *end)
{
    bool real = t < s.tq;
    *first = !real ? INT_MAX : s.first_key ? s.first_key[b * s.tq + t] : 0;
    *end = real ? min(t + s.offset + 1, s.tk) : 0;
}

/* Sets [*first, *end) to the smallest range that holds every key seen by any of the queries [t, t +
 * n) of batch row b. All lanes of a warp must call it; all get the same result. */
static __device__ __forceinline__ void keys_seen_by(const AttentionShape &s, int64_t b, int t,
                                                    int n, int *first, int *end)
{
    *first = 0;
    *end = min(min(t + n, s.tq) + s.offset, s.tk);
    if (!s.first_key) return;
    int least = INT_MAX;
#pragma unroll 1
    for (int i = t + (int)(threadIdx.x % WARP); i < min(t + n, s.tq); i += WARP)
        least = min(least, s.first_key[b * s.tq + i]);
    *first = max(-warp_max(-least), 0);
}

/* Sets [*first, *end) to the keys that all of the queries [t, t + n) of batch row b see; the range
 * may be empty. All lanes of a warp must call it; all get the same result. */
static __device__ __forceinline__ void keys_seen_by_all(const AttentionShape &s, int64_t b, int t,
                                                        int n, int *first, int *end)
{
    *first = 0;
    *end = min(t + s.offset + 1, s.tk);
    if (!s.first_key) return;
    int most = 0;
#pragma unroll 1
    for (int i = t + (int)(threadIdx.x % WARP); i < min(t + n, s.tq); i += WARP)
        most = max(most, s.first_key[b * s.tq + i]);
    *first = warp_max(most);
}

/* ---- assignment of work to blocks ------------------------------------------------------------ */

/* The part of the work that a block does. A pair is (batch row, head), or (batch row, kv head) for
 * blocks that own keys. */
typedef struct {
    int local, pair; /* index of the pair: local in this launch, pair in the whole call */
    int64_t b;
    int head, kv_head; /* blocks that own keys: head is the first of the group */
    int row;           /* first query or key that the block owns */
} BlockPlace;

/* Maps block x of a grid of pairs * blocks to its pair and its block number within the pair.
 * Sections run one after the other. Within a section, the first blocks of all its pairs come before
 * the second blocks, and so on. */
static __device__ __forceinline__ void block_place(int x, int pairs, int blocks, int section,
                                                   int *pair, int *block)
{
    section = min(section, pairs); /* so that a section has no more blocks than the grid */
    int base = x / (section * blocks) * section, n = min(section, pairs - base);
    int at = x - base * blocks;
    *block = at / n;
    *pair = base + at % n;
}

/* Returns the work of block x when each block owns `owned` queries. The last queries come first:
 * they see the most keys, so they take the longest. */
static __device__ __forceinline__ BlockPlace queries_place(const AttentionShape &s, int x,
                                                           int pair0, int pairs, int owned)
{
    BlockPlace at;
    int block, blocks = (s.tq + owned - 1) / owned;
    block_place(x, pairs, blocks, s.section, &at.local, &block);
    at.pair = pair0 + at.local;
    at.b = at.pair / s.heads;
    at.head = at.pair % s.heads;
    at.kv_head = at.head / s.group;
    at.row = (blocks - 1 - block) * owned;
    return at;
}

/* Returns the work of block x when each block owns `owned` keys. The first keys come first: the
 * most queries see them, so they take the longest. */
static __device__ __forceinline__ BlockPlace keys_place(const AttentionShape &s, int x, int pair0,
                                                        int pairs, int owned)
{
    BlockPlace at;
    int block;
    block_place(x, pairs, (s.tk + owned - 1) / owned, s.section / s.group, &at.local, &block);
    at.pair = pair0 + at.local;
    at.b = at.pair / s.kv_heads;
    at.kv_head = at.pair % s.kv_heads;
    at.head = at.kv_head * s.group;
    at.row = block * owned;
    return at;
}

/* Returns a pointer to row 0 of a head of batch row b in a tensor (B, length, heads * D). */
template <class T>
__device__ __forceinline__ T *head_at(T *x, int64_t ld, int64_t b, int length, int head,
                                      const AttentionShape &s)
{
    return x + b * length * ld + (int64_t)head * s.head_size;
}

/* ---- host ------------------------------------------------------------------------------------ */

/* Returns the smallest tile width that is at least head_size. */
static inline int tile_width(int64_t head_size)
{
    int64_t step = head_size <= 128 ? 32 : 64;
    return (int)(ceil_div(head_size, step) * step);
}

/* A type that stands for a tile width, so that with_width can pass it to a generic lambda as a
 * constant. */
template <int D> struct Width {
    enum { WIDTH = D };
};

/* Calls f with Width<tile_width(head_size)>. */
template <class F> static void with_width(int64_t head_size, F f)
{
    switch (tile_width(head_size)) {
    case 32: return f(Width<32>());
    case 64: return f(Width<64>());
    case 96: return f(Width<96>());
    case 128: return f(Width<128>());
    case 192: return f(Width<192>());
    case 256: return f(Width<256>());
    }
}

/* Returns true if, in all n tensors, every row of every head starts on a 16-byte boundary and is a
 * multiple of 16 bytes long. */
static inline bool heads_in_packs(const Tensor *t, int n, int64_t head_size)
{
    int pack = pack_size(t[0].dtype);
    bool fit = head_size % pack == 0;
    for (int i = 0; i < n; i++)
        fit = fit && packs_fit(t[i], pack);
    return fit;
}

/* What the kernels of forward read and write, and the strides of the rows. */
template <class T> struct ForwardOperands {
    T *o;
    float *lse;
    const T *q, *k, *v;
    int64_t o_ld, q_ld, k_ld, v_ld;
};

template <class T>
static ForwardOperands<T> operands_of(Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v)
{
    return {(T *)o.data,
            (float *)lse.data,
            (const T *)q.data,
            (const T *)k.data,
            (const T *)v.data,
            o.ld,
            q.ld,
            k.ld,
            v.ld};
}

/* A call of backward. delta: workspace for rowsum(dO o). */
typedef struct {
    const AttentionTensors *t;
    AttentionShape shape;
    bool accumulate;
    float *delta;
} BackwardCall;

static inline BackwardCall backward_call(const AttentionTensors *t, bool accumulate,
                                         Attention attention)
{
    BackwardCall c = {t, shape_of(t->q, t->k, attention, t->first_key), accumulate, NULL};
    return c;
}

/* What the kernels of backward read and write, and the strides of the rows. */
template <class T> struct BackwardOperands {
    T *dq, *dk, *dv;
    const T *q, *k, *v, *dout, *o;
    const float *lse;
    float *delta;
    int64_t dq_ld, dk_ld, dv_ld, q_ld, k_ld, v_ld, dout_ld, o_ld;
    bool accumulate;
};

template <class T> static BackwardOperands<T> operands_of(const BackwardCall *c)
{
    const AttentionTensors *t = c->t;
    return {(T *)t->dq.data,
            (T *)t->dk.data,
            (T *)t->dv.data,
            (const T *)t->q.data,
            (const T *)t->k.data,
            (const T *)t->v.data,
            (const T *)t->dout.data,
            (const T *)t->o.data,
            (const float *)t->lse.data,
            c->delta,
            t->dq.ld,
            t->dk.ld,
            t->dv.ld,
            t->q.ld,
            t->k.ld,
            t->v.ld,
            t->dout.ld,
            t->o.ld,
            c->accumulate};
}

#endif
