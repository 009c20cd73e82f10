/* door.h -- inside parallel/meeting: the door, which consists of the sockets at which a rank
 * listens during the meeting and of the connections whose other side has not yet proven that it
 * knows the secret. Anybody may connect, so each connection may use only a few seconds and bytes,
 * there are at most MEETING_MOST_PENDING of them, and none delays another. */
#ifndef PARALLEL_MEETING_DOOR_H
#define PARALLEL_MEETING_DOOR_H

#include "parallel/comm/socket/handshake.h"
#include "parallel/meeting/channel.h"
#include "parallel/meeting/network.h"
#include "parallel/meeting/sides.h"

typedef struct {
    bool used, proven;
    double since;
    int listener; /* index of the listening socket that accepted it */
    Handshake hand;
    Channel channel;
} Pending;

typedef struct {
    int epoll; /* readable if door_serve has something to do */
    unsigned char secret[SHA256_BYTES];
    uint64_t tag;
    int rank;    /* of this process */
    size_t most; /* largest size of a first message, in bytes */
    int listeners, listener[NETWORK_MOST_ADDRESSES];
    bool kept[NETWORK_MOST_ADDRESSES]; /* true: door_close does not close the socket */
    int pendings, strangers;           /* strangers: how many connections were refused */
    bool warned;
    double resume; /* time from which connections are accepted again; 0: they are accepted now */
    int error;     /* why no connection can be accepted (errno), or 0 */
    Pending pending[MEETING_MOST_PENDING];
} Door;

/* Opens a door without listening sockets; `most`: see Door. Returns NULL with errno if the system
 * refuses. */
Door *door_open(const unsigned char secret[SHA256_BYTES], uint64_t tag, int rank, size_t most);
void door_close(Door *d);
/* Adds a listening socket. `keep`: the caller closes it. */
void door_listen(Door *d, int fd, bool keep);

/* A process that has proven that it knows the secret, and its first message. */
typedef struct {
    int rank, listener;
    Channel *channel; /* `receive` may take the connection over: it copies the Channel and sets the
                         fd of this one to -1. Otherwise the connection is closed afterwards */
    int kind;
    const unsigned char *body;
    size_t n;
} Caller;
/* Serves all connections as far as that is possible without waiting. Calls `receive` for each
 * caller. If the caller's message makes no sense, `receive` returns false, and the caller counts as
 * a stranger. */
void door_serve(Door *d, double now, bool (*receive)(void *context, const Caller *caller),
                void *context);
/* Returns the time at which door_serve must be called again even without an event. */
double door_expires(const Door *d);

#endif
