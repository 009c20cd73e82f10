/* launch.h -- starts the ranks of a run as threads of this process, with a communicator of all
 * ranks (the world). */
#ifndef PARALLEL_GRID_LAUNCH_H
#define PARALLEL_GRID_LAUNCH_H

#include "configs/config.h"
#include "parallel/comm/local/local.h"
#include "parallel/grid/grid.h"

/* More ranks than this are refused, because each has its own device, loader and threads. */
enum { LAUNCH_MAX_RANKS = CONFIG_MAX_RANKS };
_Static_assert((int)LAUNCH_MAX_RANKS <= (int)COMM_MAX_RANKS, "a world has room for them");

typedef struct {
    double timeout; /* seconds that a rank waits for another one; 0: without limit */
    GridPlace
        size; /* size of the grid, for coordinates in messages; zeros: all ranks are on axis dp */
} LaunchOptions;

/* The code of one rank; returns its exit code. */
typedef int (*LaunchBody)(Comm *world, void *context);

/* Runs body(world, context) on `ranks` ranks at the same time and returns rank 0's exit code when
 * all have returned. Rank 0 is the calling thread, the only one that receives signals. Messages
 * contain the coordinates of their rank. A single rank runs in the calling thread, and its messages
 * have no coordinates. A rank that fails ends all ranks (ends_share in check.h). */
int launch_ranks(int ranks, const LaunchOptions *options, LaunchBody body, void *context);

#endif
