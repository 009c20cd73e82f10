/* attention_backward.c -- attention backward on the CPU. With the scores S, the weights P = exp(S -
 * lse) and delta = rowsum(dO o), it computes dV = P^T dO, dP = dO V^T, dS = P (dP - delta) scale,
 * dQ = dS K, dK = dS^T Q. P is recomputed block by block from q, k and lse (Dao et al.,
 * arXiv:2205.14135).
 *
 * Normally a task is one key/value head of one batch row and computes all three gradients. If there
 * are fewer such heads than threads need, a head is split into tasks: some own queries and compute
 * dQ, others own keys and compute dK and dV. Each recomputes the blocks of P and dS that it needs,
 * which takes seven matrix multiplications instead of five but allows any number of tasks. Either
 * way, every element is computed by one task in a fixed order of summation. */
#include "model/kernels/cpu/attention.h"
#include "model/kernels/cpu/column_sum.h"

/* Lets the compiler use fused multiply-adds if the CPU level has them, which -std=c11 alone would
 * not. */
#pragma GCC optimize("fp-contract=fast")

/* Largest number of elements in a task's array of sums for dk, and in the one for dv, so that both
 * arrays fit a worker's workspace. */
#define OWNED_ELEMENTS ((int64_t)2 << 20)

typedef struct {
    AttentionCall call;
    Tensor dq, dk, dv, dout, o, lse;
    bool accumulate, split;
    int64_t query_block, key_block;
    int64_t query_parts,
        key_parts;      /* if split: number of parts of a head's queries and of its keys */
    int64_t owned_keys; /* largest number of keys of a task */
} BackwardCall;

/* A task: its key/value head, its ranges of queries and keys, which gradients it computes, and its
 * scratch memory with the shapes of the arrays. */
typedef struct {
    int64_t b, kv_head;
    int64_t query, query_end, key, key_end;
    bool want_dq, want_dkv;
    real *p;                            /* weights of a strip of keys (STRIP_ROWS, SCORES_LD) */
    real *ds;                           /* gradients of the scores (key_block, SCORES_LD) */
    real *q_transposed, *do_transposed; /* transposed q and dout (D, SCORES_LD) */
    real *q, *dout, *o;                 /* converted operands (query_block, D) */
    real *k, *v;                        /* converted operands (key_block, D) */
    real *dq;                           /* sums (query_block, D) */
    real *dk, *dv;                      /* sums (owned_keys, D) */
    real *row;                          /* previous gradient, to be added (D) */
} Part;

/* Queries [t, t + n) of one head, with their operands. */
typedef struct {
    int64_t head, t, n;
    HeadRows q, dout;
    real lse[QUERY_BLOCK], delta[QUERY_BLOCK];
} Queries;

/* Turns the scores of key `key` with a group of queries into weights, and dP (in ds) into dS. Both
 * become zero where the query does not attend to the key. */
static inline void group_gradient(real *restrict p, real *restrict ds, int32_t key,
                                  const int32_t *restrict first, const int32_t *restrict end,
                                  const real *restrict lse, const real *restrict delta, real scale)
{
    for (int l = 0; l < GROUP; l++) {
        bool seen = (key >= first[l]) & (key < end[l]);
        /* exp(score - lse) is the weight itself, because lse already includes forward's sum; no
         * maximum has to be subtracted. Keys that the query does not see are computed, too, and
         * then discarded, which keeps the loop free of branches. */
        real e = real_exp(p[l] * scale - lse[l]);
        real s = e * (ds[l] - delta[l]) * scale;
        ds[l] = seen ? s : 0;
        p[l] = seen ? e : 0;
    }
}

/* Processes a strip of n keys, starting at key j of the block: computes its rows of dS and adds its
 * contribution to dK and dV. */
static void strip_backward(const BackwardCall *f, const Part *x, const Queries *qs, const Window *w,
                           int64_t at, int64_t j, int64_t n, HeadRows k, HeadRows v)
{
    const AttentionCall *h = &f->call;
    int64_t d = h->shape.head_size, ld = heads_ld(h), wide = groups_up(qs->n);
    /* Scores are computed in whole groups starting at `from`. The sums below skip the queries
     * before i, which attend to none of the strip's keys. */
    int64_t i = causal_first(h, qs->t, qs->n, at + j), from = i / GROUP * GROUP;
    real *p = x->p, *ds = x->ds + j * SCORES_LD;
    Strip ks = {.at = k.at + j * k.ld, .row = k.ld, .step = 1};
    Strip vs = {.at = v.at + j * v.ld, .row = v.ld, .step = 1};
    CPU(strips_product)
    (n, wide - from, d, ks, x->q_transposed + from, SCORES_LD, false, p + from, SCORES_LD);
    CPU(strips_product)
    (n, wide - from, d, vs, x->do_transposed + from, SCORES_LD, false, ds + from, SCORES_LD);
    for (int64_t r = 0; r < n; r++)
        for (int64_t g = from; g < wide; g += GROUP)
            group_gradient(p + r * SCORES_LD + g, ds + r * SCORES_LD + g, (int32_t)(j + r),
                           w->first + g, w->end + g, qs->lse + g, qs->delta + g,
                           (real)h->shape.scale);
    if (!x->want_dkv) return;
    int64_t row = at + j - x->key;
    Strip ps = {.at = p + i, .row = SCORES_LD, .step = 1};
    Strip dss = {.at = ds + i, .row = SCORES_LD, .step = 1};
    /* Computes dV += P^T dO and dK += dS^T Q while P and dS of the strip are in the first-level
     * cache. Rows of scores are already keys, so nothing is transposed. */
    CPU(strips_product)
    (n, ld, qs->n - i, ps, qs->dout.at + i * qs->dout.ld, qs->dout.ld, true, x->dv + row * ld, ld);
    CPU(strips_product)
    (n, ld, qs->n - i, dss, qs->q.at + i * qs->q.ld, qs->q.ld, true, x->dk + row * ld, ld);
}

/* Processes one block of scores: adds the contribution of queries `qs` and keys [key, key + n) to
 * the gradients. `gathered`: true if dq already holds sums over earlier keys; otherwise dq is
 * overwritten. */
static void block_backward(const BackwardCall *f, const Part *x, const Queries *qs, int64_t key,
                           int64_t n, bool gathered)
{
    const AttentionCall *h = &f->call;
    int64_t ld = heads_ld(h);
    HeadRows k = head_load(h, h->k, h->tk, x->b, x->kv_head, key, n, x->k);
    HeadRows v = head_load(h, h->v, h->tk, x->b, x->kv_head, key, n, x->v);
    Window w;
    window_make(h, x->b, qs->t, qs->n, key, n, &w);
    for (int64_t j = 0; j < n; j += STRIP_ROWS)
        strip_backward(f, x, qs, &w, key, j, min_i64(STRIP_ROWS, n - j), k, v);
    /* dQ is a sum over keys, so it is computed after dS of all strips of the block. */
    for (int64_t i = 0, rows; x->want_dq && i < qs->n; i += rows) {
        rows = min_i64(min_i64(STRIP_ROWS, GROUP - i % GROUP), qs->n - i);
        int64_t from, to = window_span(&w, i, rows, &from);
        Strip ds = {.at = x->ds + from * SCORES_LD + i, .row = 1, .step = SCORES_LD};
        CPU(strips_product)
        (rows, ld, to - from, ds, k.at + from * k.ld, k.ld, gathered, x->dq + i * ld, ld);
    }
}

/* Sets delta[i] to the sum of dout * o over query i's elements of the head. */
static void deltas(const BackwardCall *f, const Part *x, Queries *qs)
{
    const AttentionCall *h = &f->call;
    HeadRows o = head_load(h, f->o, h->tq, x->b, qs->head, qs->t, qs->n, x->o);
    for (int64_t i = 0; i < groups_up(qs->n); i += LANES) {
        /* Processes LANES queries at a time. The products of query r are summed into vector v[r].
         * After the transposition, adding the vectors leaves the sum of query r in lane r, so no
         * sum within a vector is needed. */
        Vector v[LANES] = {{0}}, sum = {0};
        for (int64_t r = 0; r < min_i64(LANES, qs->n - i); r++) {
            const real *a = qs->dout.at + (i + r) * qs->dout.ld, *b = o.at + (i + r) * o.ld;
            for (int64_t c = 0; c < heads_ld(h); c += LANES)
                v[r] += *(const Vector *)(a + c) * *(const Vector *)(b + c);
        }
        transpose(v);
        for (int r = 0; r < LANES; r++)
            sum += v[r];
        *(Vector *)(qs->delta + i) = sum;
    }
}

/* Stores n rows of sums in the gradient g, or adds them to it if the call accumulates. */
static void sums_store(const BackwardCall *f, const Part *x, Tensor g, int64_t length, int64_t head,
                       int64_t t, int64_t n, real *sums)
{
    const AttentionCall *h = &f->call;
    int64_t d = h->shape.head_size;
    for (int64_t i = 0; i < n; i++) {
        real *sum = sums + i * heads_ld(h);
        if (f->accumulate) {
            reals_load(x->row, g.dtype, head_at(h, g, length, x->b, head, t + i), d);
            for (int64_t c = 0; c < d; c++)
                sum[c] += x->row[c];
        }
        head_store(h, g, length, x->b, head, t + i, sum);
    }
}

/* Computes everything that the task must compute for one block of one head's queries. */
static void queries_backward(const BackwardCall *f, const Part *x, int64_t head, int64_t t,
                             int64_t n)
{
    const AttentionCall *h = &f->call;
    int64_t start = max_i64(block_keys_first(h, x->b, t, n), x->key);
    int64_t end = min_i64(keys_end(h, t + n - 1), x->key_end);
    /* Queries that see no key still have a dQ: below, zeros are stored or added. */
    if (start >= end && !x->want_dq) return;
    int64_t keys = min_i64(f->key_block, end - start);
    head_prefetch(h, h->q, h->tq, x->b, head, t, n);
    head_prefetch(h, f->dout, h->tq, x->b, head, t, n);
    head_prefetch(h, f->o, h->tq, x->b, head, t, n);
    head_prefetch(h, h->k, h->tk, x->b, x->kv_head, start, keys);
    head_prefetch(h, h->v, h->tk, x->b, x->kv_head, start, keys);
    Queries qs = {.head = head, .t = t, .n = n};
    qs.q = head_load(h, h->q, h->tq, x->b, head, t, n, x->q);
    qs.dout = head_load(h, f->dout, h->tq, x->b, head, t, n, x->dout);
    rows_transpose(h, qs.q, n, x->q_transposed);
    rows_transpose(h, qs.dout, n, x->do_transposed);
    memcpy(qs.lse, (const real *)f->lse.data + (x->b * h->shape.heads + head) * h->tq + t,
           (size_t)n * sizeof(real));
    deltas(f, x, &qs);
    for (int64_t key = start; key < end; key += f->key_block)
        block_backward(f, x, &qs, key, min_i64(f->key_block, end - key), key > start);
    if (x->want_dq) sums_store(f, x, f->dq, h->tq, head, t, n, x->dq);
}

static void part_scratch(const BackwardCall *f, Part *x, int worker)
{
    int64_t ld = heads_ld(&f->call), queries = QUERY_BLOCK * ld, keys = f->key_block * ld;
    int64_t strip = STRIP_ROWS * SCORES_LD, scores = f->key_block * SCORES_LD;
    int64_t transposed = ld * SCORES_LD, owned = f->owned_keys * ld;
    int64_t reals = strip + scores + 2 * transposed + 4 * queries + 2 * keys + 2 * owned + ld;
    x->p = pool_workspace(f->call.dev->pool, worker, (size_t)reals * sizeof(real));
    x->ds = x->p + strip;
    x->q_transposed = x->ds + scores;
    x->do_transposed = x->q_transposed + transposed;
    x->q = x->do_transposed + transposed;
    x->dout = x->q + queries;
    x->o = x->dout + queries;
    x->k = x->o + queries;
    x->v = x->k + keys;
    x->row = x->v + keys;
    x->dq = x->row + ld;
    x->dk = x->dq + queries;
    x->dv = x->dk + owned;
}

/* Returns the work of a task: a whole key/value head or, if heads are split, a part of its keys
 * (the first tasks of a head) or of its queries. */
static Part part_take(const BackwardCall *f, int64_t task, int worker)
{
    const AttentionCall *h = &f->call;
    int64_t pairs = h->batch * h->shape.kv_heads, part = task / pairs;
    int64_t pair = head_of_task(h, task % pairs, pairs);
    Part x = {.b = pair / h->shape.kv_heads, .kv_head = pair % h->shape.kv_heads};
    x.query_end = h->tq;
    x.key_end = h->tk;
    x.want_dkv = !f->split || part < f->key_parts;
    x.want_dq = !f->split || !x.want_dkv;
    if (f->split && x.want_dkv) {
        x.key = pool_cut(h->tk, f->key_parts, GROUP, part);
        x.key_end = pool_cut(h->tk, f->key_parts, GROUP, part + 1);
    } else if (f->split) {
        part -= f->key_parts;
        x.query = pool_cut(h->tq, f->query_parts, GROUP, part);
        x.query_end = pool_cut(h->tq, f->query_parts, GROUP, part + 1);
    }
    part_scratch(f, &x, worker);
    return x;
}

static void backward_task(void *context, int64_t task, int worker)
{
    const BackwardCall *f = context;
    const AttentionCall *h = &f->call;
    Part x = part_take(f, task, worker);
    int64_t group = h->shape.heads / h->shape.kv_heads, keys = x.key_end - x.key;
    if (x.want_dkv) {
        size_t bytes = (size_t)(keys * heads_ld(h)) * sizeof(real);
        memset(x.dk, 0, bytes);
        memset(x.dv, 0, bytes);
    }
    /* The heads of a group read the same keys and add to the same dK and dV. They do so in a fixed
     * order: all heads process a block of queries in turn before the next block. So the keys are
     * read again while they are still in the cache. */
    for (int64_t t = x.query; t < x.query_end; t += f->query_block)
        for (int64_t head = x.kv_head * group; head < (x.kv_head + 1) * group; head++)
            queries_backward(f, &x, head, t, min_i64(f->query_block, x.query_end - t));
    if (x.want_dkv) {
        sums_store(f, &x, f->dk, h->tk, x.kv_head, x.key, keys, x.dk);
        sums_store(f, &x, f->dv, h->tk, x.kv_head, x.key, keys, x.dv);
    }
    streams_end();
}

/* Decides whether tasks are whole heads or parts, by the number of products that the slowest thread
 * computes (five per whole head; seven per split head, divided evenly), and by the size of the
 * workspace. */
static void backward_plan(BackwardCall *f)
{
    const AttentionCall *h = &f->call;
    int64_t pairs = h->batch * h->shape.kv_heads, threads = pool_threads(h->dev->pool),
            d = heads_ld(h);
    int64_t rounds = (pairs + threads - 1) / threads;
    f->query_block = min_i64(QUERY_BLOCK, h->tq);
    f->key_block = min_i64(KEY_BLOCK, h->tk);
    /* Splits heads in two cases. Either the last round of whole heads would leave threads idle for
     * longer, with a margin, than the two extra multiplications take. Or the sums for dK and dV of
     * a whole head exceed the workspace. */
    bool idle = 5 * rounds * threads > 8 * pairs && h->tq > QUERY_BLOCK && h->tk > QUERY_BLOCK;
    f->split = idle || h->tk * d > OWNED_ELEMENTS;
    f->owned_keys = h->tk;
    if (!f->split) return;
    int64_t parts = (4 * threads + pairs - 1) / pairs;
    int64_t fitting = (h->tk * d + OWNED_ELEMENTS - 1) / OWNED_ELEMENTS;
    f->query_parts = max_i64(1, min_i64(parts, (h->tq + QUERY_BLOCK - 1) / QUERY_BLOCK));
    f->key_parts =
        max_i64(fitting, max_i64(1, min_i64(parts, (h->tk + QUERY_BLOCK - 1) / QUERY_BLOCK)));
    /* Parts consist of whole groups, so one may be longer than the mean. */
    f->owned_keys = h->tk / f->key_parts + 2 * GROUP;
}

void CPU(attention_backward)(Device *dev, const AttentionTensors *t, bool accumulate,
                             Attention attention)
{
    BackwardCall f = {.call = attention_call(dev, t->q, t->k, t->v, attention, t->first_key),
                      .dq = t->dq,
                      .dk = t->dk,
                      .dv = t->dv,
                      .dout = t->dout,
                      .o = t->o,
                      .lse = t->lse,
                      .accumulate = accumulate};
    backward_plan(&f);
    int64_t pairs = f.call.batch * attention.kv_heads;
    pool_run(dev->pool, f.split ? pairs * (f.key_parts + f.query_parts) : pairs, backward_task, &f);
    if (!tensor_present(t->dbq)) return;
    CPU(bias_gradient)(dev, t->dbq, t->dq, t->accumulate_db);
    CPU(bias_gradient)(dev, t->dbk, t->dk, t->accumulate_db);
    CPU(bias_gradient)(dev, t->dbv, t->dv, t->accumulate_db);
}
