/* chain_waits.c -- see chain.h: makes the list of who waits for whom, and finds ranks of a group
 * whose calls differ. */
#include "parallel/flight/chain.h"

#include "model/core/check.h"

#include <stdlib.h>
#include <string.h>

enum { SIDES = 2 };

/* ---- who waits for whom ------------------------------------------------------------------------
 */

/* One rank's wait. */
typedef struct {
    int rank, depth;
    const RingEntry *call;
    const SearchLink *link; /* NULL: it waits for nobody that is known */
} Waiter;

static int compare_texts(const RingEntry *a, const RingEntry *b)
{
    int texts = strcmp(a->name, b->name);
    if (texts == 0) texts = strcmp(a->dtype, b->dtype);
    return texts;
}

/* Compares two waits by what they must have in common to be listed together. */
static int compare_calls(const Waiter *x, const Waiter *y)
{
    const SearchLink *a = x->link, *b = y->link;
    const RingEntry *c = x->call, *d = y->call;
    if ((a == NULL) != (b == NULL)) return a ? -1 : 1;
    if (a && a->group != b->group) return a->group - b->group;
    if (a && a->peer != b->peer) return a->peer - b->peer;
    if (a && a->behind != b->behind) return a->behind - b->behind;
    if (a && a->here != b->here) return a->here - b->here;
    if (c->call != d->call) return c->call < d->call ? -1 : 1;
    if (c->elements != d->elements) return c->elements < d->elements ? -1 : 1;
    if (c->step != d->step) return c->step < d->step ? -1 : 1;
    if (c->micro_batch != d->micro_batch) return c->micro_batch < d->micro_batch ? -1 : 1;
    if (c->action != d->action) return (int)c->action - (int)d->action;
    return compare_texts(c, d);
}

/* Orders waits: those nearest to where the hang begins come first, those that do not lead there
 * come last. */
static int compare_waiters(const void *a, const void *b)
{
    const Waiter *x = a, *y = b;
    if (x->depth != y->depth)
        return (unsigned)x->depth < (unsigned)y->depth ? -1 : 1; /* depth -1 becomes the largest */
    int calls = compare_calls(x, y);
    return calls != 0 ? calls : x->rank - y->rank;
}

static int compare_ranks(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* Lists the ranks that a link waits for. */
static void name_whom(ChainWait *w, const SearchLink *link, const Net *net)
{
    w->late = link->behind;
    w->whoms = link->behind < CHAIN_NAMED ? link->behind : CHAIN_NAMED;
    w->whom = must_calloc((size_t)w->whoms, sizeof *w->whom);
    w->devices = link->here;
    if (link->peer >= 0) {
        w->whom[0] = link->peer / SIDES;
        w->devices = link->peer % SIDES;
        return;
    }
    const NetGroup *group = &net->group[link->group];
    const int *by = link->here ? group->by_here : group->by_begun;
    for (int i = 0; i < w->whoms; i++)
        w->whom[i] = group->member[by[i]].rank;
    qsort(w->whom, (size_t)w->whoms, sizeof *w->whom, compare_ranks);
}

/* Adds one ChainWait for waiter[0..n), which have the same call. */
static void add_wait(Chain *c, const Net *net, const Waiter *waiter, int n)
{
    ChainWait *w = &c->wait[c->waits++];
    const RingFile *ring = net->files->ring[waiter->rank];
    *w = (ChainWait){.call = waiter->call, .group = "", .depth = waiter->depth, .ranks = n};
    if (w->call->group >= 0) w->group = ring->group[w->call->group].name;
    w->rank = must_calloc((size_t)n, sizeof *w->rank);
    for (int i = 0; i < n; i++) {
        double seconds = chain_seconds(net->files->ring[waiter[i].rank], waiter[i].call);
        w->rank[i] = waiter[i].rank;
        if (seconds > w->seconds) w->seconds = seconds;
    }
    if (waiter->link) name_whom(w, waiter->link, net);
}

void chain_list_waits(Chain *c, const Search *s)
{
    const FlightFiles *files = s->net->files;
    Waiter *waiter = must_calloc((size_t)files->ranks, sizeof *waiter);
    const SearchLink **of = must_calloc((size_t)files->ranks, sizeof(SearchLink *));
    int n = 0;
    for (int i = s->links - 1; i >= 0; i--)
        if (s->link[i].node % SIDES == 0) of[s->link[i].node / SIDES] = &s->link[i];
    for (int rank = 0; rank < files->ranks; rank++) {
        const SearchNode *at = &s->node[SIDES * rank];
        /* The call of a rank where the hang begins is part of the cause, not a wait. */
        bool begins = at->depth == 0 && of[rank] == NULL;
        if (at->in == NULL || !front_is_call(at->in) || begins) continue;
        waiter[n++] = (Waiter){rank, at->depth, of[rank] ? of[rank]->call : at->in, of[rank]};
    }
    if (n > 0) qsort(waiter, (size_t)n, sizeof *waiter, compare_waiters);
    c->wait = must_calloc((size_t)n + 1, sizeof *c->wait);
    for (int i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && waiter[end].depth == waiter[i].depth &&
                          compare_calls(&waiter[i], &waiter[end]) == 0;)
            end++;
        add_wait(c, s->net, &waiter[i], end - i);
    }
    free(waiter);
    free(of);
}

/* ---- calls that differ -------------------------------------------------------------------------
 */

/* Returns the call with number `call` in the group, as the rank has made it, or NULL if the rank's
 * file does not contain that call. */
static const RingCall *call_of(const Net *net, int group, int rank, int64_t call)
{
    const RingFile *ring = net->files->ring[rank];
    if (net->files->state[rank] != RANK_READ) return NULL;
    for (int i = 0; i < ring->places; i++) {
        const RingPlace *place = &ring->place[i];
        if (place->seen == NULL || net->of[rank][place->group] != group) continue;
        const RingCall *seen = &place->seen[call % RING_SEEN];
        if (seen->call == call) return seen;
    }
    return NULL;
}

static bool same_call(const RingCall *a, const RingCall *b)
{
    return strcmp(a->name, b->name) == 0 && strcmp(a->dtype, b->dtype) == 0 &&
           a->elements == b->elements;
}

/* Returns whether the members' calls with this number differ. If they do, lists as late the ranks
 * whose call is not that of the majority, or all ranks if there is no majority. */
static bool compare_members(Chain *c, const Net *net, int group, int64_t call)
{
    const NetGroup *g = &net->group[group];
    const RingCall *most = NULL;
    int votes = 0, same = 0, all = 0;
    /* Finds the only call that more than half of the members can have made (Boyer and Moore). */
    for (int i = 0; i < g->size; i++) {
        const RingCall *own = call_of(net, group, g->member[i].rank, call);
        if (own == NULL) continue;
        if (votes == 0) most = own;
        votes += same_call(most, own) ? 1 : -1;
    }
    for (int i = 0; i < g->size; i++) {
        const RingCall *own = call_of(net, group, g->member[i].rank, call);
        all += own != NULL;
        same += own && same_call(most, own);
    }
    if (same == all) return false;
    bool majority = 2 * same > all;
    for (int i = 0; i < g->size; i++) {
        const RingCall *own = call_of(net, group, g->member[i].rank, call);
        if (own == NULL || (majority && same_call(most, own))) {
            if (own && c->other < 0) c->other = g->member[i].rank, c->other_call = own;
            continue;
        }
        c->late[c->lates++] = g->member[i].rank;
        if (c->first < 0) c->first = g->member[i].rank, c->late_call = own;
        if (!majority && c->other < 0 && !same_call(c->late_call, own))
            c->other = g->member[i].rank, c->other_call = own;
    }
    qsort(c->late, (size_t)c->lates, sizeof *c->late, compare_ranks);
    return true;
}

bool chain_find_difference(Chain *c, const Net *net)
{
    const FlightFiles *files = net->files;
    /* For each group, the number of the first call that some member has not finished; 0: none. */
    int64_t *first = must_calloc((size_t)net->groups + 1, sizeof *first);
    bool found = false;
    for (int rank = 0; rank < files->ranks; rank++) {
        const RingFile *ring = files->ring[rank];
        for (int i = 0; files->state[rank] == RANK_READ && i < ring->places; i++) {
            const RingPlace *place = &ring->place[i];
            int group = net->of[rank][place->group];
            if (group < 0 || place->peer >= 0 || place->first == 0) continue;
            if (first[group] == 0 || place->first < first[group]) first[group] = place->first;
        }
    }
    for (int group = 0; group < net->groups && !found; group++)
        found = first[group] > 0 && compare_members(c, net, group, first[group]);
    free(first);
    if (!found) return false;
    c->cause = CAUSE_COLLECTIVE;
    for (int i = 0; i < files->ring[c->first]->opens; i++) {
        const RingEntry *e = &files->ring[c->first]->open[i];
        if (e->kind != FLIGHT_COLLECTIVE || e->call != c->late_call->call) continue;
        c->in = e;
        c->seconds = chain_seconds(files->ring[c->first], e);
    }
    return true;
}
