/* links.c -- creates the sockets that rank processes inherit, and closes what each of them does not
 * need. */
#include "parallel/comm/socket/links.h"

#include "model/core/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

static void drop(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

socklen_t socket_links_address(const SocketLinks *links, int rank, struct sockaddr_un *address)
{
    /* An abstract name: it begins with a zero byte, is in no file system and ends with its
     * socket. */
    char *name = address->sun_path + 1;
    size_t room = sizeof address->sun_path - 1;
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int used = snprintf(name, room, "train.c-");
    for (int i = 0; i < SECRET_BYTES; i++)
        used += snprintf(name + used, room - (size_t)used, "%02x", links->name[i]);
    used += snprintf(name + used, room - (size_t)used, "-%d", rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)used);
}

static bool make_sockets(SocketLinks *links)
{
    const int pair = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;
    if (socketpair(AF_UNIX, pair, 0, links->launcher) != 0) return false;
    for (int rank = 0; rank < links->ranks; rank++) {
        struct sockaddr_un address;
        socklen_t bytes = socket_links_address(links, rank, &address);
        if (rank > 0 && socketpair(AF_UNIX, pair, 0, links->star[rank]) != 0) return false;
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        links->listener[rank] = fd;
        if (fd < 0 || bind(fd, (const struct sockaddr *)&address, bytes) != 0 ||
            listen(fd, 4 * SOCKET_MAX_RANKS) != 0)
            return false;
    }
    return true;
}

SocketLinks *socket_links_create(int ranks, char *err, size_t n)
{
    CHECK(ranks >= 1 && ranks <= SOCKET_MAX_RANKS, "%d ranks", ranks);
    SocketLinks *links = must_calloc(1, sizeof *links);
    links->ranks = ranks;
    links->launcher[0] = links->launcher[1] = -1;
    for (int i = 0; i < SOCKET_MAX_RANKS; i++)
        links->star[i][0] = links->star[i][1] = links->listener[i] = -1;
    bool random = getrandom(links->secret, SECRET_BYTES, 0) == SECRET_BYTES &&
                  getrandom(links->name, SECRET_BYTES, 0) == SECRET_BYTES;
    if (random && make_sockets(links)) return links;
    error_set(err, n, "the sockets of %d rank processes cannot be created: %s", ranks,
              strerror(errno));
    socket_links_destroy(links);
    return NULL;
}

void socket_links_keep(SocketLinks *links, int rank)
{
    drop(&links->launcher[0]);
    if (rank != 0) drop(&links->launcher[1]);
    for (int i = 0; i < links->ranks; i++) {
        if (rank != 0) drop(&links->star[i][0]);
        if (i != rank) drop(&links->star[i][1]);
        if (i != rank) drop(&links->listener[i]);
    }
}

void socket_links_name(SocketLinks *links, int rank, const char *place)
{
    snprintf(links->place[rank], sizeof links->place[rank], "%s", place);
}

void socket_links_release(SocketLinks *links)
{
    drop(&links->launcher[1]);
    for (int i = 0; i < links->ranks; i++) {
        drop(&links->star[i][0]);
        drop(&links->star[i][1]);
        drop(&links->listener[i]);
    }
}

void socket_links_report_end(SocketLinks *links, int rank, int status, bool spoken)
{
    SocketPacket packet = {.kind = PACKET_ENDED, .rank = rank, .code = status, .spoken = spoken};
    /* If it cannot be sent, rank 0 has ended or is stopped. Then the launcher itself ends all. */
    send(links->launcher[0], &packet, sizeof packet, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void socket_links_destroy(SocketLinks *links)
{
    socket_links_release(links);
    drop(&links->launcher[0]);
    free(links);
}
