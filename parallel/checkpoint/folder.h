/* folder.h -- the names in RUN/checkpoints. Private to parallel/checkpoint; checkpoint.h is the
 * header for everybody else. */
#ifndef PARALLEL_CHECKPOINT_FOLDER_H
#define PARALLEL_CHECKPOINT_FOLDER_H

#include "parallel/checkpoint/checkpoint.h"

/* Writes "step_00000123" to `out`. */
void checkpoint_step_name(char out[32], int64_t step);
/* The step in a folder's name; -1 if it is not exactly a name that checkpoint_step_name writes. */
int64_t checkpoint_step_of(const char *name);
/* "RUN/checkpoints"; the caller frees. */
char *checkpoint_parent(const char *run);

/* checkpoint_list on all ranks: what rank 0 finds. */
int checkpoint_list_everywhere(CheckpointIo *io, const char *run, int64_t **steps, char *err,
                               size_t n);

/* checkpoint_open for a folder that is still being written, or that has another step's
 * name: the step in it is not compared with the name. */
bool checkpoint_open_unnamed(const char *path, Checkpoint **out, char *err, size_t n);

#endif
