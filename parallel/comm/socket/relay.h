/* relay.h -- inside parallel/comm/socket: how ranks of large worlds reach rank 0 over a tree
 * (tree.h), instead of a star of connections to rank 0. Each rank forwards what its children send
 * to rank 0, and what rank 0 sends to the ranks below.
 *
 * At first all ranks have a connection to rank 0. Rank 0's children in the tree keep it. The other
 * ranks connect to their parents (plant.c). When all connections of the tree exist, rank 0 sends
 * only over the tree. Each rank sends PACKET_TREE as the last packet on its old connection, and
 * nothing more until rank 0 has closed that connection. So no packet overtakes an earlier one.
 *
 * A rank that fails may cut off the ranks below it from rank 0. Therefore some failures end the
 * program differently than in a star:
 * - If the connection to a parent closes, the parent's own parent tells rank 0. Rank 0 prints the
 *   error (87) and ends all ranks that it can still reach. The ranks below the lost parent end
 *   silently, with the same exit code.
 * - If a parent is stopped, or the network to it is cut, rank 0 receives nothing from it and prints
 *   the error (86). If several ranks are silent, rank 0 names the one that is highest in the tree,
 *   because nothing can arrive from the ranks below it. The ranks below end silently, with the same
 *   exit code, when their connection to the parent closes, or 2 s after parallel.timeout.
 * - If rank 0 is stopped, a rank whose own wait is too long ends the program, as in a star, but
 *   only after the ranks between it and rank 0 have shown that they are alive (PACKET_ALIVE). It
 *   tells the ranks below it, which end at once.
 * - A parent that has left the world in order still forwards packets of other ranks. If its process
 *   ends or is stopped before all ranks have left, the program ends as if the parent had not left.
 *
 * Flow control: while something is still to be sent to the parent, a rank reads nothing from its
 * children. Downwards, a question is dropped if the previous question has not been sent yet. So
 * there is always room for the packets that are sent only once. */
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
    int *rank;           /* [children] the children's ranks */
    SocketStream *child; /* [children] the connections to them */
    bool *told;          /* [children] whether rank 0 has been told that the child's process has
                          * ended */
    struct pollfd *fd;   /* [SERVICE_FDS + children] the descriptors to poll */
    atomic_bool planted; /* true: the fields above are set, and the service thread may use them */
    atomic_bool stands;  /* true: all connections of the tree exist, so the star is not needed */
    SocketUp up;         /* changed by the service thread while it holds the service's mutex
                          * `sends`. Only the service thread uses the fields below: */
    bool left;           /* this rank has said goodbye */
    double quiet;        /* seconds since the parent last sent something; only if the parent is not
                          * rank 0 */
    int suspect;         /* the rank above the parent from which the parent receives nothing, as the
                          * parent has reported; -1: none */
    double alive;        /* seconds_now() when this rank last sent the children a sign of life */
    SocketPacket packet; /* the packet that is being forwarded */
} SocketRelay;

/* Number of descriptors that a service thread polls besides those of the children: its wake event,
 * and the connections to rank 0 and to its parent. */
enum { SERVICE_FDS = 3 };

/* Takes over the connection to the parent (-1: none) and those to the children rank[children].
 * Called once, in the rank's own thread. */
void socket_relay_plant(SocketService *service, int parent, int children, const int *rank,
                        const int *fd);
/* Tells the service thread that all ranks have called socket_relay_plant, so that it leaves the
 * star. */
void socket_relay_stands(SocketService *service);
/* Closes the connections of the tree, and frees their memory. */
void socket_relay_close(SocketService *service);

/* The functions below are for the service thread, unless a comment says otherwise. */

/* Sends a packet towards rank 0. Returns false if there is no room at the moment. */
bool socket_relay_put(SocketService *service, const void *packet);
/* Sends a claim (a rank's request for permission to print its error) towards rank 0, if there is
 * room. It may overtake other packets. May be called in any thread. */
void socket_relay_claim(SocketService *service, const SocketWord *claim);
/* Sends what could not be sent before. Returns whether something is still left. */
bool socket_relay_flush(SocketService *service);
/* Returns whether the connection on which this rank sends towards rank 0 is lost. */
bool socket_relay_up_is_lost(const SocketService *service);
/* Returns whether the other side of that connection receives nothing more. */
bool socket_relay_up_is_shut(const SocketService *service);
/* Adds the descriptors that the thread waits for to the caller's fd[SERVICE_FDS], whose first entry
 * the caller has set. After socket_relay_plant, copies them to a larger array, which also contains
 * the children's. Returns the array to use, and its length in *n. */
struct pollfd *socket_relay_poll(SocketService *service, struct pollfd fd[SERVICE_FDS], int *n);
/* Forwards what children send, reports children that are lost, switches from the star to the tree,
 * and sends the children signs of life. */
void socket_relay_serve(SocketService *service);
/* Forwards a packet from the parent, or from rank 0, to the ranks below that it is meant for. May
 * be called in any thread. */
void socket_relay_down(SocketService *service, const SocketWord *word);
/* Sends a packet of this rank to all ranks below: a VERDICT or a LOST. Waits briefly until the
 * children have received it, because this process is about to end. May be called in any thread. */
void socket_relay_end(SocketService *service, SocketPacketKind kind, int code);
/* Waits briefly until the children have received what was forwarded to them. */
void socket_relay_finish(SocketService *service);
/* Called after rank 0 has reported that all ranks have left. Waits until the children have received
 * this report and have ended, but at most a second. */
void socket_relay_part(SocketService *service);
/* Returns which rank above this one may be silent. If the parent is rank 0, or this rank still uses
 * the star, returns 0 whether or not rank 0 is silent. Otherwise returns the parent if it has been
 * silent for the timeout, else the rank that the parent has reported as silent; -1: none. */
int socket_relay_suspect(const SocketService *service);

#endif
