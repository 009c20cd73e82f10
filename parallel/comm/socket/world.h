/* world.h -- inside parallel/comm/socket: a rank's connections, its groups, and the functions with
 * which it exchanges frames. Only the thread that makes the calls uses them. The parts that the
 * service thread reads are in service.h. */
#ifndef PARALLEL_COMM_SOCKET_WORLD_H
#define PARALLEL_COMM_SOCKET_WORLD_H

#include "model/core/check.h"
#include "parallel/comm/socket/links.h"
#include "parallel/comm/socket/service.h"
#include "parallel/comm/socket/tree.h"

#include <poll.h>

enum {
    /* In groups of up to SMALL_GROUP ranks, tensors are exchanged directly unless those of all
     * ranks together fit in MEETING_BYTES. In larger groups this would need too many connections
     * for small tensors, so tensors of at most MEETING_BYTES each are sent through member 0, in
     * several meetings if they are too large for one. */
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

/* Where to store the data of an expected FRAME_DATA. */
typedef struct {
    void *data;
    int64_t bytes;
} SocketIn;

/* A queue: items are appended at its end and removed from its front. */
#define SOCKET_QUEUE(type)                                                                         \
    struct {                                                                                       \
        type *item;                                                                                \
        int first, end, room;                                                                      \
    }

typedef enum {
    PEER_APART,    /* not connected */
    PEER_CONNECTS, /* the connection is being made */
    PEER_PROVES,   /* both sides are proving that they know the secret */
    PEER_CONNECTED
} SocketPeerState;

/* The connection to another rank. */
typedef struct {
    int rank;
    SocketPeerState state;
    int fd;       /* -1: none */
    bool gone;    /* the peer has closed it, or has ended */
    bool control; /* it will be the connection to the parent in the control tree */
    bool blocked; /* the last send found no room */
    Handshake handshake;
    int pause;    /* milliseconds until the next attempt to connect */
    double again; /* time of that attempt */
    SOCKET_QUEUE(SocketOut) out;
    size_t sent; /* bytes sent of the first of `out` */
    SOCKET_QUEUE(SocketIn) in;
    SocketFrame frame;                /* the frame that is being received */
    size_t got;                       /* bytes received, of the frame and of its data */
    void *into;                       /* where to store its data */
    SOCKET_QUEUE(SocketFrame) offers; /* offered messages that this rank has not accepted yet */
} SocketPeer;

/* An accepted connection whose other side has not yet proven that it is a rank. There are at most
 * STRANGERS of them, and none stays longer than STRANGER_SECONDS; a new one may replace the oldest
 * one sooner. A rank whose connection was replaced connects again. */
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
    int peer; /* the member that sends or receives it */
    bool sends;
    bool matched; /* a send: the receiver has accepted it; a receive: it was offered */
} SocketMessage;

struct SocketGroup {
    SocketGroupShare share; /* the part that the service thread reads */
    SocketWorld *world;
    SocketGroup *next;
    TreePlace place;             /* of this member in the group's tree */
    SocketFrame call;            /* the call that this member is in */
    int64_t *arrived;            /* [children] number of the last meeting at which each child has
                                  * arrived */
    SocketFrame *came;           /* [children] the frame with which each child arrived there */
    int odd_member;              /* first member below a child whose call differs from the child's;
                                  * -1: none */
    SocketFrame odd;             /* that member's call */
    bool met;                    /* not on member 0: the answer has arrived */
    size_t answer_bytes;         /* length of the answer */
    unsigned char *contribution; /* during a meeting: the contributions of this member and of all
                                  * members below it, in member order. Members other than 0 then
                                  * overwrite them with the answer */
    size_t meeting_bytes;        /* size of `contribution`, in bytes */
    Tensor *source;              /* [size] the operands of a reduction */
    bool meeting;                /* the member is in a meeting */
    bool unlimited;              /* its waits have no deadline */
    bool noting;                 /* true between group_begin and group_end */
    SocketMessage *note;
    int notes, room;
};

/* What poll must wait for, found out in a pass over the members with which this rank still
 * exchanges data (drive.c). */
typedef struct {
    struct pollfd *fd;
    int *member, n, room; /* for each fd: its member, or another purpose (ACCEPTS, ... in
                           * drive.c) */
    bool pending;         /* something is still to be sent or received */
    int again;            /* milliseconds until the rank must check again, for example try again to
                           * connect; 0: no limit */
    SocketWait wait;      /* the ranks that this rank waits for, and those that have closed their
                           * connection */
} SocketPass;

/* The connections of the control tree while they are being established (plant.c). */
typedef struct {
    SocketPeer parent;        /* unless the parent is rank 0 */
    int children, *rank, *fd; /* [children] the children's ranks, and the connections to them; -1:
                               * not yet connected */
} SocketPlant;

struct SocketWorld {
    SocketLinks *links;
    int rank, ranks;
    SocketGroup *groups;      /* all groups that are open */
    SocketPeer **peer;        /* [ranks] NULL: this rank has not exchanged data with it yet */
    SocketStranger *stranger; /* [STRANGERS] */
    int strangers;
    SocketPass pass;
    SocketPlant *plant;     /* while the tree is being connected, else NULL */
    SocketGroup *messages;  /* the group whose messages are being carried out, or NULL */
    uint64_t splits;        /* number of splits that this rank has taken part in */
    uint64_t confirmed;     /* rank 0's latest question that this rank has answered */
    uint64_t waits;         /* number of waits so far */
    unsigned char *staging; /* blocks of all peers in a reduction; allocated at its first use */
    size_t staging_bytes;
    unsigned char *dropped; /* buffer for data that are discarded, because this rank has left their
                             * group */
    SocketService service;
};

static inline SocketGroup *socket_group(const Comm *comm)
{
    return comm->impl;
}

/* Returns the number of members. */
static inline int socket_size(const SocketGroup *group)
{
    return group->share.members.size;
}

/* Returns the world rank of a member. */
static inline int socket_world_rank(const SocketGroup *group, int member)
{
    return group->share.members.rank[member];
}

/* Returns the member of the group with this world rank, which must exist. */
static inline int socket_member(const SocketGroup *group, int rank)
{
    int member = socket_members_find(&group->share.members, rank);
    CHECK(member >= 0, "rank %d is not in group %s", rank, group->share.name);
    return member;
}

/* queue_add appends room for one item and returns its address; queue_drop removes the first item.
 * If the array is full, socket_queue_room makes room in it and returns its new address. */
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

/* Returns the connection to a world rank, which may not be established yet. Allocates it at its
 * first use. */
SocketPeer *socket_peer_of(SocketWorld *world, int rank);
/* Returns the connection to a member of the group. */
static inline SocketPeer *socket_peer(SocketGroup *group, int member)
{
    return socket_peer_of(group->world, socket_world_rank(group, member));
}
/* Continues to connect to another rank if its number is lower than this rank's. Otherwise does
 * nothing, because the rank with the lower number accepts. */
void socket_connect(SocketWorld *world, SocketPeer *peer);
/* Accepts connections of other ranks. */
void socket_accept(SocketWorld *world);
/* Closes all connections to other ranks, and frees their memory. */
void socket_disconnect(SocketWorld *world);

/* ---- plant.c --------------------------------------------------------------------------------- */

/* Connects the control tree, if the world has one. Ranks whose parent is not rank 0 then give up
 * their own connection to rank 0. All ranks call it with the world's communicator before anything
 * else. */
void socket_plant(Comm *comm);
/* Takes over the connection of `rank`, which has proven that it knows the secret. Returns false if
 * it is not a child whose connection is still missing. */
bool socket_plant_takes(SocketWorld *world, int rank, int fd);

/* ---- wire.c ---------------------------------------------------------------------------------- */

/* Queues a frame. The data must not change until socket_drive returns. */
void socket_put(SocketPeer *peer, SocketFrame frame, const void *data);
/* Queues the tensor's elements as FRAME_DATA. Does nothing if the tensor is empty. */
void socket_put_data(SocketGroup *group, int member, Tensor x);
/* Announces that a FRAME_DATA will come from the member; its elements are then stored in the
 * tensor. If several are expected, the first call of this function is for the first frame, and so
 * on. Does nothing if the tensor is empty. */
void socket_expect_data(SocketGroup *group, int member, Tensor x);
/* Sends as much of the queue as the connection takes. */
void socket_flush(SocketPeer *peer);
/* Receives and handles bytes of one frame. Returns false if there are no more at the moment. */
bool socket_receive(SocketWorld *world, SocketPeer *peer);

/* ---- drive.c --------------------------------------------------------------------------------- */

/* Returns whether this rank still expects a frame from that member. */
typedef bool (*SocketExpects)(SocketGroup *group, int member);
/* Sends what is queued for the first `members` members, and receives until nothing more is expected
 * from them. */
void socket_drive(Comm *comm, int members, SocketExpects expects);

/* ---- meet.c ---------------------------------------------------------------------------------- */

/* Returns a call of a group as a frame. op as in CommCall; root: a member, or -1. The frame's
 * `made` is empty. */
SocketFrame socket_call(Comm *comm, int call, const Device *on, Tensor x, ReduceOp op, int root);
/* A meeting: all members make the same call, each contributes `bytes` bytes, and member 0 answers.
 * The program ends if their calls differ. A meeting has three steps:
 * - Every member calls socket_arrive.
 * - Member 0 finds the contributions of all members, in member order, in group->contribution. It
 *   calls socket_answer_all or, in a small group, socket_answer for each other member.
 * - Every member calls socket_part.
 *
 * Groups of more than TREE_FAN_OUT other members meet over a tree (tree.h). Each member then
 * forwards the contributions of the members below it, and the answer, which is the same for all
 * members. Contributions and answers must not change until socket_part returns.
 *
 * socket_arrive: a contribution of NULL is empty. It is NULL on all members, or on all but the root
 * of a broadcast. `first`: this is the call's first meeting. */
void socket_arrive(Comm *comm, SocketFrame call, const void *contribution, size_t bytes,
                   bool first);
void socket_answer(SocketGroup *group, int member, const void *answer, size_t bytes);
void socket_answer_all(SocketGroup *group, const void *answer, size_t bytes);
/* On member 0 it returns when the answers have been sent; on the other members when the answer has
 * arrived. The answer stays in group->contribution until the next meeting. */
void socket_part(Comm *comm);
/* Holds a meeting that moves no data. */
void socket_meet(Comm *comm, SocketFrame call);
/* Returns where to store the data of an ARRIVE of a member. */
unsigned char *socket_room_for(SocketGroup *group, int member, const SocketFrame *frame);
/* socket_has_arrived handles an ARRIVE whose data have been received; socket_is_odd handles an
 * ODD. */
void socket_has_arrived(SocketGroup *group, int member, const SocketFrame *frame);
void socket_is_odd(SocketGroup *group, const SocketFrame *frame);
/* Returns the call as error messages describe it. The frame's `made` must outlive the result. */
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
/* Writes the message for which the rank waits to *call. Returns the world rank of its peer. */
int socket_awaited_message(SocketGroup *group, SocketFrame *call);

#endif
