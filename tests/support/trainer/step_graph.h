/* step_graph.h -- represents training steps of all ranks as a graph: ops, copies and the parts of
 * collectives on their streams, in the order that the streams and the events for which they wait
 * enforce. It is taken from a burst (late_device.h), in which devices record their work instead of
 * doing it. A unit is a flat buffer of parameters, and a use is the time from acquiring to
 * releasing a unit's weights or gradient. */
#ifndef TESTS_SUPPORT_TRAINER_STEP_GRAPH_H
#define TESTS_SUPPORT_TRAINER_STEP_GRAPH_H

#include "parallel/trainer/trainer.h"
#include "tests/support/device/late_device.h"

/* What is recorded for each node: the state of its rank's host when the host issued it. */
typedef enum {
    STEP_USE,     /* number of uses of units that have begun, as a step_key */
    STEP_ACTION,  /* number of the action, counted over all steps */
    STEP_COMM,    /* group of grid_comms whose call issued it; -1: none */
    STEP_VERB,    /* operation of that call */
    STEP_UNIT,    /* unit that the store moves in that call; else -1 */
    STEP_BUNDLE,  /* number of the group of calls */
    STEP_ENTERED, /* number of input-gradient sums put on the tp stream */
    STEP_AWAITED  /* number of those sums awaited */
} StepNote;

typedef struct {
    const char *name; /* name of the work; NULL: a wait */
    int64_t note[LATE_NOTES];
} StepNode;

typedef struct {
    int rank;
    const char *name; /* such as "compute", "comm", "p2p", "tp" or "copy" */
    StepNode *node;
    int64_t n;
    /* seen[i * streams + t]: number of nodes of stream t that are certainly done when node i
     * begins. */
    int64_t *seen;
} StepStream;

typedef struct {
    StepStream *stream;
    int streams, ranks;
    const Session *session[8]; /* sessions by rank */
} StepGraph;

/* A needless wait that the test adds to a rank's steps. */
typedef enum {
    STEP_AS_IT_IS,
    STEP_WAITS_FOR_SUMS,      /* after each release of a gradient, waits for the comm stream */
    STEP_WAITS_FOR_GATHERS,   /* after each release of weights, waits for the comm stream */
    STEP_WAITS_FOR_EXCHANGES, /* after each exchange, waits for the p2p stream */
    STEP_WAITS_FOR_TP_SUMS,   /* after each sum on the tp stream, waits for it */
    STEP_STORE_WAITS          /* after each exchange, comm waits for p2p */
} StepPlanted;

/* Begins to record what this rank issues, and adds the planted wait. The rank's thread calls it
 * before a burst; the same thread must call step_unwatch before the trainer is closed. */
void step_watch(Trainer *trainer, StepPlanted planted);
void step_unwatch(void);

/* Returns the value of STEP_USE in step `step` after `uses` uses of units have begun; after
 * step_end `uses` is n_uses + 1. */
int64_t step_key(const Session *session, int64_t step, int64_t uses);
/* Returns the graph of the current burst; call it when all ranks have issued their work. Free with
 * step_graph_free. */
StepGraph step_graph_take(void);
void step_graph_free(StepGraph *graph);
/* Returns the index of the rank's stream with this name; -1 if it had no work. */
int step_stream(const StepGraph *graph, int rank, const char *name);

#endif
