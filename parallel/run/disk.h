/* disk.h -- checks that a run's checkpoints will fit on its disk. `bytes` is the size of one
 * checkpoint (from MemoryPlan); `path` is the run's folder, which need not exist yet. */
#ifndef PARALLEL_RUN_DISK_H
#define PARALLEL_RUN_DISK_H

#include "configs/config.h"
#include "parallel/checkpoint/checkpoint.h"

/* Prints the size of a checkpoint and how many are kept. `best`: the best one is kept, too. */
void disk_print(const Config *config, bool best, int64_t bytes);
/* Warns if the free disk space is too small for the checkpoints that will exist at the same time:
 * the ones that are kept, plus the one being written, minus the ones that already exist. */
void disk_check(const Config *config, bool best, int64_t bytes, const char *path);
/* Ends the program (EXIT_INPUT_OUTPUT) before training starts if the disk has no room for one more
 * checkpoint and there is no older one that a save could remove. The run resumes from `newest`;
 * NULL means that it starts at step 0. Removes the leftovers of crashed saves. */
void disk_check_first_save(const Config *config, int64_t bytes, const char *path, const FsOps *fs,
                           const Checkpoint *newest);

#endif
