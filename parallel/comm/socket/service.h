/* service.h -- inside parallel/comm/socket: the thread with which each rank's process reports to
 * rank 0 and hears from it. It makes no call that may block: no CUDA, no NCCL, no disk, no memory
 * allocation. (Rank 0's allocates when it first hears of a group.) */
#ifndef PARALLEL_COMM_SOCKET_SERVICE_H
#define PARALLEL_COMM_SOCKET_SERVICE_H

#include "parallel/comm/socket/links.h"
#include "parallel/comm/socket/relay.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct SocketGroup SocketGroup;
typedef struct SocketWorld SocketWorld;
typedef struct SocketHub SocketHub;

/* What the service thread reads of a group. */
typedef struct SocketGroupShare {
    struct SocketGroupShare *next; /* list of the service; guarded by its mutex */
    uint64_t id;
    char name[16];
    SocketMembers members;           /* all are known */
    int member;                      /* which of them this rank is */
    _Atomic int64_t calls, meetings; /* that this rank has begun */
    bool closed;                     /* this rank has left the group; guarded by the mutex */
    int64_t reported;                /* 1 + number of meetings that rank 0 knows; 0: none. Only the
                                      * thread uses it, and: */
    int listed;                      /* how many members it has reported */
} SocketGroupShare;

struct SocketService {
    SocketLinks *links;
    int rank;
    double timeout;
    pthread_t thread;
    int wake;  /* an eventfd: the thread reports at once */
    int nudge; /* an eventfd: the waiting rank looks again, because rank 0 has a question */
    atomic_bool stop;
    _Atomic uint64_t question; /* its number */
    atomic_bool claiming;      /* this rank fails, and asks whether it may speak */
    atomic_bool granted;       /* rank 0 lets this rank's failure speak */
    atomic_bool alone;         /* so does nobody: the way to rank 0 is lost */
    _Atomic int64_t wish;      /* the dump that this process wishes; 0: none */
    pthread_mutex_t mutex;     /* guards the next two */
    SocketWait wait;
    SocketGroupShare *groups, *left; /* left: groups of which the thread needs nothing more */
    SocketHub *hub;                  /* in rank 0's process: what it knows of all ranks */
    pthread_mutex_t sends;           /* guards what is sent to rank 0, or by the hub */
    SocketStream zero;               /* in other processes: the first connection to rank 0 */
    SocketPacket packet;             /* only the thread uses the rest */
    WatchedCall watched[WATCHED_IN_REPORT]; /* what was reported last of watched groups */
    int watches;
    uint64_t asked; /* number of rank 0's latest question */
    double silent;  /* seconds since rank 0 was last heard */
    uint64_t timed; /* the wait that `waited` belongs to */
    double waited;  /* seconds of it that count against the timeout */
    bool farewell;  /* rank 0 has said that all ranks have left */
    SocketRelay relay;
};

/* Starts the thread. */
void socket_service_start(SocketService *service, SocketLinks *links, int rank, double timeout);
/* Says goodbye: reports that this rank has left the world, with the last state of its groups. In
 * rank 0's process it waits until all ranks have done so, and in those of joined ranks, too. Then
 * ends the thread. */
void socket_service_stop(SocketService *service);
/* Adds a group. Leaves it: the caller must not use it any more. It is freed later with its members
 * by free, so the share must be at the beginning of its block. */
void socket_service_opens(SocketService *service, SocketGroupShare *group);
void socket_service_closes(SocketService *service, SocketGroupShare *group);
/* The rank has waited for a while, or waits for others than before; it waits no longer. */
void socket_service_waits(SocketService *service, const SocketWait *wait);
void socket_service_goes_on(SocketService *service);
/* Makes the thread look again. */
void socket_service_wake(SocketService *service);
/* Makes the rank look again whether it still waits, because of this question of rank 0. */
void socket_service_nudge(SocketService *service, uint64_t question);

/* ---- above.c: of ranks other than 0 -----------------------------------------------------------
 */

/* The connection to rank 0 has ended, or a rank above this one has said so. Ends the process, and
 * those of all below, unless it is this rank that fails or all have left. On each machine one rank
 * says so. */
void socket_above_lose_rank_0(SocketService *service);
/* The connection to the parent, which is not rank 0, has ended. The same, but rank 0 says so. */
void socket_above_lose_parent(SocketService *service);
/* A rank above this one has ended because rank 0 is silent. The same. */
void socket_above_lose_silent_rank_0(SocketService *service);
/* Ends the process if rank 0, or a rank on the way to it, has been silent for too long. */
void socket_above_watch(SocketService *service);

/* ---- for hub.c and relay.c ------------------------------------------------------------------- */

/* Returns after how many seconds rank 0 and the others show each other that they live. If their
 * silence alone ends the program, this is several times within a short timeout. */
double socket_heartbeat(const SocketLinks *links, double timeout);

/* Reports this rank's state to rank 0, in several packets. `goodbye`: it has left the world.
 * Returns false if it cannot be sent now: rank 0 is stopped, or has ended. */
bool socket_service_report(SocketService *service, bool goodbye);

#endif
