/* tp.h -- implements the model's Region interface for the tensor-parallel group of a grid. */
#ifndef PARALLEL_GRID_TP_H
#define PARALLEL_GRID_TP_H

#include "model/core/device.h"
#include "model/param/region.h"
#include "parallel/comm/comm.h"

/* Returns the Region by which the ranks of `comm` enter and leave the tensor-parallel parts of the
 * model. With sequence_parallel each rank has a part of the rows outside regions. Each operator
 * derives from its tensors whether rows are divided, so a copy of the region with one part can be
 * used for a pass with whole rows (decoding). Sums for which the caller waits later run on the
 * device's tp stream, everything else on its compute stream. In a group of one rank nothing is
 * sent; each operator checks that dst and src are the same tensor. comm and dev, which must be
 * open, must outlive the region. */
Region tp_region_open(Comm *comm, Device *dev, bool sequence_parallel);
/* Frees a region; no sum may be pending. Does nothing for a zeroed region. */
void tp_region_close(Region *region);

#endif
