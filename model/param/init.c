/* init.c -- see init.h. */
#include "model/param/init.h"

#include "model/core/check.h"
#include "model/core/rng.h"
#include "model/kernels/ops.h"
#include "model/param/extents.h"

#include <stdlib.h>

/* One run of a shard: x is its weights. */
static void init_run(Device *dev, const Param *p, const ParamExtent *run, Tensor x, uint64_t seed)
{
    Segment part = {.stream = rng_stream(p->name),
                    .start = -run->from,
                    .first = run->first,
                    .cols = run->cols,
                    .whole_cols = run->whole_cols};
    switch (p->init) {
    case INIT_ZERO: break;
    case INIT_ONE: op_fill(dev, x, 1.0); break;
    case INIT_NORMAL: op_normal(dev, x, seed, &part, (double)p->std); break;
    }
}

static void init_shard(Device *dev, const ParamStore *store, const Shard *shard, uint64_t seed)
{
    const ParamTable *table = store->table;
    int most = table->unit[shard->unit].count;
    ParamExtent *run = must_calloc((size_t)most, sizeof *run);
    int n = param_extents(table, &store->at, shard->unit, shard->offset, shard->count, run, most);
    /* What is in no run is a gap or a padding row. */
    op_fill(dev, shard->weight, 0.0);
    for (int i = 0; i < n; i++) {
        Tensor x = tensor_slice_rows(shard->weight, run[i].offset - shard->offset, run[i].count);
        init_run(dev, &table->param[run[i].param], &run[i], x, seed);
    }
    free(run);
}

void param_init(Device *dev, ParamStore *store, uint64_t seed)
{
    int n = store->shards(store, PURPOSE_UPDATE, NULL, 0);
    Shard *shard = must_calloc((size_t)n, sizeof *shard);
    store->shards(store, PURPOSE_UPDATE, shard, n);
    for (int i = 0; i < n; i++)
        init_shard(dev, store, &shard[i], seed);
    free(shard);
    for (int u = 0; u < store->table->n_units; u++)
        store->publish(store, u);
}
