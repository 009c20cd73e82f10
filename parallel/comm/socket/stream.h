/* stream.h -- inside parallel/comm/socket: packets over a connected stream, between rank 0 and
 * another rank, or from the launcher to rank 0. A packet begins with its length. Nothing here waits
 * or allocates: what could not be sent yet, and the first part of a packet, stay in the stream. */
#ifndef PARALLEL_COMM_SOCKET_STREAM_H
#define PARALLEL_COMM_SOCKET_STREAM_H

#include "parallel/comm/socket/frame.h"

#include <pthread.h>

typedef struct {
    int fd;    /* non-blocking; -1: none */
    bool lost; /* the peer has closed it, or has sent something that is no packet */
    bool shut; /* the peer receives nothing more */
    int got;   /* bytes of `in`: packets that have not been taken */
    int left;  /* bytes of `out` that are still to be sent */
    unsigned char in[PACKET_BYTES], out[PACKET_BYTES];
} SocketStream;

/* Queues a packet and sends what is possible. Returns false if there is no room for it,
 * or the peer receives nothing more. */
bool socket_stream_put(SocketStream *stream, const void *packet);
/* Sends what is possible of the queue. */
void socket_stream_flush(SocketStream *stream);
/* Does the same. Returns whether some of what was sent has not reached the peer's system yet. */
bool socket_stream_is_sending(SocketStream *stream);
/* This process is about to end. Then the system resets connections on which it has not read all,
 * and drops what the other machines have not received yet. Sends what is queued on these streams,
 * and waits until the systems of their peers have all of it, but not for long: those that are cut
 * off never have. `sends` guards sending. */
void socket_streams_finish(SocketStream *stream, int n, pthread_mutex_t *sends);
/* Receives the next packet. Returns false if there is none at the moment, or the stream is lost. */
bool socket_stream_take(SocketStream *stream, SocketPacket *packet);

#endif
