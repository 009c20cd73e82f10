/* grid.c -- see grid.h. */
#include "parallel/grid/grid.h"

Grid grid_single(void)
{
    return (Grid){.place = {.pp_size = 1, .dp_size = 1, .tp_size = 1},
                  .pp = comm_self(),
                  .dp = comm_self(),
                  .tp = comm_self()};
}

void grid_close(Grid *grid)
{
    comm_close(&grid->pp);
    comm_close(&grid->dp);
    comm_close(&grid->tp);
}
