/* prune.h -- what a save removes. Private to parallel/checkpoint; checkpoint.h is the header for
 * everybody else. */
#ifndef PARALLEL_CHECKPOINT_PRUNE_H
#define PARALLEL_CHECKPOINT_PRUNE_H

#include "parallel/checkpoint/checkpoint.h"

/* Removes what saves and removals that died have left in the folder `parent_fd`, known by the exact
 * form of its name. Whoever calls holds the run's lock, so none of it belongs to a save that still
 * runs. False with a sentence if something could not be removed. */
bool checkpoint_remove_leftovers(CheckpointIo *io, int parent_fd, char *err, size_t n);
/* Removes checkpoints older than the newest that verifies, oldest first: one at least, and more
 * while fewer than `bytes` bytes are free. Returns how many it removed, on all ranks, which read
 * what is to verify together. */
int checkpoint_make_room(CheckpointIo *io, const char *run, int64_t bytes);

#endif
