/* schedule_order.h -- 1F1B, GPipe, interleaved: the order of every stage's actions, and the tick at
 * which each begins and ends.
 *
 * Time is measured in ticks: a forward pass takes one, a backward pass two. Other stages can read
 * the output of an action from its end on. All stages are simulated on one clock, and schedule.c
 * builds the action list of each stage from this simulation, so the lists of all stages match.
 *
 * GPipe: arXiv:1811.06965. 1F1B is PipeDream's schedule with a flush at the end of the step
 * (arXiv:2006.09503); its interleaved form is Megatron-LM's (arXiv:2104.04473, section 2.2). */
#ifndef PARALLEL_PIPELINE_SCHEDULE_ORDER_H
#define PARALLEL_PIPELINE_SCHEDULE_ORDER_H

#include "parallel/pipeline/schedule.h"

/* The beginning or the end of an action. */
typedef struct {
    int64_t tick;
    bool ends; /* otherwise it begins */
    int stage;
    ActionKind kind; /* never ACT_EXCHANGE */
    int chunk;
    int64_t micro;
} ScheduleEvent;

/* Called with every event in order; within a tick, all ends precede all beginnings. Returns whether
 * to continue. */
typedef bool (*ScheduleWatch)(void *context, const ScheduleEvent *event);

/* Simulates the schedule. The time is linear in the number of micro-batches, and the memory does
 * not depend on it. In every chunk the forward passes run in ascending order of micro-batches, and
 * so do the backward passes. */
void schedule_play(const ScheduleSpec *spec, ScheduleWatch watch, void *context);
/* Returns the number of ticks that an action takes. */
int schedule_ticks(ActionKind kind);
/* Returns the length of the schedule in ticks, up to the end of the last action. */
int64_t schedule_length(const ScheduleSpec *spec);
/* Returns the bubble: the share of the ticks in which a stage is idle, such as 0.25 for a quarter.
 */
double schedule_bubble_share(const ScheduleSpec *spec);
/* Returns the smallest number of micro-batches whose bubble is at most half of this schedule's. */
int64_t schedule_micros_for_half_bubble(const ScheduleSpec *spec);

#endif
