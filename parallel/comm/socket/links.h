/* links.h -- inside parallel/comm/socket: the sockets that rank processes inherit. */
#ifndef PARALLEL_COMM_SOCKET_LINKS_H
#define PARALLEL_COMM_SOCKET_LINKS_H

#include "parallel/comm/socket/frame.h"
#include "parallel/comm/socket/socket.h"

#include <sys/un.h>

/* A descriptor of -1 is closed, or belongs to another process. */
struct SocketLinks {
    int ranks;
    unsigned char secret[SECRET_BYTES], name[SECRET_BYTES];
    int launcher[2];               /* between the launcher [0] and rank 0 [1] */
    int star[SOCKET_MAX_RANKS][2]; /* between rank 0 [0] and each other rank [1] */
    int listener[SOCKET_MAX_RANKS];
    char place[SOCKET_MAX_RANKS][64]; /* of the ranks in the grid, for messages */
};

/* Closes all descriptors but those of this rank. */
void socket_links_keep(SocketLinks *links, int rank);
/* Writes the address of the socket on which this rank accepts connections, and returns its
 * length. */
socklen_t socket_links_address(const SocketLinks *links, int rank, struct sockaddr_un *address);

#endif
