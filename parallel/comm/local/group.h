/* group.h -- inside parallel/comm/local: the shared state of a group of thread ranks, and the
 * functions with which its members wait for each other. A "meeting" is a barrier of all members. A
 * collective has two of them. */
#ifndef PARALLEL_COMM_LOCAL_GROUP_H
#define PARALLEL_COMM_LOCAL_GROUP_H

#include "model/core/guard.h"
#include "parallel/comm/blame.h"
#include "parallel/comm/call.h"
#include "parallel/comm/local/local.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct LocalGroup LocalGroup;

/* What the guard thread reads about one rank's wait (guard.h). */
typedef struct {
    GuardWatch watch;
    /* 0 while the rank does not sleep. Otherwise a number that changes whenever the rank's timeout
     * restarts. While `turn` is not 0, the description of the call (group, call, calls) does not
     * change. */
    _Atomic int64_t turn;
    int64_t turns; /* the last value of `turn` that was not 0 */
    char group[16];
    const char *call;
    int64_t calls;
} LocalWatch;

struct LocalWorld {
    double timeout;      /* limit of each wait, in seconds; 0: no limit */
    LocalWatch *watched; /* [ranks of the world]; NULL if there is no limit */
    int yields;          /* number of times that a member polls before it sleeps */
    pthread_mutex_t mutex;
    BlameRoom *room;    /* for searches (blame.h); guarded by the mutex */
    LocalGroup *all;    /* the group of all ranks */
    LocalGroup *groups; /* list of the other groups that some member still has open; guarded by the
                         * mutex */
};

/* One member's call. The first fields must be the same on all members. The rest is the member's
 * own. */
typedef struct {
    const char *name; /* name of the operation: "all-reduce", "send", ... */
    const char *made; /* for a split: name of the new groups */
    int64_t count;    /* in elements; -1: the call moves no data */
    DType dtype;
    ReduceOp op;
    int root;               /* root of a broadcast or peer of a message; else -1 */
    const Backend *backend; /* backend of the tensors; NULL: host memory */
    Device *on;             /* from here on: the member's own values */
    Tensor in;
    int color, key;
} LocalCall;

/* One member's send or receive. */
typedef struct LocalMessage {
    Tensor x;
    Device *on;
    int peer;
    bool sends;
    struct LocalMessage *next; /* for a send: the next one to the same peer */
} LocalMessage;

/* The queue of messages from one rank to another. The sender hands over its messages of one group
 * of calls as a list, after the previous list has been consumed. The two ranks need no mutex: each
 * writes its data first and increments its atomic counter afterwards. */
typedef struct {
    LocalMessage *first, *last; /* the list of messages not yet received; while the sender builds
                                 * it, only the sender uses it */
    Event before, after; /* recorded by the sender at its sends, and by the receiver after its
                          * copies */
    _Atomic int64_t sent, taken; /* number of messages sent, and of messages whose copy the receiver
                                  * has enqueued */
    _Atomic int64_t seen;        /* number of messages whose copies the sender's stream waits for */
    const void *reader;          /* the stream on which `after` was recorded; only the receiver uses
                                  * it */
} LocalPair;

/* Returns whether member `rank` is waiting for member `peer`, according to the counters of the two:
 * false if the peer has done its part and `rank` has not woken up yet. Called with the group's
 * mutex held. */
typedef bool (*LocalWaitingFor)(const LocalGroup *group, int rank, int peer);

typedef struct {
    int world_rank;
    bool closed;                 /* the member has left the group */
    bool unlimited;              /* its waits have no deadline */
    atomic_bool asleep;          /* set before the member checks the counter a last time and
                                  * sleeps */
    LocalWaitingFor waiting_for; /* set while asleep; guarded by the mutex */
    pthread_cond_t woken;
    int64_t arrived;  /* number of meetings that it has arrived at */
    int64_t calls;    /* number of its calls so far, for error messages */
    int64_t finished; /* collectives that it has completed; guarded by the mutex */
    LocalCall call;   /* written before the call's first meeting; others read it until the last */
    LocalGroup *made; /* the group that it has created in its last split: written between the
                       * split's two meetings, read after the second */
    Event before, after;
    Device device; /* the first device that it named: needed to destroy its events */
    bool noting;   /* true between group_begin and group_end */
    LocalMessage *note;
    int notes, room;
} LocalMember;

struct LocalGroup {
    LocalWorld *world;
    LocalGroup *next; /* next in the world's list */
    char name[16];
    int size;
    int open; /* members that have not closed it; guarded by the world's mutex */
    pthread_mutex_t mutex;
    int here;                 /* members that have arrived at the current meeting */
    _Atomic int64_t meetings; /* number of completed meetings */
    LocalMember *member;
    LocalPair *pair; /* index: from * size + to */
};

static inline LocalGroup *local_group(const Comm *comm)
{
    return comm->impl;
}

static inline LocalMember *local_member(const Comm *comm)
{
    return &local_group(comm)->member[comm->rank];
}

static inline LocalPair *local_pair(LocalGroup *group, int from, int to)
{
    return &group->pair[from * group->size + to];
}

/* Starts a call: stores it and increments the member's call counter. No other member reads
 * member->call yet. */
void local_begin(Comm *comm, LocalCall call);
/* Holds a meeting: blocks until all members have called this function as often as this member. At a
 * call's first meeting, the program ends if the members do not make the same call. */
void local_meet(Comm *comm);
/* Blocks until the counter has reached `count`: polls a few times, then sleeps until another member
 * wakes this one. Ends the program if a rank that it waits for has left, or if the wait exceeds the
 * timeout. Time in which the process was stopped does not count. The timeout restarts whenever
 * another transport enforces the deadline (local_leaves_deadline). */
void local_await(Comm *comm, const _Atomic int64_t *counter, int64_t count,
                 LocalWaitingFor waiting_for);
/* waits.c. Ends the program because a wait cannot go on: if `lost`, because ranks that this member
 * waits for have left; otherwise because of the timeout. Called with the group's mutex held. */
void local_end_waiting(Comm *comm, bool lost) __attribute__((noreturn));
/* Returns whether some rank that this member waits for, directly or through other waits, is in a
 * call of another transport that enforces its own deadline (deadline_held_elsewhere). If so, that
 * transport's error message will name the cause. Called with the group's mutex held; releases it
 * during the search. */
bool local_leaves_deadline(Comm *comm);
/* Begin and end the guard's watch over the waits of all ranks of a world. */
void local_guard(LocalWorld *world);
void local_unguard(LocalWorld *world);
/* Tells the guard that this rank goes to sleep in a call, or, if it already sleeps there, that its
 * timeout restarts. */
void local_sleeps(Comm *comm);
/* Tells the guard that this rank has woken up. */
void local_wakes(Comm *comm);
/* Returns whether time does not count against the member's deadline at the moment, because the
 * member waits only for the rank that prints, whose console is blocked (log_blocked). Called with
 * the group's mutex held; releases it during the search. */
bool local_excused(Comm *comm);
/* Returns the call as error messages describe it. */
CommCall local_call(const LocalGroup *group, const LocalCall *call);
/* Writes the call to text[0..n) with comm_call_text. Returns text. */
const char *local_describe(const LocalGroup *group, const LocalCall *call, char *text, size_t n);
/* Wakes the member if it is asleep, so that it reads the counter that it waits for again. Called
 * without the mutex, after the counter was changed. */
void local_wake(LocalGroup *group, LocalMember *member);
/* Makes all members check again whether they must wait. The caller has made the change with the
 * mutex held, and has released the mutex. */
void local_wake_all(LocalGroup *group);

/* local_record records an event on the stream of `on`. local_wait makes that stream wait for an
 * event. Both do nothing if `on` is NULL. */
void local_record(Comm *comm, Device *on, Event *event);
void local_wait(Device *on, Event *event);
/* Copies src to dst, on the stream of `on`, or on the host if `on` is NULL. */
void local_copy(Device *on, Tensor dst, Tensor src);

void local_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op);
void local_reduce_scatter(Comm *comm, Device *on, Tensor part, Tensor whole);
void local_all_gather(Comm *comm, Device *on, Tensor whole, Tensor part);
void local_broadcast(Comm *comm, Device *on, Tensor x, int root);
void local_send(Comm *comm, Device *on, Tensor x, int to);
void local_receive(Comm *comm, Device *on, Tensor x, int from);
void local_group_begin(Comm *comm);
void local_group_end(Comm *comm);

#endif
