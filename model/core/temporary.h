/* temporary.h -- files and folders that are written under a temporary name beside their own
 * (files.h): who holds them, and what killed processes have left. */
#ifndef MODEL_CORE_TEMPORARY_H
#define MODEL_CORE_TEMPORARY_H

#include "model/core/fs.h"

/* Returns whether the end of a name makes it temporary: ".tmp-PROCESS-ATTEMPT". */
bool temporary_ending(const char *end);
/* Locks a file or folder for its writer. Returns a descriptor that holds the lock until it is
 * closed or the process ends. Returns -1 if another process holds it, with errno EWOULDBLOCK, or if
 * it cannot be locked, for example because its file system has no locks. */
int temporary_hold(const char *path);
/* Removes the files and folders with temporary names for `path` that nobody holds: their writers
 * were killed. Says so for each. Those that cannot be locked stay, because they may be in use. */
void temporary_sweep(const FsOps *fs, const char *path);
/* Does the same for all temporary names in a folder whose files only this process writes. */
void temporary_sweep_folder(const FsOps *fs, const char *folder);

#endif
