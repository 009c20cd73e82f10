/* replay.c -- see replay.h. The streams of all stages are replayed in turn: each runs until it has
 * to wait for another stream, which wakes it later. The times do not depend on the order of the
 * streams, because a node begins when the last of certain other nodes has ended, and the graphs
 * alone determine which nodes these are. */
#include "parallel/plan/replay_inside.h"

#include "model/core/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rounds to a multiple of 2^-36 seconds, which makes sums and differences of times exact. */
static double rounded(double seconds)
{
    return nearbyint(seconds * 0x1p36) * 0x1p-36;
}

static double cost_of(const Replay *r, int stage, const GraphNode *node)
{
    double seconds = r->cost(r->context, stage, node);
    CHECK(seconds >= 0 && isfinite(seconds), "stage %d: %s that takes %g seconds", stage,
          node_kind_name[node->kind], seconds);
    return rounded(seconds);
}

static double ended_at(const ReplayStage *s, int stream, int64_t nodes)
{
    return nodes == 0 ? 0 : s->time[stream][nodes - 1].end;
}

/* Replays the next node of a stream. Returns false if the node has to wait. */
static bool do_node(Replay *r, int stage, int stream)
{
    ReplayStage *s = &r->stage[stage];
    int64_t at = s->done[stream];
    const GraphNode *node = &r->graph[stage].node[stream][at];
    NodeTime *time = &s->time[stream][at];
    double before = ended_at(s, stream, at);
    *time = (NodeTime){before, before, {stage, stream, at}};
    if (node->kind == NODE_WAIT) {
        if (s->done[node->wait_stream] < node->wait_point) return false;
        time->end = fmax(before, ended_at(s, node->wait_stream, node->wait_point));
    } else {
        if ((node->kind == NODE_COLLECTIVE || node->kind == NODE_MESSAGES) &&
            !replay_meet(r, stage, stream, before, &time->begin, &time->late))
            return false;
        time->end = time->begin + cost_of(r, stage, node);
    }
    s->done[stream]++;
    return true;
}

/* Wakes the streams of a stage that wait for its stream `stream`. */
static void wake_waiting(Replay *r, int stage, int stream)
{
    const ReplayStage *s = &r->stage[stage];
    for (int i = 0; i < GRAPH_STREAMS; i++) {
        if (s->done[i] == r->graph[stage].n[i]) continue;
        const GraphNode *next = &r->graph[stage].node[i][s->done[i]];
        if (next->kind == NODE_WAIT && next->wait_stream == stream &&
            next->wait_point <= s->done[stream])
            replay_wake(r, stage, i);
    }
}

static void go_on(Replay *r, int which)
{
    int stage = which / GRAPH_STREAMS, stream = which % GRAPH_STREAMS;
    const ReplayStage *s = &r->stage[stage];
    int64_t before = s->done[stream];
    r->queued[which] = false;
    while (s->done[stream] < r->graph[stage].n[stream] && do_node(r, stage, stream)) {
    }
    if (s->done[stream] > before) wake_waiting(r, stage, stream);
}

/* Checks that all nodes of all streams have been replayed. If not, the graphs have a deadlock. */
static void check_end(const Replay *r)
{
    char who[1024] = "", why[256];
    size_t n = 0;
    for (int i = 0; i < r->stages * GRAPH_STREAMS; i++) {
        int stage = i / GRAPH_STREAMS, stream = i % GRAPH_STREAMS;
        if (r->stage[stage].done[stream] == r->graph[stage].n[stream]) continue;
        replay_describe_wait(r, stage, stream, why, sizeof why);
        if (n < sizeof who)
            n += (size_t)snprintf(who + n, sizeof who - n, "%sthe %s stream of stage %d waits %s",
                                  n ? "; " : "", graph_stream_name[stream], stage, why);
    }
    CHECK(n == 0, "the step never ends: %s", who);
}

static void open_replay(Replay *r)
{
    r->stage = must_calloc((size_t)r->stages, sizeof *r->stage);
    r->ready = must_calloc((size_t)r->stages * GRAPH_STREAMS, sizeof *r->ready);
    r->queued = must_calloc((size_t)r->stages * GRAPH_STREAMS, sizeof *r->queued);
    for (int s = 0; s < r->stages; s++)
        for (int i = 0; i < GRAPH_STREAMS; i++)
            r->stage[s].time[i] =
                must_alloc(((size_t)r->graph[s].n[i] + 1) * sizeof *r->stage[s].time[i]);
    replay_find_groups(r);
}

static void close_replay(Replay *r)
{
    replay_free_groups(r);
    for (int s = 0; s < r->stages; s++)
        for (int i = 0; i < GRAPH_STREAMS; i++)
            free(r->stage[s].time[i]);
    free(r->stage);
    free(r->ready);
    free(r->queued);
}

/* Computes the times at which each node begins and ends. */
static Replay replay_all(const Graph *graph, int stages, ReplayCost cost, void *context)
{
    Replay r = {.graph = graph, .stages = stages, .cost = cost, .context = context};
    CHECK(stages > 0, "a step of %d stages", stages);
    open_replay(&r);
    for (int i = 0; i < stages * GRAPH_STREAMS; i++)
        replay_wake(&r, i / GRAPH_STREAMS, i % GRAPH_STREAMS);
    while (r.n_ready > 0)
        go_on(&r, r.ready[--r.n_ready]);
    check_end(&r);
    return r;
}

static StepTime divided(const Replay *r)
{
    StepTime time = {.stages = r->stages};
    time.stage = must_calloc((size_t)r->stages, sizeof *time.stage);
    replay_divide(r, &time);
    return time;
}

StepTime replay_step(const Graph *graph, int stages, ReplayCost cost, void *context)
{
    Replay r = replay_all(graph, stages, cost, context);
    StepTime time = divided(&r);
    close_replay(&r);
    return time;
}

/* No node of the first step waits for a node of the second, so in this replay the first step has
 * the same times as in a replay of its own. */
StepTime replay_second_step(const Graph *one, const Graph *two, int stages, ReplayCost cost,
                            void *context)
{
    Replay r = replay_all(two, stages, cost, context), first = r;
    first.graph = one;
    StepTime begin = divided(&first), end = divided(&r), step = step_time_between(&begin, &end);
    close_replay(&r);
    step_time_free(&begin);
    step_time_free(&end);
    return step;
}

double replay_second_seconds(const Graph *one, const Graph *two, int stages, ReplayCost cost,
                             void *context)
{
    Replay r = replay_all(two, stages, cost, context), first = r;
    ReplayPlace ignored;
    first.graph = one;
    double seconds = replay_end(&r, &ignored) - replay_end(&first, &ignored);
    close_replay(&r);
    return seconds;
}

void step_time_add(StepTime *to, const StepTime *time, double n)
{
    CHECK(to->stages == time->stages, "%d and %d stages", to->stages, time->stages);
    to->seconds += n * time->seconds;
    for (int s = 0; s < to->stages; s++) {
        StageTime *a = &to->stage[s];
        const StageTime *b = &time->stage[s];
        a->seconds += n * b->seconds;
        a->compute += n * b->compute;
        a->products += n * b->products;
        a->attention += n * b->attention;
        a->memory_bound += n * b->memory_bound;
        a->optimizer += n * b->optimizer;
        a->copies += n * b->copies;
        a->exposed_dp += n * b->exposed_dp;
        a->exposed_tp += n * b->exposed_tp;
        a->exposed_host += n * b->exposed_host;
        a->exposed_pp += n * b->exposed_pp;
        a->bubble += n * b->bubble;
    }
}

StepTime step_time_between(const StepTime *fewer, const StepTime *more)
{
    size_t bytes = (size_t)more->stages * sizeof *more->stage;
    StepTime time = *more;
    time.stage = must_alloc(bytes);
    memcpy(time.stage, more->stage, bytes);
    step_time_add(&time, fewer, -1);
    return time;
}

void step_time_free(StepTime *time)
{
    free(time->stage);
    *time = (StepTime){0};
}
