/* grid.h -- the place of this rank: its coordinates on the axes pp, dp, cp, tp and the communicator
 * of each axis. */
#ifndef PARALLEL_GRID_GRID_H
#define PARALLEL_GRID_GRID_H

#include "model/param/param.h"
#include "parallel/comm/comm.h"

typedef struct {
    GridPlace size, at; /* ranks on each axis; this rank's coordinates */
    Comm pp, dp, cp, tp;
    /* For the store: the ranks over which a unit is cut, today all of dp, and those that hold the
     * same part, today one. Hybrid sharding would have other sizes. Until then nobody calls
     * `replicate`: it is only opened, counted and closed. */
    Comm shard, replicate;
    /* Of tp, the ranks that hold the same heads of keys and values; of pp, the first and the last
     * stage, where both hold a tied table. Else this rank alone. */
    Comm kv, tie;
} Grid;

/* The properties of a model for which ranks form groups. */
typedef struct {
    int kv;    /* heads of keys and values */
    bool tied; /* embedding and head share a table */
} GridGroups;

/* The grid of a single rank. */
Grid grid_single(void);
/* This rank's grid in a world of size.pp x size.dp x size.cp x size.tp ranks, tp innermost; all
 * ranks of the world call it. groups NULL: kv and tie are of one rank. The world must outlive it.
 */
Grid grid_open(Comm *world, GridPlace size, const GridGroups *groups);
/* Where each rank has a device of its own: what devices carry goes through NCCL (nccl.h), which is
 * open, with a communicator for each axis and group of several ranks, made in one order on all of
 * them; shard has dp's, whose ranks are the same. All ranks of the world call it, each with its
 * open device. */
void grid_connect(Grid *grid, Device *dev, double timeout);
/* Bytes of this rank's device memory that these communicators will take, about. */
size_t grid_reserve(const Grid *grid);
/* The coordinates of a rank of the world. */
GridPlace grid_place(GridPlace size, int rank);
/* The same as messages write it: "dp 2", "pp 1 dp 0", the axes that have several ranks. Returns
 * `text`. */
char *grid_place_text(GridPlace size, int rank, char *text, size_t n);
/* The sizes of the axes that have several ranks: "dp 2 x tp 2"; "" without any. Returns `text`. */
char *grid_size_text(GridPlace size, char *text, size_t n);
/* All communicators of the grid: those of the axes, shard, replicate, kv and tie. */
enum { GRID_COMMS = 8 };
void grid_comms(const Grid *grid, const Comm *comm[GRID_COMMS]);
void grid_close(Grid *grid);

#endif
