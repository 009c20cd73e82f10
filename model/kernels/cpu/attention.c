/* attention.c -- attention forward on the CPU. A task is a block of queries of one head. It loops
 * over the blocks of keys that these queries attend to. For each query it keeps the largest score
 * so far, the sum of exponentials and the weighted sum of values (the online softmax of Milakov,
 * Gimelshein, arXiv:1805.02867, blocked as in Dao et al., arXiv:2205.14135). */
#include "model/kernels/cpu/attention.h"

#include <math.h>

/* Lets the compiler use fused multiply-adds if the CPU level has them, which -std=c11 alone would
 * not. */
#pragma GCC optimize("fp-contract=fast")

typedef struct {
    AttentionCall call;
    Tensor o, lse;
    int64_t query_block, key_block, n_blocks;
} ForwardCall;

/* A task's block of queries and its scratch memory. */
typedef struct {
    int64_t b, head, kv_head, t, n; /* queries [t, t + n) */
    real *rows, *transposed;        /* the queries as reals, and their transpose (D, SCORES_LD) */
    real *k, *v;                    /* converted operands */
    real *scores;                   /* (key_block, SCORES_LD) */
    real *out;                      /* (n, D) sum of weighted values, rows heads_ld apart */
    real top[QUERY_BLOCK];          /* largest score so far */
    real sum[QUERY_BLOCK];          /* sum of exp(score - top) */
    Window window;
} QueryBlock;

/* Scales the scores of a group of queries with the keys [from, to). Sets a score to -infinity if
 * the query may not attend to the key. Raises top[l] to the largest score of query l. */
static void group_mask(real *restrict scores, const int32_t *restrict first,
                       const int32_t *restrict end, int64_t from, int64_t to, real scale,
                       real *restrict top)
{
    for (int32_t j = (int32_t)from; j < (int32_t)to; j++) {
        real *restrict row = scores + j * SCORES_LD;
        for (int l = 0; l < GROUP; l++) {
            real s = ((j >= first[l]) & (j < end[l])) ? row[l] * scale : -(real)INFINITY;
            row[l] = s;
            top[l] = s > top[l] ? s : top[l];
        }
    }
}

/* Replaces the scores of keys [from, to) by exp(score - top) and adds them to sum. */
static void group_exp(real *restrict scores, int64_t from, int64_t to, const real *restrict top,
                      real *restrict sum)
{
    for (int64_t j = from; j < to; j++) {
        real *restrict row = scores + j * SCORES_LD;
        for (int l = 0; l < GROUP; l++) {
            real e = real_exp(row[l] - top[l]);
            row[l] = e;
            sum[l] += e;
        }
    }
}

/* Turns the scores of the group of queries that starts at i into weights. Rescales what these
 * queries have summed over earlier keys to the new maximum. `gathered`: true if sums over earlier
 * keys exist, that is, this is not the first block of keys. */
static void group_softmax(const ForwardCall *f, QueryBlock *x, int64_t i, bool gathered)
{
    const AttentionCall *h = &f->call;
    int64_t from, to = window_span(&x->window, i, GROUP, &from);
    real top[GROUP], rescale[GROUP], sum[GROUP] = {0};
    if (from == to) return;
    memcpy(top, x->top + i, sizeof top);
    group_mask(x->scores + i, x->window.first + i, x->window.end + i, from, to,
               (real)h->shape.scale, top);
    for (int l = 0; l < GROUP; l++) {
        /* A query that has attended to no key yet has the maximum -infinity, and -infinity minus
         * itself is NaN. Such a query uses the base 0, which makes its weights and its rescaling
         * factor 0. */
        real base = top[l] > -(real)INFINITY ? top[l] : 0;
        rescale[l] = real_exp(x->top[i + l] - base);
        x->top[i + l] = top[l];
        top[l] = base;
    }
    group_exp(x->scores + i, from, to, top, sum);
    for (int l = 0; l < GROUP; l++)
        x->sum[i + l] = x->sum[i + l] * rescale[l] + sum[l];
    /* The weighted sums over earlier keys were relative to a smaller maximum, so they are rescaled.
     * Padding queries have no row in out. */
    for (int64_t l = 0; gathered && l < min_i64(GROUP, x->n - i); l++)
        for (int64_t c = 0; c < h->shape.head_size; c++)
            x->out[(i + l) * heads_ld(h) + c] *= rescale[l];
}

/* Adds the contribution of keys [key, key + n) to the results of the block's queries. */
static void keys_forward(const ForwardCall *f, QueryBlock *x, int64_t key, int64_t n, bool gathered)
{
    const AttentionCall *h = &f->call;
    int64_t d = h->shape.head_size, ld = heads_ld(h), wide = groups_up(x->n);
    HeadRows k = head_load(h, h->k, h->tk, x->b, x->kv_head, key, n, x->k);
    HeadRows v = head_load(h, h->v, h->tk, x->b, x->kv_head, key, n, x->v);
    /* The window holds each query's own range of keys, so document boundaries and the diagonal need
     * no special case below. */
    window_make(h, x->b, x->t, x->n, key, n, &x->window);
    for (int64_t j = 0; j < n; j += STRIP_ROWS) {
        /* Queries before the first one that attends to this strip of keys are skipped, in whole
         * groups. Their scores stay uncomputed, which is allowed because group_softmax does not
         * read scores outside its group's window. */
        int64_t i = causal_first(h, x->t, x->n, key + j) / GROUP * GROUP;
        Strip a = {.at = k.at + j * k.ld, .row = k.ld, .step = 1};
        CPU(strips_product)
        (min_i64(STRIP_ROWS, n - j), wide - i, d, a, x->transposed + i, SCORES_LD, false,
         x->scores + j * SCORES_LD + i, SCORES_LD);
    }
    for (int64_t i = 0; i < x->n; i += GROUP)
        group_softmax(f, x, i, gathered);
    for (int64_t i = 0, rows; i < x->n; i += rows) {
        /* A strip (the queries of one product) must not cross groups of queries: outside a group's
         * window its scores were not turned into weights. */
        rows = min_i64(min_i64(STRIP_ROWS, GROUP - i % GROUP), x->n - i);
        int64_t from, to = window_span(&x->window, i, rows, &from);
        Strip p = {.at = x->scores + from * SCORES_LD + i, .row = 1, .step = SCORES_LD};
        CPU(strips_product)
        (rows, ld, to - from, p, v.at + from * v.ld, v.ld, gathered, x->out + i * ld, ld);
    }
}

static void block_take(const ForwardCall *f, QueryBlock *x, int64_t task, int worker)
{
    const AttentionCall *h = &f->call;
    int64_t heads = h->shape.heads, pairs = h->batch * heads;
    /* Consecutive tasks have the same block of queries and different (batch row, head) pairs, so
     * tasks that run at the same time take about the same time. */
    int64_t pair = head_of_task(h, task % pairs, pairs);
    int64_t block = f->n_blocks - 1 -
                    task / pairs; /* starts with the last block, which attends to the most keys */
    x->b = pair / heads;
    x->head = pair % heads;
    x->kv_head = x->head / (heads / h->shape.kv_heads);
    x->t = block * f->query_block;
    x->n = min_i64(f->query_block, h->tq - x->t);
    int64_t ld = heads_ld(h), queries = QUERY_BLOCK * ld, keys = f->key_block * ld;
    int64_t scores = f->key_block * SCORES_LD, transposed = ld * SCORES_LD;
    x->scores =
        pool_workspace(h->dev->pool, worker,
                       (size_t)(scores + transposed + 2 * queries + 2 * keys) * sizeof(real));
    x->transposed = x->scores + scores;
    x->out = x->transposed + transposed;
    x->rows = x->out + queries;
    x->k = x->rows + queries;
    x->v = x->k + keys;
    for (int64_t i = 0; i < QUERY_BLOCK; i++) {
        x->top[i] = -(real)INFINITY;
        x->sum[i] = 0;
    }
}

static void forward_task(void *context, int64_t task, int worker)
{
    const ForwardCall *f = context;
    const AttentionCall *h = &f->call;
    QueryBlock x;
    block_take(f, &x, task, worker);
    int64_t start = block_keys_first(h, x.b, x.t, x.n), end = keys_end(h, x.t + x.n - 1);
    int64_t keys = min_i64(f->key_block, end - start);
    head_prefetch(h, h->q, h->tq, x.b, x.head, x.t, x.n);
    head_prefetch(h, h->k, h->tk, x.b, x.kv_head, start, keys);
    head_prefetch(h, h->v, h->tk, x.b, x.kv_head, start, keys);
    /* The queries are transposed once and used with every block of keys. */
    rows_transpose(h, head_load(h, h->q, h->tq, x.b, x.head, x.t, x.n, x.rows), x.n, x.transposed);
    for (int64_t key = start; key < end; key += f->key_block)
        keys_forward(f, &x, key, min_i64(f->key_block, end - key), key > start);
    real *lse = (real *)f->lse.data + (x.b * h->shape.heads + x.head) * h->tq + x.t;
    for (int64_t i = 0; i < x.n; i++)
        lse[i] = x.top[i] + real_log(x.sum[i]);
    for (int64_t i = 0; i < x.n; i++) {
        /* The division by the sum happens once, at the end; until then out and sum are both
         * relative to the largest score. */
        real *out = x.out + i * heads_ld(h), scale = 1 / x.sum[i];
        for (int64_t c = 0; c < h->shape.head_size; c++)
            out[c] *= scale;
        head_store(h, f->o, h->tq, x.b, x.head, x.t + i, out);
    }
    streams_end();
}

void CPU(attention_forward)(Device *dev, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                            Attention attention, Tensor first_key)
{
    ForwardCall f = {
        .call = attention_call(dev, q, k, v, attention, first_key), .o = o, .lse = lse};
    f.query_block = min_i64(QUERY_BLOCK, f.call.tq);
    f.key_block = min_i64(KEY_BLOCK, f.call.tk);
    f.n_blocks = (f.call.tq + f.query_block - 1) / f.query_block;
    pool_run(dev->pool, f.n_blocks * f.call.batch * attention.heads, forward_task, &f);
}
