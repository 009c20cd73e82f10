/* prune.h -- removes old checkpoints and leftovers of crashed saves. Private to
 * parallel/checkpoint; other folders include checkpoint.h. */
#ifndef PARALLEL_CHECKPOINT_PRUNE_H
#define PARALLEL_CHECKPOINT_PRUNE_H

#include "parallel/checkpoint/checkpoint.h"

/* Removes folders that crashed saves and removals have left in the folder `parent_fd`; only names
 * that match their pattern exactly are removed. The caller must hold the run's lock, so no save can
 * be writing them. Returns false and sets `err` if something could not be removed. */
bool checkpoint_remove_leftovers(const FsOps *fs, int parent_fd, char *err, size_t n);
/* Makes room on a full disk: removes checkpoints that are older than the newest one that verifies,
 * oldest first, except those that are kept for good. Removes one if there is any, and more while
 * fewer than `bytes` bytes are free. The ranks divide the verification among themselves. Returns on
 * all ranks how many checkpoints were removed. */
int checkpoint_make_room(CheckpointIo *io, const char *run, int64_t bytes);

#endif
