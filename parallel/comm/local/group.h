/* group.h -- inside parallel/comm/local: a group of thread ranks, what its members are doing, and
 * how they meet. */
#ifndef PARALLEL_COMM_LOCAL_GROUP_H
#define PARALLEL_COMM_LOCAL_GROUP_H

#include "parallel/comm/local/local.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct LocalGroup LocalGroup;

struct LocalWorld {
    double timeout; /* seconds; 0: none */
    int yields;     /* how often a member looks again before it sleeps */
    pthread_mutex_t mutex;
    LocalGroup *all;    /* the group of all ranks */
    LocalGroup *groups; /* all but that which somebody has open, guarded by the mutex */
};

/* What one member calls: what all must agree on, and where its own tensors lie. */
typedef struct {
    const char *name; /* of the call; of messages too */
    const char *made; /* a split: the name of the new groups */
    int64_t count;    /* elements; -1: the call moves none */
    DType dtype;
    ReduceOp op;
    int root;               /* a broadcast's root, a message's peer; else -1 */
    const Backend *backend; /* whose tensors; NULL: the host's */
    Device *on;             /* this and the rest: the member's own */
    Tensor in;
    int color, key;
} LocalCall;

/* A send or a receive of one member. */
typedef struct LocalMessage {
    Tensor x;
    Device *on;
    int peer;
    bool sends;
    struct LocalMessage *next; /* sends: the next of the same pair */
} LocalMessage;

/* From one rank to another: the messages of one group, in order, which the sender hands over when
 * none are left of the last. The two need no lock for that: what either leaves for the other it
 * writes before it counts. */
typedef struct {
    LocalMessage *first, *last; /* not yet taken; the sender's own, while it makes the list */
    Event before, after; /* the sender's stream at its sends; the receiver's after its copies */
    _Atomic int64_t sent, taken; /* messages; taken: the receiver's copy is on its stream */
    _Atomic int64_t seen;        /* those of `taken` that the sender's stream waits for */
    const void *reader;          /* the stream of `after`; the receiver's own */
} LocalPair;

/* Whether that member (`rank`) waits for that other one; asked with the group's mutex held. */
typedef bool (*LocalWaitingFor)(const LocalGroup *group, int rank, int peer);

typedef struct {
    int world_rank;
    bool closed;                 /* it has left */
    atomic_bool asleep;          /* or about to be: it looks once more before it sleeps */
    LocalWaitingFor waiting_for; /* while asleep; guarded by the mutex */
    pthread_cond_t woken;
    int64_t arrived;  /* meetings it has come to */
    int64_t calls;    /* its own count, for messages */
    int64_t finished; /* collectives it is through with, guarded by the mutex */
    LocalCall call;   /* written before a call's first meeting, read by others until its last */
    LocalGroup *made; /* by its last split; written between meetings, read after the last */
    Event before, after;
    Device device; /* the first it named: for the end of its events */
    bool noting;   /* between group_begin and group_end */
    LocalMessage *note;
    int notes, room;
} LocalMember;

struct LocalGroup {
    LocalWorld *world;
    LocalGroup *next; /* in the world's list */
    char name[16];
    int size;
    int open; /* members that have not closed it, guarded by the world's mutex */
    pthread_mutex_t mutex;
    int here;                 /* members that have come to the meeting under way */
    _Atomic int64_t meetings; /* that are over */
    LocalMember *member;
    LocalPair *pair; /* [from * size + to] */
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

/* A call begins: its number goes up, and nobody else reads member->call yet. */
void local_begin(Comm *comm, LocalCall call);
/* Returns when all members have come as often as this one. The first meeting of a call ends the
 * program where the members do not make the same call. */
void local_meet(Comm *comm);
/* Returns once the counter has come to `count`: looks a few times, then sleeps until somebody wakes
 * this member. Ends the program where a rank for which it waits has left, or where the wait lasts
 * too long: time in which the process was stopped does not count, and the wait begins anew where it
 * leaves the deadline to another transport's. */
void local_await(Comm *comm, const _Atomic int64_t *counter, int64_t count,
                 LocalWaitingFor waiting_for);
/* waits.c. With the group's mutex held: ends the program for a member that waits in vain, `lost`:
 * for ranks that have left. */
void local_end_waiting(Comm *comm, bool lost) __attribute__((noreturn));
/* With the group's mutex held, which it gives up meanwhile: whether a rank for which a member
 * waits, or for which that one waits in turn, is in a call of another transport that has a deadline
 * of its own (deadline_held_elsewhere). The end of that call then says why the rank does not come.
 */
bool local_leaves_deadline(Comm *comm);
/* "all-reduce (max) of 1 i64 in host memory", "receive of 12 f32 from rank 2", "barrier". Returns
 * text. */
const char *local_describe(const LocalGroup *group, const LocalCall *call, char *text, size_t n);
/* Called by whoever has counted, without the mutex: the member looks again. */
void local_wake(LocalGroup *group, LocalMember *member);
/* The same with the mutex held, for all members. */
void local_wake_all(LocalGroup *group);

/* The point that the stream of `on` has reached, and a stream that waits for such a point; nothing
 * with `on` NULL. */
void local_record(Comm *comm, Device *on, Event *event);
void local_wait(Device *on, Event *event);
/* dst = src; on the host if `on` is NULL. */
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
