/* channel.c -- sends and receives messages over a connected socket. See channel.h. */
#include "parallel/meeting/channel.h"

#include "model/core/check.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

void channel_open(Channel *c, int fd)
{
    *c = (Channel){.fd = fd};
}

int channel_release(Channel *c)
{
    int fd = c->fd;
    free(c->body);
    bytes_free(&c->out);
    *c = (Channel){.fd = -1};
    return fd;
}

void channel_close(Channel *c)
{
    int fd = channel_release(c);
    if (fd >= 0) close(fd);
}

void channel_put(Channel *c, MessageKind kind, const Bytes *body)
{
    bytes_put_number(&c->out, kind, 4);
    bytes_put_number(&c->out, body ? body->used : 0, 4);
    if (body) bytes_put(&c->out, body->data, body->used);
}

bool channel_flush(Channel *c)
{
    while (c->fd >= 0 && !c->gone && c->sent < c->out.used) {
        ssize_t sent =
            send(c->fd, c->out.data + c->sent, c->out.used - c->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno == EAGAIN) return false;
        if (sent < 0)
            c->gone = true;
        else
            c->sent += (size_t)sent;
    }
    c->out.used = c->sent = 0;
    return true;
}

/* Receives into to[*got..n) what has arrived, without waiting. Returns whether to[0..n) is
 * complete. */
static bool receive(Channel *c, unsigned char *to, size_t *got, size_t n)
{
    while (*got < n) {
        ssize_t bytes = recv(c->fd, to + *got, n - *got, MSG_DONTWAIT);
        if (bytes < 0 && errno == EINTR) continue;
        if (bytes < 0 && errno == EAGAIN) return false;
        if (bytes <= 0) {
            c->gone = true;
            return false;
        }
        *got += (size_t)bytes;
    }
    return true;
}

bool channel_take(Channel *c, size_t most, int *kind, const unsigned char **body, size_t *n)
{
    if (c->fd < 0 || c->gone) return false;
    if (c->got < MESSAGE_HEAD_BYTES) {
        if (!receive(c, c->head, &c->got, MESSAGE_HEAD_BYTES)) return false;
        Reader r = {c->head + 4, c->head + MESSAGE_HEAD_BYTES, false};
        c->body_bytes = (size_t)reader_number(&r, 4);
        if (c->body_bytes > most) {
            c->gone = c->wrong = true;
            return false;
        }
        free(c->body);
        c->body = must_alloc(c->body_bytes ? c->body_bytes : 1);
    }
    size_t in_body = c->got - MESSAGE_HEAD_BYTES;
    bool whole = receive(c, c->body, &in_body, c->body_bytes);
    c->got = MESSAGE_HEAD_BYTES + in_body;
    if (!whole) return false;
    Reader r = {c->head, c->head + 4, false};
    *kind = (int)(uint32_t)reader_number(&r, 4);
    *body = c->body;
    *n = c->body_bytes;
    c->got = 0;
    return true;
}
