/* op_cost.h -- computes the arithmetic and the memory traffic of a call of an op from its
 * arguments, for the graph of a step (model/core/graph.h). */
#ifndef MODEL_KERNELS_OP_COST_H
#define MODEL_KERNELS_OP_COST_H

#include "model/kernels/ops.h"

typedef struct {
    /* Matrix products: rows and columns of the result, and the depth, the number of terms of each
     * sum. Attention: batch x query heads, queries, head size. Other ops: 0. */
    int64_t m, n, k;
    /* Multiplications and additions of matrix products and of attention; other ops: 0. Attention
     * counts the pairs of query and key that the causal mask allows, in two products forward and in
     * five backward (one recomputes the scores). Keys that first_key excludes are counted, because
     * the host does not know them. */
    double flops;
    /* Smallest possible memory traffic: each element of a tensor counts once if it is read or
     * written, and twice if it is read and written (`+=`, in place). For a table whose rows are
     * selected by indices, at most one row per index counts. The structs of a step (StepState,
     * StepStats, StepDecision) count only in op_step_decide. */
    int64_t bytes;
    /* The part of `bytes` that reads and writes an update's master weights and optimizer slots in
     * host memory; other ops: 0. */
    int64_t host_bytes;
} OpCost;

/* Returns the cost of a call. `arguments` is the op's Arguments_NAME (op_arguments.h). */
OpCost op_cost(OpId op, const void *arguments);

#endif
