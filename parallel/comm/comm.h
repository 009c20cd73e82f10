/* comm.h -- the communicator of a group of ranks: collectives and messages on typed tensors, named
 * as in NCCL. Each transport is a table of functions; every call is counted here.
 *
 * All ranks of a group make the same calls in the same order. Each call that moves tensors names
 * the Device `on` whose compute stream carries it (device_on gives the view of a device on another
 * of its streams): it is put there like any op, and the host goes on. With `on` NULL tensors are
 * the host's, and the call has finished when it returns. Tensors are dense. There is no verb to
 * abort a group: its ranks are threads of one process, which the first that fails ends (ends_share
 * in check.h). */
#ifndef PARALLEL_COMM_COMM_H
#define PARALLEL_COMM_COMM_H

#include "model/core/device.h"
#include "model/core/tensor.h"
#include "parallel/comm/exposed.h"

typedef struct Comm Comm;

/* No world has more ranks. */
enum { COMM_MAX_RANKS = 64 };

/* The verbs that move data. Calls are counted per rank, group, verb and dtype. An all-gather and a
 * reduce-scatter count the whole tensor; a message counts what is sent or received. */
typedef enum {
    COMM_ALL_REDUCE,
    COMM_REDUCE_SCATTER,
    COMM_ALL_GATHER,
    COMM_BROADCAST,
    COMM_SEND,
    COMM_RECEIVE,
    COMM_VERBS
} CommVerb;
extern const char *const comm_verb_name[COMM_VERBS];

typedef struct {
    int64_t calls, elements, bytes;
} CommCount;
typedef struct {
    CommCount of[COMM_VERBS][DTYPE_COUNT];
    /* That the host has spent in calls that a device carries. Where calls finish before they
     * return, as on the CPU, that is what communication has taken, waiting for peers included. */
    double seconds;
    double waited; /* the part of `seconds` that was spent waiting for peers */
} CommCounts;

/* What a transport fills in. One that carries only what a device carries (comm_carry) never gets a
 * call with `on` NULL, and needs neither barrier nor split. */
typedef struct {
    const char *name; /* of the transport: "self", "local", "nccl" */
    void (*all_reduce)(Comm *, Device *on, Tensor x, ReduceOp op);
    void (*reduce_scatter)(Comm *, Device *on, Tensor part, Tensor whole);
    void (*all_gather)(Comm *, Device *on, Tensor whole, Tensor part);
    void (*broadcast)(Comm *, Device *on, Tensor x, int root);
    void (*send)(Comm *, Device *on, Tensor x, int to);
    void (*receive)(Comm *, Device *on, Tensor x, int from);
    void (*group_begin)(Comm *);
    void (*group_end)(Comm *);
    void (*barrier)(Comm *);
    Comm (*split)(Comm *, const char *name, int color, int key);
    void (*close)(Comm *);
} CommOps;

struct Comm {
    int rank, size;
    char name[16]; /* of the group: "world", "dp", ... */
    const CommOps *ops;
    void *impl;
    Comm *host;         /* owned; carries the host's calls. NULL: this communicator does */
    CommCounts *counts; /* owned */
    bool carried;       /* a call since group_begin is carried by a device, and so is group_end */
    double waited;      /* by the transport: seconds so far in which a call waited for peers */
    Exposed *exposed;   /* of the axis that the group belongs to; NULL: nobody measures it */
};

/* A communicator of one rank: nothing moves. */
Comm comm_self(const char *name);
/* Called before the devices are closed that its calls have named, because it gives back their
 * events. What those calls asked for is done: the caller has waited for the devices, or has given
 * back memory of theirs. */
void comm_close(Comm *comm);
/* The counts so far. Zero where nothing was called. */
const CommCounts *comm_counts(const Comm *comm);
/* For a transport: from here on what a device carries goes through `ops` with `impl`, and the
 * host's calls through what the communicator was so far. comm_close closes both, `ops` first. */
void comm_carry(Comm *comm, const CommOps *ops, void *impl);

/* x = its reduction over the ranks, in place, the same bits on every rank. Sums are op_sum's, in
 * rank order; maxima are op_maximum's, so a NaN of any rank is not lost. NCCL adds in an order of
 * its own, and its maxima may lose a NaN (nccl.h). */
void comm_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op);
/* part = the rank-th of `size` equal parts of the sum of all ranks' `whole`, in rank order. `part`
 * may be that part of `whole` itself; the others keep what they hold. */
void comm_reduce_scatter(Comm *comm, Device *on, Tensor part, Tensor whole);
/* whole = all ranks' parts, one after the other. `part` may be the rank-th part of `whole`. */
void comm_all_gather(Comm *comm, Device *on, Tensor whole, Tensor part);
/* x = the root's x. */
void comm_broadcast(Comm *comm, Device *on, Tensor x, int root);
/* One message each: those of a pair of ranks match in their order. Between group_begin and
 * group_end messages are only noted; group_end carries them out together, so that no order of
 * calls can lock the ranks. Collectives between the two, in a group without messages, go out
 * together where a transport can do that, and one by one elsewhere. */
void comm_send(Comm *comm, Device *on, Tensor x, int to);
void comm_receive(Comm *comm, Device *on, Tensor x, int from);
void comm_group_begin(Comm *comm);
void comm_group_end(Comm *comm);
/* device_event_wait(on, event) for an event that another stream records after what this group
 * moves there. Where `on` is the device itself and no view, its compute stream waits
 * meanwhile, as it does in calls that it carries itself: both are exposed communication. */
static inline void comm_await(Comm *comm, Device *on, Event *event)
{
    Exposed *exposed = on->view ? NULL : comm->exposed;
    exposed_begin(exposed);
    device_event_wait(on, event);
    exposed_end(exposed);
}
/* Returns when all ranks of the group have called it; for the host. */
void comm_barrier(Comm *comm);
/* The group of those ranks that give the same color, ordered by key; all ranks of `comm` call it.
 * `comm` must outlive it. */
Comm comm_split(Comm *comm, const char *name, int color, int key);

#endif
