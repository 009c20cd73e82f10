/* table.c -- the table of what all ranks have reported, in rank 0's process (hub.h). Its parts grow
 * as needed. Data from other processes are checked, so no packet of a rank can damage the table. */
#include "parallel/comm/socket/hub.h"

#include "model/core/check.h"
#include "model/core/min_max.h"

#include <stdlib.h>
#include <string.h>

/* ---- groups by id ---------------------------------------------------------------------------- */

enum { FIRST_BUCKETS = 64 };

static SocketHubGroup **bucket_of(const SocketHub *hub, uint64_t id)
{
    /* The upper bits of the product depend on all bits of the id. */
    uint64_t mixed = id * 0x9e3779b97f4a7c15u;
    return &hub->bucket[(mixed >> 32) & (uint64_t)(hub->buckets - 1)];
}

SocketHubGroup *socket_hub_group(const SocketHub *hub, uint64_t id)
{
    if (hub->buckets == 0) return NULL;
    SocketHubGroup *group = *bucket_of(hub, id);
    while (group && group->id != id)
        group = group->next;
    return group;
}

static void link_group(SocketHub *hub, SocketHubGroup *group)
{
    SocketHubGroup **first = bucket_of(hub, group->id);
    group->next = *first;
    *first = group;
}

/* Doubles the number of buckets, so that there are at least as many as groups. */
static void grow(SocketHub *hub)
{
    SocketHubGroup **old = hub->bucket;
    int buckets = hub->buckets;
    hub->buckets = buckets ? 2 * buckets : FIRST_BUCKETS;
    hub->bucket = must_calloc((size_t)hub->buckets, sizeof *hub->bucket);
    for (int i = 0; i < buckets; i++)
        for (SocketHubGroup *group = old[i], *next; group; group = next) {
            next = group->next;
            link_group(hub, group);
        }
    free(old);
}

static SocketHubGroup *add_group(SocketHub *hub, const SocketGroupReport *report)
{
    SocketHubGroup *group = must_calloc(1, sizeof *group);
    group->id = report->id;
    memcpy(group->name, report->name, sizeof group->name - 1);
    socket_members_create(&group->members, report->size);
    group->meetings = must_calloc((size_t)report->size, sizeof *group->meetings);
    group->closed = must_calloc((size_t)report->size, sizeof *group->closed);
    group->open = report->size;
    group->least_left = INT64_MAX;
    if (hub->groups++ == hub->buckets) grow(hub);
    link_group(hub, group);
    return group;
}

/* Notes that this member is the given rank. Returns false if it is known to be another rank. */
static bool know_member(SocketHubGroup *group, int member, int rank)
{
    int *known = &group->members.rank[member];
    if (*known == rank) return true;
    if (*known >= 0) return false;
    *known = rank;
    if (++group->known == group->members.size) socket_members_index(&group->members);
    return true;
}

static void free_group(SocketHubGroup *group)
{
    socket_members_free(&group->members);
    free(group->meetings);
    free(group->closed);
    free(group);
}

static void remove_group(SocketHub *hub, SocketHubGroup *group)
{
    SocketHubGroup **at = bucket_of(hub, group->id);
    while (*at != group)
        at = &(*at)->next;
    *at = group->next;
    hub->groups--;
    free_group(group);
}

/* The world's group is allocated here, so that the service thread allocates nothing while there are
 * no other groups. */
void socket_hub_make_table(SocketHub *hub)
{
    const SocketGroupReport world = {.name = "world", .size = hub->ranks};
    SocketHubGroup *group = add_group(hub, &world);
    for (int i = 0; i < hub->ranks; i++)
        know_member(group, i, i);
}

void socket_hub_free_table(SocketHub *hub)
{
    for (int i = 0; i < hub->buckets; i++)
        for (SocketHubGroup *group = hub->bucket[i], *next; group; group = next) {
            next = group->next;
            free_group(group);
        }
    for (int i = 0; i < hub->ranks; i++)
        free(hub->rank[i].call);
    free(hub->bucket);
    free(hub->call);
    free(hub->first_call);
    free(hub->next_call);
}

/* ---- what ranks report ----------------------------------------------------------------------- */

static bool know_members(const SocketHub *hub, SocketHubGroup *group,
                         const SocketGroupReport *report)
{
    int at = report->at, n = 0;
    for (int i = 0; i < report->runs; i++, at += n) {
        const RankRun *run = &report->run[i];
        if (at < 0 || at >= group->members.size || !socket_run_is_valid(run, hub->ranks) ||
            run->count > group->members.size - at)
            return false;
        n = run->count;
        for (int k = 0; k < n; k++)
            if (!know_member(group, at + k, rank_run_at(run, k))) return false;
    }
    return true;
}

static bool take_group(SocketHub *hub, int rank, const SocketGroupReport *report)
{
    if (report->size < 1 || report->size > hub->ranks || report->member < 0 ||
        report->member >= report->size)
        return false;
    SocketHubGroup *known = socket_hub_group(hub, report->id),
                   *group = known ? known : add_group(hub, report);
    int member = report->member;
    if (group->members.size != report->size || !know_member(group, member, rank)) return false;
    /* The first member's list is enough. Reading every member's list would take time that grows
     * with the square of their number. */
    if (group->known < report->size && !know_members(hub, group, report)) return false;
    group->meetings[member] = report->meetings;
    if (report->closed && !group->closed[member]) {
        group->closed[member] = true;
        group->open--;
        group->least_left = min_i64(group->least_left, report->meetings);
    }
    if (report->id == 0 && report->closed && !hub->rank[rank].left) {
        hub->rank[rank].left = true;
        if (rank > 0) hub->left++;
    }
    /* The last member has left. Nobody can wait there any more. */
    if (group->open == 0) remove_group(hub, group);
    return true;
}

static bool take_report(SocketHub *hub, int rank, const SocketReport *report)
{
    SocketHubRank *r = &hub->rank[rank];
    for (int i = 0; i < report->wait.whos + report->wait.gones; i++)
        if (report->wait.rank[i] < 0 || report->wait.rank[i] >= hub->ranks) return false;
    r->wait = report->wait;
    r->wait.call[sizeof r->wait.call - 1] = '\0';
    r->asked = rank == 0 ? hub->asked : report->asked;
    return true;
}

static bool watched_is_valid(const SocketHub *hub, int rank, const WatchedCall *call)
{
    const WatchedMembers *m = &call->members;
    int64_t size = 0;
    if (call->rank != rank || m->runs < 1 || m->runs > WATCHED_RUNS) return false;
    for (int i = 0; i < m->runs; i++) {
        if (!socket_run_is_valid(&m->run[i], hub->ranks)) return false;
        size += m->run[i].count;
    }
    return size == m->size && size <= hub->ranks;
}

static bool take_watched(SocketHub *hub, int rank, const SocketWatched *watched)
{
    SocketHubRank *r = &hub->rank[rank];
    if (watched->calls == 0) r->calls = 0;
    if (watched->calls == 0) return true;
    if (watched->calls < 0 || watched->calls > WATCHED_IN_REPORT || watched->at < 0 ||
        watched->at >= watched->calls || !watched_is_valid(hub, rank, &watched->call))
        return false;
    if (r->call == NULL) r->call = must_calloc(WATCHED_IN_REPORT, sizeof *r->call);
    WatchedCall call = watched->call;
    call.call[sizeof call.call - 1] = '\0';
    /* If it is still the same call, keep the time that does not count. */
    call.excused = 0;
    for (int i = 0; i < WATCHED_IN_REPORT; i++)
        if (r->call[i].id == call.id && r->call[i].finished == call.finished)
            call.excused = r->call[i].excused;
    r->call[watched->at] = call;
    /* The last of the rank's calls completes its report. */
    if (watched->at == watched->calls - 1) r->calls = watched->calls;
    return true;
}

/* Handles the report of a rank that it has lost one of its children in the tree. Returns false if
 * the lost rank is not its child. */
static bool take_lost(SocketHub *hub, int rank, const SocketWord *word)
{
    bool child = word->rank > 0 && word->rank < hub->ranks && rank > 0 &&
                 socket_links_parent(hub->links, word->rank) == rank;
    if (child) hub->rank[word->rank].ended = true;
    return child;
}

bool socket_hub_take(SocketHub *hub, int rank, const SocketPacket *packet)
{
    switch ((SocketPacketKind)packet->head.kind) {
    case PACKET_REPORT: return take_report(hub, rank, &packet->report);
    case PACKET_GROUP: return take_group(hub, rank, &packet->group);
    case PACKET_WATCHED: return take_watched(hub, rank, &packet->watched);
    case PACKET_CLAIM:
        if (socket_hub_claim(hub, rank, packet->word.code)) ends_now((ExitCode)packet->word.code);
        return true;
    case PACKET_DUMP:
        if ((int64_t)packet->word.asked <= 0) return false;
        socket_hub_dump(hub, (int64_t)packet->word.asked);
        return true;
    case PACKET_LOST: return take_lost(hub, rank, &packet->word);
    case PACKET_ALIVE: return true;
    default: return false;
    }
}
