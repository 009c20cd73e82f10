/* segment_rule.h -- maps an index within a rank's range of elements to the index of the element in
 * the whole parameter (Segment in ops.h). Shared by all backends, and used where a result depends
 * on the element's index alone: initial weights and stochastic rounding. */
#ifndef MODEL_KERNELS_SEGMENT_RULE_H
#define MODEL_KERNELS_SEGMENT_RULE_H

#include "model/core/host_device.h"
#include "model/kernels/ops.h"

/* Returns the index, in a parameter whose rows have `whole_cols` columns, of the k-th element of a
 * part of it. The part has rows of `cols` columns and begins at element `first` of the parameter.
 */
static HOST_DEVICE inline int64_t part_element(int64_t first, int64_t cols, int64_t whole_cols,
                                               int64_t k)
{
    if (cols == whole_cols) return first + k;
    return first + k / cols * whole_cols + k % cols;
}

/* Returns the index in the whole parameter of element i of the range; i lies in this segment. */
static HOST_DEVICE inline int64_t segment_element(const Segment *s, int64_t i)
{
    return part_element(s->first, s->cols, s->whole_cols, i - s->start);
}

#endif
