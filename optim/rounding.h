/* rounding.h -- which parameter, and which element of it, lies at each place of a shard: what
 * stochastic rounding is keyed by. */
#ifndef OPTIM_ROUNDING_H
#define OPTIM_ROUNDING_H

#include "model/kernels/ops.h"
#include "model/param/store.h"

/* The segments of elements [offset, offset + count) of a unit: one per parameter that lies there,
 * in ascending order; where they begin in a gap, the first is the parameter before it. Writes
 * the first `max` and returns how many there are. Streams are those of the initial weights; element
 * 0 is the parameter's first, since one rank holds all of it.
 */
int rounding_segments(const ParamTable *table, int unit, int64_t offset, int64_t count,
                      Segment *segment, int max);

#endif
