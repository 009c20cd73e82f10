/* stream.h -- inside parallel/comm/socket: packets over a connected stream socket, between rank 0
 * and another rank, or from the launcher to rank 0. A packet begins with its length. Nothing here
 * blocks or allocates, except where a comment says that it waits: unsent packets, and the received
 * part of a packet, stay in the stream's buffers. */
#ifndef PARALLEL_COMM_SOCKET_STREAM_H
#define PARALLEL_COMM_SOCKET_STREAM_H

#include "parallel/comm/socket/frame.h"

#include <pthread.h>

typedef struct {
    int fd;    /* non-blocking; -1: none */
    bool lost; /* the peer has closed it, or has sent something that is no packet */
    bool shut; /* the peer receives nothing more */
    int got;   /* bytes in `in`: received packets that have not been taken */
    int left;  /* bytes in `out` that are still to be sent */
    unsigned char in[PACKET_BYTES], out[PACKET_BYTES];
} SocketStream;

/* Queues a packet and sends what is possible. Returns false if there is no room for it,
 * or the peer receives nothing more. */
bool socket_stream_put(SocketStream *stream, const void *packet);
/* Sends as much of the queue as possible. */
void socket_stream_flush(SocketStream *stream);
/* Sends as much of the queue as possible. Returns whether anything, queued or already sent, has not
 * yet reached the peer's system. */
bool socket_stream_is_sending(SocketStream *stream);
/* Sends what is queued on these streams, and waits until the peers' systems have received it. The
 * wait has a short time limit, because a peer that is cut off would never receive the data.
 * `sends`: the mutex that guards sending.
 *
 * Meant for a process that is about to end: when it ends, the system resets connections with unread
 * data, and drops what other machines have not received yet. */
void socket_streams_finish(SocketStream *stream, int n, pthread_mutex_t *sends);
/* Receives the next packet. Returns false if there is none at the moment, or the stream is lost. */
bool socket_stream_take(SocketStream *stream, SocketPacket *packet);

#endif
