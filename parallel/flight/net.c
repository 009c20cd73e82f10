/* net.c -- see net.h. */
#include "parallel/flight/net.h"

#include "model/core/check.h"
#include "model/core/hash.h"
#include "parallel/flight/front.h"

#include <stdlib.h>
#include <string.h>

/* ---- the groups of all rings ------------------------------------------------------------------
 */

/* A hash table of groups. index: [places] 1 + index in net->group; 0: the place is empty. again:
 * [room] for each group of the net: if a rank has several groups with the same name and ranks, the
 * group's number among these, from 0. */
typedef struct {
    int *index, *again;
    size_t places; /* a power of two */
    int room;
} Table;

static bool same_group(const RingGroup *a, const RingGroup *b)
{
    return a->runs == b->runs && strcmp(a->name, b->name) == 0 &&
           memcmp(a->run, b->run, (size_t)a->runs * sizeof *a->run) == 0;
}

static size_t first_place(const Table *t, const RingGroup *group, int again)
{
    uint64_t h = hash_bytes((uint64_t)again, group->run,
                            (int64_t)((size_t)group->runs * sizeof *group->run));
    h = hash_bytes(h, group->name, (int64_t)strlen(group->name));
    return hash_mix(h, 1) & (t->places - 1);
}

/* Returns the index of the group, which is added if it is new. */
static int group_index(Net *net, Table *t, const RingGroup *group, int again)
{
    size_t at = first_place(t, group, again);
    for (; t->index[at] > 0; at = (at + 1) & (t->places - 1)) {
        int index = t->index[at] - 1;
        if (t->again[index] == again && same_group(net->group[index].group, group)) return index;
    }
    if (net->groups == t->room) {
        t->room = 2 * t->room + 1;
        net->group = must_realloc(net->group, (size_t)t->room * sizeof *net->group);
        t->again = must_realloc(t->again, (size_t)t->room * sizeof *t->again);
    }
    net->group[net->groups] = (NetGroup){.group = group, .size = group->size};
    t->again[net->groups] = again;
    t->index[at] = ++net->groups;
    return net->groups - 1;
}

static void find_groups(Net *net)
{
    const FlightFiles *files = net->files;
    size_t all = 1;
    for (int rank = 0; rank < files->ranks; rank++)
        if (files->state[rank] == RANK_READ) all += (size_t)files->ring[rank]->groups;
    Table t = {.places = 2};
    while (t.places < 2 * all)
        t.places *= 2;
    t.index = must_calloc(t.places, sizeof *t.index);
    net->of = must_calloc((size_t)files->ranks, sizeof *net->of);
    for (int rank = 0; rank < files->ranks; rank++) {
        const RingFile *ring = files->ring[rank];
        if (files->state[rank] != RANK_READ) continue;
        net->of[rank] = must_calloc((size_t)ring->groups + 1, sizeof **net->of);
        for (int g = 0; g < ring->groups; g++) {
            int again = 0;
            for (int i = 0; i < g; i++)
                again += same_group(&ring->group[i], &ring->group[g]);
            net->of[rank][g] =
                ring->group[g].runs > 0 ? group_index(net, &t, &ring->group[g], again) : -1;
        }
    }
    free(t.index);
    free(t.again);
}

/* ---- the members of groups --------------------------------------------------------------------
 */

/* Returns the index of a rank in the group, or -1. */
static int index_in(const RingGroup *group, int rank)
{
    for (int r = 0, before = 0; r < group->runs; before += group->run[r++].count) {
        const RankRun *run = &group->run[r];
        int from = rank - run->first, at = run->stride != 0 ? from / run->stride : 0;
        if (at >= 0 && at < run->count && from == at * run->stride) return before + at;
    }
    return -1;
}

static void make_members(NetGroup *group, const FlightFiles *files)
{
    size_t n = (size_t)group->size;
    group->member = must_calloc(n, sizeof *group->member);
    group->by_begun = must_calloc(n, sizeof *group->by_begun);
    group->by_here = must_calloc(n, sizeof *group->by_here);
    int at = 0;
    for (int r = 0; r < group->group->runs; r++)
        for (int i = 0; i < group->group->run[r].count; i++) {
            int rank = rank_run_at(&group->group->run[r], i);
            RankState state = files->state[rank];
            int64_t call = state == RANK_READ ? 0 : state == RANK_SILENT ? -1 : INT64_MAX;
            group->member[at++] = (NetMember){rank, call, call};
        }
}

/* Returns the number of the last collective of its group at which the rank, or its device, has
 * arrived. */
static int64_t arrived(const RingFile *ring, const RingPlace *place)
{
    if (place->first == 0) return place->begun;
    for (int i = 0; i < ring->opens; i++) {
        const RingEntry *e = &ring->open[i];
        if (e->kind == FLIGHT_COLLECTIVE && e->group == place->group && e->call == place->first)
            return front_is_at(ring, e) ? place->first : place->first - 1;
    }
    return place->first - 1;
}

static void set_members(Net *net, int rank)
{
    const RingFile *ring = net->files->ring[rank];
    for (int i = 0; i < ring->places; i++) {
        const RingPlace *place = &ring->place[i];
        int g = net->of[rank][place->group];
        int at = g >= 0 && place->peer < 0 ? index_in(net->group[g].group, rank) : -1;
        if (at < 0) continue;
        bool whole = place->first == 0 || place->first > place->ended;
        if (whole && place->ended > net->group[g].done) net->group[g].done = place->ended;
        net->group[g].member[at].begun = place->begun;
        net->group[g].member[at].here = arrived(ring, place);
    }
}

/* Makes the lists of the groups of each rank (net->first and net->in). */
static void list_groups(Net *net)
{
    int ranks = net->files->ranks;
    net->first = must_calloc((size_t)ranks + 2, sizeof *net->first);
    for (int g = 0; g < net->groups; g++)
        for (int i = 0; i < net->group[g].size; i++)
            net->first[net->group[g].member[i].rank + 2]++;
    for (int rank = 0; rank < ranks; rank++)
        net->first[rank + 2] += net->first[rank + 1];
    net->in = must_calloc((size_t)net->first[ranks + 1] + 1, sizeof *net->in);
    /* In the loop, first[rank + 1] is where the next group of this rank is stored. After the loop
     * it is where the rank's groups end. */
    for (int g = 0; g < net->groups; g++)
        for (int i = 0; i < net->group[g].size; i++)
            net->in[net->first[net->group[g].member[i].rank + 1]++] = (struct NetIn){g, i};
}

static int compare_begun(const void *a, const void *b, void *members)
{
    const NetMember *x = (NetMember *)members + *(const int *)a;
    const NetMember *y = (NetMember *)members + *(const int *)b;
    return x->begun != y->begun ? (x->begun < y->begun ? -1 : 1) : x->rank - y->rank;
}

static int compare_here(const void *a, const void *b, void *members)
{
    const NetMember *x = (NetMember *)members + *(const int *)a;
    const NetMember *y = (NetMember *)members + *(const int *)b;
    return x->here != y->here ? (x->here < y->here ? -1 : 1) : x->rank - y->rank;
}

static void sort_members(NetGroup *group)
{
    for (int i = 0; i < group->size; i++)
        group->by_begun[i] = group->by_here[i] = i;
    qsort_r(group->by_begun, (size_t)group->size, sizeof *group->by_begun, compare_begun,
            group->member);
    qsort_r(group->by_here, (size_t)group->size, sizeof *group->by_here, compare_here,
            group->member);
}

void net_make(Net *net, const FlightFiles *files)
{
    *net = (Net){.files = files};
    find_groups(net);
    for (int g = 0; g < net->groups; g++)
        make_members(&net->group[g], files);
    for (int rank = 0; rank < files->ranks; rank++)
        if (files->state[rank] == RANK_READ) set_members(net, rank);
    for (int g = 0; g < net->groups; g++)
        sort_members(&net->group[g]);
    list_groups(net);
}

void net_free(Net *net)
{
    for (int g = 0; g < net->groups; g++) {
        free(net->group[g].member);
        free(net->group[g].by_begun);
        free(net->group[g].by_here);
    }
    for (int rank = 0; rank < net->files->ranks; rank++)
        free(net->of[rank]);
    free(net->group);
    free(net->of);
    free(net->first);
    free(net->in);
}

/* ---- look-ups ---------------------------------------------------------------------------------
 */

const NetGroup *net_group(const Net *net, int rank, const RingEntry *entry)
{
    int g = entry->group >= 0 ? net->of[rank][entry->group] : -1;
    return g >= 0 ? &net->group[g] : NULL;
}

int net_behind(const NetGroup *group, bool here, int64_t call)
{
    const int *by = here ? group->by_here : group->by_begun;
    int low = 0, high = group->size;
    while (low < high) {
        int middle = (low + high) / 2;
        const NetMember *m = &group->member[by[middle]];
        if ((here ? m->here : m->begun) < call)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool net_unknown(const NetGroup *group)
{
    return group->size > 0 && group->member[group->by_begun[group->size - 1]].begun == INT64_MAX;
}

/* Finds net->group[group] in the peer's file. Returns its index there (in RingFile.group), or -1 if
 * the file does not contain this group. */
static int group_of_peer(const Net *net, int peer, int group)
{
    const RingFile *ring = net->files->ring[peer];
    for (int g = 0; g < ring->groups; g++)
        if (net->of[peer][g] == group) return g;
    return -1;
}

/* Returns the peer's end of a message: the unfinished entry in the peer's file that sends to (or,
 * if not `send`, receives from) member `rank` of the group with call number `call` (-1: any
 * number). Returns NULL if there is none. */
static const RingEntry *other_end(const RingFile *ring, int group, int rank, bool send,
                                  int64_t call)
{
    for (int i = 0; i < ring->opens; i++) {
        const RingEntry *e = &ring->open[i];
        if (e->kind == FLIGHT_EXCHANGE && e->group == group && e->peer == rank &&
            ring_sends(e) == send && (call < 0 || e->call < 0 || e->call == call))
            return e;
    }
    return NULL;
}

PeerState net_peer(const Net *net, int rank, const RingEntry *message, int *peer)
{
    const NetGroup *group = net_group(net, rank, message);
    *peer = -1;
    if (group == NULL || message->peer < 0 || message->peer >= group->size) return PEER_UNKNOWN;
    *peer = group->member[message->peer].rank;
    RankState state = net->files->state[*peer];
    if (state != RANK_READ) return state == RANK_SILENT ? PEER_LATE : PEER_UNKNOWN;
    const RingFile *ring = net->files->ring[*peer];
    int at = group_of_peer(net, *peer, (int)(group - net->group));
    int own = index_in(group->group, rank);
    bool send = !ring_sends(message);
    const RingPlace *place = at >= 0 ? ring_place(ring, at, own, send) : NULL;
    const RingEntry *end = at >= 0 ? other_end(ring, at, own, send, message->call) : NULL;
    if (end) return front_is_at(ring, end) ? PEER_HERE : PEER_BUSY;
    if (message->call < 0 || place == NULL || place->begun < message->call) return PEER_LATE;
    return place->first > 0 && place->first <= message->call ? PEER_BUSY : PEER_DONE;
}
