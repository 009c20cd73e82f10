/* door.c -- accepts connections, and lets the other side prove that it knows the secret. See
 * door.h. */
#include "parallel/meeting/door.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/log.h"

#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

/* What epoll events contain: for a pending connection its index, for a listening socket its index
 * plus LISTENER. */
enum { LISTENER = 1 << 16 };

/* If no descriptors are left: how many seconds after its acceptance a pending connection may be
 * closed, and for how long no new connection is accepted. */
static const double SILENT_SECONDS = 0.5, PAUSE_SECONDS = 0.05;

static void watch(Door *d, int fd, int index, uint32_t events, int how)
{
    struct epoll_event event = {.events = events, .data.u32 = (uint32_t)index};
    if (epoll_ctl(d->epoll, how, fd, &event) != 0 && d->error == 0) d->error = errno;
}

Door *door_open(const unsigned char secret[SHA256_BYTES], uint64_t tag, int rank, size_t most)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0) return NULL;
    Door *d = must_calloc(1, sizeof *d);
    d->epoll = epoll;
    d->tag = tag;
    d->rank = rank;
    d->most = most;
    memcpy(d->secret, secret, SHA256_BYTES);
    return d;
}

static void drop(Door *d, int i)
{
    channel_close(&d->pending[i].channel);
    d->pending[i].used = false;
    d->pendings--;
}

void door_close(Door *d)
{
    if (d == NULL) return;
    for (int i = 0; i < MEETING_MOST_PENDING; i++)
        if (d->pending[i].used) drop(d, i);
    for (int i = 0; i < d->listeners; i++)
        if (!d->kept[i]) close(d->listener[i]);
    close(d->epoll);
    explicit_bzero(d, sizeof *d); /* it contains the secret */
    free(d);
}

void door_listen(Door *d, int fd, bool keep)
{
    CHECK(d->listeners < NETWORK_MOST_ADDRESSES, "%d listening sockets", d->listeners);
    d->listener[d->listeners] = fd;
    d->kept[d->listeners] = keep;
    watch(d, fd, LISTENER + d->listeners++, EPOLLIN, EPOLL_CTL_ADD);
}

/* Closes a connection, and counts it as refused. Warns about the first refused one that has sent
 * something wrong. */
static void refuse(Door *d, int i)
{
    static const char *const why[] = {
        [HANDSHAKE_NO_REASON] = "says something that no rank says",
        [HANDSHAKE_OTHER_PROGRAM] = "is no rank of this program",
        [HANDSHAKE_OTHER_VERSION] = "is a rank of another version of this program",
        [HANDSHAKE_OTHER_NAME] = "is a rank of another job",
        [HANDSHAKE_WRONG_SECRET] = "does not know the secret of this job"};
    Address peer;
    char text[ADDRESS_TEXT_BYTES];
    const Pending *p = &d->pending[i];
    bool telling = p->proven || p->hand.state == HANDSHAKE_REFUSED;
    d->strangers++;
    if (telling && !d->warned && network_peer(p->channel.fd, &peer)) {
        d->warned = true;
        log_warning("refused a connection from %s, which %s", address_text(&peer, text),
                    why[p->hand.reason]);
    }
    drop(d, i);
}

/* Returns the oldest connection, if possible one that has not proven the secret. */
static int oldest(const Door *d)
{
    int found = -1;
    for (int i = 0; i < MEETING_MOST_PENDING; i++) {
        const Pending *p = &d->pending[i], *f = found < 0 ? NULL : &d->pending[found];
        if (p->used &&
            (!f || (f->proven && !p->proven) || (f->proven == p->proven && p->since < f->since)))
            found = i;
    }
    return found;
}

/* Called when this process may open no more descriptors. If the oldest pending connection was
 * accepted more than SILENT_SECONDS ago, closes it and returns true. Otherwise returns false,
 * leaves errno, and, if there are pending connections, accepts no new ones for a short time, in
 * which the pending ones may finish. */
static bool make_room(Door *d, double now)
{
    int i = oldest(d), error = errno;
    if (i >= 0 && now - d->pending[i].since > SILENT_SECONDS) {
        refuse(d, i);
        return true;
    }
    if (i >= 0) {
        d->resume = now + PAUSE_SECONDS;
        for (int k = 0; k < d->listeners; k++)
            watch(d, d->listener[k], LISTENER + k, 0, EPOLL_CTL_MOD);
    }
    errno = error;
    return false;
}

/* Accepts only some of the waiting connections at a time, so that those already accepted are
 * served, too. */
static void accept_some(Door *d, int listener, double now)
{
    int on = 1;
    for (int count = 0; count < MEETING_MOST_PENDING / 4; count++) {
        int fd = accept4(d->listener[listener], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (fd < 0 && (errno == EMFILE || errno == ENFILE) && make_room(d, now)) continue;
        if (fd < 0 && errno != EAGAIN && d->resume == 0 && d->error == 0) d->error = errno;
        if (fd < 0) return;
        if (d->pendings == MEETING_MOST_PENDING) refuse(d, oldest(d));
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        int i = 0;
        while (d->pending[i].used)
            i++;
        Pending *p = &d->pending[i];
        p->used = true;
        p->proven = false;
        p->since = now;
        p->listener = listener;
        handshake_begin(&p->hand, d->secret, true, d->rank);
        handshake_name(&p->hand, d->tag);
        channel_open(&p->channel, fd);
        d->pendings++;
        watch(d, fd, i, EPOLLIN, EPOLL_CTL_ADD);
    }
}

/* Continues the handshake. Returns whether the connection has proven the secret. */
static bool prove(Door *d, int i)
{
    Pending *p = &d->pending[i];
    if (p->proven) return true;
    HandshakeState state = handshake_move(&p->hand, p->channel.fd);
    if (handshake_sends(&p->hand)) watch(d, p->channel.fd, i, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
    /* A rank tries several addresses and keeps one connection, so it is no error if a connection is
     * closed, except in the middle of its first message (the hello). */
    bool half = p->hand.got > 0 && p->hand.got < HANDSHAKE_HELLO_BYTES;
    if (state == HANDSHAKE_REFUSED || (state == HANDSHAKE_LOST && half))
        refuse(d, i);
    else if (state == HANDSHAKE_LOST)
        drop(d, i);
    p->proven = state == HANDSHAKE_PROVEN;
    if (p->proven) watch(d, p->channel.fd, i, EPOLLIN, EPOLL_CTL_MOD);
    return p->proven;
}

static void move(Door *d, int i, bool (*receive)(void *context, const Caller *caller),
                 void *context)
{
    Pending *p = &d->pending[i];
    if (!p->used || !prove(d, i)) return;
    Caller caller = {p->hand.peer_rank, p->listener, &p->channel, 0, NULL, 0};
    if (channel_take(&p->channel, d->most, &caller.kind, &caller.body, &caller.n)) {
        int fd = p->channel.fd;
        if (!receive(context, &caller)) {
            refuse(d, i);
            return;
        }
        if (p->channel.fd < 0) epoll_ctl(d->epoll, EPOLL_CTL_DEL, fd, NULL);
        drop(d, i);
    } else if (p->channel.wrong) {
        refuse(d, i);
    } else if (p->channel.gone) {
        drop(d, i);
    }
}

void door_serve(Door *d, double now, bool (*receive)(void *context, const Caller *caller),
                void *context)
{
    struct epoll_event event[MEETING_MOST_PENDING];
    for (int k = 0; k < d->listeners && d->resume > 0 && now >= d->resume; k++)
        watch(d, d->listener[k], LISTENER + k, EPOLLIN, EPOLL_CTL_MOD);
    if (now >= d->resume) d->resume = 0;
    int events = epoll_wait(d->epoll, event, MEETING_MOST_PENDING, 0);
    /* New connections are accepted last, because one of them may replace a pending one that has an
     * event now. */
    for (int i = 0; i < events; i++)
        if (event[i].data.u32 < LISTENER) move(d, (int)event[i].data.u32, receive, context);
    for (int i = 0; i < events; i++)
        if (event[i].data.u32 >= LISTENER) accept_some(d, (int)event[i].data.u32 - LISTENER, now);
    for (int i = 0; i < MEETING_MOST_PENDING && d->pendings > 0; i++)
        if (d->pending[i].used && now >= d->pending[i].since + MEETING_PENDING_SECONDS)
            refuse(d, i);
}

double door_expires(const Door *d)
{
    double next = d->resume > 0 ? d->resume : INFINITY;
    for (int i = 0; i < MEETING_MOST_PENDING && d->pendings > 0; i++)
        if (d->pending[i].used) next = fmin(next, d->pending[i].since + MEETING_PENDING_SECONDS);
    return next;
}
