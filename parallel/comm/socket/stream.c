/* stream.c -- see stream.h. */
#include "parallel/comm/socket/stream.h"

#include "model/core/clock.h"
#include "model/core/pool.h"

#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* For how many seconds a process that ends waits at most until other ranks have received its last
 * packets. */
static const double LAST_SECONDS = 0.3;

/* ---- which packets make sense ---------------------------------------------------------------- */

static bool is_list(int32_t n, int most)
{
    return n >= 0 && n <= most;
}

/* Returns the size, in bytes, that a packet with this content must have; 0: the content is
 * invalid. */
static size_t bytes_of(const SocketPacket *packet)
{
    switch ((SocketPacketKind)packet->head.kind) {
    case PACKET_REPORT:
        if (!is_list(packet->report.wait.whos, SOCKET_NAMED) ||
            !is_list(packet->report.wait.gones, SOCKET_NAMED))
            return 0;
        return socket_report_bytes(&packet->report);
    case PACKET_GROUP:
        if (!is_list(packet->group.runs, RUNS_IN_PACKET)) return 0;
        return socket_group_report_bytes(&packet->group);
    case PACKET_WATCHED: return sizeof packet->watched;
    case PACKET_CLAIM:
    case PACKET_GRANT:
    case PACKET_ASK:
    case PACKET_VERDICT:
    case PACKET_FAREWELL:
    case PACKET_TREE:
    case PACKET_LOST:
    case PACKET_DUMP:
    case PACKET_ALIVE:
    case PACKET_ENDED: return sizeof packet->word;
    }
    return 0;
}

/* Takes the first packet out of `in`. Returns false if it is not complete. */
static bool take_first(SocketStream *stream, SocketPacket *packet)
{
    SocketPacketHead head;
    if ((size_t)stream->got < sizeof head) return false;
    memcpy(&head, stream->in, sizeof head);
    if (head.bytes < sizeof head || head.bytes > sizeof *packet) {
        stream->lost = true;
        return false;
    }
    if (stream->got < (int)head.bytes) return false;
    memset(packet, 0, sizeof *packet);
    memcpy(packet, stream->in, head.bytes);
    stream->got -= (int)head.bytes;
    memmove(stream->in, stream->in + head.bytes, (size_t)stream->got);
    stream->lost = bytes_of(packet) != head.bytes;
    return !stream->lost;
}

bool socket_stream_take(SocketStream *stream, SocketPacket *packet)
{
    while (stream->fd >= 0 && !stream->lost) {
        if (take_first(stream, packet)) return true;
        if (stream->lost) break;
        ssize_t got = recv(stream->fd, stream->in + stream->got,
                           sizeof stream->in - (size_t)stream->got, MSG_DONTWAIT);
        /* If the peer has closed the connection without reading everything, ECONNRESET may come
         * once before the data that it has sent. */
        if (got < 0 && (errno == EINTR || errno == ECONNRESET)) continue;
        if (got < 0 && errno == EAGAIN) break;
        if (got <= 0) stream->lost = true;
        if (got > 0) stream->got += (int)got;
    }
    return false;
}

/* ---- sending --------------------------------------------------------------------------------- */

void socket_stream_flush(SocketStream *stream)
{
    while (stream->fd >= 0 && stream->left > 0) {
        ssize_t sent =
            send(stream->fd, stream->out, (size_t)stream->left, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == ENOBUFS)) return;
        if (sent < 0) { /* what the peer has sent can still be received */
            stream->shut = true;
            sent = stream->left;
        }
        stream->left -= (int)sent;
        memmove(stream->out, stream->out + sent, (size_t)stream->left);
    }
}

bool socket_stream_is_sending(SocketStream *stream)
{
    int queued = 0;
    socket_stream_flush(stream);
    if (stream->left > 0) return true;
    return stream->fd >= 0 && ioctl(stream->fd, SIOCOUTQ, &queued) == 0 && queued > 0;
}

bool socket_stream_put(SocketStream *stream, const void *packet)
{
    SocketPacketHead head;
    memcpy(&head, packet, sizeof head);
    if (stream->left > 0) socket_stream_flush(stream);
    if (stream->shut || stream->left + (int)head.bytes > (int)sizeof stream->out) return false;
    memcpy(stream->out + stream->left, packet, head.bytes);
    stream->left += (int)head.bytes;
    socket_stream_flush(stream);
    return !stream->shut;
}

static bool any_is_sending(SocketStream *stream, int n, pthread_mutex_t *sends)
{
    bool any = false;
    if (!mutex_lock_within(sends, LAST_SECONDS)) return false;
    for (int i = 0; i < n; i++)
        any = socket_stream_is_sending(&stream[i]) || any;
    pthread_mutex_unlock(sends);
    return any;
}

void socket_streams_finish(SocketStream *stream, int n, pthread_mutex_t *sends)
{
    const useconds_t pause = 1000;
    double end = seconds_now() + LAST_SECONDS;
    while (any_is_sending(stream, n, sends) && seconds_now() < end)
        usleep(pause);
}
