/* split.h -- splits the model's layers into ranges for the stages and chunks of a pipeline, from
 * the costs of the layers. */
#ifndef PARALLEL_PIPELINE_SPLIT_H
#define PARALLEL_PIPELINE_SPLIT_H

#include "model/core/kinds.h"

#include <stdint.h>

/* The costs of one layer; they must not be negative. Layers are in the order of the model:
 * embedding, blocks, head. */
typedef struct {
    int64_t flops; /* per token */
    int64_t parameters;
} LayerCost;

/* Splits the layers into `runs` ranges: range r is layers [border[r], border[r + 1]); border has
 * room for runs + 1. Each range has at least one block, the first also the embedding, the last also
 * the head, so there must be at least as many blocks as ranges. `by` selects the cost of a layer:
 * its flops (best), its parameters, or 1 for each block (uniform). The split minimises the cost of
 * the most expensive range. Among such splits it is the most even one (smallest sum of squared
 * costs). Among equally even splits it is the one with the shortest first range, then the shortest
 * second range, and so on, because earlier stages store more micro-batches. */
void pipeline_split(const LayerCost *cost, int layers, int runs, Partition by, int *border);
/* Writes the borders of ranges that have the given numbers of blocks. */
void pipeline_split_blocks(const int64_t *blocks, int runs, int *border);

#endif
