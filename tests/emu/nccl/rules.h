/* rules.h -- what the stand-in's core asks of its rules: who may call what and when, which memory a
 * call may name, in which order devices start communicators, and faults that were asked for. None
 * of the core's locks is held in these calls. */
#ifndef TESTS_EMU_NCCL_RULES_H
#define TESTS_EMU_NCCL_RULES_H

#include "tests/emu/nccl/inside.h"

/* First and last thing of every exported function (comm NULL: none given or needed). enter ends the
 * program, or answers a fault: anything but ncclSuccess goes through leave to the caller. leave
 * remembers an error and returns it. */
ncclResult_t rules_enter(const char *function, ncclComm *comm);
ncclResult_t rules_leave(const char *function, ncclComm *comm, ncclResult_t result);
void rules_comm_made(ncclComm *comm); /* end of a successful init, in its thread */
void rules_comm_gone(ncclComm *comm); /* in Destroy and Abort, before anything is torn down */

/* A call before it is queued, counts of 0 included. */
void rules_call(const Call *call);
/* The calls of one launch, a group's or one alone, without counts of 0, in the issuing thread in
 * host order. False: they never complete. */
bool rules_launch(Call *const *calls, int n);
/* Their results are written; from any thread. */
void rules_done(Call *const *calls, int n);

int rules_version(int version); /* what ncclGetVersion answers */

#endif
