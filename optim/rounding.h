/* rounding.h -- maps each position of a shard to a parameter and an element of it. Stochastic
 * rounding derives its random numbers from these. */
#ifndef OPTIM_ROUNDING_H
#define OPTIM_ROUNDING_H

#include "model/kernels/ops.h"
#include "model/param/store.h"

/* Finds the segments of elements [offset, offset + count) of a unit (a flat buffer of several
 * parameters, param.h), in ascending order: one per parameter in that range. If the range begins in
 * a gap, the first segment belongs to the parameter before the gap, so there is at least one
 * segment even in a shard that is only padding. Random streams and element indices are the same as
 * for initial weights. `at` is this rank's place in the grid. Writes the first `max` segments and
 * returns how many there are. Ends the program with EXIT_CONFIG if a parameter has more than
 * ROUNDING_ELEMENTS elements. */
int rounding_segments(const ParamTable *table, const GridPlace *at, int unit, int64_t offset,
                      int64_t count, Segment *segment, int max);

#endif
