/* connect.c -- connections between two ranks, made when they first exchange data. The rank with the
 * higher number connects. Over local sockets both check that the other one is a process of the same
 * user. Both prove that they know the secret (handshake.h) before anything else is read; other
 * connections are dropped. Nothing here blocks. */
#include "model/core/clock.h"
#include "model/core/min_max.h"
#include "parallel/comm/socket/world.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Milliseconds until the next attempt to connect: FIRST_PAUSE after the first attempt, then twice
 * as long after each further one, up to LONGEST_PAUSE. */
enum { FIRST_PAUSE = 2, LONGEST_PAUSE = 200 };
/* Seconds that an accepted connection has to prove that it belongs to a rank; and seconds before it
 * may be dropped to make room for another one. A rank that was dropped connects again. */
static const double STRANGER_SECONDS = 5, SHORTEST_STAY = 0.1;

static bool is_of_this_user(const SocketWorld *world, int fd)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    if (world->links->at) return true; /* TCP does not provide the peer's user */
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == getuid();
}

/* Frames are short and urgent, so they are sent without delay. The option does not exist for local
 * sockets. */
static void send_at_once(int fd)
{
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

SocketPeer *socket_peer_of(SocketWorld *world, int rank)
{
    SocketPeer **peer = &world->peer[rank];
    if (*peer) return *peer;
    *peer = must_calloc(1, sizeof **peer);
    (*peer)->rank = rank;
    (*peer)->fd = -1;
    return *peer;
}

/* ---- the rank that connects ------------------------------------------------------------------ */

/* Closes the unfinished connection, to try again later. */
static void retry(SocketPeer *peer)
{
    if (peer->fd >= 0) close(peer->fd);
    peer->fd = -1;
    peer->state = PEER_APART;
    peer->pause = peer->pause == 0 ? FIRST_PAUSE : (int)min_i64(2 * peer->pause, LONGEST_PAUSE);
    peer->again = seconds_now() + 1e-3 * peer->pause;
}

/* Gives up the connection: no process listens at the peer's address any more, or the process that
 * does is not this peer. */
static void give_up(SocketPeer *peer)
{
    if (peer->fd >= 0) close(peer->fd);
    peer->fd = -1;
    peer->state = PEER_APART;
    peer->gone = true;
}

static void prove(SocketWorld *world, SocketPeer *peer)
{
    if (!is_of_this_user(world, peer->fd)) {
        give_up(peer);
        return;
    }
    send_at_once(peer->fd);
    handshake_begin(&peer->handshake, world->links->secret, false,
                    peer->control ? ~world->rank : world->rank);
    peer->state = PEER_PROVES;
}

/* Handles a failed attempt to connect. */
static void refused(SocketPeer *peer, int error)
{
    /* Give up only after these four errors. Retry after all others, because a network or a machine
     * may recover. For example, EAGAIN means that too many connections wait to be accepted. */
    if (error == ECONNREFUSED || error == ENOENT || error == EACCES || error == EPERM)
        give_up(peer);
    else
        retry(peer);
}

static void begin(SocketWorld *world, SocketPeer *peer)
{
    struct sockaddr_storage address;
    socklen_t bytes = socket_links_address(world->links, peer->rank, &address);
    peer->fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (peer->fd < 0)
        fail(EXIT_SYSTEM, "no socket to connect rank %d with rank %d: %s", world->rank, peer->rank,
             strerror(errno));
    if (connect(peer->fd, (const struct sockaddr *)&address, bytes) == 0)
        prove(world, peer);
    else if (errno == EINPROGRESS)
        peer->state = PEER_CONNECTS;
    else
        refused(peer, errno);
}

/* Checks whether the connection has been established. */
static void finish(SocketWorld *world, SocketPeer *peer)
{
    int error = 0;
    socklen_t bytes = sizeof error;
    struct pollfd fd = {.fd = peer->fd, .events = POLLOUT};
    if (poll(&fd, 1, 0) <= 0) return;
    if (getsockopt(peer->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
    if (error == 0)
        prove(world, peer);
    else
        refused(peer, error);
}

void socket_connect(SocketWorld *world, SocketPeer *peer)
{
    if (peer->rank > world->rank || peer->state == PEER_CONNECTED || peer->gone) return;
    if (peer->state == PEER_APART && seconds_now() >= peer->again) begin(world, peer);
    if (peer->state == PEER_CONNECTS) finish(world, peer);
    if (peer->state != PEER_PROVES) return;
    switch (handshake_move(&peer->handshake, peer->fd)) {
    case HANDSHAKE_GOES_ON: break;
    case HANDSHAKE_PROVEN:
        peer->state = PEER_CONNECTED;
        if (peer->handshake.peer_rank != peer->rank) give_up(peer);
        break;
    case HANDSHAKE_REFUSED: give_up(peer); break;
    /* The peer had no room for another stranger, or has ended. If it has ended, the next attempt
     * fails. */
    case HANDSHAKE_LOST: retry(peer); break;
    }
}

/* ---- the rank that accepts ------------------------------------------------------------------- */

/* Continues the handshake with a stranger: an accepted connection that has not proven yet that it
 * is a rank's. If it succeeds, assigns the connection to the rank that has proven the secret.
 * Returns whether the stranger can be removed from the list. */
static bool meet_stranger(SocketWorld *world, SocketStranger *stranger, double now)
{
    HandshakeState state = handshake_move(&stranger->handshake, stranger->fd);
    int rank = stranger->handshake.peer_rank;
    if (state == HANDSHAKE_GOES_ON && now < stranger->since + STRANGER_SECONDS) return false;
    if (state == HANDSHAKE_PROVEN && rank < 0 && socket_plant_takes(world, ~rank, stranger->fd))
        return true;
    bool known = state == HANDSHAKE_PROVEN && rank > world->rank && rank < world->ranks;
    SocketPeer *peer = known ? socket_peer_of(world, rank) : NULL;
    if (peer && peer->state == PEER_APART && !peer->gone) {
        peer->fd = stranger->fd;
        peer->state = PEER_CONNECTED;
    } else {
        close(stranger->fd);
    }
    return true;
}

static void meet_strangers(SocketWorld *world)
{
    double now = seconds_now();
    int n = 0;
    for (int i = 0; i < world->strangers; i++) { /* the list stays ordered, the oldest first */
        if (meet_stranger(world, &world->stranger[i], now)) continue;
        if (n < i) world->stranger[n] = world->stranger[i];
        n++;
    }
    world->strangers = n;
}

/* Makes room for another stranger. Returns false if even the oldest one has only just connected. */
static bool make_room(SocketWorld *world)
{
    if (world->strangers < STRANGERS) return true;
    meet_strangers(world);
    if (world->strangers < STRANGERS) return true;
    if (seconds_now() < world->stranger[0].since + SHORTEST_STAY) return false;
    close(world->stranger[0].fd);
    world->strangers--;
    memmove(&world->stranger[0], &world->stranger[1],
            (size_t)world->strangers * sizeof *world->stranger);
    return true;
}

void socket_accept(SocketWorld *world)
{
    while (make_room(world)) {
        int fd =
            accept4(world->links->listener[world->rank], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED || errno == EPROTO)) continue;
        if (fd < 0 && errno == EAGAIN) break;
        if (fd < 0)
            fail(EXIT_SYSTEM, "rank %d cannot accept the connection of another rank: %s",
                 world->rank, strerror(errno));
        if (!is_of_this_user(world, fd)) {
            close(fd);
            continue;
        }
        SocketStranger *stranger = &world->stranger[world->strangers++];
        stranger->fd = fd;
        stranger->since = seconds_now();
        send_at_once(fd);
        handshake_begin(&stranger->handshake, world->links->secret, true, world->rank);
    }
    meet_strangers(world);
}

void socket_disconnect(SocketWorld *world)
{
    for (int i = 0; i < world->ranks; i++) {
        SocketPeer *peer = world->peer[i];
        if (peer == NULL) continue;
        if (peer->fd >= 0) close(peer->fd);
        free(peer->out.item);
        free(peer->in.item);
        free(peer->offers.item);
        free(peer);
    }
    for (int i = 0; i < world->strangers; i++)
        close(world->stranger[i].fd);
    free(world->stranger);
    free(world->peer);
}
