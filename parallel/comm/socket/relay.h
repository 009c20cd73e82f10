/* relay.h -- inside parallel/comm/socket: how ranks of large worlds reach rank 0 over a tree
 * (tree.h), instead of a star of connections to rank 0. Each rank forwards what its children send
 * to rank 0, and what rank 0 sends to the ranks below.
 *
 * At first all ranks have a connection to rank 0. Rank 0's children in the tree keep it. The other
 * ranks connect to their parents (plant.c). When all connections of the tree exist, rank 0 sends
 * only over the tree. Each rank sends PACKET_TREE as the last packet on its old connection, and
 * nothing more until rank 0 has closed that connection. So no packet overtakes an earlier one.
 *
 * The differences from a star, because some ranks cannot receive from rank 0 any more:
 * - The connection to a parent closes. The parent's own parent tells rank 0, which prints the error
 *   (87) and ends all ranks that it can reach. The ranks below the lost parent end silently, with
 *   the same code.
 * - A parent is stopped, or the network to it is cut. Rank 0 receives nothing from it and prints
 *   the error (86). Of several silent ranks it names the highest in the tree, because those below
 *   cannot be heard. The ranks below end silently, with the same code, when the connection closes,
 *   or 2 s after parallel.timeout.
 * - Rank 0 is stopped. A rank whose own wait is too long ends the program as over a star, after the
 *   ranks between it and rank 0 have shown that they live (PACKET_ALIVE). It tells the ranks below,
 *   which end at once.
 * - A parent that has left the world in order still forwards packets for others. If it ends before
 *   all have left, or is stopped, the program ends as if it had not left.
 *
 * Flow control: while something is still to be sent to the parent, nothing is read from the
 * children. Downwards, a question is dropped if the previous one has not been sent yet; there is
 * always room for packets that are sent only once. */
#ifndef PARALLEL_COMM_SOCKET_RELAY_H
#define PARALLEL_COMM_SOCKET_RELAY_H

#include "parallel/comm/socket/stream.h"

#include <poll.h>
#include <stdatomic.h>

typedef struct SocketService SocketService;

typedef enum {
    UP_STAR,   /* the rank sends on its first connection to rank 0; rank 0's children always do */
    UP_LEAVES, /* it has sent its last packet there, and rank 0 has not closed it yet */
    UP_TREE    /* it sends to its parent */
} SocketUp;

typedef struct {
    SocketStream parent; /* fd -1: none, or the parent is rank 0, whose connection is the service's
                          * `zero` */
    int children;        /* number of connected children; 0 in rank 0's process, whose hub has these
                          * connections */
    int *rank;           /* [children] */
    SocketStream *child; /* [children] */
    bool *told;          /* [children] rank 0 has been told that its process has ended */
    struct pollfd *fd;   /* [SERVICE_FDS + children] */
    atomic_bool planted; /* the service thread may use the above */
    atomic_bool stands;  /* all ranks have planted: the star is not needed any more */
    SocketUp up;         /* the service thread changes it while it holds the service's `sends`. The
                          * fields below belong to this thread, too: */
    bool left;           /* this rank has said goodbye */
    double quiet;        /* seconds since the parent last sent something; only if the parent is not
                          * rank 0 */
    int suspect;         /* the rank above the parent from which the parent receives nothing; -1:
                          * none */
    double alive;        /* seconds_now() when this rank last sent the children a sign of life */
    SocketPacket packet; /* the packet that is being forwarded */
} SocketRelay;

/* Number of descriptors that a service thread polls besides the children: its wake, rank 0, its
 * parent. */
enum { SERVICE_FDS = 3 };

/* In the rank's own thread, once: takes over the connection to the parent (-1: none) and those to
 * the children rank[children]. socket_relay_stands is called after all ranks have done so. */
void socket_relay_plant(SocketService *service, int parent, int children, const int *rank,
                        const int *fd);
void socket_relay_stands(SocketService *service);
void socket_relay_close(SocketService *service);

/* The rest is for the service thread, unless a comment says otherwise. */

/* Sends a packet towards rank 0. Returns false if there is no room at the moment. */
bool socket_relay_put(SocketService *service, const void *packet);
/* Does the same for a claim, which may overtake other packets. In any thread. */
void socket_relay_claim(SocketService *service, const SocketWord *claim);
/* Sends what could not be sent before. Returns whether something is still left. */
bool socket_relay_flush(SocketService *service);
/* Return whether the connection on which this rank sends is lost, or its peer receives nothing. */
bool socket_relay_up_is_lost(const SocketService *service);
bool socket_relay_up_is_shut(const SocketService *service);
/* Adds the descriptors that the thread waits for to the caller's fd[SERVICE_FDS], whose first entry
 * is set; if there are children, copies all to a larger array. Returns the array that is used, and
 * its length in *n. */
struct pollfd *socket_relay_poll(SocketService *service, struct pollfd fd[SERVICE_FDS], int *n);
/* Forwards what children send, reports children that are lost, switches from the star to the tree,
 * and sends the children signs of life. */
void socket_relay_serve(SocketService *service);
/* Forwards a packet from above to the ranks it is for. In any thread. */
void socket_relay_down(SocketService *service, const SocketWord *word);
/* Sends a packet of this rank to all ranks below: a VERDICT or a LOST. Waits briefly until the
 * children have received it, because this process is about to end. In any thread. */
void socket_relay_end(SocketService *service, SocketPacketKind kind, int code);
/* Waits briefly until the children have received what was forwarded to them. */
void socket_relay_finish(SocketService *service);
/* Called after rank 0 has reported that all ranks have left. Waits until the children have received
 * this and have ended. */
void socket_relay_part(SocketService *service);
/* Returns the highest rank above this one that has been silent for the timeout, as far as is known:
 * 0 also if that is the parent; -1: none is known. */
int socket_relay_suspect(const SocketService *service);

#endif
