/* new_folder.h -- creates a folder that is complete as soon as its name exists: everything is
 * written to a temporary folder next to it, which is renamed at the end. */
#ifndef MODEL_CORE_NEW_FOLDER_H
#define MODEL_CORE_NEW_FOLDER_H

#include "model/core/fs.h"

typedef struct {
    const FsOps *fs;
    char *path, *temporary; /* NULL: not begun, or committed or aborted */
    int lock;               /* lock on the temporary folder (temporary.h); -1: none */
} NewFolder;

/* Creates the missing parents of `path` and the temporary folder, after removing temporary folders
 * that killed processes left for the same path. `path` must be an empty folder or not exist.
 * Returns false and sets err on failure; neither commit nor abort is then needed. */
bool new_folder_begin(NewFolder *folder, const FsOps *fs, const char *path, char *err, size_t n);
/* Syncs the temporary folder, renames it to its final name and syncs its parent. On failure removes
 * the temporary folder, sets err and returns false; if only the last sync failed, the folder
 * already has its final name. */
bool new_folder_commit(NewFolder *folder, char *err, size_t n);
/* Removes the temporary folder with everything in it. Does nothing after a commit. */
void new_folder_abort(NewFolder *folder);

#endif
