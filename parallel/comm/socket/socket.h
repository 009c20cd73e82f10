/* socket.h -- the transport between ranks that are processes, on one machine or on several. Tensors
 * in host memory are sent over local sockets or TCP. Rank 0's process also monitors all ranks: it
 * knows which calls each has begun, ends the program if a wait exceeds the timeout, and allows only
 * the first failure to be printed.
 *
 * Ranks of one machine may be started by a launcher, a process that forks them and creates the
 * links before that. Other ranks join: each process makes its links from connections that it
 * already has (parallel/meeting). */
#ifndef PARALLEL_COMM_SOCKET_SOCKET_H
#define PARALLEL_COMM_SOCKET_SOCKET_H

#include "model/core/sha256.h"
#include "parallel/comm/comm.h"

#include <sys/socket.h>

typedef struct SocketLinks SocketLinks;

/* In the launcher, before it forks: makes the sockets that `ranks` rank processes inherit. All are
 * close-on-exec, and none has a name in the file system or a port. Returns NULL and sets err if the
 * system refuses. */
SocketLinks *socket_links_create(int ranks, char *err, size_t n);
/* Sets the rank's place in the grid, for example "dp 1 tp 0". Error messages name it after the
 * rank; without a place they name the rank alone. Called in the launcher before it forks, or in a
 * process that joins. */
void socket_links_name(SocketLinks *links, int rank, const char *place);
/* In the launcher, after all forks: closes the ranks' ends. */
void socket_links_release(SocketLinks *links);
/* In the launcher: reports to rank 0 that the process of `rank` has ended with this wait status (as
 * from waitpid). `spoken`: it has printed an error message. Never blocks. */
void socket_links_report_end(SocketLinks *links, int rank, int status, bool spoken);
void socket_links_destroy(SocketLinks *links);

/* How a rank of another process is reached. */
enum { SOCKET_HOST_BYTES = 65 };
typedef struct {
    struct sockaddr_storage address; /* of its listening socket: IPv4 or IPv6 */
    socklen_t address_bytes;
    char host[SOCKET_HOST_BYTES]; /* its machine's name, for messages */
    int machine;                  /* index of its machine, from 0 */
    int local_rank;               /* its index among the ranks of that machine */
} SocketMember;
/* For a rank's process that no launcher has forked: makes its links. `member`: [ranks], copied.
 * Takes over the descriptors: `listener` accepts connections of other ranks. `control`: on rank 0
 * it has `ranks` entries; control[i] is a connected stream to rank i, which has proven that it
 * knows the secret, and control[0] is -1. On other ranks it has one entry, the stream to rank 0.
 *
 * There is no launcher that could report how a rank has ended. Rank 0 prints the error if another
 * rank is lost: when its connection closes, or if nothing comes from it for about `timeout`
 * seconds. If rank 0's process is lost, the lowest rank of each machine prints the error. */
SocketLinks *socket_links_join(int ranks, int rank, const SocketMember *member,
                               const unsigned char secret[SHA256_BYTES], int listener,
                               const int *control);

/* In a rank's process, once: starts the service thread and returns the communicator of all ranks.
 * No wait lasts longer than `timeout` seconds (0: no limit), as in local_world_create. The process
 * must have called ends_share(true). On more than 64 machines it returns when all ranks have called
 * it, and control packets are sent over a tree (relay.h). Closing the communicator frees the links
 * and ends the thread. On rank 0, and on joined ranks, closing returns when all ranks have closed
 * theirs. */
Comm socket_world_join(SocketLinks *links, int rank, double timeout);

#endif
