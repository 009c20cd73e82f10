/* inside.h -- the inside of the stand-in for libnccl.so.2.
 *
 * A call is queued in its thread's group; the outermost group end makes one plan per communicator
 * of it: its collectives in order, then all its messages at once. A plan is one piece of work on a
 * stream (emu_stream_do_host), joined with the others of its streams by events, after the
 * communicator's plan before. Two TCP connections go to each peer: one for what streams carry, one
 * for what the host waits for: the first use of a verb, of a peer. */
#ifndef TESTS_EMU_NCCL_INSIDE_H
#define TESTS_EMU_NCCL_INSIDE_H

#include "tests/emu/device/door.h"
#include "tests/emu/nccl/nccl_emu.h"

#include <atomic>
#include <pthread.h>
#include <stdint.h>

enum Verb { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, SEND, RECEIVE, VERBS };
enum { KINDS = 2 * VERBS }; /* a verb's first uses: of little, of much (first.cc) */

/* A call as its peers see it; a frame of a data connection, before its bytes. */
typedef struct {
    uint32_t frame;             /* Frame */
    int32_t verb;               /* Verb */
    uint64_t number;            /* a collective's in its communicator, a message's between two */
    uint64_t count;             /* elements; of FRAME_DATA, bytes */
    int32_t type, reduction;    /* reduction -1: none */
    int32_t root;               /* of a broadcast, -1 otherwise */
    int32_t place, collectives; /* in its plan */
    int32_t rank;               /* who calls */
} Header;

enum Frame { FRAME_COLLECTIVE = 0x4e43, FRAME_SEND, FRAME_RECEIVE, FRAME_DATA, FRAME_BYE };

struct Call {
    ncclComm *comm;
    Verb verb;
    const void *send;          /* NULL: nothing is read */
    void *recv;                /* NULL: nothing is written */
    size_t count;              /* as passed */
    int type, reduction, peer; /* peer: of a message, or the root; -1 */
    cudaStream_t stream;
    uint64_t number; /* as in Header */

    int place, collectives;
    size_t send_bytes, recv_bytes;
    char *input, *result; /* private copies */
    bool first;           /* of its kind: the host waits for its peers */
};

/* Headers that came before somebody wanted them. */
typedef struct {
    Header *header;
    int first, n, capacity;
} HeaderQueue;

/* What there is to one peer. */
typedef struct {
    int data, control; /* sockets; -1 to oneself */
    HeaderQueue sends, receives;
    uint64_t sent, received; /* messages that were issued */
    bool used_send, used_receive;
    int came[KINDS], n_came; /* first uses of collectives, in the peer's order; of messages: */
    bool came_send, came_receive;
} Link;

struct ncclComm {
    bool alive;
    uint64_t id; /* the same on all ranks */
    int rank, ranks, device;
    char name[64];          /* config.commName, or "" */
    std::atomic<int> async; /* what CommGetAsyncError answers */
    std::atomic<bool> aborted;
    std::atomic<int> inside; /* threads that use its connections */
    int wake;                /* eventfd that ends all waits */
    bool late;
    Link *link;                    /* of each rank */
    int *ring, position;           /* ranks in the ring's order; where this one is in it */
    uint64_t issued;               /* collectives */
    bool used[KINDS];              /* collectives that were called before */
    cudaEvent_t reached, finished; /* streams of a plan; the last plan */
    bool planned;                  /* `finished` was recorded */
    void *reserve;
    ncclComm *next; /* of all that ever were: none is freed */
};

/* What one launch asks of one communicator. */
typedef struct Plan {
    ncclComm *comm;
    Call **call; /* collectives first */
    int n, collectives;
    cudaStream_t *stream; /* all that its calls name, each once */
    int n_streams;
    bool never; /* completes */
} Plan;

/* ---- types (reduce.cc) ----------------------------------------------------------------------- */

size_t type_size(int type); /* 0: there is no such type */
const char *type_name(int type);
const char *reduction_name(int reduction);
/* to = to (reduction) from, element by element, rounded to the type. */
void reduce(void *to, const void *from, size_t count, int type, int reduction);
/* An average's factor 1/ranks: before a sum of floats, after one of integers. */
void average(void *x, size_t count, int type, int ranks, bool before);

/* ---- calls ----------------------------------------------------------------------------------- */

const char *verb_name(int verb); /* "ncclAllReduce" */
/* "call 3, ncclAllReduce of 12 float32, sum, 1st of 2 in its group" */
void call_describe(const Header *header, char *buf, size_t n);
Header call_header(const Call *call);
/* "communicator 1f3a9 (dp), rank 1 of 4" */
const char *comm_describe(const ncclComm *comm, char *buf, size_t n);
/* Keeps the sentence for ncclGetLastError and returns the code. */
ncclResult_t last_error(ncclResult_t code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* group.cc: queues the call, which the group copies, and launches it where there is no group. */
ncclResult_t group_add(const Call *call);

/* ---- sockets (net.cc) ------------------------------------------------------------------------ */

typedef union {
    struct {
        uint16_t family;
        char rest[62];
    };
    char bytes[64];
} Address; /* a sockaddr_in or sockaddr_in6 */

/* The interface's address with a port of 0; ncclInvalidUsage: there is no such interface. */
ncclResult_t net_interface(Address *address);
/* A socket that listens there; its port goes into the address. -1 */
int net_listen(Address *address);
int net_connect(const Address *address); /* -1 */
/* All bytes of a blocking socket; false: the other end is gone. */
bool net_write(int s, const void *p, size_t bytes);
bool net_read(int s, void *p, size_t bytes);
void net_nonblocking(int s);
/* Waits until one of the sockets is ready, or the communicator aborted (false). */
struct pollfd;
bool net_poll(ncclComm *comm, struct pollfd *sockets, int n);

/* A part of an exchange: bytes to or from a rank. Those of one rank and direction go in order. */
typedef struct {
    int rank;
    bool out;
    char *data;
    size_t left;
} Piece;

/* Moves all pieces over the data connections, both ways at once. False: a peer is gone. */
bool net_exchange(ncclComm *comm, Piece *piece, int n);

/* ---- init (root.cc, init.cc, mesh.cc) -------------------------------------------------------- */

/* What a rank tells the root, and what the root tells all ranks. */
typedef struct {
    uint64_t id;
    int32_t rank, ranks, version, device;
    int32_t process; /* its number */
    uint64_t host;
    char bus_id[32];
    Address address;
} Hello;

/* The root's answer, before the Hellos of all ranks. */
typedef struct {
    int32_t code;  /* ncclResult_t */
    int32_t fatal; /* the sentence ends the program */
    char sentence[248];
} Welcome;

/* The contents of an ncclUniqueId. */
typedef struct {
    uint64_t id;
    Address address;
} IdContent;

ncclResult_t root_start(ncclUniqueId *id);
/* Connections between all; false: somebody is gone. */
bool mesh_open(ncclComm *comm, int listener, const Hello *all);
/* Says goodbye, waits for the others to do so, closes. */
void mesh_close(ncclComm *comm);

/* ---- work ------------------------------------------------------------------------------------ */

/* first.cc: the host waits until every peer that the plans use for the first time does the same. */
ncclResult_t first_use(Plan *const *plans, int n);
/* plan.cc: the calls' work, on copies of what they read; ends with the plan freed. */
void plan_run(Plan *plan);
void plan_free(Plan *plan);
/* Read now unless it was read before. */
void call_read(Call *call);
void mismatch(const ncclComm *comm, const Header *mine, const Header *theirs)
    __attribute__((noreturn));
/* collective.cc, message.cc; false: a peer is gone. */
bool collective_run(Call *call);
bool messages_run(ncclComm *comm, Call **call, int n);

#endif
