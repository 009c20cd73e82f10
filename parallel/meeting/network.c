/* network.c -- addresses of this machine, and sockets that listen or connect. */
#include "parallel/meeting/network.h"

#include "model/core/check.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

/* ---- addresses ------------------------------------------------------------------------------- */

static bool is_loopback(const Address *a)
{
    static const unsigned char six[16] = {[15] = 1};
    return a->family == 4 ? a->ip[0] == 127 : memcmp(a->ip, six, 16) == 0;
}

/* Returns whether the address is link-local: fe80::/10 or 169.254.0.0/16. */
static bool is_of_one_link(const Address *a)
{
    return a->family == 4 ? a->ip[0] == 169 && a->ip[1] == 254
                          : a->ip[0] == 0xfe && (a->ip[1] & 0xc0) == 0x80;
}

static void add(AddressList *list, const Address *address)
{
    for (int i = 0; i < list->count; i++)
        if (memcmp(&list->address[i], address, sizeof *address) == 0) return;
    if (list->count < NETWORK_MOST_ADDRESSES) list->address[list->count++] = *address;
}

/* Adds the addresses of one family that `interface` has. If `interface` is NULL, adds those of all
 * loopback interfaces (if `loopback` is set) or of all other interfaces. */
static void add_family(AddressList *list, const struct ifaddrs *all, int family,
                       const char *interface, bool loopback)
{
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        Address address;
        if (i->ifa_addr == NULL || !(i->ifa_flags & IFF_UP) ||
            !address_from(&address, i->ifa_addr) || address.family != family)
            continue;
        bool wanted = interface ? strcmp(i->ifa_name, interface) == 0
                                : loopback == ((i->ifa_flags & IFF_LOOPBACK) != 0);
        if (wanted && !is_of_one_link(&address)) add(list, &address);
    }
}

/* Writes the names of all interfaces that have an address, as "lo, eth0". */
static void name_interfaces(const struct ifaddrs *all, char *text, size_t n)
{
    size_t used = 0;
    text[0] = 0;
    for (const struct ifaddrs *i = all; i && used < n; i = i->ifa_next) {
        bool known = false;
        Address address;
        if (i->ifa_addr == NULL || !address_from(&address, i->ifa_addr)) continue;
        for (const struct ifaddrs *j = all; j != i; j = j->ifa_next)
            known |= j->ifa_addr && address_from(&address, j->ifa_addr) &&
                     strcmp(i->ifa_name, j->ifa_name) == 0;
        if (!known)
            used += (size_t)snprintf(text + used, n - used, "%s%s", used ? ", " : "", i->ifa_name);
    }
}

static bool list_own(AddressList *list, const char *interface, bool loopback, ExitCode *code,
                     char *err, size_t n)
{
    struct ifaddrs *all = NULL;
    char names[256], host[MEETING_NAME_BYTES] = "this machine";
    *list = (AddressList){0};
    if (getifaddrs(&all) != 0) {
        *code = EXIT_SYSTEM;
        return error_set(err, n, "the network interfaces of this machine cannot be listed: %s",
                         strerror(errno));
    }
    for (int family = 4; family <= 6; family += 2)
        add_family(list, all, family, interface, loopback);
    for (int family = 4; family <= 6 && !interface; family += 2)
        if (list->count == 0) add_family(list, all, family, NULL, true);
    name_interfaces(all, names, sizeof names);
    freeifaddrs(all);
    if (list->count > 0) return true;
    gethostname(host, sizeof host - 1);
    *code = interface ? EXIT_CONFIG : EXIT_SYSTEM;
    return interface ? error_set(err, n,
                                 "parallel.interface: %s has no interface \"%s\" with an address; "
                                 "it has %s",
                                 host, interface, names[0] ? names : "none")
                     : error_set(err, n, "%s has no network interface with an address", host);
}

bool network_own(AddressList *list, const char *interface, ExitCode *code, char *err, size_t n)
{
    return list_own(list, interface, false, code, err, n);
}

bool network_master(AddressList *list, const char *master, ExitCode *code, char *err, size_t n)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    bool literal, loopback = true;
    *list = (AddressList){0};
    hints.ai_flags = AI_NUMERICHOST;
    literal = getaddrinfo(master, NULL, &hints, &found) == 0;
    if (!literal) {
        hints.ai_flags = 0;
        int wrong = getaddrinfo(master, NULL, &hints, &found);
        if (wrong != 0) {
            *code = wrong == EAI_AGAIN ? EXIT_TEMPORARY : EXIT_UNAVAILABLE;
            return error_set(err, n, "rank 0's address \"%s\" cannot be resolved: %s", master,
                             wrong == EAI_SYSTEM ? strerror(errno) : gai_strerror(wrong));
        }
    }
    for (const struct addrinfo *i = found; i; i = i->ai_next) {
        Address address;
        if (!address_from(&address, i->ai_addr)) continue;
        add(list, &address);
        loopback &= is_loopback(&address);
    }
    freeaddrinfo(found);
    if (loopback && !literal && strcmp(master, "localhost") != 0)
        return network_own(list, NULL, code, err, n);
    return true;
}

/* Removes the addresses that are not also in `other`. */
static void keep_common(AddressList *list, const AddressList *other)
{
    AddressList all = *list;
    list->count = 0;
    for (int i = 0; i < all.count; i++)
        for (int k = 0; k < other->count; k++)
            if (memcmp(&all.address[i], &other->address[k], sizeof all.address[i]) == 0)
                add(list, &all.address[i]);
}

bool network_for_rank_0(AddressList *list, const MeetingOptions *o, ExitCode *code, char *err,
                        size_t n)
{
    AddressList own;
    bool here = o->folder && !o->interface && o->local_size == o->size;
    if (o->folder) {
        if (!list_own(list, o->interface, here, code, err, n)) return false;
        if (here) list->count = 1;
        return true;
    }
    if (!network_master(list, o->master, code, err, n)) return false;
    if (!o->interface) return true;
    if (!network_own(&own, o->interface, code, err, n)) return false;
    keep_common(list, &own);
    if (list->count > 0) return true;
    *code = EXIT_CONFIG;
    return error_set(err, n,
                     "parallel.interface: %s does not have the address of rank 0, %s, by which the "
                     "other ranks look for it",
                     o->interface, o->master);
}

/* ---- sockets --------------------------------------------------------------------------------- */

static int fail_closing(int fd)
{
    int error = errno;
    if (fd >= 0) close(fd);
    errno = error;
    return -1;
}

static int open_socket(const Address *address)
{
    int fd = socket(address->family == 6 ? AF_INET6 : AF_INET,
                    SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int on = 1;
    /* An IPv6 socket is to accept no IPv4 connections, because IPv4 addresses have their own
     * sockets. */
    if (fd >= 0 && address->family == 6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    return fd;
}

int network_listen(Address *address)
{
    struct sockaddr_storage at;
    socklen_t bytes = address_to(address, &at);
    int fd = open_socket(address), on = 1;
    if (fd < 0) return -1;
    /* With this option a port can be reused while old connections are in TIME_WAIT, but not if
     * another process listens on it. */
    if (address->port != 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (const struct sockaddr *)&at, bytes) != 0 || listen(fd, 4096) != 0)
        return fail_closing(fd);
    return network_name(fd, address) ? fd : fail_closing(fd);
}

int network_connect(const Address *to, const Address *source)
{
    struct sockaddr_storage at;
    socklen_t bytes;
    int fd = open_socket(to), on = 1;
    if (fd < 0) return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (source) {
        Address from = *source;
        from.port = 0;
        /* Lets connect() choose the local port instead of bind(). connect() knows the other side's
         * address, so it may choose a port that is used already by a connection to another
         * address. */
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
        bytes = address_to(&from, &at);
        if (bind(fd, (const struct sockaddr *)&at, bytes) != 0) return fail_closing(fd);
    }
    bytes = address_to(to, &at);
    if (connect(fd, (const struct sockaddr *)&at, bytes) != 0 && errno != EINPROGRESS)
        return fail_closing(fd);
    return fd;
}

bool network_name(int fd, Address *own)
{
    struct sockaddr_storage at;
    socklen_t bytes = sizeof at;
    return getsockname(fd, (struct sockaddr *)&at, &bytes) == 0 &&
           address_from(own, (const struct sockaddr *)&at);
}

bool network_peer(int fd, Address *peer)
{
    struct sockaddr_storage at;
    socklen_t bytes = sizeof at;
    return getpeername(fd, (struct sockaddr *)&at, &bytes) == 0 &&
           address_from(peer, (const struct sockaddr *)&at);
}
