/* report.c -- what a rank's service thread reports to rank 0: its groups, what it waits for, and
 * the watched groups of its process. */
#include "model/core/check.h"
#include "parallel/comm/socket/hub.h"

#include <string.h>

/* Sends the packet to rank 0. Returns false if there is no room. */
static bool deliver(SocketService *service, const void *packet)
{
    if (service->hub) {
        CHECK(socket_hub_take(service->hub, 0, packet), "rank 0 does not understand itself");
        return true;
    }
    return socket_relay_put(service, packet);
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* Packs the members that have not been reported to rank 0 yet, as far as they fit. Returns by how
 * much group->listed grows once this packet has been sent. */
static int pack_members(SocketGroupReport *packed, const SocketGroupShare *group)
{
    const SocketMembers *members = &group->members;
    int listed = group->listed;
    packed->at = listed;
    while (packed->runs < RUNS_IN_PACKET && listed < members->size)
        listed += rank_run_next(members->rank + listed, members->size - listed,
                                &packed->run[packed->runs++]);
    if (group->listed > 0 || listed == members->size || group->member == 0)
        return listed - group->listed;
    /* The ranks are very unevenly spaced. It is enough if member 0 reports all of them. */
    packed->runs = 0;
    return members->size;
}

/* Returns whether the group must be reported: its state has changed since the last report, or this
 * rank has left it or says goodbye. */
static bool has_news(const SocketGroupShare *group, bool goodbye)
{
    return group->closed || goodbye || group->listed < group->members.size ||
           group->reported != 1 + group->meetings;
}

/* Notes that the group has been reported to rank 0. A group that this rank has left is then no
 * longer needed. */
static void has_reported(SocketService *service, SocketGroupShare *group, int members)
{
    const SocketGroupReport *packed = &service->packet.group;
    pthread_mutex_lock(&service->mutex);
    group->reported = 1 + packed->meetings;
    group->listed += members;
    if (packed->closed && group->listed == group->members.size) {
        SocketGroupShare **at = &service->groups;
        while (*at != group)
            at = &(*at)->next;
        *at = group->next;
        group->next = service->left;
        service->left = group;
    }
    pthread_mutex_unlock(&service->mutex);
}

/* Packs a group of which rank 0 does not know the current state. Returns NULL if there is none. */
static SocketGroupShare *pack_group(SocketService *service, bool goodbye, int *members)
{
    SocketGroupReport *packed = &service->packet.group;
    pthread_mutex_lock(&service->mutex);
    SocketGroupShare *group = service->groups;
    while (group && !has_news(group, goodbye))
        group = group->next;
    if (group) {
        *packed = (SocketGroupReport){.head = {.kind = PACKET_GROUP, .rank = service->rank},
                                      .id = group->id,
                                      .size = group->members.size,
                                      .member = group->member,
                                      .meetings = group->meetings,
                                      .closed = group->closed || goodbye};
        memcpy(packed->name, group->name, sizeof packed->name);
        *members = pack_members(packed, group);
        packed->head.bytes = (uint32_t)socket_group_report_bytes(packed);
    }
    pthread_mutex_unlock(&service->mutex);
    return group;
}

static bool report_groups(SocketService *service, bool goodbye)
{
    SocketGroupShare *group;
    int members = 0;
    while ((group = pack_group(service, goodbye, &members))) {
        if (!deliver(service, &service->packet)) return false;
        has_reported(service, group, members);
    }
    return true;
}

/* ---- watched groups of this process ---------------------------------------------------------- */

static bool report_watched(SocketService *service)
{
    SocketWatched *packed = &service->packet.watched;
    int before = service->watches, n = watched_calls(service->watched, WATCHED_IN_REPORT);
    CHECK(n <= WATCHED_IN_REPORT, "%d watched groups", n);
    service->watches = n;
    if (n == 0 && before == 0) return true;
    for (int i = 0; i < n || i == 0; i++) {
        *packed = (SocketWatched){
            .head = {.bytes = sizeof *packed, .kind = PACKET_WATCHED, .rank = service->rank},
            .calls = n,
            .at = i};
        if (i < n) packed->call = service->watched[i];
        if (!deliver(service, packed)) return false;
    }
    return true;
}

/* ---------------------------------------------------------------------------------------------- */

bool socket_service_report(SocketService *service, bool goodbye)
{
    SocketReport report = {.head = {.kind = PACKET_REPORT, .rank = service->rank},
                           .asked = service->asked};
    /* Read the wait before the groups: what rank 0 knows of the groups must not be older than the
     * wait. */
    pthread_mutex_lock(&service->mutex);
    report.wait = service->wait;
    pthread_mutex_unlock(&service->mutex);
    report.head.bytes = (uint32_t)socket_report_bytes(&report);
    if (!report_watched(service) || !report_groups(service, goodbye)) return false;
    /* A goodbye ends with the report about the world's group and has no PACKET_REPORT: when all
     * ranks have left the world, rank 0's process may be gone. */
    return goodbye || deliver(service, &report);
}
