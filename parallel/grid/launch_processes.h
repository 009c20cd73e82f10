/* launch_processes.h -- inside parallel/grid: starts ranks as processes. See launch.h, which is the
 * interface for everybody else. */
#ifndef PARALLEL_GRID_LAUNCH_PROCESSES_H
#define PARALLEL_GRID_LAUNCH_PROCESSES_H

#include "parallel/grid/launch.h"

/* Implements launch_ranks for ranks that are processes. options->size is complete. */
int launch_processes(int ranks, const LaunchOptions *options, LaunchBody body, void *context);

#endif
