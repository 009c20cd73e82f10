/* split.h -- which layers belong to which run: a pipeline's cut of the model into stages and
 * chunks, from costs alone. */
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
 * the head; so there must be as many blocks as runs. The cost of the costliest run is minimal, by
 * flops (best), parameters, or number of blocks (uniform). Among such cuts the most even one is
 * taken (with the least sum of squares of the runs' costs), and among equally even ones that with
 * the shortest first run, then the shortest second, and so on: earlier stages hold more
 * micro-batches. */
void pipeline_split(const LayerCost *cost, int layers, int runs, Partition by, int *border);
/* The same for runs of so many blocks each. */
void pipeline_split_blocks(const int64_t *blocks, int runs, int *border);

#endif
