/* replay.h -- computes how long a training step takes from the graphs of its stages (graph.h), in
 * virtual time: every stream does its nodes in order, each node takes the time that the caller
 * gives, and streams and stages wait for each other exactly as recorded in their graphs. */
#ifndef PARALLEL_PLAN_REPLAY_H
#define PARALLEL_PLAN_REPLAY_H

#include "model/core/graph.h"

/* How a stage spends the step, in seconds. Each moment is counted in one part. While the stage's
 * compute stream executes something, the part says what: `products`, `attention`, `memory_bound`
 * (all other ops), `optimizer` (gradient norm, decision and update), `copies`, or one of the parts
 * below for a collective or message. While the compute stream is idle, the part says what it waits
 * for: of the chain of nodes that ends with the awaited node, the node that runs at that moment
 * decides:
 *
 *   exposed_dp   collectives of groups not named below, and other work of the comm stream
 *   exposed_tp   collectives of "tp" and "kv" on this stage, and other work of the tp stream
 *   exposed_pp   messages, and collectives across stages
 *   copies       work of the copy stream
 *   exposed_host updates of states on the host, on the update stream
 *   bubble       another stage's computation (and its collectives of tp and kv, which are part of
 *                it); also the end of the step, if another stage is still computing then
 *
 * The parts add up to the step's seconds. The sum is exact as long as a step takes less than a day,
 * because all times are multiples of 2^-36 seconds. */
typedef struct {
    double seconds; /* the time at which the stage's last work ends */
    double compute; /* products + attention + memory_bound + optimizer */
    double products, attention, memory_bound, optimizer, copies;
    double exposed_dp, exposed_tp, exposed_pp, exposed_host, bubble;
} StageTime;

typedef struct {
    double seconds; /* the time at which the last work of all stages ends */
    StageTime *stage;
    int stages;
    int last; /* the stage whose work ends last; the first of them if there are several */
} StepTime;

/* Returns how many seconds a node of a stage takes. It is called once for each node except waits,
 * in an order that depends only on the graphs. */
typedef double (*ReplayCost)(void *context, int stage, const GraphNode *node);

/* Replays one rank of each stage. Free the result with step_time_free.
 *
 * A collective begins when all ranks of its group that are in `graph` have reached it. The other
 * ranks of the group are assumed to behave like these and to reach it at the same time. A group of
 * fused messages begins when this rank and the peer of each message have reached it. The messages
 * from one rank to another are matched by their order, and so are the collectives that the ranks of
 * a group issue on streams of the same name.
 *
 * If no stream can continue, the graphs have a deadlock, and the program ends (CHECK) with a
 * message that says who waits for whom. Time and memory are linear in the nodes. */
StepTime replay_step(const Graph *graph, int stages, ReplayCost cost, void *context);
/* Returns the time of one step among many. `more` is the time of some steps, and `fewer` that of
 * one step less; each field of the result is the difference between the two. A step among many may
 * take less time than a single one, because its gathers may overlap the update of the step before
 * it. Free the result with step_time_free. */
StepTime step_time_between(const StepTime *fewer, const StepTime *more);
/* Returns the time of the second of two steps, with a single replay. The graphs of `two` are those
 * of both steps. The graphs of `one` are those of the first step: they are the beginnings of the
 * graphs of `two` and share their memory. Free the result with step_time_free. */
StepTime replay_second_step(const Graph *one, const Graph *two, int stages, ReplayCost cost,
                            void *context);
/* Returns only the seconds of the second of two steps, as replay_second_step does. */
double replay_second_seconds(const Graph *one, const Graph *two, int stages, ReplayCost cost,
                             void *context);
/* Adds `n` times every field of `time` to `to`, which has the same number of stages; `to->last`
 * does not change. */
void step_time_add(StepTime *to, const StepTime *time, double n);
void step_time_free(StepTime *time);

#endif
