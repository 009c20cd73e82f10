/* folder_lock.h -- a lock that lets only one process at a time write to a run folder.
 *
 * The lock is an flock on FOLDER/lock and also on the folder itself, if its file system supports
 * that. So a second run is refused even if somebody removes the lock file. The file's content is
 * only information for the user. The kernel releases both locks when the process ends. */
#ifndef PARALLEL_RUN_FOLDER_LOCK_H
#define PARALLEL_RUN_FOLDER_LOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

typedef struct {
    int file, folder; /* file descriptors that hold the locks; -1: none */
    dev_t device;     /* with `inode`: the folder that was locked, whatever its path is later */
    ino_t inode;
    int attempt; /* how many times the folder was locked before */
} FolderLock;

#define FOLDER_LOCK_NONE ((FolderLock){.file = -1, .folder = -1})

/* Locks the folder `path`, sets lock->attempt, and writes the attempt, process and host to the lock
 * file. On failure returns false and sets err, which names the holder if another process has the
 * lock. The caller must call folder_lock_release in either case. */
bool folder_lock_take(FolderLock *lock, const char *path, char *err, size_t n);
/* Returns true if this process still holds the lock. If the lock file was removed, creates it again
 * and prints a warning. Returns false and sets err if another process has locked the folder since.
 */
bool folder_lock_hold(FolderLock *lock, const char *path, char *err, size_t n);
/* Returns true if `path` is still the locked folder. If it was renamed, removed or replaced,
 * returns false and sets err: files written there would form a second, incomplete run. */
bool folder_lock_in_place(const FolderLock *lock, const char *path, char *err, size_t n);
void folder_lock_release(FolderLock *lock);

#endif
