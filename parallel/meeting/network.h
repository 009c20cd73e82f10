/* network.h -- inside parallel/meeting: the network addresses of this machine, and sockets that
 * listen or connect. Every socket is close-on-exec and does not block. */
#ifndef PARALLEL_MEETING_NETWORK_H
#define PARALLEL_MEETING_NETWORK_H

#include "parallel/meeting/message.h"

enum { NETWORK_MOST_ADDRESSES = 16 };

typedef struct {
    int count;
    Address address[NETWORK_MOST_ADDRESSES];
} AddressList;

/* Lists the addresses of one interface of this machine, or, if `interface` is NULL, of all
 * interfaces that are up, except loopback; if there are none, the loopback addresses. IPv4 comes
 * first. Link-local addresses (fe80::, 169.254.) are left out. Returns false if there are none and
 * sets err and *code. */
bool network_own(AddressList *list, const char *interface, ExitCode *code, char *err, size_t n);
/* Lists the addresses to which `master`, the name of rank 0's machine, resolves. On many systems
 * the machine's own host name resolves to 127.0.1.1, to which no other machine can connect; the
 * result is then that of network_own. *code is EXIT_TEMPORARY if the name may be resolved later. */
bool network_master(AddressList *list, const char *master, ExitCode *code, char *err, size_t n);

/* Lists the addresses at which rank 0 listens during the meeting (README, "Who listens where"). */
bool network_for_rank_0(AddressList *list, const MeetingOptions *o, ExitCode *code, char *err,
                        size_t n);

/* Opens a socket that accepts connections at this address; port 0: any free port, which is written
 * to `address`. Returns -1 with errno. */
int network_listen(Address *address);
/* Opens a socket that connects from `source` (its port is not used; NULL: as the system chooses) to
 * `to`. Does not wait for the connection. Returns -1 with errno if it fails at once. */
int network_connect(const Address *to, const Address *source);
/* Write the address of this side of a connected socket, and of the other side. Return whether that
 * succeeds. */
bool network_name(int fd, Address *own);
bool network_peer(int fd, Address *peer);

#endif
