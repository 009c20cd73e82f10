/* replay_inside.h -- the state of a replay, for replay*.c only. */
#ifndef PARALLEL_PLAN_REPLAY_INSIDE_H
#define PARALLEL_PLAN_REPLAY_INSIDE_H

#include "parallel/plan/replay.h"

/* The place of a node: its stage, stream and number in the stream. Node -1: the beginning of the
 * step. */
typedef struct {
    int stage, stream;
    int64_t node;
} ReplayPlace;

/* The times at which a node begins and ends. A collective or a group of messages may begin later
 * than the node before it ends, because it has to wait for nodes of other ranks. `late` is the one
 * of these nodes that arrived last, or the node itself if it did not have to wait. */
typedef struct {
    double begin, end;
    ReplayPlace late;
} NodeTime;

/* The nodes that have reached their collectives or messages, in order: entry number i is for the
 * i-th collective of a group on a stream, or for the i-th message in one direction of a link. */
typedef struct {
    struct Arrival {
        double at;
        ReplayPlace place;
    } * item;
    int64_t n, capacity;
} Arrivals;

/* The messages between a stage and one of its peers. */
typedef struct {
    int peer;     /* a stage */
    int64_t rank; /* the peer's rank in the world */
    Arrivals sent, received;
} Link;

/* A group of ranks (GraphGroup) of which several are replayed. The replayed ranks are the members
 * of the circle. */
typedef struct {
    GraphGroup group;
    int *stage; /* of each member: its stage */
    int members;
    Arrivals *arrivals; /* of each member and stream: [member * GRAPH_STREAMS + stream] */
} Circle;

/* The largest number of messages in one node. */
enum { REPLAY_MESSAGES = 8 };

typedef struct {
    NodeTime *time[GRAPH_STREAMS];
    int64_t done[GRAPH_STREAMS]; /* number of nodes that have been replayed */
    /* true: the next node has reached its collective or messages, and waits for other ranks */
    bool arrived[GRAPH_STREAMS];
    /* The numbers that the next node's messages, or its collective, have in their lists of
     * arrivals. */
    int64_t number[GRAPH_STREAMS][REPLAY_MESSAGES];
    int64_t rank; /* rank in the world; -1: the stage is in no group */
    /* index of each group's circle; -1: no other rank of the group is replayed */
    int circle[GRAPH_GROUPS];
    int member[GRAPH_GROUPS]; /* of each group: which member of its circle this stage is */
    Link *link;
    int links;
} ReplayStage;

typedef struct {
    const Graph *graph;
    int stages;
    ReplayCost cost;
    void *context;
    ReplayStage *stage;
    Circle *circle;
    int circles;
    int *ready; /* streams that may be able to continue: stage * GRAPH_STREAMS + stream */
    bool *queued;
    int n_ready;
} Replay;

/* replay_meet.c: finds the groups of ranks, and records which nodes have arrived. */

/* Finds out which ranks of which groups are replayed. */
void replay_find_groups(Replay *r);
void replay_free_groups(Replay *r);
/* Is called if the next node of the stream is a collective or messages. The first call records that
 * the node has arrived at time `at`, and wakes the streams that wait for it. Returns whether all
 * other ranks that take part have arrived as well. Then *begin is the time of the last arrival, and
 * *late is the node that arrived last (this node, if no other arrived later). */
bool replay_meet(Replay *r, int stage, int stream, double at, double *begin, ReplayPlace *late);
/* Writes what the next node of the stream waits for. */
void replay_describe_wait(const Replay *r, int stage, int stream, char *buf, size_t n);
/* Adds the stream to the streams that may be able to continue. */
void replay_wake(Replay *r, int stage, int stream);

/* replay_parts.c: computes the parts of each stage's time from the times of all nodes. */
void replay_divide(const Replay *r, StepTime *time);
/* Returns the time at which the last node of the graphs ends. Sets `last` to that node; if no node
 * takes any time, to a place with node -1. */
double replay_end(const Replay *r, ReplayPlace *last);

#endif
