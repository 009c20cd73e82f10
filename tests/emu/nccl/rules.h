/* rules.h -- what the real library does not check and a program must keep all the same: it hangs,
 * mixes up data or frees what is being sent. Here that ends the program with a sentence.
 *
 * Functions of this file take locks of their own only. "Ends the program" is emu_die(). */
#ifndef TESTS_EMU_NCCL_RULES_H
#define TESTS_EMU_NCCL_RULES_H

#include "tests/emu/nccl/inside.h"

#include <vector>

/* First and last thing in every exported function; comm NULL: it has none. rules_enter ends the
 * program when the communicator is destroyed or none at all, when an error came before, when
 * another thread already issues calls for the device; and it plays the faults that EMU_NCCL_FAULT
 * asks for: not ncclSuccess is what the function returns at once, through rules_leave. Only
 * ncclGetErrorString goes without both. rules_leave remembers an error, and returns it. */
ncclResult_t rules_enter(const char *function, ncclComm *comm);
ncclResult_t rules_leave(const char *function, ncclComm *comm, ncclResult_t result);

/* A communicator has opened: from here on its device belongs to the calling thread. Its end begins:
 * nothing may use it any more; its address must never be given to another one. */
void rules_comm_made(ncclComm *comm);
void rules_comm_gone(ncclComm *comm);

/* A call before it is queued: its buffers lie in one live allocation each of the communicator's
 * device, overlap only as NCCL's "in place" does, and its stream is that device's. */
void rules_call(const Call *call);

/* The n calls of a launch, one group or one call alone, in the thread that issues it. No two of
 * them write the same bytes, or one what another reads; the order of launches leaves no circle of
 * waits between devices (order.h); from here to rules_done, which any thread may call, it is an
 * error to free the buffers. False: EMU_NCCL_FAULT says that it never completes. */
bool rules_launch(Call *const *calls, int n);
void rules_done(Call *const *calls, int n);
/* What ncclGetVersion answers where the true version is `version`. */
int rules_version(int version);

/* ---- inside the rules ------------------------------------------------------------------------ */

/* misuse.cc: the open communicators of the device. */
std::vector<ncclComm *> misuse_standing(int device);

/* faults.cc: what EMU_NCCL_FAULT has for this call of `function`, by the device's thread: the code
 * to return, or ncclSuccess. Does not return from a call that never ends. */
ncclResult_t faults_enter(const char *function, int device, ncclComm *comm);
/* Whether the launch that the calling thread is about to make never completes; the asynchronous
 * error that it may come with is the call's communicator's, or `first`'s. */
bool faults_never(ncclComm *first);
bool faults_missing(const char *function);

/* launches.cc: the launch order of all devices of the process */
void launches_add(Call *const *calls, int n);
/* A communicator is gone; with the last one the process adds its launches to EMU_NCCL_ORDER. */
void launches_comm_gone(const ncclComm *comm, bool last);

/* buffers.cc */
void buffers_check(const Call *call);
void buffers_check_launch(Call *const *calls, int n);
void buffers_pin(const Call *call);
void buffers_unpin(const Call *call);

#endif
