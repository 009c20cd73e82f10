/* folder_lock.c -- see folder_lock.h. */
#include "parallel/run/folder_lock.h"

#include "model/core/check.h"
#include "model/core/fs.h"
#include "model/core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* What the lock file says, in a record of fixed size: rewriting it never leaves half of one. */
enum { LOCK_BYTES = 160, MAX_TRIES = 100 };

/* Reads the record without its padding. */
static void read_record(int fd, char record[LOCK_BYTES + 1])
{
    ssize_t got = pread(fd, record, LOCK_BYTES, 0);
    while (got > 0 && (record[got - 1] == ' ' || record[got - 1] == '\n'))
        got--;
    record[got > 0 ? got : 0] = '\0';
}

static void write_record(const FolderLock *lock, const char *path)
{
    char record[LOCK_BYTES + 1], text[LOCK_BYTES], host[65] = "";
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text, "attempt %d, process %ld on %s", lock->attempt, (long)getpid(),
             host);
    snprintf(record, sizeof record, "%-*s\n", LOCK_BYTES - 1, text);
    if (pwrite(lock->file, record, LOCK_BYTES, 0) != LOCK_BYTES)
        log_warning("%s/lock does not say who holds it: %s", path, strerror(errno));
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Whether the name is gone, or is another file's than the open one. A file system that gives no
 * answer has removed nothing. */
static bool was_removed(int fd, const char *file)
{
    struct stat held, there;
    if (lstat(file, &there) != 0) return errno == ENOENT;
    return fstat(fd, &held) == 0 && !same_file(&held, &there);
}

/* Whether two descriptors are of one file; -1 is of none. */
static bool both_of_one(int a, int b)
{
    struct stat of_a, of_b;
    return fstat(a, &of_a) == 0 && fstat(b, &of_b) == 0 && same_file(&of_a, &of_b);
}

/* The result of asking for a lock. */
typedef enum { LOCKED, HELD_ALREADY, HELD_BY_ANOTHER, NOT_LOCKED } LockResult;

/* Locks `file`, and sees that the name is still the locked file's then: a lock on a file that was
 * removed meanwhile keeps nobody out. `own`: the descriptor that has held the lock so far, -1 if
 * none; HELD_ALREADY: it still holds it. LOCKED: *fd is the new descriptor. Otherwise *fd is -1,
 * and with HELD_BY_ANOTHER and NOT_LOCKED there is a sentence about the folder `path`. */
static LockResult lock_file(const char *path, const char *file, int own, int *fd, char *err,
                            size_t n)
{
    for (int i = 0; i < MAX_TRIES; i++) {
        *fd = fs_open_output(file, O_RDWR, err, n);
        if (*fd < 0) return NOT_LOCKED;
        /* Not waited for: a run takes days. The kernel drops the lock with the process that holds
         * it, so that a killed run keeps nobody out. */
        bool locked = flock(*fd, LOCK_EX | LOCK_NB) == 0;
        int why = errno;
        if (locked && !was_removed(*fd, file)) return LOCKED;
        char holder[LOCK_BYTES + 1];
        read_record(*fd, holder);
        /* flock refuses a second descriptor even to the process that holds the first. */
        bool ours = !locked && both_of_one(*fd, own);
        close(*fd);
        *fd = -1;
        if (locked) continue; /* on a file without a name: again, with the one that has it now */
        if (ours) return HELD_ALREADY;
        if (why != EWOULDBLOCK) {
            error_set(err, n, "cannot lock %s: %s", path, strerror(why));
            return NOT_LOCKED;
        }
        error_set(err, n,
                  "another run is writing to %s (%s); wait for it, stop it, or choose another "
                  "folder with --out",
                  path, holder);
        return HELD_BY_ANOTHER;
    }
    error_set(err, n, "cannot lock %s: its lock file is removed again and again", path);
    return NOT_LOCKED;
}

bool folder_lock_take(FolderLock *lock, const char *path, char *err, size_t n)
{
    char *file = text_format("%s/lock", path), record[LOCK_BYTES + 1];
    *lock = FOLDER_LOCK_NONE;
    bool good = lock_file(path, file, -1, &lock->file, err, n) == LOCKED;
    free(file);
    if (!good) return false;
    lock->folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock->folder >= 0 && flock(lock->folder, LOCK_EX | LOCK_NB) != 0) {
        /* Some network file systems lock no folders; there the file has to do. */
        if (errno == EWOULDBLOCK)
            return error_set(err, n,
                             "another run is writing to %s, although its lock file was removed; "
                             "wait for it, stop it, or choose another folder with --out",
                             path);
        close(lock->folder);
        lock->folder = -1;
    }
    read_record(lock->file, record);
    /* Nine digits: whatever the record says, the next number fits in an int. */
    if (sscanf(record, "attempt %9d", &lock->attempt) == 1) lock->attempt++;
    if (lock->attempt < 0) lock->attempt = 0;
    write_record(lock, path);
    return true;
}

bool folder_lock_hold(FolderLock *lock, const char *path, char *err, size_t n)
{
    char *file = text_format("%s/lock", path);
    bool good = !was_removed(lock->file, file);
    if (!good) {
        int fd;
        LockResult result = lock_file(path, file, lock->file, &fd, err, n);
        good = result != HELD_BY_ANOTHER;
        if (result == LOCKED) {
            close(lock->file);
            lock->file = fd;
            write_record(lock, path);
            log_warning("%s was removed, and is put back", file);
        } else if (result == NOT_LOCKED) {
            log_warning("%s was removed: %s", file, err);
        }
    }
    free(file);
    return good;
}

void folder_lock_release(FolderLock *lock)
{
    if (lock->file >= 0) close(lock->file);
    if (lock->folder >= 0) close(lock->folder);
    *lock = FOLDER_LOCK_NONE;
}
