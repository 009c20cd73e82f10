/* init.c -- implements init.h: initialises weights on the device. */
#include "model/param/init.h"

#include "model/core/check.h"
#include "model/core/rng.h"
#include "model/kernels/ops.h"
#include "model/param/extents.h"

#include <stdlib.h>

/* Fills x with the initial weights of one extent (consecutive elements of a parameter, extents.h).
 * Random numbers are drawn by an element's index in the whole parameter, so they do not depend on
 * how the parameter is split. */
static void init_extent(Device *dev, const Param *p, const ParamExtent *extent, Tensor x,
                        uint64_t seed)
{
    Segment part = {.stream = rng_stream(p->name),
                    .start = -extent->from,
                    .first = extent->first,
                    .cols = extent->cols,
                    .whole_cols = extent->whole_cols};
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
    ParamExtent *extent = must_calloc((size_t)most, sizeof *extent);
    int n =
        param_extents(table, &store->at, shard->unit, shard->offset, shard->count, extent, most);
    /* Elements outside all extents are gaps and padding rows, which stay zero. */
    op_fill(dev, shard->weight, 0.0);
    for (int i = 0; i < n; i++) {
        Tensor x =
            tensor_slice_rows(shard->weight, extent[i].offset - shard->offset, extent[i].count);
        init_extent(dev, &table->param[extent[i].param], &extent[i], x, seed);
    }
    free(extent);
}

void param_init(Device *dev, ParamStore *store, uint64_t seed)
{
    int n = store->shards(store, PURPOSE_UPDATE, NULL, 0);
    Shard *shard = must_calloc((size_t)n, sizeof *shard);
    store->shards(store, PURPOSE_UPDATE, shard, n);
    for (int i = 0; i < n; i++)
        init_shard(dev, store, &shard[i], seed);
    free(shard);
    /* All ranks publish all units, also those of which they have no shard. */
    for (int u = 0; u < store->table->n_units; u++)
        store->publish(store, u, NULL);
}
