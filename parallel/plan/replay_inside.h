/* replay_inside.h -- the state of a replay, for replay*.c only. */
#ifndef PARALLEL_PLAN_REPLAY_INSIDE_H
#define PARALLEL_PLAN_REPLAY_INSIDE_H

#include "parallel/plan/replay.h"

/* A node of a stream of a stage; node -1: the beginning of the step. */
typedef struct {
    int stage, stream;
    int64_t node;
} ReplayPlace;

/* When a node begins and ends. It may begin later than the end of the stream's node before it: then
 * it has waited in a collective or for messages, and `late` is the node that arrived last. */
typedef struct {
    double begin, end;
    ReplayPlace late;
} NodeTime;

/* The nodes that have arrived somewhere, in order. */
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
    int64_t rank; /* of the peer in the world */
    Arrivals sent, received;
} Link;

/* A group of which several ranks are replayed. */
typedef struct {
    GraphGroup group;
    int *stage; /* the stages of these ranks */
    int members;
    Arrivals *arrivals; /* [member * GRAPH_STREAMS + stream] */
} Circle;

/* The largest number of messages that are carried out together. */
enum { REPLAY_MESSAGES = 8 };

typedef struct {
    NodeTime *time[GRAPH_STREAMS];
    int64_t done[GRAPH_STREAMS]; /* nodes that have ended */
    bool arrived[GRAPH_STREAMS]; /* the next node has reached its collective or messages */
    /* The numbers of that node's messages, or of its collective, among the arrivals. */
    int64_t number[GRAPH_STREAMS][REPLAY_MESSAGES];
    int64_t rank;             /* in the world; -1: in no group */
    int circle[GRAPH_GROUPS]; /* of each group; -1: no other rank of it is replayed */
    int member[GRAPH_GROUPS]; /* number of this stage in that circle */
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

/* replay_meet.c: the ranks of groups, and their arrivals. */

/* Finds out which ranks of which groups are replayed. */
void replay_find_groups(Replay *r);
void replay_free_groups(Replay *r);
/* To call if the next node of the stream is a collective or messages. The first call records that
 * the node has arrived, and wakes the streams that wait for it. Returns whether all others have
 * arrived as well, and the time and place of the last arrival (of the node itself, if it is one of
 * the last). */
bool replay_meet(Replay *r, int stage, int stream, double at, double *begin, ReplayPlace *late);
/* Writes for whom the next node of the stream waits. */
void replay_describe_wait(const Replay *r, int stage, int stream, char *buf, size_t n);
/* Adds the stream to those that may be able to continue. */
void replay_wake(Replay *r, int stage, int stream);

/* replay_parts.c: computes the parts of each stage's time from the times of all nodes. */
void replay_divide(const Replay *r, StepTime *time);
/* Returns when the last node of the graphs ends; `last` is that node, or one with node -1. */
double replay_end(const Replay *r, ReplayPlace *last);

#endif
