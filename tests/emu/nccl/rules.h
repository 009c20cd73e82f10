/* rules.h -- rules that a program must follow although the real library does not check them. A
 * program that breaks them hangs, mixes up data, or sends freed memory. The emulated NCCL ends it
 * with an error message instead.
 *
 * Functions of this file take only their own locks. "Ends the program" means emu_die(). */
#ifndef TESTS_EMU_NCCL_RULES_H
#define TESTS_EMU_NCCL_RULES_H

#include "tests/emu/nccl/inside.h"

#include <vector>

/* Every exported function except ncclGetErrorString calls these first and last. comm is NULL if the
 * function has none. rules_enter ends the program if the communicator was destroyed or never
 * existed, if an earlier call failed, or if another thread already issues calls for the device.
 * (ncclGetLastError and ncclCommGetAsyncError only report errors: they are allowed after a failed
 * call and in any thread, and trigger no faults.) rules_enter also triggers the faults in
 * EMU_NCCL_FAULT: if it does not return ncclSuccess, the function returns that code at once,
 * through rules_leave. rules_leave remembers an error, and returns it. */
ncclResult_t rules_enter(const char *function, ncclComm *comm);
ncclResult_t rules_leave(const char *function, ncclComm *comm, ncclResult_t result);

/* rules_comm_made: a communicator has been created, and its device now belongs to the calling
 * thread. rules_comm_gone: it is about to be destroyed. It must not be used any more, and no other
 * communicator may ever get its address. */
void rules_comm_made(ncclComm *comm);
void rules_comm_gone(ncclComm *comm);

/* Checks a call before it is queued. Each of its buffers must be inside one live allocation of the
 * communicator's device, they may overlap only as NCCL's "in place" allows, and the stream must
 * belong to the device. */
void rules_call(const Call *call);

/* Checks the n calls of a launch (a group, or a single call) in the thread that issues it. No two
 * of them may write the same bytes, or one write what another reads. The order of launches must not
 * make devices wait for each other in a cycle (order.h). From now until rules_done, which any
 * thread may call, freeing the buffers is an error. Returns false if EMU_NCCL_FAULT says that the
 * launch never completes. */
bool rules_launch(Call *const *calls, int n);
void rules_done(Call *const *calls, int n);
/* Returns the version that ncclGetVersion reports, where `version` is the true one. */
int rules_version(int version);

/* ---- internal to the rules ------------------------------------------------------------------- */

/* misuse.cc: returns the open communicators of the device. */
std::vector<ncclComm *> misuse_standing(int device);

/* faults.cc: triggers the fault, if any, that EMU_NCCL_FAULT plants at this call of `function`.
 * Returns the code that the function must return, or ncclSuccess. Does not return if the call never
 * ends. Called by the device's thread. */
ncclResult_t faults_enter(const char *function, int device, ncclComm *comm);
/* Returns whether the calling thread's next launch never completes. Its asynchronous error, if any,
 * is stored in the call's communicator, or in `first` if the call has none. */
bool faults_never(ncclComm *first);
/* Called when the first uses of a launch are over: delays the calling thread if the launch is late.
 */
void faults_delay(void);
/* Returns whether the call that the calling thread is making has a wrong result. */
bool faults_wrong(void);
bool faults_missing(const char *function);

/* launches.cc: the order of launches on all devices of the process */
void launches_add(Call *const *calls, int n);
/* A communicator is destroyed. With the last one, the process writes its launches to
 * EMU_NCCL_ORDER. */
void launches_comm_gone(const ncclComm *comm, bool last);

/* buffers.cc: the checks of memory */
void buffers_check(const Call *call);
void buffers_check_launch(Call *const *calls, int n);
void buffers_pin(const Call *call);
void buffers_unpin(const Call *call);

#endif
