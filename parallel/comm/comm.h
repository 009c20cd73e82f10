/* comm.h -- the communicator of a group of ranks: collectives and messages on typed tensors, named
 * as in NCCL. The data are moved by a transport (CommOps): between threads, between processes, or
 * over NCCL. This interface counts the calls of all transports.
 *
 * All ranks of a group must make the same calls in the same order. Each call that moves tensors
 * names the Device `on` whose compute stream carries it. The call is enqueued there like any op,
 * and the host continues. (device_on gives a view of a device on another of its streams.) If `on`
 * is NULL, the tensors are in host memory, and the call is complete when it returns. Tensors are
 * dense. No function aborts a group: the first rank that fails ends all ranks (ends_share and
 * ends_set_claim in check.h). */
#ifndef PARALLEL_COMM_COMM_H
#define PARALLEL_COMM_COMM_H

#include "model/core/flight.h"
#include "model/core/recorder.h"
#include "model/core/tensor.h"
#include "parallel/comm/exposed.h"

typedef struct Comm Comm;

/* Largest number of ranks in a world. */
enum { COMM_MAX_RANKS = 65536 };

/* The operations that move data. Calls are counted per rank, group, operation and dtype. An
 * all-gather and a reduce-scatter count the whole tensor. A message counts what is sent or
 * received. */
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

/* The other calls in which ranks wait for each other. Their numbers follow those of the verbs, so
 * one number identifies a call of either kind. */
enum { COMM_BARRIER = COMM_VERBS, COMM_SPLIT, COMM_CALLS };
/* The names of the verbs and of the other calls. */
extern const char *const comm_call_name[COMM_CALLS];

typedef struct {
    int64_t calls, elements, bytes;
} CommCount;
typedef struct {
    CommCount of[COMM_VERBS][DTYPE_COUNT];
    /* Seconds that the host has spent in calls carried by a device. On a backend whose calls are
     * complete when they return, such as the CPU, this is the whole time of communication,
     * including waits for peers. */
    double seconds;
    double waited; /* the part of `seconds` that was spent waiting for peers */
} CommCounts;

/* Evenly spaced ranks of a group: first + i x stride, for i in [0, size). Every group of a grid is
 * such a line. */
typedef struct {
    int first, stride, size;
} CommLine;

/* The functions that a transport provides. A transport that only carries device calls (comm_carry)
 * never gets a call with `on` NULL, and needs none of barrier, split and wait_without_limit. `line`
 * may be NULL; then comm_line calls split. */
typedef struct {
    const char *name; /* name of the transport: "self", "local", "socket", "nccl" or "counted" */
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
    Comm (*line)(Comm *, const char *name, CommLine line);
    void (*wait_without_limit)(Comm *);
    void (*close)(Comm *);
} CommOps;

struct Comm {
    int rank, size;
    char name[16]; /* name of the group: "world", "dp", ... */
    CommLine line; /* the members' ranks in the world; set by comm_line */
    const CommOps *ops;
    void *impl;
    Comm *host;         /* owned; carries host calls. NULL: this communicator carries them */
    CommCounts *counts; /* owned; freed by comm_close */
    bool carried;       /* a device has carried a call since group_begin, so group_end is counted as
                         * a device call */
    double waited;      /* seconds that calls have waited for peers so far; updated by the
                         * transport */
    Exposed *exposed;   /* measures exposed communication on the group's axis; NULL: it is not
                         * measured */
    RecordedCalls recorded; /* the calls since group_begin, for the device's recorder */
    Flight *flight;         /* this rank's flight recorder, which notes every call; NULL: none */
    int flight_group;       /* the group's index in the flight recorder */
    int64_t collectives;    /* how many collectives this rank has begun in this group, including
                             * barriers and splits; not counted in groups of one rank */
    int64_t first_message;  /* number of the flight recorder's entry for the first message since
                             * group_begin; 0: none */
};

/* Returns a communicator of one rank, in which no data moves. */
Comm comm_self(const char *name);
/* Closes the communicator. Must be called before the devices that its calls have named are closed,
 * because it frees their events. All enqueued calls must be complete: the caller has synchronized
 * the devices, or has freed device memory, which also synchronizes. */
void comm_close(Comm *comm);
/* Makes this group, and the groups that are made from it later, note their calls in this flight
 * recorder; NULL: in none. The recorder must outlive the groups, or be replaced by NULL first. */
void comm_flight(Comm *comm, Flight *flight);
/* Returns the counts so far. They are zero for operations that were never called. */
const CommCounts *comm_counts(const Comm *comm);
/* Called by a transport: from now on device calls go through `ops` with `impl`, and host calls go
 * through the communicator's previous transport. comm_close closes both transports, that of the
 * device calls first. */
void comm_carry(Comm *comm, const CommOps *ops, void *impl);

/* Reduces x over the ranks, in place, with the same bits on every rank. Sums are computed by op_sum
 * in rank order. Maxima are computed by op_maximum, so a NaN of any rank is kept. NCCL adds in its
 * own order, and its maxima may lose a NaN (nccl.h). */
void comm_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op);
/* Sums `whole` over all ranks, in rank order, divides the sum into `size` equal parts, and stores
 * the rank-th part in `part`. `part` may be that part of `whole` itself. The other parts of `whole`
 * keep their values. */
void comm_reduce_scatter(Comm *comm, Device *on, Tensor part, Tensor whole);
/* Concatenates all ranks' parts, in rank order, in `whole`. `part` may be the rank-th part of
 * `whole`. */
void comm_all_gather(Comm *comm, Device *on, Tensor whole, Tensor part);
/* Copies the root's x to x on all other ranks. */
void comm_broadcast(Comm *comm, Device *on, Tensor x, int root);
/* Send or receive one message. Messages between two ranks match in the order of their calls. */
void comm_send(Comm *comm, Device *on, Tensor x, int to);
void comm_receive(Comm *comm, Device *on, Tensor x, int from);
/* Begin and end a group of calls. Messages in between are only queued. group_end carries them out
 * together, so no order of calls can deadlock the ranks. A group without messages may contain
 * collectives: the transport starts them together if it can, otherwise one by one. */
void comm_group_begin(Comm *comm);
void comm_group_end(Comm *comm);
/* Calls device_event_wait(on, event) for an event that another stream records after a transfer of
 * this group. If `on` is the device itself and not a view, its compute stream is idle during this
 * wait, so the wait counts as exposed communication. */
static inline void comm_await(Comm *comm, Device *on, Event *event)
{
    Exposed *exposed = on->view ? NULL : comm->exposed;
    exposed_begin(exposed);
    device_event_wait(on, event);
    exposed_end(exposed);
}
/* Returns when all ranks of the group have called it. It synchronizes hosts only. */
void comm_barrier(Comm *comm);
/* Returns the group of the ranks that pass the same color, ordered by key. All ranks of `comm` must
 * call it. `comm` must outlive the new group. */
Comm comm_split(Comm *comm, const char *name, int color, int key);
/* Returns the group of the ranks of this line, in its order; this rank must be one of them. `comm`
 * is a world or was made by comm_line. All ranks of `comm` must call this function, each with the
 * line that it belongs to. `comm` must outlive the new group. */
Comm comm_line(Comm *comm, const char *name, CommLine line);
/* From now on this rank's host calls in this group wait for the other ranks without a deadline.
 * Meant for a group in which all other ranks wait while one rank works alone. */
void comm_wait_without_limit(Comm *comm);

#endif
