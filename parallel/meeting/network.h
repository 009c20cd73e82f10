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

/* The addresses of one interface of this machine, or, if `interface` is NULL, of all that are up
 * and no loopback; if there are none, the loopback's. IPv4 comes first. IPv6 addresses that are
 * valid on one link only (fe80::) are left out: other machines cannot use them. Returns false if
 * there are none and sets err and *code. */
bool network_own(AddressList *list, const char *interface, ExitCode *code, char *err, size_t n);
/* The addresses of rank 0's machine, as `master` names it. Many systems give their own host name
 * the address 127.0.1.1, where no other machine can connect: then the own addresses, as above,
 * take its place. *code is EXIT_TEMPORARY if the name may be known later. */
bool network_master(AddressList *list, const char *master, ExitCode *code, char *err, size_t n);

/* The addresses at which rank 0 listens while the ranks meet (README, "Who listens where"). */
bool network_for_rank_0(AddressList *list, const MeetingOptions *o, ExitCode *code, char *err,
                        size_t n);

/* Opens a socket that accepts connections at this address; port 0: any free one, which it writes
 * to `address`. Returns -1 with errno. */
int network_listen(Address *address);
/* Opens a socket that connects from `source` (its port is not used; NULL: as the system chooses) to
 * `to`. Does not wait for the connection. Returns -1 with errno if it fails at once. */
int network_connect(const Address *to, const Address *source);
/* The own address of a connected socket, and the other side's. */
bool network_name(int fd, Address *own);
bool network_peer(int fd, Address *peer);

#endif
