/* grid.h -- the place of this rank in the grid: its coordinates on the axes pp, dp, cp and tp, and
 * the communicators of its groups. */
#ifndef PARALLEL_GRID_GRID_H
#define PARALLEL_GRID_GRID_H

#include "configs/config.h"
#include "model/param/param.h"
#include "parallel/comm/comm.h"

typedef struct {
    GridPlace size, at; /* ranks on each axis; this rank's coordinates */
    Comm pp, dp, cp, tp;
    /* For ZeRO: the neighbouring dp ranks among which each unit of weights and gradients (the flat
     * buffer of a block, a table or the head) is divided, and the dp ranks that hold the same part
     * of it. The product of their sizes is the size of dp. */
    Comm shard, replicate;
    /* kv: the tensor-parallel ranks that share a key/value head. tie: the first and the last
     * pipeline stage, if both hold the table that embedding and head share. Without such ranks, the
     * group contains only this rank. */
    Comm kv, tie;
} Grid;

/* What determines groups of ranks besides the axes: properties of the model, and config_shard. */
typedef struct {
    int kv;    /* number of key/value heads */
    bool tied; /* embedding and head share a table */
    int shard; /* number of data-parallel ranks in a shard group; divides the size of dp; 0: all */
} GridGroups;

/* How the groups use NCCL. */
typedef struct {
    int pp, dp, replicate, tp, kv, tie; /* NcclUse.max_ctas of each group; shard uses that of dp */
    bool chunks;    /* true: each stage has several ranges of layers, so the last stage sends to the
                       first */
    double timeout; /* in seconds */
} GridNccl;
/* Returns the config's settings for NCCL. */
GridNccl grid_nccl(const Config *config);

/* Returns the grid of a single rank. */
Grid grid_single(void);
/* Returns this rank's grid in a world of size.pp x size.dp x size.cp x size.tp ranks, tp innermost.
 * All ranks of the world call it together. If groups is NULL, kv and tie contain one rank, and
 * shard is dp. The world must outlive the grid. */
Grid grid_open(Comm *world, GridPlace size, const GridGroups *groups);
/* If each rank has its own device: prepares the grid's groups for NCCL (nccl_prepare in nccl.h).
 * NCCL must be open (nccl_open). From then on, until grid_connect, communication calls on device
 * memory transfer no data. All ranks of the world call it together, each with its open device. */
void grid_prepare(Grid *grid, Device *dev, const GridNccl *nccl);
/* Lets devices exchange data through NCCL. Creates an NCCL communicator for each axis and group of
 * several ranks, in the same order on all ranks; a shard group of all data-parallel ranks uses dp's
 * communicator. All ranks of the world call it together, when each has made its last allocation of
 * device memory. */
void grid_connect(Grid *grid, Comm *world);
/* Returns the approximate number of bytes of this rank's device memory that NCCL's communicators
 * will need. */
size_t grid_reserve(const Grid *grid, const GridNccl *nccl);
/* Returns a value of NCCL_MAX_CTAS that would reduce grid_reserve of the config's grid; 0: there is
 * none. */
int grid_fewer_channels(const Config *config);
/* Returns the coordinates of a rank of the world. */
GridPlace grid_place(GridPlace size, int rank);
/* Writes the coordinates on the axes that have several ranks, such as "dp 2" or "pp 1 dp 0", and
 * returns `text`. */
char *grid_place_text(GridPlace size, int rank, char *text, size_t n);
/* Writes the sizes of the axes that have several ranks, such as "dp 2 x tp 2", or "" if there are
 * none; returns `text`. */
char *grid_size_text(GridPlace size, char *text, size_t n);
/* Writes " in groups of 4" if the config has several shard groups, or ""; returns `text`. */
char *grid_shard_text(const Config *config, int data, char *text, size_t n);
/* Returns whether some shard group spans several machines, so that the data it sends for every
 * micro-batch cross machines, which a smaller group would avoid. */
bool grid_shard_is_spread(const Comm *world, GridPlace size, int shard);
/* Does the same for a world that is not open; machine[r] is the machine of rank r. */
bool grid_shard_is_spread_over(const int *machine, GridPlace size, int shard);
/* Lists all communicators of the grid: those of the axes, shard, replicate, kv and tie. */
enum { GRID_COMMS = 8 };
void grid_comms(const Grid *grid, const Comm *comm[GRID_COMMS]);
void grid_close(Grid *grid);

#endif
