/* world.h -- inside parallel/comm/socket: a rank's connections, its groups, and the functions with
 * which it exchanges frames. Only the thread that makes the calls uses them. What the service
 * thread reads of them is in service.h. */
#ifndef PARALLEL_COMM_SOCKET_WORLD_H
#define PARALLEL_COMM_SOCKET_WORLD_H

#include "model/core/check.h"
#include "parallel/comm/socket/links.h"
#include "parallel/comm/socket/service.h"

/* Bytes that all members together may contribute to a meeting. */
enum { MEETING_BYTES = 4096 };

/* A frame that waits to be sent, and its data. */
typedef struct {
    SocketFrame frame;
    const void *data;
} SocketOut;

/* Where the data of an expected FRAME_DATA go. */
typedef struct {
    void *data;
    int64_t bytes;
} SocketIn;

/* A list that is emptied from its front. */
#define SOCKET_QUEUE(type)                                                                         \
    struct {                                                                                       \
        type *item;                                                                                \
        int first, end, room;                                                                      \
    }

/* The connection to another rank. */
typedef struct {
    int fd;       /* -1: not connected yet */
    bool gone;    /* the peer has closed it, or does not exist any more */
    bool blocked; /* the last send found no room */
    SOCKET_QUEUE(SocketOut) out;
    size_t sent; /* bytes sent of the first of `out` */
    SOCKET_QUEUE(SocketIn) in;
    SocketFrame frame;                /* being received */
    size_t got;                       /* bytes received of it and of its data */
    void *into;                       /* where its data go */
    SOCKET_QUEUE(SocketFrame) offers; /* offered messages that this rank has not accepted */
} SocketPeer;

/* A message of this rank, between group_begin and group_end. */
typedef struct {
    Tensor x;
    bool device;
    int peer; /* member */
    bool sends;
    bool matched; /* a send: accepted; a receive: offered */
} SocketMessage;

struct SocketGroup {
    SocketGroupShare share; /* what the service thread reads */
    SocketWorld *world;
    SocketGroup *next;
    int rank;                           /* of this process, in the group */
    SocketFrame call;                   /* the call that this member is in */
    int64_t arrived[SOCKET_MAX_RANKS];  /* on member 0: number of each member's last meeting, */
    SocketFrame came[SOCKET_MAX_RANKS]; /* and its frame */
    bool met;                           /* on the others: the answer of member 0 has come */
    unsigned char *contribution; /* all members' contributions to the meeting, MEETING_BYTES */
    bool meeting;                /* the member is in a meeting */
    bool unlimited;              /* its waits have no deadline */
    bool noting;                 /* between group_begin and group_end */
    SocketMessage *note;
    int notes, room;
};

struct SocketWorld {
    SocketLinks *links;
    int rank, ranks;
    SocketGroup *groups; /* all groups that are open */
    SocketPeer peer[SOCKET_MAX_RANKS];
    struct SocketStranger { /* an accepted connection whose hello has not come */
        int fd;
        SocketHello hello;
        size_t got;
    } stranger[SOCKET_MAX_RANKS];
    int strangers;
    SocketGroup *messages;  /* the group whose messages are carried out, or NULL */
    uint64_t splits;        /* number of splits that this rank has taken part in */
    uint64_t confirmed;     /* rank 0's latest question that this rank has answered */
    uint64_t waits;         /* number of waits so far */
    unsigned char *staging; /* blocks of all peers in a reduction; made at its first use */
    unsigned char *dropped; /* data of frames of a group that this rank has left */
    SocketService service;
};

static inline SocketGroup *socket_group(const Comm *comm)
{
    return comm->impl;
}

/* Returns the connection to a member of the group. */
static inline SocketPeer *socket_peer(SocketGroup *group, int member)
{
    return &group->world->peer[group->share.member[member]];
}

/* Returns which member of the group a world rank is. It must be one. */
static inline int socket_member(const SocketGroup *group, int rank)
{
    int member = 0;
    while (member < group->share.size && group->share.member[member] != rank)
        member++;
    CHECK(member < group->share.size, "rank %d is not in group %s", rank, group->share.name);
    return member;
}

/* Makes room for one more item at the end of a queue, and removes the first one. */
#define queue_add(queue)                                                                           \
    ((queue)->end == (queue)->room                                                                 \
         ? (void)((queue)->item = socket_queue_room((queue)->item, &(queue)->first, &(queue)->end, \
                                                    &(queue)->room, sizeof *(queue)->item))        \
         : (void)0,                                                                                \
     &(queue)->item[(queue)->end++])
#define queue_is_empty(queue) ((queue)->first == (queue)->end)
#define queue_first(queue)    (&(queue)->item[(queue)->first])
#define queue_drop(queue)     ((queue)->first++)
void *socket_queue_room(void *item, int *first, int *end, int *room, size_t size);

/* ---- connect.c ------------------------------------------------------------------------------- */

/* Starts to connect to a world rank if that is this rank's part. The rank with the lower number
 * accepts. */
void socket_connect(SocketWorld *world, int rank);
/* Accepts connections of other ranks. */
void socket_accept(SocketWorld *world);
/* Closes the connections. */
void socket_disconnect(SocketWorld *world);

/* ---- wire.c ---------------------------------------------------------------------------------- */

/* Queues a frame. The data must stay as they are until socket_drive returns. */
void socket_put(SocketPeer *peer, SocketFrame frame, const void *data);
/* Queues a tensor's bytes as FRAME_DATA, and expects one. Nothing happens if there are no bytes. */
void socket_put_data(SocketGroup *group, int member, Tensor x);
void socket_expect_data(SocketGroup *group, int member, Tensor x);
/* Sends as much of the queue as the connection takes. */
void socket_flush(SocketPeer *peer);
/* Receives and handles bytes of one frame. Returns false if there are no more at the moment. */
bool socket_receive(SocketWorld *world, int rank);

/* ---- drive.c --------------------------------------------------------------------------------- */

/* Returns whether this rank still expects a frame of that member. */
typedef bool (*SocketExpects)(SocketGroup *group, int member);
/* Sends what is queued, and receives until nothing more is expected. */
void socket_drive(Comm *comm, SocketExpects expects);

/* ---- meet.c ---------------------------------------------------------------------------------- */

/* A call of a group, as a frame. op, root (a member, or -1) and made (or NULL) as in CommCall. */
SocketFrame socket_call(Comm *comm, int call, const Device *on, Tensor x, ReduceOp op, int root);
/* A meeting: returns when all members have made the call. The program ends if their calls differ.
 * Each member contributes the same number of bytes; if there are any, group->contribution holds
 * those of all members, in their order, until the next meeting. */
void socket_meet(Comm *comm, SocketFrame call, const void *contribution, size_t bytes);
/* Returns whether contributions of so many bytes fit in a meeting. */
bool socket_fits(const SocketGroup *group, size_t bytes);
/* Handle an ARRIVE and a MET whose data have been received. */
void socket_has_arrived(SocketGroup *group, int member, const SocketFrame *frame);
/* Returns the call as error messages describe it. `made` of the frame must outlive the text. */
CommCall socket_seen(const SocketFrame *frame);

/* ---- collective.c, message.c ----------------------------------------------------------------- */

void socket_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op);
void socket_reduce_scatter(Comm *comm, Device *on, Tensor part, Tensor whole);
void socket_all_gather(Comm *comm, Device *on, Tensor whole, Tensor part);
void socket_broadcast(Comm *comm, Device *on, Tensor x, int root);
void socket_send(Comm *comm, Device *on, Tensor x, int to);
void socket_receive_message(Comm *comm, Device *on, Tensor x, int from);
void socket_group_begin(Comm *comm);
void socket_group_end(Comm *comm);
/* Handle an OFFER and an ACCEPT of a peer. */
void socket_offered(SocketWorld *world, int rank, const SocketFrame *frame);
void socket_accepted(SocketWorld *world, int rank, const SocketFrame *frame);
/* Writes the message that the rank waits for into *call and returns its peer's world rank. */
int socket_awaited_message(SocketGroup *group, SocketFrame *call);

#endif
