/* capture.c -- collects gradients and weights from all ranks. Each rank fills in the elements for
 * which it is responsible and leaves zeros elsewhere; the sum over all ranks is the whole tensor.
 * See capture.h. */
#include "parallel/verify/capture.h"

#include "model/core/hash.h"
#include "model/core/min_max.h"
#include "model/param/extents.h"
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

/* Returns the index at which parameter p begins in a capture. */
static int64_t begin_of(const ParamTable *table, int p)
{
    int64_t at = 0;
    for (int i = 0; i < p; i++)
        at += param_count(&table->param[i]);
    return at;
}

/* Copies the elements of a flat piece of a unit (parameters that are gathered together, such as
 * those of one block; see param.h) to their places in the whole tensors, without gaps and padding.
 * The piece begins at the unit's element `offset`. */
static void place(const Session *s, int unit, int64_t offset, Tensor piece, double *whole)
{
    const ParamTable *table = &s->table;
    int most = table->unit[unit].count;
    ParamExtent *extent = must_alloc((size_t)most * sizeof *extent);
    int n = param_extents(table, &s->grid.at, unit, offset, tensor_count(piece), extent, most);
    for (int e = 0; e < n; e++) {
        double *to = whole + begin_of(table, extent[e].param);
        for (int64_t i = 0; i < extent[e].count; i++)
            to[param_extent_element(&extent[e], i)] =
                dtype_get(piece.dtype, piece.data, extent[e].offset - offset + i);
    }
    free(extent);
}

/* Copies a dense tensor to host memory; the caller frees the data. */
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

/* The outputs of read_weights; either may be NULL. whole: the whole tensors; each parameter is
 * copied to them by the rank that owns it. hash: one hash per parameter; 0 if this stage does not
 * have the parameter. */
typedef struct {
    double *whole;
    int64_t *hash;
} Reading;

static void read_row(Session *s, int unit, int p, const Reading *reading)
{
    const ParamTable *table = &s->table;
    Tensor piece = fetch(&s->dev, s->params->weight(s->params, p, 1));
    if (reading->hash)
        reading->hash[p] = (int64_t)(hash_bytes(1, piece.data, (int64_t)tensor_bytes(piece)) >> 1);
    if (reading->whole && s->grid.at.dp == 0 &&
        param_owned_here(table, p, &s->grid.size, &s->grid.at))
        place(s, unit, table->param[p].offset, piece, reading->whole);
    free(piece.data);
}

/* Reads all weights of this stage. As in the model, each unit is acquired before its weights are
 * read, and then released. */
static void read_weights(Session *s, const Reading *reading)
{
    const ParamTable *table = &s->table;
    s->params->step_begin(s->params, NULL, 0);
    for (int u = 0; u < table->n_units; u++) {
        const Unit *unit = &table->unit[u];
        if (!home_is(&unit->home, s->grid.at.pp)) continue;
        s->params->acquire(s->params, u);
        for (int p = unit->first; p < unit->first + unit->count; p++)
            read_row(s, u, p, reading);
        s->params->release(s->params, u);
    }
    s->params->step_end(s->params);
}

void capture_weights(Capture *out, Trainer *t)
{
    Session *s = &t->session;
    memset(out->weight, 0, (size_t)out->n * sizeof *out->weight);
    /* A gather that assembles the whole weights in place may still be running. */
    device_synchronize(&s->dev);
    read_weights(s, &(Reading){.whole = out->weight});
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

/* Which parameters must be equal on all ranks of a group: all; those that tensor parallelism does
 * not split; shared key/value heads; or tied tables. */
typedef enum { OF_ALL, OF_REPLICATED, OF_SHARED, OF_TIED } Alike;

static bool is_alike(const ParamTable *table, const Param *row, Alike alike)
{
    switch (alike) {
    case OF_ALL: return true;
    case OF_REPLICATED: return row->tp_dim < 0;
    case OF_SHARED: return row->tp_dim >= 0 && row->sharers > 1;
    case OF_TIED: return table->unit[row->unit].home.n > 1;
    }
    return false;
}

/* Returns the index of the first parameter whose hashes differ between ranks of the group; n_params
 * if there is none. */
static int64_t first_drift(Comm *group, const ParamTable *table, const int64_t *hash, Alike alike)
{
    int64_t n = table->n_params, first = n, *pair = must_calloc(2 * (size_t)n + 1, sizeof *pair);
    for (int64_t p = 0; p < n; p++) {
        if (!is_alike(table, &table->param[p], alike)) continue;
        pair[2 * p] = hash[p];
        pair[2 * p + 1] = -hash[p];
    }
    comm_all_reduce(group, NULL, tensor_1d(pair, I64, 2 * n), REDUCE_MAX);
    for (int64_t p = n; p-- > 0;)
        if (pair[2 * p] != -pair[2 * p + 1]) first = p;
    free(pair);
    return first;
}

const char *capture_drift(Trainer *t)
{
    Session *s = &t->session;
    const ParamTable *table = &s->table;
    Grid *grid = &s->grid;
    struct {
        Comm *group;
        Alike alike;
    } of[] = {{&grid->dp, OF_ALL},
              {&grid->tp, OF_REPLICATED},
              {&grid->kv, OF_SHARED},
              {&grid->tie, OF_TIED}};
    int64_t *hash = must_calloc((size_t)table->n_params + 1, sizeof *hash);
    int64_t first = table->n_params;
    read_weights(s, &(Reading){.hash = hash});
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        first = min_i64(first, first_drift(of[i].group, table, hash, of[i].alike));
    free(hash);
    if (s->world) first = -control_max(s->world, -first);
    return first < table->n_params ? table->param[first].name : NULL;
}
