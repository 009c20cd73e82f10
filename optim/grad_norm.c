/* grad_norm.c -- implements grad_norm.h: sums the squares of this rank's gradients. */
#include "optim/grad_norm.h"

#include "model/core/check.h"

#include <stdlib.h>

GradNorm grad_norm_create(ParamStore *store)
{
    /* These are not the shards that are updated: if several ranks hold a copy of a parameter, all
     * of them update it, but only one counts it. */
    GradNorm norm = {.n_shards = store->shards(store, PURPOSE_COUNT, NULL, 0)};
    norm.shard = must_calloc((size_t)norm.n_shards, sizeof *norm.shard);
    store->shards(store, PURPOSE_COUNT, norm.shard, norm.n_shards);
    return norm;
}

void grad_norm_free(GradNorm *norm)
{
    free(norm->shard);
    *norm = (GradNorm){0};
}

void grad_norm_add(const GradNorm *norm, Device *dev, StepStats *stats)
{
    /* Every shard continues the same sum, in the order of the list. So the order of additions is
     * the same in every run, and the host never waits for a value. */
    Tensor sum = tensor_1d(&stats->sq_norm, F64, 1);
    for (int i = 0; i < norm->n_shards; i++)
        op_sq_norm(dev, sum, norm->shard[i].grad);
}
