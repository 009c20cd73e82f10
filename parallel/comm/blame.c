/* blame.c -- breadth-first search through the waits of all ranks for the rank that causes them. */
#include "parallel/comm/blame.h"

#include "model/core/check.h"

#include <stdlib.h>
#include <string.h>

/* A call in which a rank waits. */
typedef struct {
    const BlameTransport *transport;
    void *world;
    const void *group;
    bool devices; /* it is a call of devices, not of hosts */
} Call;

/* A rank that is waited for, the rank that waits for it, and the call in which it waits. */
typedef struct {
    int rank, by;
    Call call;   /* group NULL: the rank is in the list of the wait where the search began */
    bool device; /* the rank's device is waited for, not its host */
} Link;

/* A call that a search has followed already. `stands`: all members have arrived at it. */
typedef struct {
    uint64_t key;
    uint32_t search; /* number of the search that added it; entries of earlier searches count as
                      * empty */
    bool stands;
} Known;

/* The state of a search. A rank has two links at most, one for its host and one for its device. */
struct BlameRoom {
    int ranks;
    const BlameWaits *waits;
    Link *link; /* [2 x ranks] */
    int n;
    bool *seen[2];  /* [ranks] the hosts, and the devices, that the search has added already */
    int *own, *who; /* [ranks] lists of awaited ranks: `own` belongs to the wait with which the
                     * search begins, `who` to the wait that it is following */
    int *reached;   /* [ranks] the list that blame_reach returns */
    Known *known;   /* [places] hash table of the calls that the search has followed */
    size_t places;  /* a power of two, at least twice as many as there can be calls */
    uint32_t search;
};
typedef BlameRoom Walk;

BlameRoom *blame_room_create(int ranks)
{
    CHECK(ranks >= 1 && ranks <= COMM_MAX_RANKS, "%d ranks", ranks);
    BlameRoom *room = must_calloc(1, sizeof *room);
    room->ranks = ranks;
    room->link = must_calloc(2 * (size_t)ranks, sizeof *room->link);
    room->seen[false] = must_calloc((size_t)ranks, sizeof *room->seen[0]);
    room->seen[true] = must_calloc((size_t)ranks, sizeof *room->seen[0]);
    room->own = must_calloc((size_t)ranks, sizeof *room->own);
    room->who = must_calloc((size_t)ranks, sizeof *room->who);
    room->reached = must_calloc((size_t)ranks, sizeof *room->reached);
    /* Each of the 2 x ranks links can add up to two calls, so at most half of the table is used. */
    for (room->places = 8; room->places < 8 * (size_t)ranks;)
        room->places *= 2;
    room->known = must_calloc(room->places, sizeof *room->known);
    return room;
}

void blame_room_destroy(BlameRoom *room)
{
    if (room == NULL) return;
    free(room->link);
    free(room->seen[false]);
    free(room->seen[true]);
    free(room->own);
    free(room->who);
    free(room->reached);
    free(room->known);
    free(room);
}

int *blame_room_who(BlameRoom *room)
{
    return room->own;
}

static void add(Walk *w, Link link)
{
    if (w->seen[link.device][link.rank]) return; /* a second path to this rank, or a cycle */
    w->seen[link.device][link.rank] = true;
    w->link[w->n++] = link;
}

/* Adds the ranks that `wait` is waiting for; if it is a wait in a call of devices, only the first
 * of these ranks. */
static void add_wait(Walk *w, const BlameWait *wait, Call call)
{
    int n = wait->devices && wait->n > 1 ? 1 : wait->n;
    for (int i = 0; i < n; i++)
        add(w, (Link){wait->who[i], wait->rank, call, wait->lack == BLAME_DEVICES});
}

static Walk *start(const BlameWaits *waits, const BlameWait *wait)
{
    Walk *w = waits->room;
    w->waits = waits;
    w->n = 0;
    w->search++;
    memset(w->seen[false], 0, (size_t)w->ranks * sizeof *w->seen[0]);
    memset(w->seen[true], 0, (size_t)w->ranks * sizeof *w->seen[0]);
    /* A host waits in only one call at a time, so a path back to this rank's host is a cycle. Mark
     * it, so that the search does not follow it again. */
    if (!wait->devices) w->seen[false][wait->rank] = true;
    add_wait(w, wait, (Call){0});
    return w;
}

/* Returns the table's entry for the call with this key, which is not 0; if there is none, the empty
 * entry where it belongs. */
static Known *known_at(Walk *w, uint64_t key)
{
    size_t at = (size_t)(key * 0x9e3779b97f4a7c15U >> 20);
    for (;; at++) {
        Known *k = &w->known[at & (w->places - 1)];
        if (k->search != w->search || k->key == key) return k;
    }
}

/* Returns the key of the call (BlameTransport.key); 0: it has none. A call of devices has another
 * key than a call of hosts. */
static uint64_t key_of(const Call *call, int rank)
{
    uint64_t key = call->transport->key ? call->transport->key(call->world, call->group, rank) : 0;
    return key != 0 && call->devices ? ~key : key;
}

/* Returns whether the rank waits in a host call or, if `devices`, in a call of devices. Stores the
 * call in *call and adds the ranks that it waits for. Sets *stands if all members have arrived at
 * that call. */
static bool follow_in(Walk *w, int rank, bool devices, Call *call, bool *stands)
{
    const BlameWaits *of = w->waits;
    BlameWait wait = {.rank = rank, .devices = devices, .who = w->who};
    *call = devices ? (Call){of->devices.transport, of->devices.world, NULL, true}
                    : (Call){of->hosts.transport, of->hosts.world, NULL, false};
    *stands = false;
    if (call->transport == NULL) return false;
    call->group = call->transport->waits_in(call->world, rank);
    if (call->group == NULL) return false;
    uint64_t key = key_of(call, rank);
    Known *known = key ? known_at(w, key) : NULL;
    if (known && known->search == w->search) {
        *stands = known->stands;
        return true;
    }
    if (!call->transport->lacks(call->world, call->group, rank, &wait)) return false;
    *stands = wait.lack == BLAME_NOTHING;
    if (!*stands) add_wait(w, &wait, *call);
    if (known && wait.alike) *known = (Known){key, w->search, *stands};
    return true;
}

/* Does the same as follow_in for the rank of a link: follows its host's wait and, if the host does
 * not wait, its device's. If the link is for the rank's device, its host's wait is not followed. */
static bool follow(Walk *w, const Link *link, Call *call, bool *stands)
{
    return (!link->device && follow_in(w, link->rank, false, call, stands)) ||
           follow_in(w, link->rank, true, call, stands);
}

static void describe(const Call *call, int rank, Blame *blame)
{
    call->transport->describe(call->world, call->group, rank, blame->call, sizeof blame->call);
}

/* Writes to *blame that the rank of this link is the cause. If the link has no call, the rank is in
 * the list of the wait where the search began, which the message names anyway. */
static void blame_link(const Link *link, Blame *blame)
{
    *blame = (Blame){.kind = link->call.group ? BLAME_RANK : BLAME_THEMSELVES,
                     .rank = link->rank,
                     .by = link->by,
                     .device = link->device};
    if (link->call.group) describe(&link->call, link->by, blame);
}

void blame_find(const BlameWaits *waits, const BlameWait *wait, Blame *blame)
{
    Walk *w = start(waits, wait);
    const Link *running = NULL;
    /* Breadth first: the list grows while the loop reads it. Each rank is added at most twice, so
     * the loop ends. The first rank that is not waiting is the nearest cause. */
    for (int i = 0; i < w->n; i++) {
        const Link *link = &w->link[i];
        bool stands, by_host = link->call.group ? !link->call.devices : !wait->devices;
        Call call;
        if (!follow(w, link, &call, &stands)) {
            blame_link(link, blame);
            return;
        }
        if (stands) {
            *blame = (Blame){.kind = BLAME_CALL, .by = link->rank};
            describe(&call, link->rank, blame);
            return;
        }
        /* A host waits for this rank's host, which waits in no host call itself, although the rank
         * waits in a call of devices. Perhaps only its device waits there and its host is running.
         * So this rank counts as the cause if the search finds no other. */
        if (running == NULL && by_host && call.devices) running = link;
    }
    *blame = (Blame){.kind = BLAME_CIRCLE};
    if (running) blame_link(running, blame);
}

int blame_reach(const BlameWaits *waits, const BlameWait *wait, const int **rank)
{
    Walk *w = start(waits, wait);
    int n = 0;
    /* The list grows while the loop reads it. */
    for (int i = 0; i < w->n; i++) {
        Call call;
        bool stands;
        follow(w, &w->link[i], &call, &stands);
    }
    /* A rank may be in the list twice, for its host and for its device. Return it once. */
    memset(w->seen[false], 0, (size_t)w->ranks * sizeof *w->seen[0]);
    for (int i = 0; i < w->n; i++) {
        if (!w->seen[false][w->link[i].rank]) w->reached[n++] = w->link[i].rank;
        w->seen[false][w->link[i].rank] = true;
    }
    *rank = w->reached;
    return n;
}

bool blame_only(const BlameWaits *waits, const BlameWait *wait, int rank)
{
    Walk *w = start(waits, wait);
    bool found = false;
    /* The list grows while the loop reads it. */
    for (int i = 0; i < w->n; i++) {
        const Link *link = &w->link[i];
        Call call;
        bool stands;
        if (link->rank == rank && !link->device) {
            if (follow_in(w, rank, false, &call, &stands)) continue;
            if (wait->devices) return true;
            found = true; /* the rank is a cause, whatever its device does */
        } else if (!follow(w, link, &call, &stands)) {
            if (link->rank != rank) return false;
            found = true;
        } else if (stands) {
            return false;
        }
    }
    return found;
}
