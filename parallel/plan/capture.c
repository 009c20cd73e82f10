/* capture.c -- see capture.h. Each rank fills in the elements that it counts, and the sum over the
 * world, in which all others have zeros, is the whole. */
#include "parallel/plan/capture.h"

#include "model/core/hash.h"
#include "model/param/runs.h"
#include "parallel/grid/control.h"

#include <stdlib.h>
#include <string.h>

Capture capture_create(const ParamTable *table)
{
    Capture c = {.n = param_table_count(table)};
    c.gradient = must_calloc((size_t)c.n, sizeof *c.gradient);
    c.weight = must_calloc((size_t)c.n, sizeof *c.weight);
    return c;
}

void capture_free(Capture *c)
{
    free(c->gradient);
    free(c->weight);
    *c = (Capture){0};
}

int capture_param(const ParamTable *table, int64_t i, int64_t *element)
{
    int p = 0;
    while (i >= param_count(&table->param[p]))
        i -= param_count(&table->param[p++]);
    *element = i;
    return p;
}

/* Where parameter p begins in a capture. */
static int64_t begin_of(const ParamTable *table, int p)
{
    int64_t at = 0;
    for (int i = 0; i < p; i++)
        at += param_count(&table->param[i]);
    return at;
}

/* Puts the logical elements of a flat piece of a unit, which begins at `offset`, where they
 * belong. */
static void place(const Session *s, int unit, int64_t offset, Tensor piece, double *whole)
{
    const ParamTable *table = &s->table;
    int most = table->unit[unit].count;
    ParamRun *run = must_alloc((size_t)most * sizeof *run);
    int n = param_runs(table, &s->grid.at, unit, offset, tensor_count(piece), run, most);
    for (int r = 0; r < n; r++) {
        double *to = whole + begin_of(table, run[r].param);
        for (int64_t i = 0; i < run[r].count; i++)
            to[param_run_element(&run[r], i)] =
                dtype_get(piece.dtype, piece.data, run[r].offset - offset + i);
    }
    free(run);
}

/* A dense tensor's elements in host memory; the caller frees the data. */
static Tensor fetch(Device *dev, Tensor t)
{
    Tensor host = tensor_1d(must_alloc(tensor_bytes(t) + 1), t.dtype, tensor_count(t));
    device_copy(dev, host, tensor_flat(t));
    device_synchronize(dev);
    return host;
}

static void sum_over_world(Session *s, double *whole, int64_t n)
{
    if (s->world) comm_all_reduce(s->world, NULL, tensor_1d(whole, F64, n), REDUCE_SUM);
}

static void capture_gradients(Session *s, Capture *out)
{
    int n = s->params->shards(s->params, PURPOSE_COUNT, NULL, 0);
    Shard *shard = must_alloc((size_t)(n + 1) * sizeof *shard);
    s->params->shards(s->params, PURPOSE_COUNT, shard, n);
    memset(out->gradient, 0, (size_t)out->n * sizeof *out->gradient);
    for (int i = 0; i < n; i++) {
        Tensor piece = fetch(&s->dev, shard[i].grad);
        place(s, shard[i].unit, shard[i].offset, piece, out->gradient);
        free(piece.data);
    }
    free(shard);
    sum_over_world(s, out->gradient, out->n);
}

/* Reads all weights as the model does. `whole`: puts those there that this rank answers for, unless
 * NULL. Returns a hash of all. */
static uint64_t read_weights(Session *s, double *whole)
{
    const ParamTable *table = &s->table;
    uint64_t hash = 1;
    s->params->step_begin(s->params, NULL, 0);
    for (int u = 0; u < table->n_units; u++) {
        s->params->acquire(s->params, u);
        for (int p = table->unit[u].first; p < table->unit[u].first + table->unit[u].count; p++) {
            Tensor piece = fetch(&s->dev, s->params->weight(s->params, p, 1));
            hash = hash_bytes(hash, piece.data, (int64_t)tensor_bytes(piece));
            if (whole && s->grid.at.dp == 0 &&
                param_owned_here(table, p, &s->grid.size, &s->grid.at))
                place(s, u, table->param[p].offset, piece, whole);
            free(piece.data);
        }
        s->params->release(s->params, u);
    }
    s->params->step_end(s->params);
    return hash;
}

void capture_weights(Capture *out, Trainer *t)
{
    Session *s = &t->session;
    memset(out->weight, 0, (size_t)out->n * sizeof *out->weight);
    read_weights(s, out->weight);
    sum_over_world(s, out->weight, out->n);
}

void capture_step(Capture *out, Trainer *t)
{
    StepRecord record[TRAINER_HISTORY];
    int n = trainer_read_all(t, record);
    CHECK(n == 1, "%d steps to read instead of one", n);
    out->step = record[0].step;
    out->loss = record[0].loss;
    out->grad_norm = record[0].grad_norm;
    out->applied = record[0].applied;
    out->loss_scale = record[0].loss_scale;
    capture_gradients(&t->session, out);
    for (int64_t i = 0; i < out->n; i++)
        out->gradient[i] /= record[0].loss_scale;
    capture_weights(out, t);
}

bool capture_replicas_agree(Trainer *t)
{
    Comm *dp = &t->session.grid.dp;
    int64_t hash = (int64_t)(read_weights(&t->session, NULL) >> 1);
    int64_t most = control_max(dp, hash), least = -control_max(dp, -hash);
    return session_all_go_on(&t->session, most == least);
}
