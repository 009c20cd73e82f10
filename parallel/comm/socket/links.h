/* links.h -- inside parallel/comm/socket: how the processes of ranks reach each other. Those that a
 * launcher has forked inherit local sockets. Those that have joined by themselves have connections
 * to rank 0, and the addresses of all. */
#ifndef PARALLEL_COMM_SOCKET_LINKS_H
#define PARALLEL_COMM_SOCKET_LINKS_H

#include "parallel/comm/rank_list.h"
#include "parallel/comm/socket/handshake.h"
#include "parallel/comm/socket/socket.h"

#include <netinet/in.h>

/* Where a rank accepts connections, and its machine, of joined ranks. */
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
    int launcher[2]; /* between the launcher [0] and rank 0 [1] */
    int *star[2];  /* [ranks] between rank 0 (star[0][rank]) and each other rank (star[1][rank]) */
    int *listener; /* [ranks] */
    char (*place)[LINKS_PLACE_BYTES]; /* [ranks] of the ranks in the grid, for messages */
    SocketPlace *at;                  /* [ranks], or NULL: local sockets */
    char (*host)[SOCKET_HOST_BYTES];  /* [machines] */
    int machines;
    int *parent; /* [ranks] over which control packets travel (tree.h); NULL: rank 0, of all */
};

/* Returns over which rank this one reaches rank 0; of rank 0, -1. */
static inline int socket_links_parent(const SocketLinks *links, int rank)
{
    return links->parent ? links->parent[rank] : rank == 0 ? -1 : 0;
}

/* Returns to which of its children `rank` passes on what is for `below`; -1: it is not below. */
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
/* Returns whether no other rank but 0 has a lower number on this rank's machine, so that this rank
 * speaks if rank 0 is lost. */
bool socket_links_speaks(const SocketLinks *links, int rank);

#endif
