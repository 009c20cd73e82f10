/* links.c -- creates the sockets that rank processes inherit, and closes those that a process does
 * not need; or makes links from the connections of a process that has joined. */
#include "parallel/comm/socket/links.h"

#include "model/core/check.h"
#include "model/core/min_max.h"
#include "parallel/comm/socket/frame.h"
#include "parallel/comm/socket/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/un.h>
#include <unistd.h>

static void drop(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static socklen_t local_address(const SocketLinks *links, int rank, struct sockaddr_un *address)
{
    /* An abstract name begins with a zero byte, is in no file system and disappears with its
     * socket. */
    char *name = address->sun_path + 1;
    size_t room = sizeof address->sun_path - 1;
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int used = snprintf(name, room, "train.c-");
    for (int i = 0; i < LINKS_NAME_BYTES; i++)
        used += snprintf(name + used, room - (size_t)used, "%02x", links->name[i]);
    used += snprintf(name + used, room - (size_t)used, "-%d", rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)used);
}

socklen_t socket_links_address(const SocketLinks *links, int rank, struct sockaddr_storage *address)
{
    struct sockaddr_un local;
    if (links->at == NULL) {
        socklen_t bytes = local_address(links, rank, &local);
        memcpy(address, &local, sizeof local);
        return bytes;
    }
    const SocketPlace *at = &links->at[rank];
    bool v6 = at->address.any.sa_family == AF_INET6;
    socklen_t bytes = v6 ? sizeof at->address.v6 : sizeof at->address.v4;
    memcpy(address, &at->address, bytes);
    return bytes;
}

const char *socket_links_host(const SocketLinks *links, int rank)
{
    return links->at ? links->host[links->at[rank].machine] : "";
}

int socket_links_towards(const SocketLinks *links, int rank, int below)
{
    if (links->parent) return socket_tree_towards(links->parent, rank, below);
    return rank == 0 && below > 0 ? below : -1;
}

static const char *host_of(const void *links, int rank)
{
    return socket_links_host(links, rank);
}

RankHosts socket_links_hosts(const SocketLinks *links)
{
    return (RankHosts){.name = links->machines > 1 ? host_of : NULL, .of = links};
}

bool socket_links_speaks(const SocketLinks *links, int rank)
{
    for (int i = 1; links->at && i < rank; i++)
        if (links->at[i].machine == links->at[rank].machine) return false;
    return true;
}

/* Returns links for `ranks` ranks, without any socket. */
static SocketLinks *empty_links(int ranks)
{
    CHECK(ranks >= 1 && ranks <= COMM_MAX_RANKS, "%d ranks", ranks);
    SocketLinks *links = must_calloc(1, sizeof *links);
    links->ranks = ranks;
    links->launcher[0] = links->launcher[1] = -1;
    for (int i = 0; i < 2; i++)
        links->star[i] = must_alloc((size_t)ranks * sizeof *links->star[i]);
    links->listener = must_alloc((size_t)ranks * sizeof *links->listener);
    links->place = must_calloc((size_t)ranks, sizeof *links->place);
    for (int i = 0; i < ranks; i++)
        links->star[0][i] = links->star[1][i] = links->listener[i] = -1;
    return links;
}

/* ---- local sockets --------------------------------------------------------------------------- */

static bool make_pair(int pair[2])
{
    return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0;
}

static bool make_sockets(SocketLinks *links)
{
    /* Length of the queue of connections to accept: at least one for each rank, and the same number
     * for other processes. */
    int waiting = (int)max_i64(256, 2 * links->ranks);
    if (!make_pair(links->launcher)) return false;
    for (int rank = 0; rank < links->ranks; rank++) {
        struct sockaddr_un address;
        int pair[2] = {-1, -1};
        socklen_t bytes = local_address(links, rank, &address);
        if (rank > 0 && !make_pair(pair)) return false;
        links->star[0][rank] = pair[0];
        links->star[1][rank] = pair[1];
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        links->listener[rank] = fd;
        if (fd < 0 || bind(fd, (const struct sockaddr *)&address, bytes) != 0 ||
            listen(fd, waiting) != 0)
            return false;
    }
    return true;
}

SocketLinks *socket_links_create(int ranks, char *err, size_t n)
{
    SocketLinks *links = empty_links(ranks);
    bool random = getrandom(links->secret, sizeof links->secret, 0) == sizeof links->secret &&
                  getrandom(links->name, sizeof links->name, 0) == sizeof links->name;
    if (random && make_sockets(links)) return links;
    error_set(err, n, "the sockets of %d rank processes cannot be created: %s", ranks,
              strerror(errno));
    socket_links_destroy(links);
    return NULL;
}

/* ---- TCP ------------------------------------------------------------------------------------- */

/* Makes a socket non-blocking and close-on-exec, makes it send without delay, and returns it. */
static int taken(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    CHECK(flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 &&
              fcntl(fd, F_SETFD, FD_CLOEXEC) == 0,
          "descriptor %d: %s", fd, strerror(errno));
    /* Packets are short and urgent, so they are sent without delay. The option does not exist for
     * local sockets. */
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static void take_member(SocketLinks *links, int rank, const SocketMember *member)
{
    SocketPlace *at = &links->at[rank];
    int family = member->address.ss_family;
    size_t bytes = family == AF_INET6 ? sizeof at->address.v6 : sizeof at->address.v4;
    CHECK((family == AF_INET || family == AF_INET6) && member->address_bytes >= bytes,
          "rank %d has an address of family %d", rank, family);
    memcpy(&at->address, &member->address, bytes);
    at->machine = member->machine;
    at->local_rank = member->local_rank;
    snprintf(links->host[at->machine], sizeof links->host[0], "%s", member->host);
}

/* Sets up the control tree of a large world. */
static void take_parents(SocketLinks *links)
{
    int *machine = must_calloc((size_t)links->ranks, sizeof *machine),
        *parent = must_calloc((size_t)links->ranks, sizeof *parent);
    for (int i = 0; i < links->ranks; i++)
        machine[i] = links->at[i].machine;
    if (socket_tree_parents(links->ranks, machine, parent))
        links->parent = parent;
    else
        free(parent);
    free(machine);
}

SocketLinks *socket_links_join(int ranks, int rank, const SocketMember *member,
                               const unsigned char secret[SHA256_BYTES], int listener,
                               const int *control)
{
    SocketLinks *links = empty_links(ranks);
    links->joined = true;
    memcpy(links->secret, secret, sizeof links->secret);
    for (int i = 0; i < ranks; i++) {
        CHECK(member[i].machine >= 0 && member[i].machine < ranks, "machine %d of %d ranks",
              member[i].machine, ranks);
        links->machines = (int)max_i64(links->machines, member[i].machine + 1);
    }
    links->at = must_calloc((size_t)ranks, sizeof *links->at);
    links->host = must_calloc((size_t)links->machines, sizeof *links->host);
    for (int i = 0; i < ranks; i++)
        take_member(links, i, &member[i]);
    take_parents(links);
    links->listener[rank] = taken(listener);
    /* All ranks may connect at once. If the queue would be longer than the system allows, the
     * system shortens it. */
    if (listen(listener, (int)max_i64(SOMAXCONN, 2 * ranks)) != 0)
        fail(EXIT_SYSTEM, "rank %d cannot accept connections: %s", rank, strerror(errno));
    for (int i = 1; rank == 0 && i < ranks; i++)
        links->star[0][i] = taken(control[i]);
    if (rank > 0) links->star[1][rank] = taken(control[0]);
    return links;
}

/* ---------------------------------------------------------------------------------------------- */

void socket_links_keep(SocketLinks *links, int rank)
{
    drop(&links->launcher[0]);
    if (rank != 0) drop(&links->launcher[1]);
    for (int i = 0; i < links->ranks; i++) {
        if (rank != 0) drop(&links->star[0][i]);
        if (i != rank) drop(&links->star[1][i]);
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
        drop(&links->star[0][i]);
        drop(&links->star[1][i]);
        drop(&links->listener[i]);
    }
}

void socket_links_report_end(SocketLinks *links, int rank, int status, bool spoken)
{
    SocketWord word = socket_word(PACKET_ENDED);
    word.rank = rank;
    word.code = status;
    word.spoken = spoken;
    /* A local socket accepts a packet of this size completely or not at all. If the packet cannot
     * be sent, rank 0 has ended or is stopped. The launcher itself then ends all ranks. */
    send(links->launcher[0], &word, sizeof word, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void socket_links_destroy(SocketLinks *links)
{
    socket_links_release(links);
    drop(&links->launcher[0]);
    for (int i = 0; i < 2; i++)
        free(links->star[i]);
    free(links->listener);
    free(links->place);
    free(links->at);
    free(links->host);
    free(links->parent);
    free(links);
}
