/* attention.h -- what forward and backward attention share: operands of one head, which keys a
 * query sees, blocks.
 *
 * Scores exist one block at a time, in the workspace of a thread, and transposed: a row is a key,
 * its elements are queries. So a vector holds one key's scores with several queries: softmax needs
 * no sum within a vector, and a block of queries is transposed once for all keys it meets. */
#ifndef MODEL_KERNELS_CPU_ATTENTION_H
#define MODEL_KERNELS_CPU_ATTENTION_H

#include "model/core/min_max.h"
#include "model/kernels/cpu/strips.h"
#include "model/kernels/vmath.h"

/* Largest block of scores. Queries come in groups: a group's scores are side by side, and what
 * lies above the diagonal is left out in groups by strips of keys. Rows of scores are padded by a
 * group so that columns of them do not fall on a few sets of a cache. */
enum { QUERY_BLOCK = 64, KEY_BLOCK = 256, GROUP = 16, SCORES_LD = QUERY_BLOCK + GROUP };
_Static_assert(GROUP % LANES == 0, "a group is whole vectors");

/* What both directions know of a call. */
typedef struct {
    Device *dev;
    Attention shape;
    Tensor q, k, v, first_key;
    int64_t batch, tq, tk;
} AttentionCall;

static inline AttentionCall attention_call(Device *dev, Tensor q, Tensor k, Tensor v,
                                           Attention shape, Tensor first_key)
{
    return (AttentionCall){.dev = dev,
                           .shape = shape,
                           .q = q,
                           .k = k,
                           .v = v,
                           .first_key = first_key,
                           .batch = q.dim[0],
                           .tq = q.dim[1],
                           .tk = k.dim[1]};
}

/* Keys [first, end) that query t of batch row b sees. */
static inline int64_t keys_first(const AttentionCall *h, int64_t b, int64_t t)
{
    return tensor_present(h->first_key) ? ((const int32_t *)h->first_key.data)[b * h->tq + t] : 0;
}

static inline int64_t keys_end(const AttentionCall *h, int64_t t)
{
    int64_t end = t + h->shape.causal_offset + 1;
    return end < 0 ? 0 : end < h->tk ? end : h->tk;
}

/* The first key that any of the queries [t, t + n) sees. */
static inline int64_t block_keys_first(const AttentionCall *h, int64_t b, int64_t t, int64_t n)
{
    int64_t first = keys_first(h, b, t);
    for (int64_t i = 1; i < n; i++) {
        int64_t f = keys_first(h, b, t + i);
        first = f < first ? f : first;
    }
    return first;
}

/* The head of 0 .. n - 1 that comes up task-th, so that tasks of the same moment work on heads far
 * from each other: rows of neighbouring heads touch, and a prefetcher that runs past the end of one
 * takes lines from the thread that is writing the next. */
static inline int64_t head_of_task(const AttentionCall *h, int64_t task, int64_t n)
{
    int64_t threads = pool_threads(h->dev->pool);
    int64_t column = task % threads, base = n / threads, longer = n % threads;
    return column * base + min_i64(column, longer) + task / threads;
}

/* n rounded up to whole groups. */
static inline int64_t groups_up(int64_t n)
{
    return (n + GROUP - 1) / GROUP * GROUP;
}

/* Elements between rows of a copied operand and of sums: the head size in whole vectors. */
static inline int64_t heads_ld(const AttentionCall *h)
{
    return (h->shape.head_size + LANES - 1) / LANES * LANES;
}

/* Address of query or key t's part of such a tensor. */
static inline void *head_at(const AttentionCall *h, Tensor x, int64_t length, int64_t b,
                            int64_t head, int64_t t)
{
    return (char *)tensor_row(x, b * length + t) +
           (size_t)(head * h->shape.head_size) * dtype_size(x.dtype);
}

/* Whether a head's rows of x can be read and written as whole vectors of reals where they are. */
static inline bool head_in_place(const AttentionCall *h, Tensor x)
{
    return x.dtype == REAL_DTYPE && h->shape.head_size == heads_ld(h);
}

/* Asks for rows [t, t + n) of a head ahead of their use: a head's rows are short and far apart, no
 * prefetcher of the machine sees them coming. */
static inline void head_prefetch(const AttentionCall *h, Tensor x, int64_t length, int64_t b,
                                 int64_t head, int64_t t, int64_t n)
{
    int64_t bytes = h->shape.head_size * (int64_t)dtype_size(x.dtype);
    for (int64_t i = 0; i < n; i++) {
        const char *row = head_at(h, x, length, b, head, t + i);
        for (int64_t c = 0; c < bytes; c += 64)
            __builtin_prefetch(row + c);
    }
}

/* Rows of an operand of one head as reals, `ld` apart. */
typedef struct {
    const real *at;
    int64_t ld;
} HeadRows;

/* Rows [t, t + n) of batch row b and head `head` of a (B, T, heads * D) tensor with T = length, in
 * whole vectors: in place, or copied to buffer (n, heads_ld) followed by zeros. */
static inline HeadRows head_load(const AttentionCall *h, Tensor x, int64_t length, int64_t b,
                                 int64_t head, int64_t t, int64_t n, real *buffer)
{
    int64_t d = h->shape.head_size, ld = heads_ld(h);
    if (head_in_place(h, x)) return (HeadRows){.at = head_at(h, x, length, b, head, t), .ld = x.ld};
    for (int64_t i = 0; i < n; i++) {
        reals_load(buffer + i * ld, x.dtype, head_at(h, x, length, b, head, t + i), d);
        memset(buffer + i * ld + d, 0, (size_t)(ld - d) * sizeof *buffer);
    }
    return (HeadRows){.at = buffer, .ld = ld};
}

/* Row t of a head of x = D reals, rounded to its type. Ends a task's work on the row. */
static inline void head_store(const AttentionCall *h, Tensor x, int64_t length, int64_t b,
                              int64_t head, int64_t t, const real *row)
{
    void *to = head_at(h, x, length, b, head, t);
    if (x.dtype == REAL_DTYPE)
        reals_stream(to, row, h->shape.head_size);
    else
        reals_store(x.dtype, to, row, h->shape.head_size);
}

/* to (D, SCORES_LD) = n rows transposed; what is left of the last group repeats the last row. */
static inline void rows_transpose(const AttentionCall *h, HeadRows rows, int64_t n, real *to)
{
    for (int64_t i = 0; i < groups_up(n); i += LANES) {
        int64_t from = min_i64(i, n - 1);
        rows_pack(to + i, rows.at + from * rows.ld, rows.ld, min_i64(n - from, LANES),
                  h->shape.head_size, SCORES_LD);
    }
}

/* For each query of a block, whole groups of them, the keys [first, end) of a key block that it
 * sees; [KEY_BLOCK, 0) where it sees none. */
typedef struct {
    int32_t first[QUERY_BLOCK], end[QUERY_BLOCK];
} Window;

/* Queries [t, t + n) and keys [key, key + n_keys) of batch row b. */
static inline void window_make(const AttentionCall *h, int64_t b, int64_t t, int64_t n, int64_t key,
                               int64_t n_keys, Window *w)
{
    for (int64_t i = 0; i < groups_up(n); i++) {
        w->first[i] = KEY_BLOCK;
        w->end[i] = 0;
        if (i >= n) continue;
        int64_t end = min_i64(keys_end(h, t + i) - key, n_keys);
        int64_t first = max_i64(keys_first(h, b, t + i) - key, 0);
        if (first >= end) continue;
        w->first[i] = (int32_t)first;
        w->end[i] = (int32_t)end;
    }
}

/* The keys that any of the queries [i, i + n) of the window sees, from *first; returns the end. */
static inline int64_t window_span(const Window *w, int64_t i, int64_t n, int64_t *first)
{
    int32_t from = w->first[i], to = w->end[i];
    for (int64_t l = i + 1; l < i + n; l++) {
        from = w->first[l] < from ? w->first[l] : from;
        to = w->end[l] > to ? w->end[l] : to;
    }
    *first = from < to ? from : to;
    return to;
}

/* The first of the queries [t, t + n) that sees key `key` or a later one, counted from t. */
static inline int64_t causal_first(const AttentionCall *h, int64_t t, int64_t n, int64_t key)
{
    return min_i64(max_i64(key - h->shape.causal_offset - t, 0), n);
}

#endif
