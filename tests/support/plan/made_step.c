/* made_step.c -- see made_step.h. */
#include "tests/support/plan/made_step.h"

#include "parallel/comm/comm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 4 };

static int group_of(Step *s, int stage, const char *name)
{
    bool pp = strcmp(name, "pp") == 0;
    GraphGroup group = {.size = pp ? s->stages : RANKS,
                        .rank = pp ? stage : 0,
                        .first = pp ? 0 : (int64_t)stage * RANKS,
                        .stride = pp ? RANKS : 1};
    snprintf(group.name, sizeof group.name, "%s", name);
    return graph_group(&s->graph[stage], &group);
}

/* The time of a node is stored as its bytes. */
static void add(Step *s, int stage, GraphNode node, int64_t micros)
{
    node.bytes = micros;
    graph_add(&s->graph[stage], &node);
}

void add_op(Step *s, int stage, int stream, OpId op, int64_t micros)
{
    add(s, stage, (GraphNode){.kind = NODE_OP, .stream = stream, .code = op, .group = -1}, micros);
}

void add_copy(Step *s, int stage, int stream, int64_t micros)
{
    add(s, stage, (GraphNode){.kind = NODE_COPY, .stream = stream, .group = -1}, micros);
}

void add_sum(Step *s, int stage, int stream, const char *group, int64_t micros)
{
    GraphNode node = {.kind = NODE_COLLECTIVE,
                      .stream = stream,
                      .code = COMM_ALL_REDUCE,
                      .group = group_of(s, stage, group)};
    add(s, stage, node, micros);
}

void add_wait(Step *s, int stage, int stream, int other)
{
    GraphNode node = {.kind = NODE_WAIT,
                      .stream = stream,
                      .wait_stream = other,
                      .wait_point = s->graph[stage].n[other],
                      .group = -1};
    add(s, stage, node, 0);
}

void add_messages(Step *s, int stage, int to, int from, int64_t micros)
{
    GraphMessage message[2];
    int n = 0;
    if (to >= 0) message[n++] = (GraphMessage){.peer = to, .send = true};
    if (from >= 0) message[n++] = (GraphMessage){.peer = from, .send = false};
    GraphNode node = {.kind = NODE_MESSAGES,
                      .stream = GRAPH_P2P,
                      .group = group_of(s, stage, "pp"),
                      .messages = n,
                      .message = graph_add_messages(&s->graph[stage], message, n)};
    add(s, stage, node, micros);
}

static double micros_of(void *context, int stage, const GraphNode *node)
{
    (void)context, (void)stage;
    return (double)node->bytes * 1e-6;
}

double made_step_parts(const StageTime *t)
{
    return t->products + t->attention + t->memory_bound + t->optimizer + t->copies + t->exposed_dp +
           t->exposed_tp + t->exposed_pp + t->exposed_host + t->bubble;
}

StepTime made_step_replay(const Step *s)
{
    StepTime t = replay_step(s->graph, s->stages, micros_of, NULL);
    for (int i = 0; i < t.stages; i++) {
        assert_true(made_step_parts(&t.stage[i]) == t.seconds);
        assert_true(t.stage[i].compute == t.stage[i].products + t.stage[i].attention +
                                              t.stage[i].memory_bound + t.stage[i].optimizer);
        assert_true(t.stage[i].seconds <= t.seconds);
    }
    assert_true(t.stage[t.last].seconds == t.seconds);
    return t;
}

void made_step_free(Step *s)
{
    for (int i = 0; i < s->stages; i++)
        graph_free(&s->graph[i]);
}

uint64_t made_step_draw(uint64_t *x, uint64_t n)
{
    *x = *x * 6364136223846793005u + 1442695040888963407u;
    return (*x >> 33) % n;
}

static void add_random(Step *s, int stage, uint64_t *x)
{
    int stream = (int)made_step_draw(x, GRAPH_STREAMS),
        other = (int)made_step_draw(x, GRAPH_STREAMS);
    int64_t micros = (int64_t)made_step_draw(x, 1000);
    switch (made_step_draw(x, 4)) {
    case 0: add_wait(s, stage, stream, other); break;
    case 1: add_sum(s, stage, stream, made_step_draw(x, 2) ? "tp" : "dp", micros); break;
    default: add_op(s, stage, stream, (OpId)made_step_draw(x, OP_COUNT), micros); break;
    }
}

Step made_step_random(int stages, int rounds, uint64_t seed)
{
    Step s = {.stages = stages};
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < stages; i++) {
            for (int k = 0; k < 20; k++)
                add_random(&s, i, &seed);
            if (round % 3 == 2)
                add_sum(&s, i, GRAPH_COMPUTE, "pp", 5);
            else
                add_messages(&s, i, (i + 1) % stages, (i + stages - 1) % stages, 9);
        }
    return s;
}
