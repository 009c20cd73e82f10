/* graph.h -- a training step of one rank as a graph: the work that the host has queued on each
 * stream of the device, in order, and the points of other streams for which a stream waits.
 * recorder.h records it.
 *
 * Each stream executes its nodes in order. A NODE_WAIT is the only edge between two streams of a
 * rank. Ranks are connected by collectives and messages. On a device whose calls are complete when
 * they return, such as the CPU, all nodes are on one stream, GRAPH_COMPUTE, and there are no waits.
 *
 * Codes of ops and verbs are plain numbers here, because the layers that define them (ops.h,
 * comm.h) are above this one. */
#ifndef MODEL_CORE_GRAPH_H
#define MODEL_CORE_GRAPH_H

#include "model/core/dtype.h"

#include <stdio.h>

typedef enum {
    NODE_OP,         /* a computation: one call of an op_ function */
    NODE_COPY,       /* a copy of a tensor on the device, or between device and host */
    NODE_WAIT,       /* the stream waits for a point of another stream */
    NODE_COLLECTIVE, /* one collective of a group of ranks */
    NODE_MESSAGES,   /* messages that are carried out together */
    NODE_KINDS
} NodeKind;
extern const char *const node_kind_name[NODE_KINDS];

/* The streams of a device, by the names of their fields in Device. */
enum { GRAPH_COMPUTE, GRAPH_COPY, GRAPH_COMM, GRAPH_P2P, GRAPH_TP, GRAPH_UPDATE, GRAPH_STREAMS };
extern const char *const graph_stream_name[GRAPH_STREAMS];

/* The largest number of different groups in one graph. */
enum { GRAPH_GROUPS = 16 };

/* Fields that a kind of node does not use are 0, or -1 if the comment says so. */
typedef struct {
    NodeKind kind;
    int stream;      /* GRAPH_COMPUTE ... */
    int code;        /* op: OpId; collective: CommVerb */
    DType dtype;     /* op: the storage type it computes with; else the type of the elements */
    int64_t m, n, k; /* a product: rows and columns of its result, and the number of terms of each
                      * sum; attention: batch x heads, queries, head size */
    double flops;    /* op: multiplications and additions of a product or of causal attention;
                      * those that attention skips because of document boundaries and windows are
                      * not known here, and are counted too */
    int64_t bytes;   /* op, copy: bytes read plus bytes written; collective: bytes of the whole
                      * tensor, as comm.h counts it; messages: bytes of all sent and received */
    /* op: the part of `bytes` that an update reads from and writes to optimizer states in host
     * memory (one half read, one half written); on a device whose memory is host memory, this
     * counts all optimizer states */
    int64_t host_bytes;
    int wait_stream; /* wait: the stream that is waited for, until its first wait_point nodes are
                      * finished; else -1 */
    int64_t wait_point;
    int group;    /* collective, messages: index in Graph.group; else -1 */
    bool joined;  /* collective: started together with the preceding node of its stream
                   * (comm_group_begin) */
    int messages; /* messages: their number; the first is Graph.message[message] */
    int64_t message;
    int64_t action; /* number, within the step, of the schedule's action that issued the node; -1:
                     * issued before or after the actions of the step */
} GraphNode;

/* One message of a NODE_MESSAGES. */
typedef struct {
    int peer; /* rank in the group */
    bool send;
    DType dtype;
    int64_t bytes;
} GraphMessage;

/* A group of ranks: the ranks first + i * stride of the world, 0 <= i < size, of which this rank is
 * the one with i = rank. */
typedef struct {
    char name[16]; /* as in Comm: "dp", "tp", ... */
    int size, rank;
    int64_t first, stride;
} GraphGroup;

typedef struct {
    GraphNode *node[GRAPH_STREAMS];
    int64_t n[GRAPH_STREAMS], capacity[GRAPH_STREAMS];
    /* order[i] is the stream of the i-th node that the host has issued, so it gives the order of
     * issue across streams. */
    unsigned char *order;
    int64_t issued, order_capacity;
    GraphMessage *message;
    int64_t n_messages, message_capacity;
    GraphGroup group[GRAPH_GROUPS];
    int groups;
} Graph;

/* Appends the node to its stream, and to the order of issue. */
void graph_add(Graph *graph, const GraphNode *node);
/* Appends messages and returns the index of the first; a NODE_MESSAGES refers to them. */
int64_t graph_add_messages(Graph *graph, const GraphMessage *message, int n);
/* Returns the index of the group, which is appended if the graph does not have it yet. */
int graph_group(Graph *graph, const GraphGroup *group);
/* Removes all nodes, messages and groups, and keeps the memory. */
void graph_clear(Graph *graph);
void graph_free(Graph *graph);

/* The names of codes, for printing: arrays indexed by OpId (op_name) and CommVerb (comm_verb_name).
 * NULL: the numbers are printed. */
typedef struct {
    const char *const *op, *const *verb;
} GraphNames;

/* Returns whether both graphs have the same nodes, waits, messages and groups, and the same order
 * of issue. If not, writes the first difference to why: the stream and the number of the node, and
 * both nodes. */
bool graph_equal(const Graph *a, const Graph *b, GraphNames names, char *why, size_t n);
/* Writes one node to buf, such as "linear_forward bf16 64x48x32, 12288 bytes". Returns buf. */
const char *graph_describe(const Graph *graph, const GraphNode *node, GraphNames names, char *buf,
                           size_t n);
/* Prints the nodes in the order of issue, one a line, with stream, number and action. */
void graph_print(FILE *to, const Graph *graph, GraphNames names);

#endif
