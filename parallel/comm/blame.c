/* blame.c -- breadth-first search through the waits of all ranks for the rank that causes them. */
#include "parallel/comm/blame.h"

/* A rank that is waited for, the rank that waits for it, and the call's group. */
typedef struct {
    int rank, by;
    const void *group; /* NULL: the rank is in the list of the wait where the search began */
    bool device;
} Link;

typedef struct {
    const BlameTransport *transport;
    void *world;
    Link link[COMM_MAX_RANKS];
    int n;
    bool seen[COMM_MAX_RANKS];
} Walk;

static void add(Walk *w, Link link)
{
    if (w->seen[link.rank]) return; /* a second path to this rank, or a cycle */
    w->seen[link.rank] = true;
    w->link[w->n++] = link;
}

/* Adds the ranks that `wait` is waiting for. */
static void add_wait(Walk *w, const BlameWait *wait, const void *group)
{
    int n = w->transport->devices && wait->n > 1 ? 1 : wait->n;
    for (int i = 0; i < n; i++)
        add(w, (Link){wait->who[i], wait->rank, group, wait->lack == BLAME_DEVICES});
}

static Walk start(const BlameTransport *transport, void *world, const BlameWait *wait)
{
    Walk w = {.transport = transport, .world = world};
    /* A host can wait in one call at a time, so reaching this rank again means a cycle. */
    if (!transport->devices) w.seen[wait->rank] = true;
    add_wait(&w, wait, NULL);
    return w;
}

/* Returns whether the rank is itself waiting, stores the group in *group and adds the ranks that it
 * waits for. Sets *stands if all members have arrived at the call that it is in. */
static bool follow(Walk *w, int rank, const void **group, bool *stands)
{
    BlameWait wait = {.rank = rank};
    *stands = false;
    *group = w->transport->waits_in(w->world, rank);
    if (*group == NULL || !w->transport->lacks(w->world, *group, rank, &wait)) return false;
    *stands = wait.lack == BLAME_NOTHING;
    if (!*stands) add_wait(w, &wait, *group);
    return true;
}

void blame_find(const BlameTransport *transport, void *world, const BlameWait *wait, Blame *blame)
{
    Walk w = start(transport, world, wait);
    *blame = (Blame){.kind = BLAME_CIRCLE};
    /* Breadth first: the list grows while the loop reads it. Each rank is added once, so the loop
     * ends. The first rank that is not waiting is the nearest cause. */
    for (int i = 0; i < w.n; i++) {
        const Link *link = &w.link[i];
        const void *group;
        bool stands;
        if (follow(&w, link->rank, &group, &stands)) {
            if (!stands) continue;
            *blame = (Blame){.kind = BLAME_CALL, .by = link->rank};
            transport->describe(world, group, link->rank, blame->call, sizeof blame->call);
            return;
        }
        /* The message about the wait already lists the ranks in wait->who. */
        *blame = (Blame){.kind = link->group ? BLAME_RANK : BLAME_THEMSELVES,
                         .rank = link->rank,
                         .by = link->by,
                         .device = link->device};
        if (link->group)
            transport->describe(world, link->group, link->by, blame->call, sizeof blame->call);
        return;
    }
}

int blame_reach(const BlameTransport *transport, void *world, const BlameWait *wait,
                int rank[COMM_MAX_RANKS])
{
    Walk w = start(transport, world, wait);
    const void *group;
    bool stands;
    /* The list grows while the loop reads it. */
    for (int i = 0; i < w.n; i++)
        follow(&w, w.link[i].rank, &group, &stands);
    for (int i = 0; i < w.n; i++)
        rank[i] = w.link[i].rank;
    return w.n;
}

bool blame_only(const BlameTransport *transport, void *world, const BlameWait *wait, int rank)
{
    Walk w = start(transport, world, wait);
    bool found = false;
    /* The list grows while the loop reads it. */
    for (int i = 0; i < w.n; i++) {
        const Link *link = &w.link[i];
        const void *group;
        bool stands;
        if (transport->devices && !link->device && link->rank == rank) return true;
        if (follow(&w, link->rank, &group, &stands)) {
            if (stands) return false;
        } else {
            if (link->rank != rank) return false;
            found = true;
        }
    }
    return found;
}
