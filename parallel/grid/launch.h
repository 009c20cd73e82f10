/* launch.h -- the ranks of a run: threads of this process, which meet in a world communicator. */
#ifndef PARALLEL_GRID_LAUNCH_H
#define PARALLEL_GRID_LAUNCH_H

#include "configs/config.h"
#include "parallel/comm/local/local.h"
#include "parallel/grid/grid.h"

/* More ranks than this are refused: each has a device, a loader and threads of its own. */
enum { LAUNCH_MAX_RANKS = CONFIG_MAX_RANKS };
_Static_assert((int)LAUNCH_MAX_RANKS <= (int)COMM_MAX_RANKS, "a world has room for them");

typedef struct {
    double timeout; /* seconds that a rank waits for another; 0: for ever */
    GridPlace size; /* of the grid, for the places in messages; zeros: all ranks are dp's */
} LaunchOptions;

/* What one rank does, from its world to its exit code. */
typedef int (*LaunchBody)(Comm *world, void *context);

/* Runs body(world, context) on `ranks` ranks at once and returns rank 0's exit code when all have
 * returned. Rank 0 is the calling thread, which alone takes signals. Messages carry each rank's
 * place. Of one rank: in a world of its own, without another thread and without a place. A rank
 * that fails ends all ranks (ends_share in check.h). */
int launch_ranks(int ranks, const LaunchOptions *options, LaunchBody body, void *context);

#endif
