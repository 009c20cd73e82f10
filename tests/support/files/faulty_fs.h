/* faulty_fs.h -- a table of file system calls (FsOps) in which the N-th call fails, ends the
 * process, or does only part of its work. It can also simulate a small disk. */
#ifndef TESTS_SUPPORT_FILES_FAULTY_FS_H
#define TESTS_SUPPORT_FILES_FAULTY_FS_H

#include "model/core/fs.h"

#include <pthread.h>

typedef enum {
    FAULT_NONE,   /* calls are only counted */
    FAULT_ONCE,   /* the N-th call fails with `error`; a write first writes half of its bytes */
    FAULT_ALWAYS, /* the N-th call and all later ones fail, except removals, as on a full disk */
    FAULT_KILL,   /* the process exits at the N-th call; a write first writes half of its bytes */
    FAULT_FLIP,   /* the N-th call, if a write, changes a bit of its first byte and succeeds */
    FAULT_SHORT   /* no fault, but a write writes only 7 bytes or is interrupted (EINTR) */
} Fault;

enum { FAULTY_KILLED = 99 }; /* exit status of a process that FAULT_KILL ended */

typedef struct {
    Fault fault;
    int at, error; /* N, counted from 1; errno of failures */
    int calls;     /* number of calls so far */
    char
        *log; /* NULL, or 4096 bytes: a letter per call (o w s c r m u), file names after o and r */
    const char *disk; /* NULL, or a folder that can hold at most `capacity` bytes of files */
    int64_t capacity;
    bool room_unknown; /* the simulated disk does not report its free space */
    pthread_t home;    /* a thread, first the one that has initialized this */
    int home_writes;   /* writes and syncs that this thread has made */
    FsOps ops;
} FaultyFs;

/* Initializes *fs and its table fs->ops. The caller may then set `log`, `disk`, `capacity` and
 * `room_unknown`. */
void faulty_fs_init(FaultyFs *fs, Fault fault, int at, int error);

#endif
