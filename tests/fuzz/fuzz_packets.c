/* fuzz_packets.c -- fuzz target: any bytes as what a rank sends to rank 0. Whatever is accepted
 * must be possible, and a stream with anything else must be lost. */
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

int fuzz_packets(const uint8_t *data, size_t size)
{
    char err[256];
    int fd[2], room = 1 << 20;
    SocketPacket packet;
    SocketService service = {.wake = -1};
    SocketLinks *links = socket_links_create(RANKS, err, sizeof err);
    CHECK(links && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) == 0, "no sockets");
    SocketHub *hub = socket_hub_create(&service, links, 0);
    SocketStream stream = {.fd = fd[0]};
    hub->claimed = 0; /* a claim would end this process */
    setsockopt(fd[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    if (size > 0 && send(fd[1], data, size, MSG_DONTWAIT) < 0) size = 0;
    shutdown(fd[1], SHUT_WR);
    while (socket_stream_take(&stream, &packet))
        if (!socket_hub_take(hub, SENDER, &packet)) stream.lost = true;
    CHECK(stream.lost, "%zu bytes, and the stream goes on", size);
    check_hub(hub);
    close(fd[0]);
    close(fd[1]);
    socket_hub_destroy(hub);
    socket_links_destroy(links);
    return 0;
}

/* libFuzzer's entry point. It is weak because the test program links all fuzz targets together. */
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_packets(data, size);
    return 0;
}
