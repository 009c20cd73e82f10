/* service.h -- inside parallel/comm/socket: the thread of each rank's process that reports to rank
 * 0 and receives from it. It makes no call that may block: no CUDA, no NCCL, no disk, no memory
 * allocation. (Rank 0's allocates when a group is first reported.) */
#ifndef PARALLEL_COMM_SOCKET_SERVICE_H
#define PARALLEL_COMM_SOCKET_SERVICE_H

#include "parallel/comm/socket/links.h"
#include "parallel/comm/socket/relay.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct SocketGroup SocketGroup;
typedef struct SocketWorld SocketWorld;
typedef struct SocketHub SocketHub;

/* The part of a group that the service thread reads. */
typedef struct SocketGroupShare {
    struct SocketGroupShare *next; /* list of the service; guarded by its mutex */
    uint64_t id;
    char name[16];
    SocketMembers members;           /* all are known */
    int member;                      /* which of them this rank is */
    _Atomic int64_t calls, meetings; /* numbers of those that this rank has begun */
    bool closed;                     /* this rank has left the group; guarded by the mutex */
    int64_t reported;                /* 1 + number of meetings that were reported to rank 0; 0:
                                      * nothing was. Only the thread uses this and the next field */
    int listed;                      /* number of members that were reported */
} SocketGroupShare;

struct SocketService {
    SocketLinks *links;
    int rank;
    double timeout;
    pthread_t thread;
    int wake;  /* an eventfd: the thread reports at once */
    int nudge; /* an eventfd: rank 0 asks whether the waiting rank still waits */
    atomic_bool stop;
    _Atomic uint64_t question; /* its number */
    atomic_bool claiming;      /* this rank fails, and has asked for permission to print the
                                * error */
    atomic_bool granted;       /* rank 0 has granted it */
    atomic_bool alone;         /* nobody can grant it: the connection to rank 0 is lost */
    _Atomic int64_t wish;      /* number of the dump that this process requests; 0: none */
    pthread_mutex_t mutex;     /* guards the next two */
    SocketWait wait;
    SocketGroupShare *groups, *left;        /* left: groups that the thread no longer needs */
    SocketHub *hub;                         /* in rank 0's process: what it knows of all ranks */
    pthread_mutex_t sends;                  /* guards what is sent to rank 0, or by the hub */
    SocketStream zero;                      /* in other processes: the first connection to rank 0 */
    SocketPacket packet;                    /* only the thread uses the rest */
    WatchedCall watched[WATCHED_IN_REPORT]; /* the last reported state of the watched groups */
    int watches;
    uint64_t asked; /* number of rank 0's latest question */
    double silent;  /* seconds since rank 0 last sent something */
    uint64_t timed; /* number of the wait that `waited` belongs to */
    double waited;  /* seconds of it that count against the timeout */
    bool farewell;  /* rank 0 has reported that all ranks have left */
    SocketRelay relay;
};

/* Starts the thread. */
void socket_service_start(SocketService *service, SocketLinks *links, int rank, double timeout);
/* Sends the goodbye: reports that this rank has left the world, with the last state of its groups.
 * In rank 0's process, and in those of joined ranks, waits until all ranks have done so. Then ends
 * the thread. */
void socket_service_stop(SocketService *service);
/* Add a group, and leave it. After leaving, the caller must not use it any more. The thread frees
 * it later, with its members, by free(), so the share must be at the beginning of its
 * allocation. */
void socket_service_opens(SocketService *service, SocketGroupShare *group);
void socket_service_closes(SocketService *service, SocketGroupShare *group);
/* Tell the thread that the rank has waited for a while, or waits for other ranks than before; and
 * that it no longer waits. */
void socket_service_waits(SocketService *service, const SocketWait *wait);
void socket_service_goes_on(SocketService *service);
/* Wakes the thread. */
void socket_service_wake(SocketService *service);
/* Makes the rank's own thread check whether it still waits, because rank 0 has asked this
 * question. */
void socket_service_nudge(SocketService *service, uint64_t question);

/* ---- above.c: of ranks other than 0 -----------------------------------------------------------
 */

/* Called when the connection to rank 0 has closed, or a rank above this one has reported that. Ends
 * this process and those of all ranks below, unless this rank itself fails or all have left. On
 * each machine one rank prints the error. */
void socket_above_lose_rank_0(SocketService *service);
/* Does the same if the connection to the parent, which is not rank 0, has closed. Rank 0 prints the
 * error. */
void socket_above_lose_parent(SocketService *service);
/* Does the same if a rank above this one has ended because rank 0 is silent. */
void socket_above_lose_silent_rank_0(SocketService *service);
/* Ends the process if rank 0, or a rank on the way to it, has been silent for too long. */
void socket_above_watch(SocketService *service);

/* ---- for hub.c and relay.c ------------------------------------------------------------------- */

/* Returns the interval, in seconds, at which rank 0 and the other ranks send each other signs of
 * life. If silence alone ends the program, several of them fit into even a short timeout. */
double socket_heartbeat(const SocketLinks *links, double timeout);

/* Reports this rank's state to rank 0, in several packets. `goodbye`: the rank has left the world.
 * Returns false if it cannot be sent now: rank 0 is stopped, or has ended. */
bool socket_service_report(SocketService *service, bool goodbye);

#endif
