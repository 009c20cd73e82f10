/* oracle_attention.c -- the oracles of rotary embeddings and attention, which compute the whole T x
 * T score matrix row by row in double precision. */
#include "tests/support/oracle/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void oracle_rope(OracleCall *call)
{
    const OpCase *c = call->c;
    double *x = call->v[0];
    const double *table = call->v[1], *position = call->v[2];
    int64_t d = c->cols / c->groups, half = d / 2;
    for (int64_t n = 0; n < c->n; n++) {
        const double *row = table + (int64_t)position[n] * d;
        for (int64_t k = 0; k < c->groups; k++) {
            for (int64_t i = 0; i < half; i++) {
                double *a = &x[n * c->cols + k * d + i], *b = a + half;
                double cosine = row[i], sine = c->option ? -row[half + i] : row[half + i];
                double first = *a * cosine - *b * sine, second = *a * sine + *b * cosine;
                *a = first;
                *b = second;
            }
        }
    }
    call->magnitude[0] = 1;
}

/* The offsets of one query of one head, and of its keys. */
typedef struct {
    int64_t first, last; /* the keys that the query attends to */
    int64_t row, lse;    /* offset of the query's D values; index of its lse */
    int64_t key, stride; /* offset of the D values of key 0; distance between keys */
} Query;

static Query query_at(const OpCase *c, const double *first_key, int64_t b, int64_t h, int64_t t)
{
    const Attention *a = &c->attention;
    int64_t d = a->head_size, g = h / (a->heads / a->kv_heads);
    Query q = {.last = t + a->causal_offset};
    if (q.last > c->tk - 1) q.last = c->tk - 1;
    if (first_key) q.first = (int64_t)first_key[b * c->tq + t];
    q.row = ((b * c->tq + t) * a->heads + h) * d;
    q.lse = (b * a->heads + h) * c->tq + t;
    q.key = (b * c->tk * a->kv_heads + g) * d;
    q.stride = a->kv_heads * d;
    return q;
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static void query_forward(const OpCase *c, Query at, double *o, double *lse, const double *q,
                          const double *k, const double *v)
{
    int64_t d = c->attention.head_size;
    double max = -INFINITY, sum = 0;
    for (int64_t s = at.first; s <= at.last; s++)
        max = fmax(max, c->attention.scale * dot(q + at.row, k + at.key + s * at.stride, d));
    for (int64_t i = 0; i < d; i++)
        o[at.row + i] = 0;
    for (int64_t s = at.first; s <= at.last; s++) {
        double p = exp(c->attention.scale * dot(q + at.row, k + at.key + s * at.stride, d) - max);
        sum += p;
        for (int64_t i = 0; i < d; i++)
            o[at.row + i] += p * v[at.key + s * at.stride + i];
    }
    for (int64_t i = 0; i < d; i++)
        o[at.row + i] /= sum;
    lse[at.lse] = max + log(sum);
}

/* p = exp(s - lse); dv += p do; ds = p (do . v - do . o); dq += scale ds k; dk += scale ds q. */
static void query_backward(OracleCall *call, Query at)
{
    const OpCase *c = call->c;
    double **t = call->v, scale = c->attention.scale;
    int64_t d = c->attention.head_size;
    double *dq = t[0] + at.row, *dout = t[3] + at.row, *q = t[4] + at.row;
    double delta = dot(dout, t[7] + at.row, d);
    for (int64_t s = at.first; s <= at.last; s++) {
        int64_t key = at.key + s * at.stride;
        double p = exp(scale * dot(q, t[5] + key, d) - t[8][at.lse]);
        double ds = p * (dot(dout, t[6] + key, d) - delta);
        for (int64_t i = 0; i < d; i++) {
            dq[i] += scale * ds * t[5][key + i];
            t[1][key + i] += scale * ds * q[i];
            t[2][key + i] += p * dout[i];
        }
    }
}

static void each_query(OracleCall *call, bool backward, double *o, double *lse, const double *q,
                       const double *k, const double *v, const double *first_key)
{
    const OpCase *c = call->c;
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < c->attention.heads; h++)
            for (int64_t t = 0; t < c->tq; t++) {
                Query at = query_at(c, first_key, b, h, t);
                if (backward)
                    query_backward(call, at);
                else
                    query_forward(c, at, o, lse, q, k, v);
            }
}

void oracle_attention_derive(OracleCall *call)
{
    double **v = call->v;
    each_query(call, false, v[7], v[8], v[4], v[5], v[6], v[9]);
}

void oracle_attention(OracleCall *call)
{
    const OpCase *c = call->c;
    const Attention *a = &c->attention;
    double **v = call->v;
    if (c->op == OP_attention_forward) {
        each_query(call, false, v[0], v[1], v[2], v[3], v[4], v[5]);
        return;
    }
    size_t queries = (size_t)(c->batch * c->tq * a->heads * a->head_size);
    size_t keys = (size_t)(c->batch * c->tk * a->kv_heads * a->head_size);
    if (!c->accumulate) {
        memset(v[0], 0, queries * sizeof(double));
        memset(v[1], 0, keys * sizeof(double));
        memset(v[2], 0, keys * sizeof(double));
    }
    each_query(call, true, NULL, NULL, NULL, NULL, NULL, v[9]);
    /* dq and dk are sums of ds times scale times values of order 1, and ds is a difference of terms
     * of the order of dout . v. */
    call->magnitude[0] = call->magnitude[1] = a->scale * sqrt((double)a->head_size);
    /* The test sums the rows that the op stored (sums_of). Those of dk cancel: a bias of k changes
     * all scores of a query alike. */
    call->magnitude[10] = call->magnitude[11] = call->magnitude[0];
    call->magnitude[12] = 1;
}
