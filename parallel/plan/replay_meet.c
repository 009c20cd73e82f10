/* replay_meet.c -- where replayed ranks wait for each other: collectives of groups of which several
 * ranks are replayed, and messages. See replay_inside.h. */
#include "parallel/plan/replay_inside.h"

#include "model/core/check.h"

#include <stdlib.h>

/* ---- groups ---------------------------------------------------------------------------------- */

static bool has_rank(const GraphGroup *g, int64_t rank)
{
    if (rank < 0) return false;
    if (g->size == 1) return rank == g->first;
    int64_t distance = rank - g->first;
    return distance >= 0 && distance % g->stride == 0 && distance / g->stride < g->size;
}

static bool same_ranks(const GraphGroup *a, const GraphGroup *b)
{
    return strcmp(a->name, b->name) == 0 && a->size == b->size && a->first == b->first &&
           (a->stride == b->stride || a->size == 1);
}

/* Returns the index of the group's circle (those of its ranks that are replayed), which is made if
 * necessary; -1: only one rank of the group is replayed. */
static int circle_of(Replay *r, const GraphGroup *group)
{
    int members = 0;
    for (int i = 0; i < r->circles; i++)
        if (same_ranks(&r->circle[i].group, group)) return i;
    for (int s = 0; s < r->stages; s++)
        members += has_rank(group, r->stage[s].rank);
    if (members < 2) return -1;
    r->circle = must_realloc(r->circle, (size_t)(r->circles + 1) * sizeof *r->circle);
    Circle *c = &r->circle[r->circles];
    *c = (Circle){.group = *group};
    c->stage = must_calloc((size_t)members, sizeof *c->stage);
    c->arrivals = must_calloc((size_t)members * GRAPH_STREAMS, sizeof *c->arrivals);
    for (int s = 0; s < r->stages; s++)
        if (has_rank(group, r->stage[s].rank)) c->stage[c->members++] = s;
    return r->circles++;
}

void replay_find_groups(Replay *r)
{
    for (int s = 0; s < r->stages; s++) {
        const Graph *g = &r->graph[s];
        r->stage[s].rank = -1;
        for (int i = 0; i < g->groups; i++) {
            int64_t rank = g->group[i].first + g->group[i].rank * g->group[i].stride;
            CHECK(i == 0 || rank == r->stage[s].rank, "stage %d is rank %lld and rank %lld", s,
                  (long long)r->stage[s].rank, (long long)rank);
            r->stage[s].rank = rank;
        }
    }
    for (int s = 0; s < r->stages; s++) {
        ReplayStage *stage = &r->stage[s];
        for (int i = 0; i < r->graph[s].groups; i++) {
            int at = stage->circle[i] = circle_of(r, &r->graph[s].group[i]);
            for (int m = 0; at >= 0 && m < r->circle[at].members; m++)
                if (r->circle[at].stage[m] == s) stage->member[i] = m;
        }
    }
}

void replay_free_groups(Replay *r)
{
    for (int i = 0; i < r->circles; i++) {
        for (int k = 0; k < r->circle[i].members * GRAPH_STREAMS; k++)
            free(r->circle[i].arrivals[k].item);
        free(r->circle[i].arrivals);
        free(r->circle[i].stage);
    }
    free(r->circle);
    for (int s = 0; s < r->stages; s++) {
        for (int i = 0; i < r->stage[s].links; i++) {
            free(r->stage[s].link[i].sent.item);
            free(r->stage[s].link[i].received.item);
        }
        free(r->stage[s].link);
    }
}

/* Returns the stage's link to rank `rank` of the world. */
static Link *link_to(Replay *r, int stage, int64_t rank)
{
    ReplayStage *s = &r->stage[stage];
    int peer = 0;
    for (int i = 0; i < s->links; i++)
        if (s->link[i].rank == rank) return &s->link[i];
    while (peer < r->stages && r->stage[peer].rank != rank)
        peer++;
    CHECK(peer < r->stages, "stage %d has messages with rank %lld, which is not replayed", stage,
          (long long)rank);
    s->link = must_realloc(s->link, (size_t)(s->links + 1) * sizeof *s->link);
    s->link[s->links] = (Link){.peer = peer, .rank = rank};
    return &s->link[s->links++];
}

/* ---- arrivals -------------------------------------------------------------------------------- */

/* Adds an arrival and returns its number. */
static int64_t add_arrival(Arrivals *a, double at, ReplayPlace place)
{
    if (a->n == a->capacity) {
        a->capacity = a->capacity ? 2 * a->capacity : 16;
        a->item = must_realloc(a->item, (size_t)a->capacity * sizeof *a->item);
    }
    a->item[a->n] = (struct Arrival){at, place};
    return a->n++;
}

void replay_wake(Replay *r, int stage, int stream)
{
    int which = stage * GRAPH_STREAMS + stream;
    if (r->queued[which]) return;
    r->queued[which] = true;
    r->ready[r->n_ready++] = which;
}

/* The time and the node of the last arrival so far, as replay_meet returns them. */
typedef struct {
    double *begin;
    ReplayPlace *late;
} Last;

/* Returns whether the other side has already reached its collective or message number `number`. If
 * it did so later than the arrival in `last`, replaces that by its own arrival. */
static bool has_arrived(const Arrivals *other, int64_t number, const Last *last)
{
    if (other->n <= number) return false;
    if (other->item[number].at > *last->begin) {
        *last->begin = other->item[number].at;
        *last->late = other->item[number].place;
    }
    return true;
}

static Circle *circle_at(Replay *r, int stage, const GraphNode *node)
{
    int circle = r->stage[stage].circle[node->group];
    return circle < 0 ? NULL : &r->circle[circle];
}

static bool meet_circle(Replay *r, ReplayPlace me, const GraphNode *node, double at,
                        const Last *last)
{
    ReplayStage *s = &r->stage[me.stage];
    Circle *c = circle_at(r, me.stage, node);
    bool all = true;
    if (c == NULL) return true;
    if (!s->arrived[me.stream]) {
        Arrivals *mine = &c->arrivals[s->member[node->group] * GRAPH_STREAMS + me.stream];
        s->number[me.stream][0] = add_arrival(mine, at, me);
        for (int m = 0; m < c->members; m++)
            if (c->stage[m] != me.stage) replay_wake(r, c->stage[m], me.stream);
    }
    for (int m = 0; m < c->members; m++)
        all = has_arrived(&c->arrivals[m * GRAPH_STREAMS + me.stream], s->number[me.stream][0],
                          last) &&
              all;
    return all;
}

static const GraphMessage *message_at(const Replay *r, ReplayPlace at, int i)
{
    const Graph *g = &r->graph[at.stage];
    return &g->message[g->node[at.stream][at.node].message + i];
}

/* Returns the world rank of the peer of message number i of the node. */
static int64_t peer_rank(const Replay *r, ReplayPlace at, int i)
{
    const Graph *g = &r->graph[at.stage];
    const GraphGroup *group = &g->group[g->node[at.stream][at.node].group];
    return group->first + message_at(r, at, i)->peer * group->stride;
}

/* Records the arrivals of the node's messages, and wakes the streams of the peers that wait for
 * messages. */
static void arrive_at_peers(Replay *r, ReplayPlace me, const GraphNode *node, double at)
{
    for (int i = 0; i < node->messages; i++) {
        Link *mine = link_to(r, me.stage, peer_rank(r, me, i));
        Arrivals *arrivals = message_at(r, me, i)->send ? &mine->sent : &mine->received;
        r->stage[me.stage].number[me.stream][i] = add_arrival(arrivals, at, me);
        for (int k = 0; k < GRAPH_STREAMS; k++)
            if (r->stage[mine->peer].arrived[k]) replay_wake(r, mine->peer, k);
    }
}

static bool meet_peers(Replay *r, ReplayPlace me, const GraphNode *node, double at,
                       const Last *last)
{
    const ReplayStage *s = &r->stage[me.stage];
    bool all = true;
    CHECK(node->messages <= REPLAY_MESSAGES, "%d messages at once", node->messages);
    if (!s->arrived[me.stream]) arrive_at_peers(r, me, node, at);
    for (int i = 0; i < node->messages; i++) {
        int peer = link_to(r, me.stage, peer_rank(r, me, i))->peer;
        const Link *other = link_to(r, peer, s->rank);
        const Arrivals *arrivals = message_at(r, me, i)->send ? &other->received : &other->sent;
        all = has_arrived(arrivals, s->number[me.stream][i], last) && all;
    }
    return all;
}

bool replay_meet(Replay *r, int stage, int stream, double at, double *begin, ReplayPlace *late)
{
    ReplayStage *s = &r->stage[stage];
    ReplayPlace me = {stage, stream, s->done[stream]};
    const GraphNode *node = &r->graph[stage].node[stream][me.node];
    Last last = {begin, late};
    *begin = at;
    *late = me;
    bool all = node->kind == NODE_MESSAGES ? meet_peers(r, me, node, at, &last)
                                           : meet_circle(r, me, node, at, &last);
    s->arrived[stream] = !all;
    return all;
}

/* ---- deadlocks ------------------------------------------------------------------------------- */

static void describe_circle(const Replay *r, ReplayPlace me, const GraphNode *node, char *buf,
                            size_t n)
{
    const ReplayStage *s = &r->stage[me.stage];
    const Circle *c = &r->circle[s->circle[node->group]];
    for (int m = 0; m < c->members; m++) {
        if (c->arrivals[m * GRAPH_STREAMS + me.stream].n > s->number[me.stream][0]) continue;
        snprintf(buf, n, "for stage %d in collective %lld of %s", c->stage[m],
                 (long long)s->number[me.stream][0], c->group.name);
        return;
    }
}

static void describe_messages(const Replay *r, ReplayPlace me, const GraphNode *node, char *buf,
                              size_t n)
{
    const ReplayStage *s = &r->stage[me.stage];
    for (int i = 0; i < node->messages; i++) {
        bool send = message_at(r, me, i)->send;
        int64_t number = s->number[me.stream][i], rank = peer_rank(r, me, i);
        for (int k = 0; k < s->links; k++) {
            const ReplayStage *peer = &r->stage[s->link[k].peer];
            for (int l = 0; s->link[k].rank == rank && l < peer->links; l++) {
                const Link *other = &peer->link[l];
                if (other->rank != s->rank) continue;
                if ((send ? other->received.n : other->sent.n) > number) continue;
                snprintf(buf, n, "for stage %d to %s message %lld", s->link[k].peer,
                         send ? "receive" : "send", (long long)number);
                return;
            }
        }
    }
}

void replay_describe_wait(const Replay *r, int stage, int stream, char *buf, size_t n)
{
    const ReplayStage *s = &r->stage[stage];
    ReplayPlace me = {stage, stream, s->done[stream]};
    const GraphNode *node = &r->graph[stage].node[stream][me.node];
    buf[0] = '\0';
    if (node->kind == NODE_WAIT)
        snprintf(buf, n, "for node %lld of its %s stream", (long long)node->wait_point - 1,
                 graph_stream_name[node->wait_stream]);
    else if (node->kind == NODE_MESSAGES)
        describe_messages(r, me, node, buf, n);
    else
        describe_circle(r, me, node, buf, n);
}
