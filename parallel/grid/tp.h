/* tp.h -- the tensor-parallel group of a grid as the Region that the model asks for. */
#ifndef PARALLEL_GRID_TP_H
#define PARALLEL_GRID_TP_H

#include "model/param/region.h"
#include "parallel/comm/comm.h"

/* The region of the ranks of `comm`, which must outlive it. Only a group of one is built: nothing
 * moves, and that the layout made dst and src one tensor is checked at every border. */
Region tp_region(Comm *comm);

#endif
