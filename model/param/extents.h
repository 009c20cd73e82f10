/* extents.h -- finds the parameters, and the elements of each, in any range of a unit. A unit is
 * the flat buffer in which several parameters are stored (param.h).
 *
 * Initial weights, stochastic rounding and checkpoints use it, because none of them may depend on
 * how units are split among ranks. */
#ifndef MODEL_PARAM_EXTENTS_H
#define MODEL_PARAM_EXTENTS_H

#include "model/kernels/segment_rule.h"
#include "model/param/param.h"

/* An extent: consecutive elements of one parameter, at `offset` in its unit. Element i of the
 * extent is element k = from + i of this rank's part of the parameter, that is row k / cols, column
 * k % cols of that part. Its index in the whole parameter (param_extent_element) is
 * first + (k / cols) * whole_cols + k % cols. If the columns are not split, cols equals whole_cols,
 * and this index is first + k. */
typedef struct {
    int param;
    int64_t offset, count;           /* position and length in elements of the unit */
    int64_t from;                    /* number of elements of this rank's part before the extent */
    int64_t first, cols, whole_cols; /* position of this rank's part in the whole, as in Segment */
} ParamExtent;

/* Finds the extents in elements [offset, offset + count) of a unit, in ascending order: one for
 * each parameter that has logical (not padding) elements there. Gaps and padding rows belong to no
 * extent. `at` is this rank's place in the grid. Writes the first `max` extents and returns how
 * many there are, at most one per parameter of the unit. */
int param_extents(const ParamTable *table, const GridPlace *at, int unit, int64_t offset,
                  int64_t count, ParamExtent *extent, int max);
/* Returns the index of element i of an extent in the whole logical parameter, in row-major
 * order. */
static inline int64_t param_extent_element(const ParamExtent *extent, int64_t i)
{
    return part_element(extent->first, extent->cols, extent->whole_cols, extent->from + i);
}

/* Returns the parameter of the unit with the smallest offset above `after` (-1 finds the first), or
 * NULL after the last one. The order of parameters in a unit is not their order in the table. */
const Param *param_next_in_unit(const ParamTable *table, int unit, int64_t after);
/* Returns the index in the whole parameter at which this rank's part begins. */
int64_t param_part_first(const Param *param, const GridPlace *at);

#endif
