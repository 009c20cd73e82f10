/* group.h -- inside parallel/comm/nccl: one communicator of NCCL's, what this rank has called on
 * it, and what the watchdog thread needs to know of both. */
#ifndef PARALLEL_COMM_NCCL_GROUP_H
#define PARALLEL_COMM_NCCL_GROUP_H

#include "model/core/check.h"
#include "parallel/comm/blame.h"
#include "parallel/comm/nccl/library.h"
#include "parallel/comm/nccl/nccl.h"

#include <pthread.h>

/* So many of a communicator's last calls are remembered. Where a host is further ahead, the oldest
 * call that is remembered is named in place of the one in which the device is. CUDA queues about as
 * much before it has the host wait, and each call has computation beside it. */
enum { NCCL_RING = 1024 };

/* One call of the host's. All calls between group_begin and group_end are one. */
typedef struct {
    const char *name;  /* "all-reduce", "connect" */
    const char *group; /* of the Comm: groups may share a communicator */
    int64_t elements;  /* -1: the call moves none */
    DType dtype;
    ReduceOp op;
    int peer; /* rank of the world: a message's peer, a broadcast's root; else -1 */
    int more; /* calls that follow in the same group_begin */
} NcclCall;

/* Tell where a device is: whether it has come to a call, and whether it is through with it. */
typedef struct {
    Event before, after;
} NcclMarks;

typedef struct NcclGroup NcclGroup;

struct NcclGroup {
    char name[16];
    int rank, size;
    int *world_rank; /* of each member */
    NcclId id;       /* the same on all members, and on no other rank */
    double timeout;  /* seconds; 0: none */
    char place[64];  /* of this rank, for messages */
    FILE *log;       /* this rank's own; NULL: none */
    Device *device;
    Device view; /* of it, for the watchdog */
    /* Around each call on its stream. The watchdog asks copies, which the host's next records do
     * not change. */
    NcclMarks mark[NCCL_RING], asked[NCCL_RING];

    pthread_mutex_t mutex; /* guards this part */
    NcclHandle *handle;    /* NULL: not yet, or not any more */
    NcclCall ring[NCCL_RING];
    int64_t calls;  /* that the host has begun */
    int64_t issued; /* that have come back, with their event recorded */

    /* The watchdog's, guarded by its mutex: how many calls have ended; the oldest that had not when
     * it last looked (-1: none); and how many seconds more that one may take. */
    NcclGroup *next;
    int64_t finished, watched;
    double patience;
};

/* watchdog.c. Between these two a group is watched. */
void nccl_watch(NcclGroup *group);
void nccl_unwatch(NcclGroup *group);
/* Called by the host: a call begins; another joins it; it has come back and its mark is recorded.
 */
void nccl_call_begins(NcclGroup *group, NcclCall call);
void nccl_call_grows(NcclGroup *group);
void nccl_call_ends(NcclGroup *group);

/* Called by the watchdog before it asks for marks: it enters the group's device, and what fails
 * there is reported with the group's rank. */
void nccl_enter(NcclGroup *group);

/* failure.c. From here on this thread's messages are those of the group's rank, with its place and
 * in its log. */
void nccl_speak_for(const NcclGroup *group);
/* The same before the end of the program, which other threads do not survive: they run on, perhaps
 * inside NCCL. */
void nccl_end_for(const NcclGroup *group);
/* Ends the program, in whatever thread: the call of that number failed. EXIT_PEER_LOST where NCCL
 * has lost a peer, EXIT_NO_MEMORY where its words are about the GPU's memory, else EXIT_SYSTEM. */
void nccl_end_failed(NcclGroup *group, int64_t number, NcclResult result) __attribute__((noreturn));

/* waits.c. "group dp, call 7, all-reduce of 64 f32". Returns text. */
const char *nccl_describe_call(NcclGroup *group, int64_t number, char *text, size_t n);
/* With the watchdog's mutex held; `all` is its list of groups. Ends the program (EXIT_HANG): the
 * oldest call of `group` that has not ended has taken too long. */
void nccl_end_waiting(NcclGroup *all, NcclGroup *group) __attribute__((noreturn));

/* This rank's number in the world. */
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
