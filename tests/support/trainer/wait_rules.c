/* wait_rules.c -- applies the rules of wait_rules.h to the paths in the graph of a step. A unit is
 * a flat buffer of parameters (of a block, a table or the head), and a use is the time from
 * acquiring to releasing a unit's weights or gradient. A step_key numbers the uses of all steps. */
#include "tests/support/trainer/wait_rules.h"

#include "parallel/zero/state.h"

#include <stdio.h>
#include <string.h>

const char *const wait_rule_name[RULES] = {
    [RULE_SUMS] = "a sum of gradients is waited for too early",
    [RULE_GATHERS] = "a gather is waited for before its first use",
    [RULE_EXCHANGES] = "an exchange is waited for before its buffer is used",
    [RULE_TP_SUMS] = "a sum on the tp stream is waited for before it is awaited",
    [RULE_AHEAD] = "a gather begins after an exchange that its action waits for",
    [RULE_LATE_SUM] = "a sum begins after an exchange that a later action waits for"};

static void found(StepFindings *f, WaitRule rule, bool holds, int rank, const StepNode *from,
                  const StepNode *to)
{
    if (holds) {
        f->held[rule]++;
    } else if (f->broken[rule]++ == 0) {
        snprintf(f->example[rule], sizeof f->example[rule],
                 "%s: rank %d, %s of use %lld, action %lld; by %s of use %lld, action %lld",
                 wait_rule_name[rule], rank, from->name, (long long)from->note[STEP_USE],
                 (long long)from->note[STEP_ACTION], to->name, (long long)to->note[STEP_USE],
                 (long long)to->note[STEP_ACTION]);
    }
}

/* ---- uses and actions ------------------------------------------------------------------------ */

static int64_t step_of(const Session *s, const StepNode *node)
{
    return node->note[STEP_USE] / step_key(s, 1, 0);
}

/* Returns whether the node was issued after step_end. */
static bool is_ended(const Session *s, const StepNode *node)
{
    return node->note[STEP_USE] % step_key(s, 1, 0) > s->step.n_uses;
}

/* Returns the step_key of the first use of a gather's unit: a use that has begun to acquire it, or
 * a later one. */
static int64_t first_use(const Session *s, const StepNode *gather)
{
    int64_t step = step_of(s, gather), begun = gather->note[STEP_USE] % step_key(s, 1, 0);
    const Use *use = s->step.uses;
    for (int64_t i = begun > 0 ? begun - 1 : 0; i < s->step.n_uses; i++)
        if (use[i].unit == gather->note[STEP_UNIT] && use[i].weight) return step_key(s, step, i);
    for (int64_t i = 0; i < s->step.n_uses; i++)
        if (use[i].unit == gather->note[STEP_UNIT] && use[i].weight)
            return step_key(s, step + 1, i);
    return INT64_MAX;
}

static const Action *action_at(const Session *s, int64_t at)
{
    return &s->step.schedule.action[at % s->step.schedule.n];
}

/* Returns the first action after an exchange that reads what the exchange received or overwrites
 * what it sends. Steps follow each other. */
static int64_t first_user(const Session *s, int64_t exchange)
{
    const Schedule *schedule = &s->step.schedule;
    const Action *e = action_at(s, exchange);
    for (int64_t at = exchange + 1; at < exchange + schedule->n; at++) {
        const Action *a = action_at(s, at);
        for (int i = 0; i < e->n_transfers && a->kind != ACT_EXCHANGE; i++) {
            const Transfer *t = &schedule->transfer[e->transfer + i];
            if ((t->send ? a->out : a->in) == t->buffer) return at;
        }
    }
    return INT64_MAX;
}

/* Returns whether an action may wait for an exchange: this exchange, or one between the two,
 * receives or sends something for the action or for an earlier one. */
static bool exchange_is_due(const Session *s, int64_t exchange, int64_t action)
{
    for (int64_t e = exchange; e < action; e++)
        if (action_at(s, e)->kind == ACT_EXCHANGE && first_user(s, e) <= action) return true;
    return false;
}

/* ---- the rules ------------------------------------------------------------------------------- */

static bool is_gather(const StepNode *node)
{
    return node->note[STEP_COMM] >= 0 && node->note[STEP_VERB] == COMM_ALL_GATHER;
}

/* Returns the first use of all units that are gathered in the same group of calls. */
static int64_t bundle_first_use(const Session *s, const StepStream *comm, const StepNode *gather)
{
    int64_t first = INT64_MAX;
    for (int64_t i = 0; i < comm->n; i++)
        if (comm->node[i].name && is_gather(&comm->node[i]) &&
            comm->node[i].note[STEP_BUNDLE] == gather->note[STEP_BUNDLE]) {
            int64_t use = first_use(s, &comm->node[i]);
            if (use < first) first = use;
        }
    return first;
}

/* Returns the use that made the gradient, among those that had begun when its sum was issued. */
static int64_t last_use(const Session *s, const StepNode *sum)
{
    int64_t i = sum->note[STEP_USE] % step_key(s, 1, 0);
    const Use *use = s->step.uses;
    while (--i >= 0 && (use[i].unit != sum->note[STEP_UNIT] || !use[i].gradient))
        continue;
    return step_key(s, step_of(s, sum), i);
}

/* Returns the earliest such use among the gradients that are summed in the same group of calls. */
static int64_t bundle_last_use(const Session *s, const StepStream *comm, const StepNode *sum)
{
    int64_t first = INT64_MAX;
    for (int64_t i = 0; i < comm->n; i++)
        if (comm->node[i].name && comm->node[i].note[STEP_UNIT] >= 0 &&
            comm->node[i].note[STEP_BUNDLE] == sum->note[STEP_BUNDLE]) {
            int64_t use = last_use(s, &comm->node[i]);
            if (use < first) first = use;
        }
    return first;
}

/* Returns whether, at node `at`, a buffer is overwritten in which a gradient of these sums was
 * made. */
static bool buffer_is_due(const Session *s, const StepStream *comm, const StepNode *sum,
                          const StepNode *at)
{
    if (step_of(s, at) > step_of(s, sum) || is_ended(s, at)) return true;
    if (s->store->options.stage < 2) return false;
    int64_t made = bundle_last_use(s, comm, sum);
    return made < INT64_MAX && at->note[STEP_USE] > made + ZERO_SLOTS;
}

/* Returns whether buffer_is_due holds for this sum, for the copies that belong to it, or for a
 * later sum among the first `seen` nodes. */
static bool sum_is_due(const Session *s, const StepStream *comm, const StepNode *sum, int64_t seen,
                       const StepNode *at)
{
    for (; sum < comm->node + seen; sum++)
        if (sum->name && !is_gather(sum) && buffer_is_due(s, comm, sum, at)) return true;
    return false;
}

/* Returns whether `at` uses a unit that is gathered with it, or whether a sum among the nodes up to
 * `seen` is due. */
static bool gather_is_due(const Session *s, const StepStream *comm, const StepNode *gather,
                          int64_t seen, const StepNode *at)
{
    return at->note[STEP_USE] > bundle_first_use(s, comm, gather) ||
           sum_is_due(s, comm, gather, seen, at);
}

/* Checks one path: `to` is the first node of the compute stream that waits for `from`, and for the
 * first `seen` nodes of its stream. */
static void look_at_path(StepFindings *f, const StepGraph *g, const StepStream *stream,
                         const StepNode *from, int64_t seen, const StepNode *to)
{
    int rank = stream->rank;
    const Session *s = g->session[rank];
    if (strcmp(stream->name, "comm") == 0 && is_gather(from))
        found(f, RULE_GATHERS, gather_is_due(s, stream, from, seen, to), rank, from, to);
    else if (strcmp(stream->name, "comm") == 0)
        found(f, RULE_SUMS, sum_is_due(s, stream, from, seen, to), rank, from, to);
    else if (strcmp(stream->name, "p2p") == 0)
        /* After the step, stages add up their norms and wait for each other there. */
        found(f, RULE_EXCHANGES,
              is_ended(s, to) || exchange_is_due(s, from->note[STEP_ACTION], to->note[STEP_ACTION]),
              rank, from, to);
    else if (strcmp(stream->name, "tp") == 0)
        found(f, RULE_TP_SUMS, to->note[STEP_AWAITED] >= from->note[STEP_ENTERED], rank, from, to);
}

static void look_at_paths(StepFindings *f, const StepGraph *g, int compute, int other)
{
    const StepStream *c = &g->stream[compute], *o = &g->stream[other];
    int64_t known = 0;
    for (int64_t i = 0; i < c->n; i++) {
        int64_t seen = c->seen[i * g->streams + other];
        if (c->node[i].name == NULL) continue;
        for (; known < seen; known++)
            if (o->node[known].name) look_at_path(f, g, o, &o->node[known], seen, &c->node[i]);
    }
}

/* Returns the action in which a use begins, according to the compute stream; -1: not in the
 * graph. */
static int64_t action_of_use(const StepStream *compute, int64_t use)
{
    for (int64_t i = 0; i < compute->n; i++)
        if (compute->node[i].name && compute->node[i].note[STEP_USE] > use)
            return compute->node[i].note[STEP_ACTION];
    return -1;
}

/* Returns whether no other weights are used earlier in the same action. */
static bool is_first_in_action(const Session *s, const StepStream *compute, int64_t use)
{
    int64_t step = use / step_key(s, 1, 0), i = use % step_key(s, 1, 0);
    int64_t action = action_of_use(compute, use);
    while (--i >= 0 && action_of_use(compute, step_key(s, step, i)) == action)
        if (s->step.uses[i].weight) return false;
    return true;
}

/* Returns the action that a collective is for. For a gather it is the action in which its unit is
 * first used, if no other unit is used there before it; for a sum, the action in which its gradient
 * was made. -1: none, or not in the graph. */
static int64_t action_of(const Session *s, const StepStream *compute, const StepNode *node)
{
    if (node->name == NULL || node->note[STEP_UNIT] < 0) return -1;
    if (!is_gather(node)) return action_of_use(compute, last_use(s, node));
    int64_t use = first_use(s, node);
    if (use == INT64_MAX || !is_first_in_action(s, compute, use)) return -1;
    return action_of_use(compute, use) - 1; /* the previous action and everything it waits for */
}

static void look_at_beginnings(StepFindings *f, const StepGraph *g, int compute, int comm, int p2p)
{
    const StepStream *o = &g->stream[comm];
    const Session *s = g->session[o->rank];
    for (int64_t i = 0; i < o->n; i++) {
        int64_t action = action_of(s, &g->stream[compute], &o->node[i]);
        WaitRule rule = is_gather(&o->node[i]) ? RULE_AHEAD : RULE_LATE_SUM;
        if (action < 0) continue;
        f->held[rule]++;
        for (int64_t k = 0; k < o->seen[i * g->streams + p2p]; k++) {
            const StepNode *from = &g->stream[p2p].node[k];
            if (from->name)
                found(f, rule, exchange_is_due(s, from->note[STEP_ACTION], action), o->rank, from,
                      &o->node[i]);
        }
    }
}

void wait_rules_look(StepFindings *f, const StepGraph *g, int rank)
{
    static const char *const names[] = {"comm", "p2p", "tp"};
    int compute = step_stream(g, rank, "compute"), comm = step_stream(g, rank, "comm"),
        p2p = step_stream(g, rank, "p2p");
    for (int i = 0; i < 3; i++) {
        int other = step_stream(g, rank, names[i]);
        if (other >= 0) look_at_paths(f, g, compute, other);
    }
    if (comm >= 0 && p2p >= 0) look_at_beginnings(f, g, compute, comm, p2p);
}
