/* folder.h -- what lies in RUN/checkpoints under which name, and what may be removed
 * there; private to checkpoint*.c. */
#ifndef PARALLEL_CHECKPOINT_FOLDER_H
#define PARALLEL_CHECKPOINT_FOLDER_H

#include "parallel/checkpoint/checkpoint.h"

/* "step_00000123". */
void checkpoint_step_name(char out[32], int64_t step);
/* The step that a folder's name tells; -1 if it is not one that this program writes. */
int64_t checkpoint_step_of(const char *name);
/* "RUN/checkpoints"; the caller frees. */
char *checkpoint_parent(const char *run);

/* Removes what dead saves and removals left behind, known by the exact form of its name. The run's
 * lock tells that nobody else is writing here. False with a sentence if something stays. */
bool checkpoint_remove_left_overs(CheckpointIo *io, int parent_fd, char *err, size_t n);
/* Removes checkpoints older than the newest that verifies, oldest first: one, and more while the
 * disk tells of less than `bytes`. Returns how many. */
int checkpoint_make_room(CheckpointIo *io, const char *run, int64_t bytes);

/* checkpoint_open for a folder that is being written or has another's name: its name is not held
 * against its step. */
bool checkpoint_open_unnamed(const char *path, Checkpoint **out, char *err, size_t n);

#endif
