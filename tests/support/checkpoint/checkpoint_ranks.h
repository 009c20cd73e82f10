/* checkpoint_ranks.h -- the run of checkpoint_run.h on several ranks: each has parts of its
 * tensors, cut by columns and then anywhere. */
#ifndef TESTS_SUPPORT_CHECKPOINT_CHECKPOINT_RANKS_H
#define TESTS_SUPPORT_CHECKPOINT_CHECKPOINT_RANKS_H

#include "tests/support/checkpoint/checkpoint_run.h"
#include "tests/support/files/faulty_fs.h"

enum { RANKS_MOST = 6 };

/* How many ranks, and what they do. Columns are cut over tp neighbouring ranks; the ranks / tp that
 * have the same columns then cut their elements. */
typedef struct {
    int ranks, tp;
    int writers;
    const char *run;
    int64_t step;
    FaultyFs *fs;     /* of each rank; NULL: the system's */
    bool making_room; /* on a full disk older checkpoints go */
    int keep;         /* after a good save all but so many go; 0: none */
    bool on_device;   /* parts lie on a device whose memory the host must not touch */
    /* The result on each rank. */
    bool good[RANKS_MOST];
    char err[RANKS_MOST][1024];
    int64_t found[RANKS_MOST]; /* ranks_newest: the step, -1 without one */
} TestRanks;

/* Saves the step on all ranks. */
void ranks_save(TestRanks *r);
/* The same within a world: what ranks_save does on each rank. */
bool ranks_save_here(TestRanks *r, Comm *world);
/* Finds the newest checkpoint on all ranks, reads it and compares each rank's parts, bit by bit,
 * with those of its step. A difference fails the test. */
void ranks_newest(TestRanks *r);
/* Whether all ranks say the same, which is returned, and where not good with the same sentence. */
bool ranks_agree(const TestRanks *r);

#endif
