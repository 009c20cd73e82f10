/* checkpoint_ranks.h -- saves and reads the run of checkpoint_run.h on several ranks. Tensors are
 * first cut by columns, and each part is then cut at any element. */
#ifndef TESTS_SUPPORT_CHECKPOINT_CHECKPOINT_RANKS_H
#define TESTS_SUPPORT_CHECKPOINT_CHECKPOINT_RANKS_H

#include "parallel/checkpoint/async_save.h"
#include "tests/support/checkpoint/checkpoint_run.h"
#include "tests/support/files/faulty_fs.h"

enum { RANKS_MOST = 6 };

/* A number of ranks, and what they save. Columns are cut over tp neighbouring ranks; the ranks / tp
 * ranks that have the same columns then divide their elements. */
typedef struct {
    int ranks, tp;
    int writers;
    const char *run;
    int64_t step;
    FaultyFs *fs;     /* file system of each rank; NULL: the real one */
    bool making_room; /* a full disk removes older checkpoints */
    int keep;         /* after a save, keep this many; 0: do not prune */
    /* Parts are on a device whose memory the host must not access. */
    bool on_device;
    /* Saves asynchronously, and overwrites the parts as soon as the snapshot is taken. If such a
     * save cannot begin, it is made as any other. */
    bool async, drop;
    CheckpointHook hook; /* of rank 0 */
    /* The result on each rank. */
    bool begun[RANKS_MOST]; /* the asynchronous save has begun */
    bool good[RANKS_MOST];
    char err[RANKS_MOST][1024];
    int64_t found[RANKS_MOST]; /* step found by ranks_newest; -1: none */
} TestRanks;

/* Saves the step on all ranks. */
void ranks_save(TestRanks *r);
/* Saves the step on one rank of a world; ranks_save calls this on each rank. */
bool ranks_save_here(TestRanks *r, Comm *world);
/* Finds the newest checkpoint on all ranks, reads it and compares each rank's parts bit for bit
 * with the values of its step. A difference fails the test. */
void ranks_newest(TestRanks *r);
/* Checks that all ranks have the same result and, if it is a failure, the same error message.
 * Returns the result. */
bool ranks_agree(const TestRanks *r);
/* Saves the step on all ranks; a failure fails the test. */
void ranks_must_save(TestRanks *r);
/* Returns the step from which a world of another size would resume, after comparing all bits. */
int64_t ranks_resume_step(const TestRun *r);
/* Sets up the disks of the ranks, without faults. */
void ranks_disks(FaultyFs *fs, int ranks);

#endif
