/* search.c -- see search.h. */
#include "parallel/flight/search.h"

#include "model/core/check.h"

#include <stdlib.h>
#include <string.h>

enum { HOST, DEVICE, SIDES };

typedef struct {
    Search *s;
    int *todo; /* nodes that are still to be examined */
    int n;
    int *marked; /* [SIDES x groups] how many of the first members in a group's by_begun (DEVICE:
                    by_here) are already marked as wanted */
    int room;
} Walk;

/* ---- forwards: for whom each node waits --------------------------------------------------------
 */

static void want(Walk *w, int node)
{
    SearchNode *at = &w->s->node[node];
    if (!at->wanted && !at->looked) w->todo[w->n++] = node;
    at->wanted = true;
}

static void add_link(Walk *w, SearchLink link)
{
    Search *s = w->s;
    if (s->links == w->room)
        s->link = must_realloc(s->link, (size_t)(w->room = 2 * w->room + 1) * sizeof *s->link);
    s->link[s->links++] = link;
    if (!s->node[link.node].waits) s->node[link.node].in = link.call;
    s->node[link.node].waits = true;
}

/* Marks the members for which the link waits as wanted, as far as they are not marked yet. */
static void want_members(Walk *w, const SearchLink *link)
{
    const NetGroup *group = &w->s->net->group[link->group];
    const int *by = link->here ? group->by_here : group->by_begun;
    int *marked = &w->marked[SIDES * link->group + link->here];
    for (; *marked < link->behind; ++*marked)
        want(w, SIDES * group->member[by[*marked]].rank + link->here);
}

static void follow_collective(Walk *w, int node, const RingEntry *call)
{
    const Net *net = w->s->net;
    const NetGroup *group = net_group(net, node / SIDES, call);
    if (group == NULL || call->call < 1) {
        w->s->node[node].waits = true;
        return;
    }
    const RingFile *ring = net->files->ring[node / SIDES];
    int64_t begun = ring_place(ring, call->group, -1, false)->begun;
    SearchLink link = {.node = node, .call = call, .peer = -1, .key = begun};
    link.group = (int)(group - net->group);
    link.behind = net_behind(group, false, begun);
    if (link.behind == 0) {
        link.here = true;
        link.key = call->call;
        link.behind = net_behind(group, true, call->call);
    }
    if (link.behind == 0) {
        /* Unknown ranks may be the missing ones, unless a member has finished the call. */
        if (net_unknown(group) && group->done < call->call) w->s->node[node].waits = true;
        return;
    }
    add_link(w, link);
    want_members(w, &link);
}

static void follow_message(Walk *w, int node, const RingEntry *call)
{
    int rank;
    PeerState state = net_peer(w->s->net, node / SIDES, call, &rank);
    if (state == PEER_UNKNOWN) w->s->node[node].waits = true;
    if (state != PEER_LATE && state != PEER_BUSY) return;
    int peer = SIDES * rank + (state == PEER_BUSY);
    add_link(w, (SearchLink){.node = node, .call = call, .group = -1, .peer = peer, .behind = 1});
    want(w, peer);
}

static void look(Walk *w, int node)
{
    SearchNode *at = &w->s->node[node];
    const FlightFiles *files = w->s->net->files;
    if (at->looked) return;
    at->looked = true;
    if (files->state[node / SIDES] != RANK_READ) return;
    Front front;
    front_find(files->ring[node / SIDES], node % SIDES == DEVICE, &front);
    if (front.n > 0) at->in = front.entry[0];
    for (int i = 0; i < front.n; i++) {
        if (front.entry[i]->kind == FLIGHT_COLLECTIVE) follow_collective(w, node, front.entry[i]);
        if (front.entry[i]->kind == FLIGHT_EXCHANGE) follow_message(w, node, front.entry[i]);
    }
}

/* ---- the order of links ------------------------------------------------------------------------
 */

/* Orders links: collectives first, by group, those with the largest keys first; then messages, by
 * peer. */
static int compare_links(const void *a, const void *b)
{
    const SearchLink *x = a, *y = b;
    if ((x->peer < 0) != (y->peer < 0)) return x->peer < 0 ? -1 : 1;
    if (x->peer != y->peer) return x->peer - y->peer;
    if (x->group != y->group) return x->group - y->group;
    if (x->here != y->here) return x->here - y->here;
    if (x->key != y->key) return x->key > y->key ? -1 : 1;
    return x->node - y->node;
}

void search_make(Search *s, const Net *net)
{
    size_t nodes = SIDES * (size_t)net->files->ranks;
    *s = (Search){.net = net, .node = must_calloc(nodes, sizeof *s->node)};
    Walk w = {.s = s};
    w.todo = must_calloc(nodes, sizeof *w.todo);
    w.marked = must_calloc(SIDES * (size_t)net->groups + 1, sizeof *w.marked);
    for (size_t i = 0; i < nodes; i++)
        s->node[i].depth = -1;
    for (int rank = 0; rank < net->files->ranks; rank++)
        look(&w, SIDES * rank + HOST);
    /* The list grows while the loop reads it; a node is added at most once. */
    for (int i = 0; i < w.n; i++)
        look(&w, w.todo[i]);
    if (s->links > 0) qsort(s->link, (size_t)s->links, sizeof *s->link, compare_links);
    free(w.todo);
    free(w.marked);
}

void search_free(Search *s)
{
    free(s->node);
    free(s->link);
}

/* ---- backwards: which nodes wait for a node ----------------------------------------------------
 */

typedef struct {
    Search *s;
    int *todo; /* nodes whose waiters are still to be reached */
    int n;
    int *next; /* [SIDES x groups] the next link of each group that has not been followed */
} Back;

static void reach(Back *b, int node, int depth)
{
    SearchNode *at = &b->s->node[node];
    if (at->depth >= 0) return;
    at->depth = depth;
    b->todo[b->n++] = node;
}

/* Returns the index of the first link whose peer is this node or a higher one. */
static int first_to_peer(const Search *s, int peer)
{
    int low = 0, high = s->links;
    while (low < high) {
        int middle = (low + high) / 2;
        if (s->link[middle].peer < peer)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Sets the depths of all nodes that wait for this node. */
static void follow_back(Back *b, int node)
{
    Search *s = b->s;
    const Net *net = s->net;
    int rank = node / SIDES, here = node % SIDES, depth = s->node[node].depth + 1;
    for (int64_t i = net->first[rank]; i < net->first[rank + 1]; i++) {
        int group = net->in[i].group, *next = &b->next[SIDES * group + here];
        const NetMember *m = &net->group[group].member[net->in[i].member];
        for (; *next < s->links; ++*next) {
            const SearchLink *link = &s->link[*next];
            if (link->group != group || link->here != here) break;
            if (link->key <= (here ? m->here : m->begun)) break;
            reach(b, link->node, depth);
        }
    }
    for (int i = first_to_peer(s, node); i < s->links && s->link[i].peer == node; i++)
        reach(b, s->link[i].node, depth);
}

void search_depths(Search *s, const int *nodes, int n)
{
    Back b = {.s = s};
    b.todo = must_calloc(SIDES * (size_t)s->net->files->ranks, sizeof *b.todo);
    b.next = must_calloc(SIDES * (size_t)s->net->groups + 1, sizeof *b.next);
    for (int i = SIDES * s->net->groups - 1; i >= 0; i--)
        b.next[i] = s->links;
    for (int i = s->links - 1; i >= 0; i--)
        if (s->link[i].peer < 0) b.next[SIDES * s->link[i].group + s->link[i].here] = i;
    for (int i = 0; i < n; i++)
        reach(&b, nodes[i], 0);
    for (int i = 0; i < b.n; i++)
        follow_back(&b, b.todo[i]);
    free(b.todo);
    free(b.next);
}
