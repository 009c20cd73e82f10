/* inside.h -- internal types and functions of the emulated NCCL.
 *
 * A call is queued in its thread's group. The outermost ncclGroupEnd makes one plan per
 * communicator: its collectives in order, then all its messages at once. A plan is one piece of
 * work on a stream (emu_stream_do_host). Events make it wait for the plan's other streams and for
 * the communicator's previous plan. There are two TCP connections to each peer: one for the data
 * that streams send, and one for the host, which waits for its peers at the first use of an
 * operation or a peer. */
#ifndef TESTS_EMU_NCCL_INSIDE_H
#define TESTS_EMU_NCCL_INSIDE_H

#include "tests/emu/device/door.h"
#include "tests/emu/nccl/nccl_emu.h"

#include <atomic>
#include <pthread.h>
#include <stdint.h>

enum Verb { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, SEND, RECEIVE, VERBS };
enum {
    KINDS = 2 * VERBS
}; /* an operation's first uses with little data and with much data are separate kinds (first.cc) */

/* A call as its peers see it. It is sent over a data connection as a frame, before the bytes. */
typedef struct {
    uint32_t frame;             /* an enum Frame */
    int32_t verb;               /* an enum Verb */
    uint64_t number;            /* number of a collective in its communicator, or of a message
                                 * between two ranks */
    uint64_t count;             /* elements; in FRAME_DATA, bytes */
    int32_t type, reduction;    /* reduction -1: none */
    int32_t root;               /* root of a broadcast; else -1 */
    int32_t place, collectives; /* index in its plan, and the plan's number of collectives */
    int32_t rank;               /* the rank that makes the call */
} Header;

enum Frame { FRAME_COLLECTIVE = 0x4e43, FRAME_SEND, FRAME_RECEIVE, FRAME_DATA, FRAME_BYE };

struct Call {
    ncclComm *comm;
    Verb verb;
    const void *send;          /* NULL: the call reads nothing */
    void *recv;                /* NULL: the call writes nothing */
    size_t count;              /* as passed by the caller */
    int type, reduction, peer; /* peer: peer of a message or root; else -1 */
    cudaStream_t stream;
    uint64_t number; /* same meaning as in Header */

    int place, collectives;
    size_t send_bytes, recv_bytes;
    char *input, *result; /* private copies of the data */
    bool wrong;           /* a planted fault: the result is wrong */
    bool first;           /* first use of its kind: the host waits for its peers */
};

/* Headers that arrived before this rank made the matching calls. */
typedef struct {
    Header *header;
    int first, n, capacity;
} HeaderQueue;

/* The connections to one peer, and their state. */
typedef struct {
    int data, control; /* sockets; -1 for the rank itself */
    HeaderQueue sends, receives;
    uint64_t sent, received; /* number of messages issued */
    bool used_send, used_receive;
    int came[KINDS], n_came; /* kinds of collectives that the peer has announced as first uses, in
                              * its order; next line: the same for messages */
    bool came_send, came_receive;
} Link;

struct ncclComm {
    bool alive;
    uint64_t id; /* the same on all ranks */
    int rank, ranks, device;
    int max_ctas;           /* config.maxCTAs, or that of the environment */
    char name[64];          /* config.commName, or "" */
    std::atomic<int> async; /* the result of ncclCommGetAsyncError */
    std::atomic<bool> aborted;
    std::atomic<int> inside; /* number of threads that use its connections */
    int wake;                /* eventfd that interrupts all waits */
    bool late;
    bool one_ring;                 /* EMU_NCCL_CONNECT=ring */
    bool early;                    /* EMU_NCCL_LEAVE=early */
    Link *link;                    /* one link per rank */
    int *ring, position;           /* ranks in the ring's order, and this rank's index in it */
    uint64_t issued;               /* number of collectives issued */
    bool used[KINDS];              /* kinds of collectives that were called before */
    cudaEvent_t reached, finished; /* reached: recorded on each further stream of a plan, before the
                                    * plan; finished: recorded after the last plan */
    bool planned;                  /* `finished` has been recorded */
    void *reserve;
    ncclComm *next; /* list of all communicators ever made: none is freed */
};

/* The work of one launch on one communicator. */
typedef struct Plan {
    ncclComm *comm;
    Call **call; /* the calls, collectives first */
    int n, collectives;
    cudaStream_t *stream; /* all streams that its calls name, each once */
    int n_streams;
    bool never; /* a planted fault: the plan never completes */
} Plan;

/* ---- types (reduce.cc) ----------------------------------------------------------------------- */

size_t type_size(int type); /* returns 0 if there is no such type */
const char *type_name(int type);
const char *reduction_name(int reduction);
/* Computes to = to (reduction) from, element by element, rounded to the type. */
void reduce(void *to, const void *from, size_t count, int type, int reduction);
/* Multiplies by an average's factor 1/ranks: for floats before the sum, for integers after it. */
void average(void *x, size_t count, int type, int ranks, bool before);

/* ---- calls ----------------------------------------------------------------------------------- */

const char *verb_name(int verb); /* for example "ncclAllReduce" */
/* Writes, for example, "ncclAllReduce of 12 float32, sum, 1. of the 2 in its group (its number
 * 3)". */
void call_describe(const Header *header, char *buf, size_t n);
Header call_header(const Call *call);
/* Writes, for example, "communicator 1f3a9 (dp) of 4". */
const char *comm_describe(const ncclComm *comm, char *buf, size_t n);
/* Stores the message for ncclGetLastError and returns the code. */
ncclResult_t last_error(ncclResult_t code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* group.cc: queues a copy of the call. Outside a group, launches it at once. */
ncclResult_t group_add(const Call *call);

/* ---- sockets (net.cc) ------------------------------------------------------------------------ */

typedef union {
    struct {
        uint16_t family;
        char rest[62];
    };
    char bytes[64];
} Address; /* a sockaddr_in or sockaddr_in6 */

/* Writes the interface's address with port 0. Returns ncclInvalidUsage if no interface matches. */
ncclResult_t net_interface(Address *address);
/* Returns a socket that listens on the address and stores its port there. Returns -1 on error. */
int net_listen(Address *address);
int net_connect(const Address *address); /* returns -1 on error */
/* Transfer all bytes over a blocking socket. Return false if the peer has closed the connection. */
bool net_write(int s, const void *p, size_t bytes);
bool net_read(int s, void *p, size_t bytes);
void net_nonblocking(int s);
/* Waits until one of the sockets is ready. Returns false if the communicator was aborted. */
struct pollfd;
bool net_poll(ncclComm *comm, struct pollfd *sockets, int n);

/* One part of an exchange: bytes to or from a rank. Pieces of the same rank and direction are
 * transferred in order. */
typedef struct {
    int rank;
    bool out;
    char *data;
    size_t left;
} Piece;

/* Transfers all pieces over the data connections, in both directions at once. Returns false if a
 * peer has closed its connection. */
bool net_exchange(ncclComm *comm, Piece *piece, int n);

/* ---- init (root.cc, init.cc, mesh.cc) -------------------------------------------------------- */

/* What a rank sends to the root, and the root to all ranks. */
typedef struct {
    uint64_t id;
    int32_t rank, ranks, version, device, max_ctas;
    int32_t process; /* the process id */
    uint64_t host;
    char bus_id[32];
    Address address;
} Hello;

/* The root's reply, which precedes the Hellos of all ranks. */
typedef struct {
    int32_t code;  /* an ncclResult_t */
    int32_t fatal; /* the message ends the program */
    char sentence[248];
} Welcome;

/* The contents of an ncclUniqueId. */
typedef struct {
    uint64_t id;
    Address address;
} IdContent;

ncclResult_t root_start(ncclUniqueId *id);
/* Opens the connections between all ranks. Returns false if a peer has closed its connection. */
bool mesh_open(ncclComm *comm, int listener, const Hello *all);
/* Waits on the host until all ranks have called it. Returns false if a peer is lost. */
bool mesh_meet(ncclComm *comm);
/* Says goodbye to all peers, waits until they have done so too, and closes the connections. */
void mesh_close(ncclComm *comm);

/* ---- carrying out calls ---------------------------------------------------------------------- */

/* first.cc: blocks the host until every peer that the plans use for the first time does the
 * same. */
ncclResult_t first_use(Plan *const *plans, int n);
/* plan.cc: carries out the plan's calls, on copies of their inputs, and frees the plan. */
void plan_run(Plan *plan);
void plan_free(Plan *plan);
/* Copies the call's input, unless that has been done already. */
void call_read(Call *call);
void mismatch(const ncclComm *comm, const Header *mine, const Header *theirs)
    __attribute__((noreturn));
/* collective.cc, message.cc. Return false if a peer has closed its connection. */
bool collective_run(Call *call);
bool messages_run(ncclComm *comm, Call **call, int n);

#endif
