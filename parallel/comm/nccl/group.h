/* group.h -- inside comm_nccl: one communicator of NCCL's, what this rank has called on it,
 * and what the watchdog thread needs to know of both. */
#ifndef PARALLEL_COMM_NCCL_GROUP_H
#define PARALLEL_COMM_NCCL_GROUP_H

#include "model/core/check.h"
#include "parallel/comm/local/local.h"
#include "parallel/comm/nccl/library.h"
#include "parallel/comm/nccl/nccl.h"

#include <pthread.h>

/* Calls whose end on the device can be asked for: a host that is more calls ahead on one
 * communicator has the oldest of these named in their place. So many are in the order of what CUDA
 * takes before it has the host wait, and a call has computation beside it. */
enum { NCCL_RING = 1024, NCCL_MOST_RANKS = LOCAL_MAX_RANKS };

/* One call of the host's: all of a group_begin are one. */
typedef struct {
    const char *name;  /* "all-reduce", "connect" */
    const char *group; /* of the Comm: groups may share a communicator */
    int64_t elements;  /* -1: the call moves none */
    DType dtype;
    ReduceOp op;
    int peer; /* a message's, a broadcast's root: its rank of the world; else -1 */
    int more; /* calls of the same group behind this one */
} NcclCall;

/* Where a device is: has it come to a call, has it ended it. */
typedef struct {
    Event before, behind;
} NcclMarks;

typedef struct NcclGroup NcclGroup;

struct NcclGroup {
    char name[16];
    int rank, size;
    int *world_rank; /* of each member */
    NcclId id;       /* the same of all members, and of them alone */
    double timeout;  /* seconds; 0: none */
    char place[64];  /* of this rank, for messages */
    FILE *log;       /* this rank's own; NULL: none */
    Device *device;
    Device view; /* of it, for the watchdog */
    /* Around each call on its stream; what the watchdog asks for are copies, which the host's
     * records leave alone. */
    NcclMarks mark[NCCL_RING], asked[NCCL_RING];

    pthread_mutex_t mutex; /* guards this part */
    NcclHandle *handle;    /* NULL: not yet, or not any more */
    NcclCall ring[NCCL_RING];
    int64_t calls;  /* that the host has begun */
    int64_t issued; /* that have come back, with their event recorded */

    /* The watchdog's, guarded by its mutex: calls that have ended, of those the oldest that had not
     * when it looked last, and how much longer it may take. */
    NcclGroup *next;
    int64_t finished, watched;
    double patience;
};

/* nccl_watch.c. Between these two a group is watched. */
void nccl_watch(NcclGroup *group);
void nccl_unwatch(NcclGroup *group);
/* Of the host: a call begins; another joins it; it has come back, with its mark behind it. */
void nccl_call_begins(NcclGroup *group, NcclCall call);
void nccl_call_grows(NcclGroup *group);
void nccl_call_ends(NcclGroup *group);

/* Of the watchdog, before it asks for marks: it is on the group's device, and what fails there is
 * told with the group's rank. */
void nccl_enter(NcclGroup *group);

/* nccl_end.c. What this thread says from here on is said by the group's rank, at its place and to
 * its log. */
void nccl_speak_for(const NcclGroup *group);
/* The ends of the program, in whatever thread. A call of that number failed:
 * EXIT_PEER_LOST where NCCL has lost a peer, EXIT_NO_MEMORY where its words are about the GPU's
 * memory, else EXIT_SYSTEM. */
void nccl_end_failed(NcclGroup *group, int64_t number, NcclResult result) __attribute__((noreturn));
/* With the watchdog's mutex held, of all groups in the list from `all` on: the oldest call of
 * `group` that has not ended has taken too long. */
void nccl_end_waiting(NcclGroup *all, NcclGroup *group) __attribute__((noreturn));

/* Of the world. */
static inline int nccl_own_rank(const NcclGroup *group)
{
    return group->world_rank[group->rank];
}

static inline int64_t nccl_calls(NcclGroup *group)
{
    pthread_mutex_lock(&group->mutex);
    int64_t calls = group->calls;
    pthread_mutex_unlock(&group->mutex);
    return calls;
}

#endif
