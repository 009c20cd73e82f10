/* graph.c -- see graph.h. */
#include "model/core/graph.h"

#include "model/core/check.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

const char *const node_kind_name[NODE_KINDS] = {
    [NODE_OP] = "op",
    [NODE_COPY] = "copy",
    [NODE_WAIT] = "wait",
    [NODE_COLLECTIVE] = "collective",
    [NODE_MESSAGES] = "messages",
};

const char *const graph_stream_name[GRAPH_STREAMS] = {
    [GRAPH_COMPUTE] = "compute", [GRAPH_COPY] = "copy", [GRAPH_COMM] = "comm",
    [GRAPH_P2P] = "p2p",         [GRAPH_TP] = "tp",     [GRAPH_UPDATE] = "update",
};

/* Returns the array `items`, reallocated if necessary so that it has room for n + 1 items of `size`
 * bytes. */
static void *with_room(void *items, int64_t n, int64_t *capacity, size_t size)
{
    if (n < *capacity) return items;
    *capacity = *capacity ? 2 * *capacity : 256;
    return must_realloc(items, (size_t)*capacity * size);
}

void graph_add(Graph *g, const GraphNode *node)
{
    int s = node->stream;
    CHECK(s >= 0 && s < GRAPH_STREAMS, "a node on stream %d", s);
    g->node[s] = with_room(g->node[s], g->n[s], &g->capacity[s], sizeof *g->node[s]);
    g->order = with_room(g->order, g->issued, &g->order_capacity, sizeof *g->order);
    g->node[s][g->n[s]++] = *node;
    g->order[g->issued++] = (unsigned char)s;
}

int64_t graph_add_messages(Graph *g, const GraphMessage *message, int n)
{
    int64_t first = g->n_messages;
    for (int i = 0; i < n; i++) {
        g->message = with_room(g->message, g->n_messages, &g->message_capacity, sizeof *g->message);
        g->message[g->n_messages++] = message[i];
    }
    return first;
}

static bool same_group(const GraphGroup *a, const GraphGroup *b)
{
    return strcmp(a->name, b->name) == 0 && a->size == b->size && a->rank == b->rank &&
           a->first == b->first && a->stride == b->stride;
}

int graph_group(Graph *g, const GraphGroup *group)
{
    for (int i = 0; i < g->groups; i++)
        if (same_group(&g->group[i], group)) return i;
    CHECK(g->groups < GRAPH_GROUPS, "group %s is one of more than %d", group->name, GRAPH_GROUPS);
    g->group[g->groups] = *group;
    return g->groups++;
}

void graph_clear(Graph *g)
{
    memset(g->n, 0, sizeof g->n);
    g->issued = g->n_messages = 0;
    g->groups = 0;
}

void graph_free(Graph *g)
{
    for (int s = 0; s < GRAPH_STREAMS; s++)
        free(g->node[s]);
    free(g->order);
    free(g->message);
    *g = (Graph){0};
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Appends to the text in buf, whose length is *at. */
static void __attribute__((format(printf, 4, 5)))
append(char *buf, size_t n, size_t *at, const char *fmt, ...)
{
    va_list list;
    if (*at >= n) return;
    va_start(list, fmt);
    int added = vsnprintf(buf + *at, n - *at, fmt, list);
    va_end(list);
    if (added > 0) *at += (size_t)added;
}

static void append_code(char *buf, size_t n, size_t *at, const char *const *names, int code)
{
    if (names)
        append(buf, n, at, "%s", names[code]);
    else
        append(buf, n, at, "%d", code);
}

static void append_messages(const Graph *g, const GraphNode *node, char *buf, size_t n, size_t *at)
{
    for (int i = 0; i < node->messages; i++) {
        const GraphMessage *m = &g->message[node->message + i];
        append(buf, n, at, " %s %d %lld bytes %s", m->send ? "to" : "from", m->peer,
               (long long)m->bytes, dtype_name(m->dtype));
    }
}

const char *graph_describe(const Graph *g, const GraphNode *node, GraphNames names, char *buf,
                           size_t n)
{
    size_t at = 0;
    if (n > 0) buf[0] = '\0';
    if (node->kind == NODE_OP)
        append_code(buf, n, &at, names.op, node->code);
    else if (node->kind == NODE_COLLECTIVE)
        append_code(buf, n, &at, names.verb, node->code);
    else
        append(buf, n, &at, "%s", node_kind_name[node->kind]);
    if (node->kind == NODE_WAIT) {
        append(buf, n, &at, " for %s %lld", graph_stream_name[node->wait_stream],
               (long long)node->wait_point);
        return buf;
    }
    if (node->group >= 0) append(buf, n, &at, " %s", g->group[node->group].name);
    if (node->kind == NODE_MESSAGES) {
        append_messages(g, node, buf, n, &at);
        return buf;
    }
    append(buf, n, &at, " %s", dtype_name(node->dtype));
    if (node->m > 0)
        append(buf, n, &at, " %lldx%lldx%lld, %.0f flops", (long long)node->m, (long long)node->n,
               (long long)node->k, node->flops);
    append(buf, n, &at, ", %lld bytes%s", (long long)node->bytes, node->joined ? ", joined" : "");
    if (node->host_bytes > 0)
        append(buf, n, &at, ", %lld of them on the host", (long long)node->host_bytes);
    return buf;
}

void graph_print(FILE *to, const Graph *g, GraphNames names)
{
    int64_t at[GRAPH_STREAMS] = {0};
    char text[256];
    for (int64_t i = 0; i < g->issued; i++) {
        int s = g->order[i];
        const GraphNode *node = &g->node[s][at[s]++];
        fprintf(to, "%-7s %6lld  action %4lld  %s\n", graph_stream_name[s], (long long)at[s] - 1,
                (long long)node->action, graph_describe(g, node, names, text, sizeof text));
    }
}

/* ---- comparison ------------------------------------------------------------------------------ */

static bool same_messages(const Graph *a, const GraphNode *x, const Graph *b, const GraphNode *y)
{
    if (x->messages != y->messages) return false;
    for (int i = 0; i < x->messages; i++) {
        const GraphMessage *p = &a->message[x->message + i], *q = &b->message[y->message + i];
        if (p->peer != q->peer || p->send != q->send || p->dtype != q->dtype ||
            p->bytes != q->bytes)
            return false;
    }
    return true;
}

/* Returns whether the nodes are equal. Groups are compared by their members, because one group may
 * have different indices in the two graphs. */
static bool same_node(const Graph *a, const GraphNode *x, const Graph *b, const GraphNode *y)
{
    bool grouped = x->group >= 0;
    return x->kind == y->kind && x->code == y->code && x->dtype == y->dtype && x->m == y->m &&
           x->n == y->n && x->k == y->k && x->flops == y->flops && x->bytes == y->bytes &&
           x->host_bytes == y->host_bytes && x->wait_stream == y->wait_stream &&
           x->wait_point == y->wait_point && x->joined == y->joined && x->action == y->action &&
           grouped == (y->group >= 0) &&
           (!grouped || same_group(&a->group[x->group], &b->group[y->group])) &&
           same_messages(a, x, b, y);
}

bool graph_equal(const Graph *a, const Graph *b, GraphNames names, char *why, size_t n)
{
    char x[256], y[256];
    for (int s = 0; s < GRAPH_STREAMS; s++) {
        for (int64_t i = 0; i < a->n[s] && i < b->n[s]; i++) {
            const GraphNode *p = &a->node[s][i], *q = &b->node[s][i];
            if (same_node(a, p, b, q)) continue;
            return error_set(why, n, "%s %lld: %s (action %lld), and %s (action %lld)",
                             graph_stream_name[s], (long long)i,
                             graph_describe(a, p, names, x, sizeof x), (long long)p->action,
                             graph_describe(b, q, names, y, sizeof y), (long long)q->action);
        }
        if (a->n[s] != b->n[s])
            return error_set(why, n, "%s has %lld nodes, and %lld", graph_stream_name[s],
                             (long long)a->n[s], (long long)b->n[s]);
    }
    /* Both graphs have the same number of nodes on every stream (checked above), so a->issued
     * equals b->issued. */
    for (int64_t i = 0; i < a->issued; i++)
        if (a->order[i] != b->order[i])
            return error_set(why, n, "node %lld in the order of issue is on %s, and on %s",
                             (long long)i, graph_stream_name[a->order[i]],
                             graph_stream_name[b->order[i]]);
    return true;
}
