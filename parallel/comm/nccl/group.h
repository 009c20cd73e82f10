/* group.h -- inside parallel/comm/nccl: one NCCL communicator, the calls that this rank has made on
 * it, and what the watchdog thread needs to know about both. */
#ifndef PARALLEL_COMM_NCCL_GROUP_H
#define PARALLEL_COMM_NCCL_GROUP_H

#include "model/core/check.h"
#include "model/core/guard.h"
#include "parallel/comm/nccl/library.h"
#include "parallel/comm/nccl/nccl.h"
#include "parallel/comm/watched.h"

#include <pthread.h>

/* How many of a communicator's last calls are remembered. If the host is further ahead of the
 * device than this, messages name the oldest remembered call instead of the one that the device is
 * in. This is unlikely: CUDA blocks the host when about as many operations are queued, and these
 * include the computation between the calls. */
enum { NCCL_RING = 1024 };

/* One call of the host. All calls between group_begin and group_end count as one. */
typedef struct {
    const char *name;  /* for example "all-reduce" or "connect" */
    const char *group; /* name of the Comm's group; several groups may share a communicator */
    int64_t elements;  /* -1: the call moves no data */
    DType dtype;
    ReduceOp op;
    int peer; /* world rank: peer of a message or root of a broadcast; else -1 */
    int more; /* number of further calls before the same group_end */
} NcclCall;

/* Events that show whether a device has reached a call, and whether it has completed it. */
typedef struct {
    Event before, after;
} NcclMarks;

typedef struct NcclGroup NcclGroup;

struct NcclGroup {
    WatchedGroup watched; /* counts the calls */
    char name[16];
    int rank, size;
    int *world_rank; /* world rank of each member */
    NcclId id;       /* the same on all members, and different from all other communicators */
    double timeout;  /* limit of each call, in seconds; 0: no limit */
    NcclUse use;
    char place[64]; /* this rank's place in the grid, for messages */
    FILE *log;      /* this rank's log file; NULL: none */
    Device *device;
    Device view;   /* view of the device, for the watchdog */
    float *memory; /* device memory of memory_bytes, for the first use of each operation */
    size_t memory_bytes;
    /* The events before and after each call, on the call's stream. The watchdog queries the copies
     * in `asked`, which do not change when the host records an event again. */
    NcclMarks mark[NCCL_RING], asked[NCCL_RING];

    pthread_mutex_t mutex; /* guards the handle, the ring, and changes of the counters */
    NcclHandle *handle;    /* NULL: not connected yet, or already disconnected */
    NcclCall ring[NCCL_RING];
    _Atomic int64_t issued; /* number of calls that have returned and whose event is recorded */
    NcclGroup *next;        /* next in the watchdog's list; guarded by the watchdog's mutex */
    GuardWatch guarded;     /* lets the guard end the program if the watchdog is stuck */
};

/* nccl.c. Closes the Comm, connected or not. */
void nccl_close(Comm *comm);
/* rest.c. The transport between nccl_prepare and nccl_start, which moves no data. */
extern const CommOps nccl_rest;

/* watchdog.c. Start and stop watching a group. */
void nccl_watch(NcclGroup *group);
void nccl_unwatch(NcclGroup *group);
/* The host tells the watchdog that a call begins. */
void nccl_call_begins(NcclGroup *group, NcclCall call);
/* The host tells the watchdog that it makes another call before the same group_end. */
void nccl_call_grows(NcclGroup *group);
/* The host tells the watchdog that the call has returned and its event is recorded. */
void nccl_call_ends(NcclGroup *group);

/* failure.c. Makes this thread print messages as the group's rank: with its number, its place in
 * the grid and its log file. */
void nccl_speak_for(const NcclGroup *group);
/* Called just before the program ends. Makes this thread print messages as the group's rank, and
 * makes the failure end the whole process at once (ends_share), although other threads are still
 * running, perhaps inside NCCL. */
void nccl_end_for(const NcclGroup *group);
/* Ends the program from any thread because the call with this number failed: with EXIT_PEER_LOST if
 * NCCL has lost a peer, EXIT_NO_MEMORY if its message is about GPU memory, else EXIT_SYSTEM. */
void nccl_end_failed(NcclGroup *group, int64_t number, NcclResult result) __attribute__((noreturn));

/* describe.c. Writes, for example, "group dp, call 7, all-reduce of 64 f32". Returns text. */
const char *nccl_describe_call(NcclGroup *group, int64_t number, char *text, size_t n);
/* Writes the same description for the NcclGroup that contains this WatchedGroup. Returns false if
 * the mutex is not free (WatchedGroup.describe). */
bool nccl_describe_watched(WatchedGroup *group, int64_t number, char *text, size_t n);

/* Returns this rank's number in the world. */
static inline int nccl_own_rank(const NcclGroup *group)
{
    return group->world_rank[group->rank];
}

/* Returns how many calls the host has begun. */
static inline int64_t nccl_calls(const NcclGroup *group)
{
    return atomic_load(&group->watched.begun);
}

#endif
