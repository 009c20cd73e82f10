/* new_folder.h -- makes a folder that is complete as soon as it has its name: everything is written
 * to a temporary folder beside it, which is renamed at the end. */
#ifndef MODEL_CORE_NEW_FOLDER_H
#define MODEL_CORE_NEW_FOLDER_H

#include "model/core/fs.h"

typedef struct {
    const FsOps *fs;
    char *path, *temporary; /* NULL: not begun, or ended */
    int lock;               /* on the temporary folder (temporary.h); -1: none */
} NewFolder;

/* Creates the missing parents of `path` and the temporary folder, after removing those that killed
 * processes have left for the same path. `path` must not exist, or be an empty folder. Returns
 * false and sets err on failure; nothing needs to be ended then. */
bool new_folder_begin(NewFolder *folder, const FsOps *fs, const char *path, char *err, size_t n);
/* Syncs the temporary folder, gives it its name and syncs its parent. Returns false and sets err on
 * failure, after removing the temporary folder; if only the last sync failed, the folder has its
 * name. */
bool new_folder_commit(NewFolder *folder, char *err, size_t n);
/* Removes the temporary folder with everything in it. Does nothing after a commit. */
void new_folder_abort(NewFolder *folder);

#endif
