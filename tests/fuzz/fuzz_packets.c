/* fuzz_packets.c -- fuzz target: any bytes as what a rank sends to rank 0, or to a rank that passes
 * them on. Whatever is accepted must be possible, and a stream with anything else must be lost. */
#include "tests/fuzz/fuzz_packets.h"

#include "model/core/check.h"
#include "parallel/comm/socket/hub.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 4, SENDER = 2 };

static void check_group(const SocketHubGroup *group)
{
    const SocketMembers *m = &group->members;
    int known = 0, open = 0;
    CHECK(m->size >= 1 && m->size <= RANKS, "a group of %d", m->size);
    for (int i = 0; i < m->size; i++) {
        CHECK(m->rank[i] >= -1 && m->rank[i] < RANKS, "rank %d", m->rank[i]);
        known += m->rank[i] >= 0;
        open += !group->closed[i];
    }
    CHECK(known == group->known && open == group->open, "%d known, %d open", known, open);
    CHECK(memchr(group->name, 0, sizeof group->name), "an endless name");
}

static void check_hub(const SocketHub *hub)
{
    const SocketHubRank *r = &hub->rank[SENDER];
    const SocketWait *wait = &r->wait;
    int groups = 0;
    for (int i = 0; i < hub->buckets; i++)
        for (const SocketHubGroup *group = hub->bucket[i]; group; group = group->next, groups++)
            check_group(group);
    CHECK(groups == hub->groups, "%d groups, not %d", groups, hub->groups);
    CHECK(wait->whos >= 0 && wait->whos <= SOCKET_NAMED && wait->gones >= 0 &&
              wait->gones <= SOCKET_NAMED,
          "%d and %d ranks", wait->whos, wait->gones);
    for (int i = 0; i < wait->whos + wait->gones; i++)
        CHECK(wait->rank[i] >= 0 && wait->rank[i] < RANKS, "rank %d", wait->rank[i]);
    CHECK(memchr(wait->call, 0, sizeof wait->call), "an endless call");
    CHECK(r->calls >= 0 && r->calls <= WATCHED_IN_REPORT, "%d calls", r->calls);
}

/* Sends the bytes into a new pair of sockets, as far as there is room. The reader has fd[0]. */
static void fill_pair(int fd[2], const uint8_t *data, size_t size)
{
    int room = 1 << 20;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) == 0, "no sockets");
    setsockopt(fd[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    if (size > 0 && send(fd[1], data, size, MSG_DONTWAIT) < 0) size = 0;
    shutdown(fd[1], SHUT_WR);
}

/* Rank 1 passes on what rank 2 sends, which is below it, and what rank 3 sends, below that. */
static void pass_up(const uint8_t *data, size_t size)
{
    int below[2], above[2], child = SENDER, parent[RANKS] = {-1, 0, 1, SENDER};
    SocketLinks links = {.ranks = RANKS, .joined = true, .parent = parent};
    SocketService service = {.rank = 1, .wake = -1, .links = &links};
    SocketPacket packet;
    fill_pair(below, data, size);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, above) == 0, "no sockets");
    SocketStream rank_0 = {.fd = above[1]};
    service.zero.fd = above[0];
    pthread_mutex_init(&service.sends, NULL);
    socket_relay_plant(&service, -1, 1, &child, &below[0]);
    for (bool told = false; !told;) {
        told = service.relay.told[0];
        socket_relay_serve(&service);
        while (socket_stream_take(&rank_0, &packet)) {
            bool lost = packet.head.kind == PACKET_LOST && packet.head.rank == 1;
            CHECK(lost == service.relay.told[0] || !lost, "lost too early");
            CHECK(!lost || packet.word.rank == SENDER, "rank %d is lost", packet.word.rank);
            CHECK(lost || packet.head.rank == SENDER || packet.head.rank == SENDER + 1,
                  "a packet of rank %d", packet.head.rank);
        }
        CHECK(!rank_0.lost, "what is passed on is no packet");
    }
    socket_relay_close(&service);
    pthread_mutex_destroy(&service.sends);
    close(below[1]);
    close(above[0]);
    close(above[1]);
}

int fuzz_packets(const uint8_t *data, size_t size)
{
    char err[256];
    int fd[2];
    SocketPacket packet;
    SocketService service = {.wake = -1};
    SocketLinks *links = socket_links_create(RANKS, err, sizeof err);
    static const int parents[RANKS] = {-1, 0, 0, SENDER};
    CHECK(links, "%s", err);
    links->parent = must_alloc(sizeof parents);
    memcpy(links->parent, parents, sizeof parents);
    fill_pair(fd, data, size);
    SocketHub *hub = socket_hub_create(&service, links, 0);
    SocketStream stream = {.fd = fd[0]};
    hub->claimed = 0; /* a claim would end this process */
    while (socket_stream_take(&stream, &packet))
        if (!socket_hub_take(hub, SENDER, &packet)) stream.lost = true;
    CHECK(stream.lost, "%zu bytes, and the stream goes on", size);
    check_hub(hub);
    close(fd[0]);
    close(fd[1]);
    socket_hub_destroy(hub);
    socket_links_destroy(links);
    pass_up(data, size);
    return 0;
}

/* libFuzzer's entry point. It is weak because the test program links all fuzz targets together. */
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_packets(data, size);
    return 0;
}
