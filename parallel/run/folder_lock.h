/* folder_lock.h -- one run folder, one run: who may write there, however its files are handled.
 *
 * The lock is an flock on FOLDER/lock and, where the file system has that, on the folder itself: a
 * lock file that somebody removes lets no second run in. What is written into it is information
 * only. Both end with the process. */
#ifndef PARALLEL_RUN_FOLDER_LOCK_H
#define PARALLEL_RUN_FOLDER_LOCK_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    int file, folder; /* descriptors; -1: none */
    int attempt;      /* how often the folder was locked before */
} FolderLock;

#define FOLDER_LOCK_NONE ((FolderLock){.file = -1, .folder = -1})

/* Locks the folder `path`, counts the attempt and writes down who holds it. False with a sentence,
 * which names the holder where another process is it; folder_lock_release is due in any case. */
bool folder_lock_take(FolderLock *lock, const char *path, char *err, size_t n);
/* Whether the lock is still this process's. A lock file that was removed is put back, with a
 * warning. False with a sentence when another process has taken the folder since. */
bool folder_lock_hold(FolderLock *lock, const char *path, char *err, size_t n);
void folder_lock_release(FolderLock *lock);

#endif
