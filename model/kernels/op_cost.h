/* op_cost.h -- what a call of an op costs in arithmetic and memory traffic, from its arguments:
 * for graphs of a step (model/core/graph.h). */
#ifndef MODEL_KERNELS_OP_COST_H
#define MODEL_KERNELS_OP_COST_H

#include "model/kernels/ops.h"

typedef struct {
    /* Matrix products: rows and columns of the result, and the depth, the number of terms of each
     * sum. Attention: batch x query heads, queries, head size. Other ops: 0. */
    int64_t m, n, k;
    /* Multiplications and additions of matrix products and of attention; other ops: 0. Attention
     * counts the pairs of query and key that the causal mask allows, in two products forward and in
     * five backward (one recomputes the scores). The host does not know the keys that first_key
     * excludes, so they count. */
    double flops;
    /* Memory traffic if nothing is read or written twice: the tensors' elements, read or written
     * once, those that are read and written (`+=`, in place) twice. Of a table whose rows are
     * picked by indices, at most one row per index. Records of a step (StepState ...) count only
     * in op_step_decide. */
    int64_t bytes;
    /* Of `bytes`, those of an update's masters and slots in host memory, which are read and
     * written; other ops: 0. */
    int64_t host_bytes;
} OpCost;

/* Returns the cost of a call. `arguments` is the op's Arguments_NAME (op_arguments.h). */
OpCost op_cost(OpId op, const void *arguments);

#endif
