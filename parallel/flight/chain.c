/* chain.c -- see chain.h: finds where a hang begins, and its cause. */
#include "parallel/flight/chain.h"

#include "model/core/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const flight_cause_name[CAUSES] = {
    [CAUSE_NONE] = "none",       [CAUSE_STOPPED] = "rank stopped",
    [CAUSE_DATA] = "data",       [CAUSE_COLLECTIVE] = "other collective",
    [CAUSE_DISK] = "disk",       [CAUSE_CONSOLE] = "console",
    [CAUSE_DEVICE] = "device",   [CAUSE_COMPUTING] = "computing",
    [CAUSE_UNKNOWN] = "unknown",
};

/* In a healthy run no rank waits longer than USUAL_LEAST seconds and longer than USUAL_TIMES times
 * the longest wait that has ended. */
static const double USUAL_LEAST = 1, USUAL_TIMES = 2;
enum { SIDES = 2 };

double chain_seconds(const RingFile *ring, const RingEntry *entry)
{
    if (entry) return entry->begun < 0 ? -entry->begun : 0;
    if (ring->last.n == 0) return NAN;
    return ring->last.ended < 0 ? -ring->last.ended : 0;
}

/* Returns whether another rank has already finished the call that this node (a rank's host or its
 * device, search.h) is still in. */
static bool others_are_done(const Search *s, int node)
{
    const Net *net = s->net;
    const RingEntry *in = s->node[node].in;
    int rank = node / SIDES, peer;
    if (in->kind == FLIGHT_EXCHANGE) return net_peer(net, rank, in, &peer) == PEER_DONE;
    const NetGroup *group = net_group(net, rank, in);
    return group && group->done >= in->call;
}

static FlightCause cause_of_work(const RingEntry *in)
{
    static const FlightCause cause[FLIGHT_WORKS] = {
        [FLIGHT_DATA] = CAUSE_DATA,        [FLIGHT_SAVE] = CAUSE_DISK,
        [FLIGHT_DISK] = CAUSE_DISK,        [FLIGHT_CONSOLE] = CAUSE_CONSOLE,
        [FLIGHT_SAMPLE] = CAUSE_COMPUTING, [FLIGHT_EVALUATION] = CAUSE_COMPUTING};
    for (int work = 0; work < FLIGHT_WORKS; work++)
        if (strcmp(in->name, flight_work_name[work]) == 0) return cause[work];
    return CAUSE_COMPUTING;
}

/* Returns why a node that waits for nobody makes no progress. */
static FlightCause cause_of(const Search *s, int node)
{
    const FlightFiles *files = s->net->files;
    const RingFile *ring = files->ring[node / SIDES];
    const RingEntry *in = s->node[node].in;
    if (files->state[node / SIDES] == RANK_SILENT) return CAUSE_STOPPED;
    if (in == NULL) return CAUSE_COMPUTING;
    bool asynchronous = front_is_asynchronous(ring);
    switch (in->kind) {
    case FLIGHT_WORK: return cause_of_work(in);
    case FLIGHT_WAIT: return CAUSE_DEVICE;
    case FLIGHT_COLLECTIVE:
    case FLIGHT_EXCHANGE:
        return !asynchronous && others_are_done(s, node) ? CAUSE_STOPPED : CAUSE_DEVICE;
    default: return asynchronous ? CAUSE_DEVICE : CAUSE_COMPUTING;
    }
}

/* ---- where the hang begins ---------------------------------------------------------------------
 */

/* Returns the priority of a cause. If a hang may have several causes, the one with the highest
 * priority counts. */
static int trust(FlightCause cause)
{
    static const int order[CAUSES] = {
        [CAUSE_STOPPED] = 6, [CAUSE_DATA] = 5,       [CAUSE_DISK] = 4,
        [CAUSE_CONSOLE] = 3, [CAUSE_DEVICE] = 2,     [CAUSE_COMPUTING] = 1,
        [CAUSE_NONE] = 0,    [CAUSE_COLLECTIVE] = 0, [CAUSE_UNKNOWN] = 0};
    return order[cause];
}

/* Returns whether a hang may begin at the node: it keeps others waiting and waits for nobody, or
 * its rank has no file. `alone`: no rank waits for another one; then a node need not keep others
 * waiting. */
static bool begins_at(const Search *s, int node, bool alone)
{
    const SearchNode *at = &s->node[node];
    RankState state = s->net->files->state[node / SIDES];
    if (state == RANK_SILENT) return node % SIDES == 0;
    if (state == RANK_UNKNOWN || at->waits || !at->looked) return false;
    return at->wanted || (alone && at->in != NULL);
}

static void add_late(Chain *c, const Search *s, int node)
{
    int rank = node / SIDES;
    const FlightFiles *files = s->net->files;
    double seconds =
        files->state[rank] == RANK_READ ? chain_seconds(files->ring[rank], s->node[node].in) : NAN;
    bool again = c->lates > 0 && c->late[c->lates - 1] == rank;
    if (c->first < 0 || seconds > c->seconds) {
        c->first = rank;
        c->in = s->node[node].in;
        c->seconds = seconds;
    }
    if (!again) c->late[c->lates++] = rank;
}

static void begin_again(Chain *c, FlightCause cause)
{
    c->cause = cause;
    c->lates = 0;
    c->first = -1;
    c->in = NULL;
    c->seconds = NAN;
}

/* Finds the nodes where the hang begins: those with the cause of the highest priority. */
static void find_begin(Chain *c, const Search *s)
{
    int ranks = s->net->files->ranks;
    bool alone = s->links == 0;
    for (int node = 0; node < SIDES * ranks; node++) {
        if (!begins_at(s, node, alone)) continue;
        FlightCause cause = cause_of(s, node);
        if (trust(cause) < trust(c->cause)) continue;
        if (trust(cause) > trust(c->cause)) begin_again(c, cause);
        add_late(c, s, node);
    }
}

/* Called if the ranks wait for each other in a cycle. If a device in the cycle is also executing an
 * op or a copy, this work need not be waiting for anything, so the device is the cause. Otherwise
 * the ranks have made their calls in different orders. */
static void find_in_circle(Chain *c, const Search *s)
{
    const FlightFiles *files = s->net->files;
    for (int node = 0; node < SIDES * files->ranks; node++) {
        Front front;
        if (!s->node[node].wanted || files->state[node / SIDES] != RANK_READ) continue;
        front_find(files->ring[node / SIDES], node % SIDES, &front);
        for (int i = 0; i < front.n; i++) {
            if (front_is_call(front.entry[i]) || front.entry[i]->kind == FLIGHT_WAIT) continue;
            if (c->cause != CAUSE_DEVICE) begin_again(c, CAUSE_DEVICE);
            s->node[node].in = front.entry[i];
            add_late(c, s, node);
            break;
        }
    }
}

/* Called if ranks wait for each other in a cycle of several calls: the call in which the fewest
 * ranks wait is taken to be out of order. */
static void find_odd(Chain *c, const Search *s)
{
    const ChainWait *least = NULL;
    for (int i = 0; i < c->waits; i++) {
        const ChainWait *w = &c->wait[i];
        if (w->late > 0 && (least == NULL || w->ranks < least->ranks)) least = w;
    }
    if (least == NULL) return;
    begin_again(c, CAUSE_COLLECTIVE);
    c->circle = true;
    for (int i = 0; i < least->ranks; i++)
        add_late(c, s, SIDES * least->rank[i]);
}

/* ---- the chain ---------------------------------------------------------------------------------
 */

static void set_depths(const Chain *c, Search *s)
{
    int n = 0, *node = must_calloc(SIDES * (size_t)c->lates + 1, sizeof *node);
    for (int i = 0; i < c->lates; i++)
        for (int side = 0; side < SIDES; side++)
            node[n++] = SIDES * c->late[i] + side;
    search_depths(s, node, n);
    free(node);
}

static void measure_waits(Chain *c, const Search *s)
{
    const FlightFiles *files = s->net->files;
    for (int i = 0; i < s->links; i++) {
        const RingFile *ring = files->ring[s->link[i].node / SIDES];
        c->waited = fmax(c->waited, chain_seconds(ring, s->link[i].call));
    }
    if (s->links == 0 && c->seconds > 0) c->waited = c->seconds;
    for (int rank = 0; rank < files->ranks; rank++)
        if (files->state[rank] == RANK_READ) c->usual = fmax(c->usual, files->ring[rank]->longest);
}

/* Returns whether the run makes progress: a signal requested the dump, all ranks have written their
 * files, and nobody has waited for long. */
static bool is_healthy(const Chain *c, const Search *s)
{
    const FlightFiles *files = s->net->files;
    if (files->first->reason != DUMP_SIGNAL || files->silent > 0) return false;
    if (s->links == 0 && c->cause == CAUSE_COMPUTING) return true;
    return c->waited < fmax(USUAL_LEAST, USUAL_TIMES * c->usual);
}

void chain_make(Chain *c, Search *s)
{
    *c = (Chain){.first = -1, .other = -1, .seconds = NAN};
    c->late = must_calloc((size_t)s->net->files->ranks, sizeof *c->late);
    bool differ = chain_find_difference(c, s->net);
    if (!differ) find_begin(c, s);
    /* What looks like a cycle may be a wait for a rank whose file was not read. So a cycle is a
     * cause only if all files were read. */
    bool unknown = s->net->files->unknown > 0, links = s->links > 0 && !unknown;
    if (!differ && c->lates == 0 && links) find_in_circle(c, s);
    measure_waits(c, s);
    bool circle = c->lates == 0 && links;
    if (!circle) set_depths(c, s);
    chain_list_waits(c, s);
    if (circle) find_odd(c, s);
    if (c->cause == CAUSE_NONE || (!differ && is_healthy(c, s)))
        begin_again(c, unknown ? CAUSE_UNKNOWN : CAUSE_NONE);
}

void chain_free(Chain *c)
{
    for (int i = 0; i < c->waits; i++) {
        free(c->wait[i].rank);
        free(c->wait[i].whom);
    }
    free(c->wait);
    free(c->late);
}
