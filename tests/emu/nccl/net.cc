/* net.cc -- network functions: choosing the interface, opening sockets, and exchanging many parts
 * at once. */
#include "tests/emu/nccl/inside.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- choosing the interface ------------------------------------------------------------------ */

/* Returns whether the list contains the name. "eth,ib": the name begins with an item. "=eth0": it
 * equals an item. A leading "^" inverts the result. */
static bool is_named(const char *name, const char *list)
{
    bool none = *list == '^';
    list += none;
    bool exact = *list == '=', found = false;
    list += exact;
    while (*list != 0 && !found) {
        size_t n = strcspn(list, ",");
        found = n > 0 && strncmp(name, list, n) == 0 && (!exact || name[n] == 0);
        list += n;
        list += *list == ',';
    }
    return found != none;
}

static socklen_t address_size(const Address *address)
{
    return address->family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

static bool serves(const struct ifaddrs *i, const char *list)
{
    const char *family = getenv("NCCL_SOCKET_FAMILY");
    int is = i->ifa_addr != NULL ? i->ifa_addr->sa_family : AF_UNSPEC;
    if (is != AF_INET && is != AF_INET6) return false;
    if (family != NULL && strcmp(family, "AF_INET") == 0 && is != AF_INET) return false;
    if (family != NULL && strcmp(family, "AF_INET6") == 0 && is != AF_INET6) return false;
    if ((i->ifa_flags & IFF_UP) == 0 || (i->ifa_flags & IFF_RUNNING) == 0) return false;
    return list != NULL ? is_named(i->ifa_name, list) : (i->ifa_flags & IFF_LOOPBACK) != 0;
}

ncclResult_t net_interface(Address *address)
{
    const char *list = getenv("NCCL_SOCKET_IFNAME");
    struct ifaddrs *all = NULL;
    bool found = false;
    if (list != NULL && *list == 0) list = NULL;
    if (getifaddrs(&all) != 0) return last_error(ncclSystemError, "getifaddrs failed");
    for (struct ifaddrs *i = all; i != NULL && !found; i = i->ifa_next) {
        if (!serves(i, list)) continue;
        memset(address, 0, sizeof *address);
        address->family = i->ifa_addr->sa_family;
        memcpy(address, i->ifa_addr, address_size(address));
        found = true;
    }
    freeifaddrs(all);
    if (!found) return last_error(ncclInvalidUsage, "Bootstrap : no socket interface found");
    if (address->family == AF_INET)
        ((struct sockaddr_in *)address)->sin_port = 0;
    else
        ((struct sockaddr_in6 *)address)->sin6_port = 0;
    return ncclSuccess;
}

/* ---- sockets --------------------------------------------------------------------------------- */

int net_listen(Address *address)
{
    int s = socket(address->family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t size = address_size(address);
    if (s >= 0 && bind(s, (struct sockaddr *)address, size) == 0 && listen(s, 128) == 0 &&
        getsockname(s, (struct sockaddr *)address, &size) == 0)
        return s;
    if (s >= 0) close(s);
    return -1;
}

int net_connect(const Address *address)
{
    int s = socket(address->family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1, code;
    if (s < 0) return -1;
    do
        code = connect(s, (const struct sockaddr *)address, address_size(address));
    while (code != 0 && errno == EINTR);
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (code == 0) return s;
    close(s);
    return -1;
}

bool net_write(int s, const void *p, size_t bytes)
{
    const char *at = (const char *)p;
    while (bytes > 0) {
        ssize_t n = send(s, at, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

bool net_read(int s, void *p, size_t bytes)
{
    char *at = (char *)p;
    while (bytes > 0) {
        ssize_t n = recv(s, at, bytes, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

void net_nonblocking(int s)
{
    fcntl(s, F_SETFL, fcntl(s, F_GETFL) | O_NONBLOCK);
}

/* ---- exchange -------------------------------------------------------------------------------- */

bool net_poll(ncclComm *comm, struct pollfd *sockets, int n)
{
    sockets[n].fd = comm->wake; /* the caller has left room for one more */
    sockets[n].events = POLLIN;
    while (poll(sockets, (nfds_t)n + 1, -1) < 0)
        if (errno != EINTR) emu_die("poll failed: %s", strerror(errno));
    return sockets[n].revents == 0;
}

/* Transfers as much as possible without waiting. Returns false if the peer has closed the
 * connection. */
static bool piece_move(const ncclComm *comm, Piece *piece)
{
    int s = comm->link[piece->rank].data;
    while (piece->left > 0) {
        ssize_t n = piece->out ? send(s, piece->data, piece->left, MSG_NOSIGNAL)
                               : recv(s, piece->data, piece->left, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
        if (n <= 0) return false;
        piece->data += n;
        piece->left -= (size_t)n;
    }
    return true;
}

/* Returns whether no unfinished piece before it has the same rank and direction. */
static bool is_first(const Piece *piece, int i)
{
    for (int j = 0; j < i; j++)
        if (piece[j].left > 0 && piece[j].rank == piece[i].rank && piece[j].out == piece[i].out)
            return false;
    return true;
}

bool net_exchange(ncclComm *comm, Piece *piece, int n)
{
    struct pollfd sockets[n + 1];
    for (;;) {
        int waiting = 0;
        for (int i = 0; i < n; i++) {
            if (piece[i].left == 0 || !is_first(piece, i)) continue;
            if (!piece_move(comm, &piece[i])) return false;
            if (piece[i].left == 0) continue;
            sockets[waiting].fd = comm->link[piece[i].rank].data;
            sockets[waiting].events = piece[i].out ? POLLOUT : POLLIN;
            waiting++;
        }
        if (waiting == 0) return true;
        if (!net_poll(comm, sockets, waiting)) return false;
    }
}
