/* attention.h -- helpers shared by forward and backward attention: access to the operands of one
 * head, the range of keys that a query attends to, and blocks of scores.
 *
 * Scores exist for one block at a time, in a thread's workspace, and are stored transposed: a row
 * is a key, its elements are queries. A vector therefore holds the scores of one key with several
 * queries, so softmax needs no sum within a vector, and a block of queries is transposed once for
 * all the keys it is multiplied with. */
#ifndef MODEL_KERNELS_CPU_ATTENTION_H
#define MODEL_KERNELS_CPU_ATTENTION_H

#include "model/core/min_max.h"
#include "model/kernels/cpu/strips.h"
#include "model/kernels/vmath.h"

/* A block of scores has at most QUERY_BLOCK queries and KEY_BLOCK keys. Queries are processed in
 * groups of GROUP: a group's scores are adjacent, and scores above the diagonal are skipped per
 * group and per strip of STRIP_ROWS keys (strips.h). Rows of scores are padded by one group so that
 * a column of scores does not map to only a few sets of a cache. */
enum { QUERY_BLOCK = 64, KEY_BLOCK = 256, GROUP = 16, SCORES_LD = QUERY_BLOCK + GROUP };
_Static_assert(GROUP % LANES == 0, "a group is whole vectors");

/* Arguments of a call that forward and backward both need. */
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

/* keys_first and keys_end return the range [first, end) of keys that query t of batch row b attends
 * to. */
static inline int64_t keys_first(const AttentionCall *h, int64_t b, int64_t t)
{
    return tensor_present(h->first_key) ? ((const int32_t *)h->first_key.data)[b * h->tq + t] : 0;
}

static inline int64_t keys_end(const AttentionCall *h, int64_t t)
{
    int64_t end = t + h->shape.causal_offset + 1;
    return end < 0 ? 0 : end < h->tk ? end : h->tk;
}

/* Returns the first key that any of the queries [t, t + n) attends to. */
static inline int64_t block_keys_first(const AttentionCall *h, int64_t b, int64_t t, int64_t n)
{
    int64_t first = keys_first(h, b, t);
    for (int64_t i = 1; i < n; i++) {
        int64_t f = keys_first(h, b, t + i);
        first = f < first ? f : first;
    }
    return first;
}

/* Returns which of n heads task number `task` works on. Tasks that run at the same time get heads
 * that are far apart: rows of neighbouring heads are adjacent in memory, and a prefetcher that runs
 * past the end of one row would take cache lines away from the thread that writes the next. */
static inline int64_t head_of_task(const AttentionCall *h, int64_t task, int64_t n)
{
    int64_t threads = pool_threads(h->dev->pool);
    int64_t column = task % threads, base = n / threads, longer = n % threads;
    return column * base + min_i64(column, longer) + task / threads;
}

/* Returns n rounded up to a multiple of GROUP. */
static inline int64_t groups_up(int64_t n)
{
    return (n + GROUP - 1) / GROUP * GROUP;
}

/* Returns the row stride of copied operands and of sums: the head size rounded up to whole vectors.
 */
static inline int64_t heads_ld(const AttentionCall *h)
{
    return (h->shape.head_size + LANES - 1) / LANES * LANES;
}

/* Returns the address of a head's elements for query or key t in a (B, T, heads * D) tensor with T
 * = length. */
static inline void *head_at(const AttentionCall *h, Tensor x, int64_t length, int64_t b,
                            int64_t head, int64_t t)
{
    return (char *)tensor_row(x, b * length + t) +
           (size_t)(head * h->shape.head_size) * dtype_size(x.dtype);
}

/* Returns whether a head's rows of x can be read and written in place as whole vectors of reals. */
static inline bool head_in_place(const AttentionCall *h, Tensor x)
{
    return x.dtype == REAL_DTYPE && h->shape.head_size == heads_ld(h);
}

/* Prefetches rows [t, t + n) of a head. A head's rows are short and far apart, so the hardware
 * prefetchers do not predict them. */
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

/* Rows of one head of an operand as reals, `ld` elements apart. */
typedef struct {
    const real *at;
    int64_t ld;
} HeadRows;

/* Returns rows [t, t + n) of batch row b and head `head` of a (B, T, heads * D) tensor with T =
 * length, as whole vectors: in place if possible, otherwise copied to buffer (n, heads_ld) and
 * padded with zeros. */
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

/* Writes D reals, rounded to x's type, to row t of a head of x. The row must be the final result,
 * because it may be written past the caches (reals_stream). */
static inline void head_store(const AttentionCall *h, Tensor x, int64_t length, int64_t b,
                              int64_t head, int64_t t, const real *row)
{
    void *to = head_at(h, x, length, b, head, t);
    if (x.dtype == REAL_DTYPE)
        reals_stream(to, row, h->shape.head_size);
    else
        reals_store(x.dtype, to, row, h->shape.head_size);
}

/* Writes n rows, transposed, to `to` (D, SCORES_LD): row i becomes column i. The columns from n to
 * the end of the last group repeat row n - 1. */
static inline void rows_transpose(const AttentionCall *h, HeadRows rows, int64_t n, real *to)
{
    for (int64_t i = 0; i < groups_up(n); i += LANES) {
        int64_t from = min_i64(i, n - 1);
        rows_pack(to + i, rows.at + from * rows.ld, rows.ld, min_i64(n - from, LANES),
                  h->shape.head_size, SCORES_LD);
    }
}

/* For each query of a block (padded to a whole number of groups): the range [first, end) of keys in
 * a key block that the query attends to, counted from the first key of that block; [KEY_BLOCK, 0)
 * if it attends to none of them. */
typedef struct {
    int32_t first[QUERY_BLOCK], end[QUERY_BLOCK];
} Window;

/* Computes the window of queries [t, t + n) and keys [key, key + n_keys) of batch row b. */
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

/* Finds the smallest range of keys that holds every key that any of the queries [i, i + n) of the
 * window attends to. Sets *first to its beginning and returns its end. */
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

/* Returns the first of the queries [t, t + n), counted from t, that attends to key `key` or a later
 * one. */
static inline int64_t causal_first(const AttentionCall *h, int64_t t, int64_t n, int64_t key)
{
    return min_i64(max_i64(key - h->shape.causal_offset - t, 0), n);
}

#endif
