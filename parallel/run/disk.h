/* disk.h -- whether a run's checkpoints will fit on its disk. `bytes` is one checkpoint's size
 * (MemoryPlan), `path` the run's folder, which need not be there yet. */
#ifndef PARALLEL_RUN_DISK_H
#define PARALLEL_RUN_DISK_H

#include "configs/config.h"
#include "parallel/checkpoint/checkpoint.h"

/* Prints the size of a checkpoint and how many are kept. */
void disk_print(const Config *config, int64_t bytes);
/* Warns where there is no room for the checkpoints that will lie there at once: those kept, and the
 * one being written, less those that are there. */
void disk_check(const Config *config, int64_t bytes, const char *path);
/* A run that could not write a single checkpoint, starting from `newest` (NULL: from step 0), ends
 * before it trains (EXIT_INPUT_OUTPUT). */
void disk_check_first_save(const Config *config, int64_t bytes, const char *path, const FsOps *fs,
                           const Checkpoint *newest);

#endif
