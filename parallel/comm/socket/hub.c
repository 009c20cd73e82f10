/* hub.c -- receives the reports of all ranks in rank 0's process and keeps them in a table. What
 * follows from the table is in judge.c. */
#include "parallel/comm/socket/hub.h"

#include "model/core/check.h"
#include "model/core/clock.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Seconds between two looks at the table, at most, and while answers are awaited. A deadline is
 * looked at this many times, so that at most one part of it counts while the process is stopped. */
static const double LONGEST_LOOK = 1, SOON = 0.01;
enum { LOOKS = 16 };
/* At the end of the program, rank 0 waits at least so many seconds for the next rank to leave: a
 * rank may need longer than a short timeout to release what it has. */
static double last_wait = 30;

void socket_hub_set_last_wait(double seconds)
{
    last_wait = seconds;
}

SocketHub *socket_hub_create(SocketService *service, SocketLinks *links, double timeout)
{
    SocketHub *hub = must_calloc(1, sizeof *hub);
    hub->service = service;
    hub->links = links;
    hub->ranks = links->ranks;
    hub->timeout = timeout;
    hub->asked_for = -1;
    hub->room = blame_room_create(hub->ranks);
    for (int i = 0; i < hub->ranks; i++)
        hub->rank[i].limit = timeout;
    atomic_store(&hub->claimed, -1);
    return hub;
}

void socket_hub_destroy(SocketHub *hub)
{
    if (hub) blame_room_destroy(hub->room);
    free(hub);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* A packet that finds no room is lost: its receiver is stopped, or is about to find out that rank 0
 * has ended. */
static void tell(SocketHub *hub, int rank, SocketPacket packet)
{
    send(hub->links->star[rank][0], &packet, sizeof packet, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void socket_hub_ask(SocketHub *hub, bool anew)
{
    SocketService *service = hub->service;
    if (anew) socket_service_nudge(service, ++hub->asked);
    for (int i = 1; i < hub->ranks; i++)
        tell(hub, i, (SocketPacket){.kind = PACKET_ASK, .asked = hub->asked});
}

bool socket_hub_claim(SocketHub *hub, int rank, int code)
{
    int none = -1;
    if (!atomic_compare_exchange_strong(&hub->claimed, &none, rank)) return false;
    if (rank != 0) tell(hub, rank, (SocketPacket){.kind = PACKET_GRANT});
    for (int i = 1; i < hub->ranks; i++)
        if (i != rank) tell(hub, i, (SocketPacket){.kind = PACKET_VERDICT, .code = code});
    return true;
}

/* ---- the table ------------------------------------------------------------------------------- */

SocketHubGroup *socket_hub_group(SocketHub *hub, uint64_t id)
{
    for (int i = 0; i < hub->groups; i++)
        if (hub->group[i].id == id) return &hub->group[i];
    return NULL;
}

static SocketHubGroup *add_group(SocketHub *hub, const SocketGroupReport *report)
{
    CHECK(hub->groups < HUB_GROUPS, "more than %d groups", HUB_GROUPS);
    SocketHubGroup *group = &hub->group[hub->groups++];
    *group = (SocketHubGroup){.id = report->id, .size = report->size};
    memcpy(group->name, report->name, sizeof group->name);
    for (int i = 0; i < report->size; i++)
        group->member[i] = report->member[i];
    return group;
}

static void take_group(SocketHub *hub, int rank, const SocketGroupReport *report)
{
    SocketHubGroup *known = socket_hub_group(hub, report->id),
                   *group = known ? known : add_group(hub, report);
    int open = 0;
    for (int i = 0; i < group->size; i++) {
        if (group->member[i] == rank) {
            group->meetings[i] = report->meetings;
            group->closed[i] = report->closed;
        }
        if (!group->closed[i] && !hub->rank[group->member[i]].left) open++;
    }
    if (report->id == 0 && report->closed) hub->rank[rank].left = true;
    /* The last member has left. Nobody can wait there any more. */
    if (open == 0) *group = hub->group[--hub->groups];
}

void socket_hub_take(SocketHub *hub, const SocketReport *report)
{
    SocketHubRank *rank = &hub->rank[report->rank];
    rank->wait = report->wait;
    rank->asked = report->rank == 0 ? hub->asked : report->asked;
    for (int i = 0; i < report->groups; i++)
        take_group(hub, report->rank, &report->group[i]);
}

void socket_hub_take_watched(SocketHub *hub, const SocketWatched *watched)
{
    SocketHubRank *rank = &hub->rank[watched->rank];
    WatchedCall before[WATCHED_IN_REPORT];
    int calls = rank->calls;
    memcpy(before, rank->call, sizeof before);
    rank->calls = watched->calls;
    memcpy(rank->call, watched->call, (size_t)watched->calls * sizeof *watched->call);
    /* The same call keeps the time that does not count. */
    for (int i = 0; i < rank->calls; i++)
        for (int k = 0; k < calls; k++)
            if (before[k].id == rank->call[i].id && before[k].finished == rank->call[i].finished)
                rank->call[i].excused = before[k].excused;
}

/* ---- receiving ------------------------------------------------------------------------------- */

static void take_packet(SocketHub *hub, int rank, size_t bytes)
{
    const SocketAnyPacket *packet = &hub->packet;
    bool own = packet->small.rank == rank;
    switch ((SocketPacketKind)packet->small.kind) {
    case PACKET_REPORT:
        if (own && bytes == socket_report_bytes(&packet->report))
            socket_hub_take(hub, &packet->report);
        break;
    case PACKET_WATCHED:
        if (own && bytes == socket_watched_bytes(&packet->watched))
            socket_hub_take_watched(hub, &packet->watched);
        break;
    case PACKET_CLAIM:
        if (socket_hub_claim(hub, rank, packet->small.code)) ends_now((ExitCode)packet->small.code);
        break;
    default: break;
    }
}

/* Receives all that has come from a rank. */
static void listen_to(SocketHub *hub, int rank)
{
    ssize_t got = 1;
    while (got > 0) {
        got = socket_packet(hub->links->star[rank][0], &hub->packet, sizeof hub->packet);
        if (got >= (ssize_t)sizeof hub->packet.small) take_packet(hub, rank, (size_t)got);
        if (got == 0) hub->rank[rank].ended = true;
    }
}

/* Receives the launcher's reports of ranks whose processes have ended. */
static void listen_to_launcher(SocketHub *hub)
{
    SocketPacket packet;
    while (socket_packet(hub->links->launcher[1], &packet, sizeof packet) ==
           (ssize_t)sizeof packet) {
        if (packet.kind != PACKET_ENDED || packet.rank <= 0 || packet.rank >= hub->ranks) continue;
        SocketHubRank *rank = &hub->rank[packet.rank];
        listen_to(hub, packet.rank); /* its goodbye came before */
        rank->ended = rank->known = true;
        rank->status = packet.code;
        rank->spoken = packet.spoken;
        rank->order = hub->reported++;
    }
}

static double look_after(const SocketHub *hub, bool soon)
{
    if (soon) return SOON;
    return watched_pace(hub->timeout > 0 ? fmin(LONGEST_LOOK, hub->timeout / LOOKS) : LONGEST_LOOK);
}

static bool all_have_left(const SocketHub *hub)
{
    for (int i = 1; i < hub->ranks; i++)
        if (!hub->rank[i].left) return false;
    return true;
}

/* Waits for packets for at most `seconds`, and takes them. */
static void listen_for(SocketHub *hub, SocketService *service, double seconds)
{
    struct pollfd fd[SOCKET_MAX_RANKS + 2];
    uint64_t times;
    int n = hub->ranks;
    for (int i = 1; i < n; i++)
        fd[i] = (struct pollfd){.fd = hub->rank[i].ended ? -1 : hub->links->star[i][0],
                                .events = POLLIN};
    fd[0] = (struct pollfd){.fd = service->wake, .events = POLLIN};
    fd[n] = (struct pollfd){.fd = hub->links->launcher[1], .events = POLLIN};
    if (poll(fd, (nfds_t)n + 1, (int)ceil(1000 * seconds)) <= 0) return;
    if (fd[0].revents && read(service->wake, &times, sizeof times) < 0) return;
    for (int i = 1; i < n; i++)
        if (fd[i].revents) listen_to(hub, i);
    if (fd[n].revents & POLLIN) listen_to_launcher(hub);
}

/* Rank 0 has left and waits for the others to leave, as in a call of the world. The time has a
 * limit, so a rank that never leaves cannot keep all others from ending. It begins again whenever a
 * rank has left. */
static void wait_for_the_others(SocketHub *hub)
{
    SocketHubRank *own = &hub->rank[0];
    own->left = false; /* it still waits; its groups are closed */
    own->asked = hub->asked;
    own->wait = (SocketWait){.waits = 1, .wait = UINT64_MAX, .confirmed = hub->asked};
    for (int i = 1; i < hub->ranks; i++) {
        if (hub->rank[i].left) continue;
        own->wait.who |= (uint64_t)1 << i;
        own->wait.wait--; /* another wait for each number of ranks that have not left */
    }
    own->limit = fmax(hub->timeout, last_wait);
    snprintf(own->wait.call, sizeof own->wait.call, "%s", SOCKET_LAST_WAIT);
    if (last_wait > hub->timeout)
        snprintf(own->wait.call, sizeof own->wait.call, "%s, which may take at least %g s",
                 SOCKET_LAST_WAIT, last_wait);
}

void socket_hub_main(SocketHub *hub)
{
    SocketService *service = hub->service;
    bool soon = false, goodbye = false;
    double asked = seconds_now();
    while (!atomic_load(&service->stop) || !all_have_left(hub)) {
        double seconds = look_after(hub, soon), start = seconds_now();
        listen_for(hub, service, seconds);
        /* After the process was stopped, at most one look counts: its peers may have been stopped,
         * too. */
        double passed = fmin(seconds_now() - start, seconds);
        watched_pass(passed);
        /* So that the others know that this process lives. They measure how long it is silent, so
         * time in which it was stopped counts. */
        if (seconds_now() - asked >= LONGEST_LOOK) {
            socket_hub_ask(hub, false);
            asked = seconds_now();
        }
        bool leaves = atomic_load(&service->stop);
        if (!leaves || !goodbye) socket_service_report(service, leaves);
        goodbye = leaves;
        if (goodbye) wait_for_the_others(hub);
        if (atomic_load(&hub->claimed) < 0) soon = socket_hub_judge(hub, passed);
    }
}
