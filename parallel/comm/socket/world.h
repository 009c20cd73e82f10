/* world.h -- inside parallel/comm/socket: a rank's connections, its groups, and the functions with
 * which it exchanges frames. Only the thread that makes the calls uses them. What the service
 * thread reads of them is in service.h. */
#ifndef PARALLEL_COMM_SOCKET_WORLD_H
#define PARALLEL_COMM_SOCKET_WORLD_H

#include "model/core/check.h"
#include "parallel/comm/socket/links.h"
#include "parallel/comm/socket/service.h"
#include "parallel/comm/socket/tree.h"

#include <poll.h>

enum {
    /* Up to so many ranks, tensors are exchanged directly unless those of all fit in MEETING_BYTES.
     * In larger groups that would be too many connections for small tensors, so those of at most
     * MEETING_BYTES each travel over member 0, in several meetings if they are too large for one.
     */
    SMALL_GROUP = 64,
    MEETING_BYTES = 4096,
    /* Bytes that all members together may contribute to a meeting of a larger group. */
    LARGE_MEETING_BYTES = 1 << 20
};

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

typedef enum {
    PEER_APART,    /* not connected */
    PEER_CONNECTS, /* the connection is being made */
    PEER_PROVES,   /* both sides prove that they know the secret */
    PEER_CONNECTED
} SocketPeerState;

/* The connection to another rank. */
typedef struct {
    int rank;
    SocketPeerState state;
    int fd;       /* -1: none */
    bool gone;    /* the peer has closed it, or does not exist any more */
    bool control; /* it is to be the one to the parent in the tree of control */
    bool blocked; /* the last send found no room */
    Handshake handshake;
    int pause;    /* milliseconds until the next attempt to connect */
    double again; /* time of that attempt */
    SOCKET_QUEUE(SocketOut) out;
    size_t sent; /* bytes sent of the first of `out` */
    SOCKET_QUEUE(SocketIn) in;
    SocketFrame frame;                /* being received */
    size_t got;                       /* bytes received of it and of its data */
    void *into;                       /* where its data go */
    SOCKET_QUEUE(SocketFrame) offers; /* offered messages that this rank has not accepted */
} SocketPeer;

/* An accepted connection of somebody who has not proven to be a rank. There are at most STRANGERS,
 * and none stays for longer than STRANGER_SECONDS. If more want to come, the oldest ones leave
 * sooner. A rank that was taken for such a one connects again. */
enum { STRANGERS = 64 };
typedef struct {
    int fd;
    double since; /* seconds_now() when it was accepted */
    Handshake handshake;
} SocketStranger;

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
    TreePlace place;             /* of this member in the tree of meetings */
    SocketFrame call;            /* the call that this member is in */
    int64_t *arrived;            /* [children] number of each child's last meeting, */
    SocketFrame *came;           /* and its frame */
    int odd_member;              /* the first member below a child that makes another call than */
    SocketFrame odd;             /* the child, and that call; -1: none */
    bool met;                    /* on others than member 0: the answer has come */
    size_t answer_bytes;         /* its length */
    unsigned char *contribution; /* of this member and all below it to the meeting, in their order;
                                  * then, but on member 0, the answer */
    size_t meeting_bytes;        /* most bytes of these */
    Tensor *source;              /* [size] the operands of a reduction */
    bool meeting;                /* the member is in a meeting */
    bool unlimited;              /* its waits have no deadline */
    bool noting;                 /* between group_begin and group_end */
    SocketMessage *note;
    int notes, room;
};

/* What a pass over the members has found (drive.c). */
typedef struct {
    struct pollfd *fd;
    int *member, n, room; /* of each fd: a member, or what else it is */
    bool pending;         /* something is still to be sent or received */
    int again;            /* milliseconds until a connection is to be tried again; 0: none is */
    SocketWait wait;      /* all that are pending, and those that have closed */
} SocketPass;

/* The connections of the tree of control, while they are made (plant.c). */
typedef struct {
    SocketPeer parent;        /* unless that is rank 0 */
    int children, *rank, *fd; /* [children] their ranks, and the connections; -1: not yet */
} SocketPlant;

struct SocketWorld {
    SocketLinks *links;
    int rank, ranks;
    SocketGroup *groups;      /* all groups that are open */
    SocketPeer **peer;        /* [ranks] those with which this rank has exchanged data */
    SocketStranger *stranger; /* [STRANGERS] */
    int strangers;
    SocketPass pass;
    SocketPlant *plant;     /* while it is made, else NULL */
    SocketGroup *messages;  /* the group whose messages are carried out, or NULL */
    uint64_t splits;        /* number of splits that this rank has taken part in */
    uint64_t confirmed;     /* rank 0's latest question that this rank has answered */
    uint64_t waits;         /* number of waits so far */
    unsigned char *staging; /* blocks of all peers in a reduction; made at its first use */
    size_t staging_bytes;
    unsigned char *dropped; /* data of frames of a group that this rank has left */
    SocketService service;
};

static inline SocketGroup *socket_group(const Comm *comm)
{
    return comm->impl;
}

/* Returns the number of members, and the world rank of one. */
static inline int socket_size(const SocketGroup *group)
{
    return group->share.members.size;
}

static inline int socket_world_rank(const SocketGroup *group, int member)
{
    return group->share.members.rank[member];
}

/* Returns which member of the group a world rank is. It must be one. */
static inline int socket_member(const SocketGroup *group, int rank)
{
    int member = socket_members_find(&group->share.members, rank);
    CHECK(member >= 0, "rank %d is not in group %s", rank, group->share.name);
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

/* Returns the connection to a world rank, which may not be made yet. Allocates at its first use. */
SocketPeer *socket_peer_of(SocketWorld *world, int rank);
/* Returns the connection to a member of the group. */
static inline SocketPeer *socket_peer(SocketGroup *group, int member)
{
    return socket_peer_of(group->world, socket_world_rank(group, member));
}
/* Goes on to connect to another rank if that is this rank's part. The rank with the lower number
 * accepts. */
void socket_connect(SocketWorld *world, SocketPeer *peer);
/* Accepts connections of other ranks. */
void socket_accept(SocketWorld *world);
/* Closes the connections. */
void socket_disconnect(SocketWorld *world);

/* ---- plant.c --------------------------------------------------------------------------------- */

/* Makes the connections of the tree of control, if the world has one, and leaves the star. All
 * ranks call it with the world's communicator before anything else. */
void socket_plant(Comm *comm);
/* Takes over the connection of a rank that has proven to be this one. Returns false if it is no
 * child that is still awaited. */
bool socket_plant_takes(SocketWorld *world, int rank, int fd);

/* ---- wire.c ---------------------------------------------------------------------------------- */

/* Queues a frame. The data must stay as they are until socket_drive returns. */
void socket_put(SocketPeer *peer, SocketFrame frame, const void *data);
/* Queues a tensor's bytes as FRAME_DATA, and expects one. Nothing happens if there are no bytes. */
void socket_put_data(SocketGroup *group, int member, Tensor x);
void socket_expect_data(SocketGroup *group, int member, Tensor x);
/* Sends as much of the queue as the connection takes. */
void socket_flush(SocketPeer *peer);
/* Receives and handles bytes of one frame. Returns false if there are no more at the moment. */
bool socket_receive(SocketWorld *world, SocketPeer *peer);

/* ---- drive.c --------------------------------------------------------------------------------- */

/* Returns whether this rank still expects a frame of that member. */
typedef bool (*SocketExpects)(SocketGroup *group, int member);
/* Sends what is queued for the first `members` members, and receives until nothing more is expected
 * of them. */
void socket_drive(Comm *comm, int members, SocketExpects expects);

/* ---- meet.c ---------------------------------------------------------------------------------- */

/* A call of a group, as a frame. op, root (a member, or -1) and made (or NULL) as in CommCall. */
SocketFrame socket_call(Comm *comm, int call, const Device *on, Tensor x, ReduceOp op, int root);
/* A meeting: all members make the same call, each contributes bytes, and member 0 answers. The
 * program ends if their calls differ. Every member calls socket_arrive; then member 0, to which
 * group->contribution shows what all have contributed, in their order, calls socket_answer_all, or
 * in a small group socket_answer for each other member; then all call socket_part, which returns
 * when the answers have been sent, or has come: it is in group->contribution until the next
 * meeting. What is contributed or answered must stay until socket_part returns.
 * The members contribute `bytes` each. A member whose contribution is NULL contributes nothing;
 * that is so for all, or for all but the root of a broadcast. `first`: it is the call's first
 * meeting.
 * Groups of more than TREE_FAN_OUT other members meet over a tree (tree.h). Each member passes on
 * what those below it contribute, and the answer, which is the same for all then. */
void socket_arrive(Comm *comm, SocketFrame call, const void *contribution, size_t bytes,
                   bool first);
void socket_answer(SocketGroup *group, int member, const void *answer, size_t bytes);
void socket_answer_all(SocketGroup *group, const void *answer, size_t bytes);
void socket_part(Comm *comm);
/* A meeting that moves no data. */
void socket_meet(Comm *comm, SocketFrame call);
/* Returns where the data of an ARRIVE of a member go. */
unsigned char *socket_room_for(SocketGroup *group, int member, const SocketFrame *frame);
/* Handle an ARRIVE whose data have been received, and an ODD. */
void socket_has_arrived(SocketGroup *group, int member, const SocketFrame *frame);
void socket_is_odd(SocketGroup *group, const SocketFrame *frame);
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
