/* connect.c -- connections between two ranks, made when they first exchange data. The rank with the
 * higher number connects. Both check that the other one is a process of the same user, and the
 * accepting rank checks that it knows the secret. */
#include "parallel/comm/socket/world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool is_of_this_user(int fd)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == getuid();
}

void socket_connect(SocketWorld *world, int rank)
{
    SocketPeer *peer = &world->peer[rank];
    struct sockaddr_un address;
    socklen_t bytes = socket_links_address(world->links, rank, &address);
    if (rank > world->rank || peer->fd >= 0 || peer->gone) return;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        fail(EXIT_SYSTEM, "no socket to connect rank %d with rank %d: %s", world->rank, rank,
             strerror(errno));
    SocketHello hello = {.rank = world->rank};
    memcpy(hello.secret, world->links->secret, SECRET_BYTES);
    /* The connection can be used before the other rank accepts it. */
    if (connect(fd, (const struct sockaddr *)&address, bytes) == 0) {
        if (!is_of_this_user(fd) ||
            send(fd, &hello, sizeof hello, MSG_NOSIGNAL) != (ssize_t)sizeof hello)
            peer->gone = true;
        else
            peer->fd = fd;
    } else if (errno != EAGAIN && errno != EINTR) { /* EAGAIN: too many wait to be accepted */
        peer->gone = true;
    }
    if (peer->fd != fd) close(fd);
}

/* Receives the rest of the hello, and makes the connection that of the rank it names. Returns
 * whether the connection is no stranger's any more. */
static bool meet_stranger(SocketWorld *world, struct SocketStranger *stranger)
{
    ssize_t got = recv(stranger->fd, (char *)&stranger->hello + stranger->got,
                       sizeof stranger->hello - stranger->got, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got > 0) stranger->got += (size_t)got;
    if (got > 0 && stranger->got < sizeof stranger->hello) return false;
    int rank = stranger->hello.rank;
    bool known = got > 0 &&
                 memcmp(stranger->hello.secret, world->links->secret, SECRET_BYTES) == 0 &&
                 rank > world->rank && rank < world->ranks && world->peer[rank].fd < 0;
    if (known)
        world->peer[rank].fd = stranger->fd;
    else
        close(stranger->fd);
    return true;
}

void socket_accept(SocketWorld *world)
{
    while (world->strangers < SOCKET_MAX_RANKS) {
        int fd =
            accept4(world->links->listener[world->rank], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (fd < 0 && errno == EAGAIN) break;
        if (fd < 0)
            fail(EXIT_SYSTEM, "rank %d cannot accept the connection of another rank: %s",
                 world->rank, strerror(errno));
        if (is_of_this_user(fd))
            world->stranger[world->strangers++] = (struct SocketStranger){.fd = fd};
        else
            close(fd);
    }
    for (int i = 0; i < world->strangers;) {
        if (meet_stranger(world, &world->stranger[i]))
            world->stranger[i] = world->stranger[--world->strangers];
        else
            i++;
    }
}

void socket_disconnect(SocketWorld *world)
{
    for (int i = 0; i < world->ranks; i++) {
        SocketPeer *peer = &world->peer[i];
        if (peer->fd >= 0) close(peer->fd);
        free(peer->out.item);
        free(peer->in.item);
        free(peer->offers.item);
    }
    for (int i = 0; i < world->strangers; i++)
        close(world->stranger[i].fd);
}
