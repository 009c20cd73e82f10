/* replay_parts.c -- divides the time of a step into the parts of StageTime: by what the compute
 * stream of each stage does and, while it is idle, by what it waits for. See replay_inside.h. */
#include "parallel/plan/replay_inside.h"

#include "model/core/check.h"
#include "model/kernels/ops.h"

#include <string.h>

static const GraphNode *node_at(const Replay *r, ReplayPlace at)
{
    return &r->graph[at.stage].node[at.stream][at.node];
}

static const NodeTime *time_at(const Replay *r, ReplayPlace at)
{
    return &r->stage[at.stage].time[at.stream][at.node];
}

/* Returns the part of the time to which a collective belongs, which depends on its group. `mine`:
 * the collective is on the stage whose time is divided. */
static double *part_of_group(const Replay *r, ReplayPlace at, StageTime *time, bool mine)
{
    int group = node_at(r, at)->group;
    const char *name = r->graph[at.stage].group[group].name;
    if (r->stage[at.stage].circle[group] >= 0) return &time->exposed_pp;
    if (strcmp(name, "tp") == 0 || strcmp(name, "kv") == 0)
        return mine ? &time->exposed_tp : &time->bubble;
    return &time->exposed_dp;
}

/* Returns the part of the time to which node `at` belongs, if it runs while the compute stream of
 * the stage waits for it. */
static double *part_of_wait(const Replay *r, int stage, ReplayPlace at, StageTime *time)
{
    bool mine = at.stage == stage;
    switch (node_at(r, at)->kind) {
    case NODE_MESSAGES: return &time->exposed_pp;
    case NODE_COLLECTIVE: return part_of_group(r, at, time, mine);
    default: break;
    }
    switch (at.stream) {
    case GRAPH_COPY: return &time->copies;
    case GRAPH_COMM: return &time->exposed_dp;
    case GRAPH_P2P: return &time->exposed_pp;
    case GRAPH_TP: return mine ? &time->exposed_tp : &time->bubble;
    case GRAPH_UPDATE: return mine ? &time->exposed_host : &time->bubble;
    default: return &time->bubble;
    }
}

/* Returns the part of the time to which a node of the compute stream belongs. */
static double *part_of_work(const Replay *r, ReplayPlace at, StageTime *time)
{
    const GraphNode *node = node_at(r, at);
    if (node->kind == NODE_COPY) return &time->copies;
    if (node->kind != NODE_OP) return part_of_wait(r, at.stage, at, time);
    switch (node->code) {
    case OP_linear_forward:
    case OP_linear_residual_forward:
    case OP_linear_backward_input:
    case OP_linear_backward_weight: return &time->products;
    case OP_attention_forward:
    case OP_attention_backward: return &time->attention;
    case OP_sq_norm:
    case OP_step_decide:
    case OP_adamw:
    case OP_sgd: return &time->optimizer;
    default: return &time->memory_bound;
    }
}

/* Returns the node that had to end before this one could begin (if this one is a wait: before it
 * could end), and that ended last of all such nodes. */
static ReplayPlace cause_of(const Replay *r, ReplayPlace at)
{
    const GraphNode *node = node_at(r, at);
    const NodeTime *time = time_at(r, at);
    if (node->kind == NODE_WAIT && time->end > time->begin)
        return (ReplayPlace){at.stage, node->wait_stream, node->wait_point - 1};
    ReplayPlace late = time->late; /* the node itself, if no other node arrived later */
    return (ReplayPlace){late.stage, late.stream, late.node - 1};
}

/* Attributes the time [from, to) to the chain of nodes that ends with `last`, which ends at `to`.
 * While these nodes ran, the compute stream of the stage was idle. */
static void charge(const Replay *r, int stage, ReplayPlace last, double from, double to,
                   StageTime *time)
{
    while (to > from) {
        CHECK(last.node >= 0 && time_at(r, last)->end == to, "stage %d waits for nothing", stage);
        if (node_at(r, last)->kind != NODE_WAIT) {
            double begin = time_at(r, last)->begin;
            if (begin < from) begin = from;
            *part_of_wait(r, stage, last, time) += to - begin;
            to = begin;
        }
        last = cause_of(r, last);
    }
}

static void divide_stage(const Replay *r, int stage, ReplayPlace last, double seconds,
                         StageTime *time)
{
    const ReplayStage *s = &r->stage[stage];
    double now = 0;
    for (int64_t i = 0; i < r->graph[stage].n[GRAPH_COMPUTE]; i++) {
        ReplayPlace at = {stage, GRAPH_COMPUTE, i};
        const NodeTime *t = &s->time[GRAPH_COMPUTE][i];
        bool wait = node_at(r, at)->kind == NODE_WAIT;
        double idle_to = wait ? t->end : t->begin;
        if (idle_to > now) charge(r, stage, cause_of(r, at), now, idle_to, time);
        if (!wait) *part_of_work(r, at, time) += t->end - t->begin;
        now = t->end;
    }
    /* After its last work the stage waits for the end of the step. */
    charge(r, stage, last, now, seconds, time);
    time->compute = time->products + time->attention + time->memory_bound + time->optimizer;
}

static double end_of_stream(const Replay *r, int stage, int stream)
{
    int64_t n = r->graph[stage].n[stream];
    return n == 0 ? 0 : r->stage[stage].time[stream][n - 1].end;
}

double replay_end(const Replay *r, ReplayPlace *last)
{
    double seconds = 0;
    *last = (ReplayPlace){0, 0, -1};
    for (int s = 0; s < r->stages; s++)
        for (int i = 0; i < GRAPH_STREAMS; i++) {
            double end = end_of_stream(r, s, i);
            if (end <= seconds) continue;
            seconds = end;
            *last = (ReplayPlace){s, i, r->graph[s].n[i] - 1};
        }
    return seconds;
}

void replay_divide(const Replay *r, StepTime *time)
{
    ReplayPlace last;
    time->seconds = replay_end(r, &last);
    time->last = last.stage;
    for (int s = 0; s < r->stages; s++)
        for (int i = 0; i < GRAPH_STREAMS; i++)
            if (end_of_stream(r, s, i) > time->stage[s].seconds)
                time->stage[s].seconds = end_of_stream(r, s, i);
    for (int s = 0; s < r->stages; s++)
        divide_stage(r, s, last, time->seconds, &time->stage[s]);
}
