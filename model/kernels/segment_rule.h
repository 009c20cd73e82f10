/* segment_rule.h -- which element of its parameter lies at a place of a range (Segment in ops.h),
 * once for every backend and for all that depends on the element alone: initial weights and
 * stochastic rounding.
 *
 * A .cu file turns this function into a device function. */
#ifndef MODEL_KERNELS_SEGMENT_RULE_H
#define MODEL_KERNELS_SEGMENT_RULE_H

#include "model/kernels/ops.h"

/* Element of the whole parameter at place i of the range; i is in this segment. */
static inline int64_t segment_element(const Segment *s, int64_t i)
{
    int64_t k = i - s->start;
    if (s->cols == s->whole_cols) return s->first + k;
    return s->first + k / s->cols * s->whole_cols + k % s->cols;
}

#endif
