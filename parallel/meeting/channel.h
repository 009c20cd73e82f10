/* channel.h -- inside parallel/meeting: sends and receives messages over a connected socket. No
 * function here waits. */
#ifndef PARALLEL_MEETING_CHANNEL_H
#define PARALLEL_MEETING_CHANNEL_H

#include "parallel/meeting/message.h"

typedef struct {
    int fd;     /* -1: none */
    bool gone;  /* the connection was closed or has failed */
    bool wrong; /* it is gone because the other side announced a message of more than channel_take's
                   `most` bytes */
    unsigned char head[MESSAGE_HEAD_BYTES], *body;
    size_t body_bytes, got; /* got: bytes received, of the head and then of the body */
    Bytes out;
    size_t sent;
} Channel;

/* Takes over a connected socket. */
void channel_open(Channel *c, int fd);
/* Closes the socket and frees the channel's memory. */
void channel_close(Channel *c);
/* Frees the channel without closing the socket, and returns the socket. */
int channel_release(Channel *c);
/* Queues a message, which channel_flush sends. `body`: NULL: empty. */
void channel_put(Channel *c, MessageKind kind, const Bytes *body);
/* Sends as much of the queued messages as can be sent now. Returns whether nothing is left. */
bool channel_flush(Channel *c);
/* Returns whether the next message has arrived, and if so sets *kind, *body and *n. Reads no bytes
 * after that message. *kind is an unchecked number from the other side. The body is valid until the
 * next call. If the body has more than `most` bytes, sets c->wrong. */
bool channel_take(Channel *c, size_t most, int *kind, const unsigned char **body, size_t *n);

#endif
