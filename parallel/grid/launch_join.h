/* launch_join.h -- inside parallel/grid: runs the body of a launch in a process that a launcher has
 * started as a rank. See launch.h, which is the interface for everybody else. */
#ifndef PARALLEL_GRID_LAUNCH_JOIN_H
#define PARALLEL_GRID_LAUNCH_JOIN_H

#include "parallel/grid/launch.h"

/* Implements launch_ranks in a joined process. options->size is complete unless ranks is 1. */
int launch_in_world(int ranks, const LaunchOptions *options, LaunchBody body, void *context);

#endif
