/* rounding.h -- which parameter, and which element of it, lies at each place of a shard: what
 * stochastic rounding is keyed by. */
#ifndef OPTIM_ROUNDING_H
#define OPTIM_ROUNDING_H

#include "model/kernels/ops.h"
#include "model/param/store.h"

/* The segments of elements [offset, offset + count) of a unit, in ascending order: one per
 * parameter that lies there. Where the range begins in a gap, the first segment is of the parameter
 * before the gap: there is at least one, in a shard of padding alone, too. Writes the first `max`
 * and returns how many there are. Streams are those of the initial weights, and so are the numbers
 * of elements in the whole parameter; `at` is this rank's place. Ends the program (EXIT_CONFIG) for
 * a parameter of more than ROUNDING_ELEMENTS. */
int rounding_segments(const ParamTable *table, const GridPlace *at, int unit, int64_t offset,
                      int64_t count, Segment *segment, int max);

#endif
