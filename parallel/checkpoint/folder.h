/* folder.h -- makes and parses the names of folders in RUN/checkpoints, and lists the steps there.
 * Private to parallel/checkpoint; other folders include checkpoint.h. */
#ifndef PARALLEL_CHECKPOINT_FOLDER_H
#define PARALLEL_CHECKPOINT_FOLDER_H

#include "parallel/checkpoint/checkpoint.h"

/* Writes the folder name of a step to `out`, such as "step_00000123". */
void checkpoint_step_name(char out[32], int64_t step);
/* Returns the step in a folder's name, or -1 if the name is not exactly what checkpoint_step_name
 * writes for some step. */
int64_t checkpoint_step_of(const char *name);
/* Returns "RUN/checkpoints"; the caller frees it. */
char *checkpoint_parent(const char *run);

/* Like checkpoint_list, but only rank 0 lists the folder and all ranks get its result. */
int checkpoint_list_everywhere(CheckpointIo *io, const char *run, int64_t **steps, char *err,
                               size_t n);

/* Like checkpoint_open, but does not compare the step in the manifest with the folder's name. For a
 * folder that is still being written, or that may be named after another step. */
bool checkpoint_open_unnamed(const char *path, Checkpoint **out, char *err, size_t n);

#endif
