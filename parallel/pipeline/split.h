/* split.h -- which layers belong to which run: a pipeline's cut of the model, from costs alone. */
#ifndef PARALLEL_PIPELINE_SPLIT_H
#define PARALLEL_PIPELINE_SPLIT_H

#include "model/core/kinds.h"

#include <stdint.h>

/* Of one layer, in the order of the model: embedding, blocks, head. Not negative. */
typedef struct {
    int64_t flops; /* of a token */
    int64_t parameters;
} LayerCost;

/* Cuts the layers into runs of neighbours: run r is layers [border[r], border[r + 1]); border has
 * room for runs + 1. Each run has at least one block, the first also the embedding, the last also
 * the head; so there must be as many blocks as runs. The costliest run is as cheap as can be, by
 * flops (best), parameters, or number of blocks (uniform). Of the cuts that leave open that which
 * is most even (the least sum of squares of the runs' costs), and of those the one whose first run
 * is the shortest, then the second, and so on: earlier stages hold more micro-batches. */
void pipeline_split(const LayerCost *cost, int layers, int runs, Partition by, int *border);
/* The same for runs of so many blocks each. */
void pipeline_split_blocks(const int64_t *blocks, int runs, int *border);

#endif
