/* socket.h -- the transport between ranks that are processes of one machine. Tensors in host memory
 * travel over local sockets. Rank 0's process also watches over all ranks: it knows what each has
 * begun, ends waits that exceed the timeout, and lets only the first failure speak.
 *
 * The launcher is the process that starts the ranks with fork. It creates the links before that. */
#ifndef PARALLEL_COMM_SOCKET_SOCKET_H
#define PARALLEL_COMM_SOCKET_SOCKET_H

#include "parallel/comm/comm.h"

#include <sys/socket.h>

typedef struct SocketLinks SocketLinks;

/* Largest number of ranks. */
enum { SOCKET_MAX_RANKS = 64 };

/* How a rank of another process is reached. */
typedef struct {
    struct sockaddr_storage address; /* of its listening socket */
    socklen_t address_bytes;
    char host[65];           /* its machine's name, for messages */
    int machine, local_rank; /* number of its machine; its number among the ranks of that machine */
} SocketMember;

/* In the launcher, before it forks: makes the sockets that `ranks` rank processes inherit. All are
 * close-on-exec, and none has a name in the file system or a port. Returns NULL and sets err if the
 * system refuses. */
SocketLinks *socket_links_create(int ranks, char *err, size_t n);
/* In the launcher, before it forks: `place` is the rank's place in the grid for error messages, for
 * example "dp 1 tp 0". Without it, messages name the rank alone. */
void socket_links_name(SocketLinks *links, int rank, const char *place);
/* In the launcher, after all forks: closes the ranks' ends. */
void socket_links_release(SocketLinks *links);
/* In the launcher: reports to rank 0 that the process of `rank` has ended with this wait status (as
 * from waitpid). `spoken`: it has printed an error message. Never blocks. */
void socket_links_report_end(SocketLinks *links, int rank, int status, bool spoken);
void socket_links_destroy(SocketLinks *links);

/* In a rank's process, once: starts the service thread and returns the communicator of all ranks.
 * No wait lasts longer than `timeout` seconds (0: no limit), as in local_world_create. The process
 * must have called ends_share(true). Closing the communicator frees the links and ends the thread;
 * rank 0's returns when all ranks have closed theirs. */
Comm socket_world_join(SocketLinks *links, int rank, double timeout);

#endif
