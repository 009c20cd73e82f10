/* grid.h -- where this rank stands: its coordinates on the axes pp, dp, tp and the communicator of
 * each axis. */
#ifndef PARALLEL_GRID_GRID_H
#define PARALLEL_GRID_GRID_H

#include "model/param/param.h"
#include "parallel/comm/comm.h"

typedef struct {
    GridPlace place;
    Comm pp, dp, tp;
} Grid;

/* The grid of a single rank. */
Grid grid_single(void);
void grid_close(Grid *grid);

#endif
