/* commit.h -- the steps of a save that rank 0 does: the folder, the texts, the renames. save.c
 * lists the steps, and what a crash leaves. Private to parallel/checkpoint. */
#ifndef PARALLEL_CHECKPOINT_COMMIT_H
#define PARALLEL_CHECKPOINT_COMMIT_H

#include "parallel/checkpoint/layout.h"

/* The state of a save. */
typedef struct {
    const FsOps *fs;
    bool leads;                             /* this is rank 0 */
    bool far;                               /* other machines write files, too */
    char *run, *parent, *temporary, *final; /* paths of the run and of the folders below it */
    char *aside;         /* new name for an existing folder at `final`; else NULL */
    char *aside_warning; /* logged after that folder has been renamed */
    int parent_fd, fd;   /* RUN/checkpoints; the temporary folder; only on rank 0 */
    char save_id[SAVE_ID_DIGITS + 1];
    Layout layout;
    char *err;
    size_t n;
} Save;

/* Sets the paths of a save of this step; `save_id` is the same on all ranks. All functions below
 * write their messages to `err`. */
void save_begin(Save *save, CheckpointIo *io, const char *run, int64_t step, const char *save_id,
                char *err, size_t n);
/* Closes the folders and frees everything. */
void save_end(Save *save);
/* Draws a random id for a save. It shows which files belong together if somebody mixes the files of
 * two saves of the same step. */
void save_draw_id(char out[SAVE_ID_DIGITS + 1]);

/* The functions below do rank 0's work. On other ranks they do nothing, and those with a result
 * return true. They do not communicate with other ranks. */

/* Opens RUN/checkpoints and creates it if it is missing. */
bool save_open_parent(Save *save);
/* Removes leftovers of earlier saves. A failure to remove them does not make this save fail. */
void save_remove_leftovers(Save *save);
/* Creates the temporary folder. */
bool save_make_temporary(Save *save);
/* Writes the indexes and the manifest next to the writers' files, syncs the folder (the end of step
 * 1), and opens it as any reader would (step 2). */
bool save_complete(Save *save);
/* Does steps 3 to 5: moves another folder with the checkpoint's name aside, gives this name to the
 * temporary folder, and syncs its parents. */
bool save_commit(Save *save);
/* Removes the temporary folder. */
void save_remove_temporary(Save *save);

#endif
