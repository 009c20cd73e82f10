/* folder_lock.c -- locks a run folder with flock, and notices if its lock file was removed. */
#include "parallel/run/folder_lock.h"

#include "model/core/check.h"
#include "model/core/fs.h"
#include "model/core/log.h"
#include "parallel/grid/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* LOCK_BYTES: the lock file holds one record of fixed size, so rewriting it leaves no old bytes. */
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
    /* The process that a user can stop: the parent if ranks are processes, because these ignore
     * stop signals. */
    pid_t process = launch_parent() ? launch_parent() : getpid();
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text, "attempt %d, process %ld on %s", lock->attempt, (long)process,
             host);
    snprintf(record, sizeof record, "%-*s\n", LOCK_BYTES - 1, text);
    if (pwrite(lock->file, record, LOCK_BYTES, 0) != LOCK_BYTES)
        log_warning("%s/lock does not say who holds it: %s", path, strerror(errno));
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Returns true if `file` no longer exists or is not the file that `fd` has open. If lstat fails for
 * another reason, the file counts as still there. */
static bool was_removed(int fd, const char *file)
{
    struct stat held, there;
    if (lstat(file, &there) != 0) return errno == ENOENT;
    return fstat(fd, &held) == 0 && !same_file(&held, &there);
}

/* Returns true if two descriptors refer to the same file; false if one of them is -1. */
static bool both_of_one(int a, int b)
{
    struct stat of_a, of_b;
    return fstat(a, &of_a) == 0 && fstat(b, &of_b) == 0 && same_file(&of_a, &of_b);
}

/* The result of an attempt to lock a file. */
typedef enum { LOCKED, HELD_ALREADY, HELD_BY_ANOTHER, NOT_LOCKED } LockResult;

/* Locks `file`, and then checks that the name still refers to the locked file: a lock on a removed
 * file would exclude nobody. `own` is the descriptor through which this process held the lock
 * before, or -1. Returns
 *   LOCKED           *fd is the new descriptor that holds the lock
 *   HELD_ALREADY     `own` still holds the lock
 *   HELD_BY_ANOTHER  another process holds it; sets err
 *   NOT_LOCKED       opening or locking failed; sets err
 * In all cases except LOCKED, *fd is -1. The messages name the folder `path`. */
static LockResult lock_file(const char *path, const char *file, int own, int *fd, char *err,
                            size_t n)
{
    for (int i = 0; i < MAX_TRIES; i++) {
        *fd = fs_open_output(file, O_RDWR, err, n);
        if (*fd < 0) return NOT_LOCKED;
        /* Does not wait for the holder, whose run may take days. The kernel releases the lock when
         * its process ends, so a killed run leaves no lock. */
        bool locked = flock(*fd, LOCK_EX | LOCK_NB) == 0;
        int why = errno;
        if (locked && !was_removed(*fd, file)) return LOCKED;
        char holder[LOCK_BYTES + 1];
        read_record(*fd, holder);
        /* flock refuses a second descriptor even if this process holds the first. */
        bool ours = !locked && both_of_one(*fd, own);
        close(*fd);
        *fd = -1;
        if (locked) continue; /* the locked file was removed: try the file that has the name now */
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
    struct stat info;
    if (!good) return false;
    if (stat(path, &info) != 0)
        return error_set(err, n, "cannot enter the folder %s: %s", path, strerror(errno));
    lock->device = info.st_dev;
    lock->inode = info.st_ino;
    lock->folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock->folder >= 0 && flock(lock->folder, LOCK_EX | LOCK_NB) != 0) {
        /* Some network file systems cannot lock folders; there only the file is locked. */
        if (errno == EWOULDBLOCK)
            return error_set(err, n,
                             "another run is writing to %s, although its lock file was removed; "
                             "wait for it, stop it, or choose another folder with --out",
                             path);
        close(lock->folder);
        lock->folder = -1;
    }
    read_record(lock->file, record);
    /* At most nine digits are read, so the next number fits in an int whatever the file contains.
     */
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

bool folder_lock_in_place(const FolderLock *lock, const char *path, char *err, size_t n)
{
    struct stat info;
    bool there = stat(path, &info) == 0;
    /* If stat fails for another reason, such as a network that is down, nothing is known. */
    if (there ? info.st_dev == lock->device && info.st_ino == lock->inode : errno != ENOENT)
        return true;
    return error_set(err, n,
                     "the folder %s was %s while this run writes to it; rename it back to %s", path,
                     there ? "replaced" : "renamed or removed", path);
}

void folder_lock_release(FolderLock *lock)
{
    if (lock->file >= 0) close(lock->file);
    if (lock->folder >= 0) close(lock->folder);
    *lock = FOLDER_LOCK_NONE;
}
