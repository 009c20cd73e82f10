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
    struct SocketGroupShare *next; /* next in the service's list; guarded by its mutex */
    uint64_t id;
    char name[16];
    SocketMembers members;           /* all are known */
    int member;                      /* index of this rank among them */
    _Atomic int64_t calls, meetings; /* number of calls, and of meetings, that this rank has
                                      * begun */
    bool closed;                     /* this rank has left the group; guarded by the mutex */
    int64_t reported;                /* 1 + the number of meetings as last reported to rank 0; 0:
                                      * not reported yet. Only the service thread uses this field
                                      * and the next one */
    int listed;                      /* number of members that were listed in reports */
} SocketGroupShare;

struct SocketService {
    SocketLinks *links;
    int rank;
    double timeout;
    pthread_t thread;
    int wake;  /* an eventfd that wakes the service thread, which then reports */
    int nudge; /* an eventfd that wakes the rank's own thread when rank 0 asks whether that thread
                * still waits for other ranks */
    atomic_bool stop;
    _Atomic uint64_t question; /* number of that question */
    atomic_bool claiming;      /* this rank fails, and has asked for permission to print the
                                * error */
    atomic_bool granted;       /* rank 0 has granted it */
    atomic_bool alone;         /* no rank can grant it: the connection to rank 0 is lost */
    _Atomic int64_t wish;      /* number of the dump that this process requests; 0: none */
    pthread_mutex_t mutex;     /* guards `wait`, `groups` and `left` */
    SocketWait wait;
    SocketGroupShare *groups, *left;        /* left: groups that the service thread no longer needs,
                                             * to be freed */
    SocketHub *hub;                         /* in rank 0's process: what rank 0 knows of all
                                             * ranks */
    pthread_mutex_t sends;                  /* guards sending on the connections to rank 0, the
                                             * parent and the children, and on the hub's
                                             * connections */
    SocketStream zero;                      /* in other processes: the first connection to rank 0 */
    SocketPacket packet;                    /* only the service thread uses the fields from here
                                             * on */
    WatchedCall watched[WATCHED_IN_REPORT]; /* the last reported state of the watched groups */
    int watches;
    uint64_t asked; /* number of rank 0's latest question */
    double silent;  /* seconds since rank 0 last sent something */
    uint64_t timed; /* number of the wait that `waited` belongs to */
    double waited;  /* seconds of that wait that count against the timeout */
    bool farewell;  /* rank 0 has reported that all ranks have left */
    SocketRelay relay;
};

/* Starts the thread. */
void socket_service_start(SocketService *service, SocketLinks *links, int rank, double timeout);
/* Sends the goodbye: reports that this rank has left the world, with the last state of its groups.
 * Rank 0 and joined ranks then wait until all ranks have left. Ends the thread. */
void socket_service_stop(SocketService *service);
/* Adds a group to those that the thread reports. */
void socket_service_opens(SocketService *service, SocketGroupShare *group);
/* Tells the thread that this rank has left the group. The caller must not use the group any more:
 * the thread frees it later, with its members. It calls free() with the address of the share, so
 * the share must be at the beginning of its allocation. */
void socket_service_closes(SocketService *service, SocketGroupShare *group);
/* Tells the thread that the rank has waited for a while, or that it now waits for other ranks than
 * before. */
void socket_service_waits(SocketService *service, const SocketWait *wait);
/* Tells the thread that the rank no longer waits. */
void socket_service_goes_on(SocketService *service);
/* Wakes the thread. */
void socket_service_wake(SocketService *service);
/* Makes the rank's own thread check whether it still waits, because rank 0 has asked this
 * question. */
void socket_service_nudge(SocketService *service, uint64_t question);

/* ---- above.c: for ranks other than 0 --------------------------------------------------------- */

/* Called when the connection to rank 0 has closed, or a rank above this one has reported that. Ends
 * this process and those of all ranks below, unless this rank itself fails or all have left. On
 * each machine one rank prints the error. */
void socket_above_lose_rank_0(SocketService *service);
/* Called when the connection to the parent, which is not rank 0, has closed. Ends the same
 * processes as socket_above_lose_rank_0, under the same conditions, but silently, because rank 0
 * prints the error. */
void socket_above_lose_parent(SocketService *service);
/* Called when a rank above this one has ended because rank 0 is silent. Ends the same processes as
 * socket_above_lose_rank_0, under the same conditions. */
void socket_above_lose_silent_rank_0(SocketService *service);
/* Ends the process if rank 0, or a rank on the way to it, has been silent for too long. */
void socket_above_watch(SocketService *service);

/* ---- for hub.c and relay.c ------------------------------------------------------------------- */

/* Returns the interval, in seconds, at which rank 0 and the other ranks send each other signs of
 * life. If the ranks have joined, silence alone ends the program, so the interval is at most a
 * third of the timeout. */
double socket_heartbeat(const SocketLinks *links, double timeout);

/* Reports this rank's state to rank 0, in several packets. `goodbye`: the rank has left the world.
 * Returns false if it cannot be sent now: rank 0 is stopped, or has ended. */
bool socket_service_report(SocketService *service, bool goodbye);

#endif
