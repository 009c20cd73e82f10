/* tp.h -- the tensor-parallel group of a grid as the Region that the model asks for. */
#ifndef PARALLEL_GRID_TP_H
#define PARALLEL_GRID_TP_H

#include "model/core/device.h"
#include "model/param/region.h"
#include "parallel/comm/comm.h"

/* The region of the ranks of `comm`; with sequence_parallel each has its part of the stream's rows.
 * A border sees by its tensors whether rows are cut there, so that a copy of the region with one
 * part serves a pass whose rows are not (decoding). Sums that are awaited run on the device's tp
 * stream, all else on its compute stream. In a group of one nothing moves, and that the layout made
 * dst and src one tensor is checked at every border. comm and dev, which is open, must outlive the
 * region. */
Region tp_region_open(Comm *comm, Device *dev, bool sequence_parallel);
/* Nothing of it is on its way. A zeroed region is left alone. */
void tp_region_close(Region *region);

#endif
