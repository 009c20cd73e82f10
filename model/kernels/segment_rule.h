/* segment_rule.h -- which element of its parameter lies at a place of a range (Segment in ops.h),
 * once for every backend and for all that depends on the element alone: initial weights and
 * stochastic rounding.
 *
 * A .cu file turns these functions into device functions. */
#ifndef MODEL_KERNELS_SEGMENT_RULE_H
#define MODEL_KERNELS_SEGMENT_RULE_H

#include "model/kernels/ops.h"

/* Element of a whole parameter, whose rows have `whole_cols` columns, that is the k-th of a part of
 * it: of rows of `cols`, the first of which begins with element `first`. */
static inline int64_t part_element(int64_t first, int64_t cols, int64_t whole_cols, int64_t k)
{
    if (cols == whole_cols) return first + k;
    return first + k / cols * whole_cols + k % cols;
}

/* Element of the whole parameter at place i of the range; i is in this segment. */
static inline int64_t segment_element(const Segment *s, int64_t i)
{
    return part_element(s->first, s->cols, s->whole_cols, i - s->start);
}

#endif
