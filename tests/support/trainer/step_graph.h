/* step_graph.h -- steps of all ranks as a graph: ops, copies and what collectives are made of, on
 * their streams, in the order of each stream and of the events that streams wait for. Taken from a
 * burst of late devices (late_device.h), before any of it is done. */
#ifndef TESTS_SUPPORT_TRAINER_STEP_GRAPH_H
#define TESTS_SUPPORT_TRAINER_STEP_GRAPH_H

#include "parallel/trainer/trainer.h"
#include "tests/support/device/late_device.h"

/* What is noted of a node: how far the host of its rank was when it asked for it. */
typedef enum {
    STEP_USE,     /* uses of units begun; after step_end all of a step's and one more: step_key */
    STEP_ACTION,  /* the action, counted through all steps */
    STEP_COMM,    /* in a call of that group of grid_comms; -1: in none */
    STEP_VERB,    /* of that call */
    STEP_UNIT,    /* whose weights or gradient the store moves in that call; else -1 */
    STEP_BUNDLE,  /* of calls that go out together: its number */
    STEP_ENTERED, /* sums of input gradients that were put on the tp stream; that were awaited */
    STEP_AWAITED
} StepNote;

typedef struct {
    const char *name; /* NULL: a wait */
    int64_t note[LATE_NOTES];
} StepNode;

typedef struct {
    int rank;
    const char *name; /* "compute", "comm", "p2p", "tp", "copy" */
    StepNode *node;
    int64_t n;
    /* seen[i * streams + t]: so many nodes of stream t are done for certain when node i begins. */
    int64_t *seen;
} StepStream;

typedef struct {
    StepStream *stream;
    int streams, ranks;
    const Session *session[8]; /* by rank */
} StepGraph;

/* A wait that nothing asks for, which a rank of a watched step makes besides. */
typedef enum {
    STEP_AS_IT_IS,
    STEP_WAITS_FOR_SUMS,      /* after each release of a gradient, for the comm stream */
    STEP_WAITS_FOR_GATHERS,   /* after each release of weights */
    STEP_WAITS_FOR_EXCHANGES, /* after each exchange, for the p2p stream */
    STEP_WAITS_FOR_TP_SUMS,   /* after each sum that is put on the tp stream, for it */
    STEP_STORE_WAITS          /* after each exchange, the comm stream for the p2p stream */
} StepPlanted;

/* Called by the rank's thread, before a burst: from here on what it asks for is noted, and the
 * planted wait is made. Until step_unwatch, by the same thread and before the trainer is closed. */
void step_watch(Trainer *trainer, StepPlanted planted);
void step_unwatch(void);

/* STEP_USE in step `step` with so many uses begun; after step_end `uses` is n_uses + 1. */
int64_t step_key(const Session *session, int64_t step, int64_t uses);
/* Of the burst under way, once all ranks are through. Free with step_graph_free. */
StepGraph step_graph_take(void);
void step_graph_free(StepGraph *graph);
/* The rank's stream of that name; -1: it had no work. */
int step_stream(const StepGraph *graph, int rank, const char *name);

#endif
