/* save_faults.h -- saves of step 2 that fail or are killed at a chosen call of one rank's file
 * system, in a run that has saved step 1; and what must hold afterwards, however the step is
 * saved. */
#ifndef TESTS_SUPPORT_CHECKPOINT_SAVE_FAULTS_H
#define TESTS_SUPPORT_CHECKPOINT_SAVE_FAULTS_H

#include "tests/support/checkpoint/checkpoint_ranks.h"

#include <sys/types.h>

/* What happens at call `at`, from 1, of this rank's file system. */
typedef struct {
    Fault fault;
    int rank, at;
    int error; /* an errno value, if the disk fails */
} SaveFault;

/* Fails unless the save has succeeded or has failed for the fault's reason, and its checkpoint or
 * the one before it is the newest; and unless the run can go on. `newest`: that checkpoint's step.
 */
void save_fault_leaves(TestRun *r, const SaveFault *fault, bool saved, const char *err,
                       int64_t newest);
/* Waits for the process that makes the save, prunes to one checkpoint, and exits with 0 if both
 * went well. Fails unless it did or was killed by the fault, and a checkpoint of it or of before is
 * the newest, as `newest` finds it; and unless the run can go on. Returns whether it was killed. */
bool save_kill_leaves(TestRun *r, const SaveFault *fault, pid_t process,
                      int64_t (*newest)(TestRun *r));

/* Makes such a save on several ranks, as `how` says except for the run, the step and the disks.
 * Returns whether the fault was reached. With FAULT_KILL a process of these ranks makes it. */
bool ranks_save_with_fault(const TestRanks *how, const SaveFault *fault);

#endif
