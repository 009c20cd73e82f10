/* temporary.h -- files and folders that are written under a temporary name next to their final name
 * (files.h): the locks that their writers hold, and the removal of files and folders that killed
 * processes left. */
#ifndef MODEL_CORE_TEMPORARY_H
#define MODEL_CORE_TEMPORARY_H

#include "model/core/fs.h"

/* Returns whether a name with this ending is a temporary one: ".tmp-PROCESS-ATTEMPT". */
bool temporary_ending(const char *end);
/* Locks a file or folder for its writer. Returns a descriptor that holds the lock until it is
 * closed or the process ends. Returns -1 if another process holds it, with errno EWOULDBLOCK, or if
 * it cannot be locked, for example because its file system has no locks. */
int temporary_hold(const char *path);
/* Removes the files and folders with temporary names for `path` that no process has locked: their
 * writers were killed. Prints a message for each. Files and folders that cannot be locked are kept,
 * because they may be in use. */
void temporary_sweep(const FsOps *fs, const char *path);
/* Like temporary_sweep, but for all temporary names in a folder whose files only this process
 * writes. */
void temporary_sweep_folder(const FsOps *fs, const char *folder);

#endif
