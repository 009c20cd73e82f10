/* relay.h -- inside parallel/comm/socket: how ranks of large worlds reach rank 0 over a tree
 * (tree.h). Each passes on what its children send to rank 0, and what rank 0 sends to those below.
 *
 * All begin with a connection to rank 0, which its children keep. The others connect with their
 * parents (plant.c). When all connections of the tree exist, rank 0 sends over the tree alone. Each
 * rank says PACKET_TREE as its last word on the old connection, and sends nothing until rank 0 has
 * closed that: so nothing overtakes what was sent before.
 *
 * What differs from a star, because some ranks cannot hear of rank 0:
 * - The connection to a parent ends. Rank 0 hears that from the parent's own parent, says so (87),
 *   and ends all it reaches. Those below the lost one end without a word, with the same code.
 * - A parent is stopped, or the network to it is cut. Rank 0 finds it silent, and says so (86). Of
 *   several silent ranks it names the highest, since those below it cannot be heard. They end
 *   without a word, with the same code, when the connection ends, or 2 s after parallel.timeout.
 * - Rank 0 is stopped. A rank whose own wait is too long ends as over a star, once those between
 *   have shown that they live (PACKET_ALIVE). It tells those below, which end at once.
 * - A parent that has left the world in order still passes on what others need. If it ends before
 *   all have left, or is stopped, the program ends as if it had not left.
 *
 * Room upwards holds up the children: nothing of theirs is read while something is still to be sent
 * to the parent. Downwards a question finds no room if the one before is still there; the words
 * that come once do. */
#ifndef PARALLEL_COMM_SOCKET_RELAY_H
#define PARALLEL_COMM_SOCKET_RELAY_H

#include "parallel/comm/socket/stream.h"

#include <poll.h>
#include <stdatomic.h>

typedef struct SocketService SocketService;

typedef enum {
    UP_STAR,   /* the rank sends on its first connection to rank 0, as its children do for ever */
    UP_LEAVES, /* it has said its last word there, and rank 0 has not closed it yet */
    UP_TREE    /* it sends to its parent */
} SocketUp;

typedef struct {
    SocketStream parent; /* -1: none, or it is rank 0, to which `zero` of the service leads */
    int children;        /* that have connected; 0 in rank 0's process, whose hub has them */
    int *rank;           /* [children] */
    SocketStream *child; /* [children] */
    bool *told;          /* [children] rank 0 has been told that its process has ended */
    struct pollfd *fd;   /* [SERVICE_FDS + children] */
    atomic_bool planted; /* the service thread may use the above */
    atomic_bool stands;  /* so do all ranks: nobody needs the star any more */
    SocketUp up;         /* the service thread changes it with `sends` of the service; also: */
    bool left;           /* this rank has said goodbye */
    double quiet;        /* seconds since the parent was heard; only if that is not rank 0 */
    int suspect;         /* the rank above the parent of which the parent hears nothing; -1: none */
    double alive;        /* seconds_now() when the children were last told that this rank lives */
    SocketPacket packet; /* being passed on */
} SocketRelay;

/* What a service thread polls for itself: its wake, rank 0, its parent. */
enum { SERVICE_FDS = 3 };

/* In the rank's own thread, once: takes over the connection to the parent (-1: none) and those to
 * the children rank[children]. Then, when all ranks have done so, the tree stands. */
void socket_relay_plant(SocketService *service, int parent, int children, const int *rank,
                        const int *fd);
void socket_relay_stands(SocketService *service);
void socket_relay_close(SocketService *service);

/* The rest is for the service thread, unless a comment says otherwise. */

/* Sends a packet to rank 0. Returns false if there is no room at the moment. */
bool socket_relay_put(SocketService *service, const void *packet);
/* The same for a claim, in any thread: it may overtake other packets. */
void socket_relay_claim(SocketService *service, const SocketWord *claim);
/* Sends what could not be sent before. Returns whether some is left. */
bool socket_relay_flush(SocketService *service);
/* Return whether the connection on which this rank sends is lost, or its peer receives nothing. */
bool socket_relay_up_is_lost(const SocketService *service);
bool socket_relay_up_is_shut(const SocketService *service);
/* Adds what the thread waits for to fd[SERVICE_FDS] of the caller, of which the first is set, or
 * copies it to an array with room for the children. Returns the array, and its length in *n. */
struct pollfd *socket_relay_poll(SocketService *service, struct pollfd fd[SERVICE_FDS], int *n);
/* Passes on what children send, reports those that are lost, moves from the star to the tree, and
 * shows the children that this rank lives. */
void socket_relay_serve(SocketService *service);
/* Passes on a word from above to those it is for. In any thread. */
void socket_relay_down(SocketService *service, const SocketWord *word);
/* Sends a word of this rank to all below: a VERDICT or a LOST. Waits for a moment until the
 * children have it, since this process is about to end. In any thread. */
void socket_relay_end(SocketService *service, SocketPacketKind kind, int code);
/* Waits for a moment until the children have what was passed on to them. */
void socket_relay_finish(SocketService *service);
/* Rank 0 has said that all have left. Waits until the children have heard it and have ended. */
void socket_relay_part(SocketService *service);
/* Returns the highest rank above this one that has been silent for the timeout, as far as is known:
 * 0 also if that is the parent; -1: none is known. */
int socket_relay_suspect(const SocketService *service);

#endif
