/* links.h -- inside parallel/comm/socket: how the processes of ranks reach each other. Ranks that a
 * launcher has forked inherit local sockets. Ranks that have joined by themselves have a connection
 * to rank 0, and the addresses of all ranks. */
#ifndef PARALLEL_COMM_SOCKET_LINKS_H
#define PARALLEL_COMM_SOCKET_LINKS_H

#include "parallel/comm/rank_list.h"
#include "parallel/comm/socket/handshake.h"
#include "parallel/comm/socket/socket.h"

#include <netinet/in.h>

/* Of a joined rank: the address at which it accepts connections, and its machine. */
typedef struct {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address;
    int machine, local_rank;
} SocketPlace;

enum { LINKS_NAME_BYTES = 16, LINKS_PLACE_BYTES = 64 };

/* A descriptor of -1 is closed, or belongs to another process. */
struct SocketLinks {
    int ranks;
    bool joined; /* the ranks have no launcher, and may be on several machines */
    unsigned char secret[SHA256_BYTES], name[LINKS_NAME_BYTES];
    int launcher[2]; /* the connection between the launcher [0] and rank 0 [1] */
    int *star[2];    /* [ranks] the connections between rank 0 (star[0][rank]) and each other rank
                      * (star[1][rank]) */
    int *listener;   /* [ranks] the sockets on which the ranks accept connections */
    char (*place)[LINKS_PLACE_BYTES]; /* [ranks] the ranks' places in the grid, for messages */
    SocketPlace *at;                  /* [ranks] for joined ranks; NULL: the ranks use local
                                       * sockets */
    char (*host)[SOCKET_HOST_BYTES];  /* [machines] their names */
    int machines;
    int *parent; /* [ranks] the parent in the control tree (tree.h); NULL: rank 0 is the parent of
                  * all */
};

/* Returns the rank's parent in the control tree, over which it reaches rank 0; -1 for rank 0. */
static inline int socket_links_parent(const SocketLinks *links, int rank)
{
    return links->parent ? links->parent[rank] : rank == 0 ? -1 : 0;
}

/* Returns the child of `rank` to which it forwards packets for the rank `below`; -1: that rank is
 * not below `rank` in the tree. */
int socket_links_towards(const SocketLinks *links, int rank, int below);

/* Closes all descriptors but those of this rank. */
void socket_links_keep(SocketLinks *links, int rank);
/* Writes the address of the socket on which this rank accepts connections, and returns its
 * length. */
socklen_t socket_links_address(const SocketLinks *links, int rank,
                               struct sockaddr_storage *address);
/* Returns the name of the rank's machine; "" for ranks that have a launcher. */
const char *socket_links_host(const SocketLinks *links, int rank);
/* Returns how messages name the ranks' machines. */
RankHosts socket_links_hosts(const SocketLinks *links);
/* Returns whether this rank is the lowest of its machine, apart from rank 0, so that it prints the
 * error if rank 0 is lost. */
bool socket_links_speaks(const SocketLinks *links, int rank);

#endif
