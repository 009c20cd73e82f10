/* faulty_fs.h -- file system calls that fail, stop the process or do half of what was asked at the
 * N-th of them. */
#ifndef TESTS_SUPPORT_FILES_FAULTY_FS_H
#define TESTS_SUPPORT_FILES_FAULTY_FS_H

#include "model/core/fs.h"

typedef enum {
    FAULT_NONE,   /* count only */
    FAULT_ONCE,   /* the N-th call fails with `error`; a write does half its work first */
    FAULT_ALWAYS, /* so do all changes after it, removals excepted: a disk that is full */
    FAULT_KILL,   /* the process ends at the N-th call, as by SIGKILL; a write does half its work
                     first */
    FAULT_FLIP,   /* the N-th call, a write, writes another first byte and says that all is well */
    FAULT_SHORT   /* no faults, but writes of few bytes, and interruptions between them */
} Fault;

enum { FAULTY_KILLED = 99 }; /* exit status of a process that FAULT_KILL ended */

typedef struct {
    Fault fault;
    int at, error; /* the N-th call, from 1; errno of failures */
    int calls;     /* so far */
    char *log; /* NULL, or 4096 bytes for one letter a call: o w s c r m u; with file names after o,
                  r */
    const char *disk; /* NULL, or a folder that takes no more than `capacity` bytes of files */
    int64_t capacity;
    bool room_unknown; /* this disk does not tell how much it takes still */
    FsOps ops;
} FaultyFs;

/* Sets up fs->ops; the fields above are the caller's. */
void faulty_fs_init(FaultyFs *fs, Fault fault, int at, int error);

#endif
