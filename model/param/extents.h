/* extents.h -- which parameters lie in a piece of a unit, and which of their elements: the way from
 * flat memory, cut at any element, back to logical tensors.
 *
 * Initial weights, stochastic rounding and checkpoints, none of which may depend on how units are
 * cut among ranks, all ask here. */
#ifndef MODEL_PARAM_EXTENTS_H
#define MODEL_PARAM_EXTENTS_H

#include "model/kernels/segment_rule.h"
#include "model/param/param.h"

/* Consecutive elements of one parameter, where they lie in its unit. With k = from + i, element i
 * of the extent is row k / cols, column k % cols of this rank's part of the parameter, and element
 * first + row * whole_cols + column of the whole logical one (param_extent_element). Where
 * columns are not cut, cols == whole_cols, and the extent is elements first + from + i. */
typedef struct {
    int param;
    int64_t offset, count;           /* elements into the unit */
    int64_t from;                    /* elements of this rank's part before the extent */
    int64_t first, cols, whole_cols; /* of this rank's part in the whole, as in Segment */
} ParamExtent;

/* The extents in elements [offset, offset + count) of a unit, in ascending order: one for each
 * parameter that has logical elements there. Gaps and padding rows are in none. `at` is this rank's
 * place in the grid. Writes the first `max` and returns how many there are, at most the unit's
 * number of parameters. */
int param_extents(const ParamTable *table, const GridPlace *at, int unit, int64_t offset,
                  int64_t count, ParamExtent *extent, int max);
/* Element i of an extent in the whole logical parameter, row-major. */
static inline int64_t param_extent_element(const ParamExtent *extent, int64_t i)
{
    return part_element(extent->first, extent->cols, extent->whole_cols, extent->from + i);
}

/* The row of the unit with the lowest offset above `after` (-1: above none); NULL after the last.
 * Rows lie in a unit in another order than in the table. */
const Param *param_next_in_unit(const ParamTable *table, int unit, int64_t after);
/* The element of the whole parameter at which this rank's part of it begins. */
int64_t param_part_first(const Param *param, const GridPlace *at);

#endif
