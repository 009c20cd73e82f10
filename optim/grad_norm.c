/* grad_norm.c -- implements grad_norm.h: sums the squares of this rank's gradients. */
#include "optim/grad_norm.h"

#include "model/core/check.h"

#include <stdlib.h>

GradNorm grad_norm_create(ParamStore *store)
{
    /* List the shards for PURPOSE_COUNT, not for PURPOSE_UPDATE: if several ranks hold a copy of a
     * parameter, all of them update it, but only one counts it in the norm. */
    GradNorm norm = {.n_shards = store->shards(store, PURPOSE_COUNT, NULL, 0)};
    Shard *shard = must_calloc((size_t)norm.n_shards, sizeof *shard);
    norm.grad = must_calloc((size_t)norm.n_shards, sizeof *norm.grad);
    store->shards(store, PURPOSE_COUNT, shard, norm.n_shards);
    for (int i = 0; i < norm.n_shards; i++)
        norm.grad[i] = shard[i].grad;
    free(shard);
    return norm;
}

void grad_norm_free(GradNorm *norm)
{
    free(norm->grad);
    *norm = (GradNorm){0};
}

void grad_norm_add(const GradNorm *norm, Device *dev, StepStats *stats)
{
    /* The order of additions is that of the list, so it is the same in every run. The sum stays on
     * the device, and the host does not wait for it. */
    op_sq_norm(dev, tensor_1d(&stats->sq_norm, F64, 1), norm->grad, norm->n_shards);
}
