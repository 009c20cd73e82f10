/* grid.h -- where this rank stands: its coordinates on the axes pp, dp, tp and the communicator of
 * each axis. */
#ifndef PARALLEL_GRID_GRID_H
#define PARALLEL_GRID_GRID_H

#include "parallel/comm/comm.h"

typedef struct {
    int rank, size;
    int pp_rank, dp_rank, tp_rank;
    int pp_size, dp_size, tp_size;
    Comm pp, dp, tp;
} Grid;

/* The grid of a single rank. */
Grid grid_single(void);
void grid_close(Grid *grid);

#endif
