/* schedule_order.h -- 1F1B, GPipe, interleaved: the order of every stage's actions, and the tick at
 * which each begins and ends.
 *
 * Time is in ticks: a forward takes one, a backward two, and what an action has made can be read by
 * the other stages from its end on. All stages are played on one clock, and schedule.c makes the
 * action list of each stage from what happened, so that the lists of all stages fit each other.
 *
 * GPipe: arXiv:1811.06965. 1F1B is PipeDream's schedule with a flush at the end of the step
 * (arXiv:2006.09503); its interleaved form is Megatron-LM's (arXiv:2104.04473, section 2.2). */
#ifndef PARALLEL_PIPELINE_SCHEDULE_ORDER_H
#define PARALLEL_PIPELINE_SCHEDULE_ORDER_H

#include "parallel/pipeline/schedule.h"

/* An action of a stage begins, or ends. */
typedef struct {
    int64_t tick;
    bool ends; /* or begins */
    int stage;
    ActionKind kind; /* never ACT_EXCHANGE */
    int chunk;
    int64_t micro;
} ScheduleEvent;

/* Is called with every event in its order; in one tick all ends come before all beginnings. Returns
 * whether to go on. */
typedef bool (*ScheduleWatch)(void *context, const ScheduleEvent *event);

/* Plays the schedule. Takes time linear in the micro-batches, and memory that does not depend on
 * them. In every chunk micro-batches go forward in ascending order, and backward, too. */
void schedule_play(const ScheduleSpec *spec, ScheduleWatch watch, void *context);
/* Ticks that an action takes. */
int schedule_ticks(ActionKind kind);
/* Ticks of the whole schedule: up to the end of its last action. */
int64_t schedule_length(const ScheduleSpec *spec);
/* The bubble: the share of these ticks in which a stage is idle, as 0.25 for a quarter. */
double schedule_bubble_share(const ScheduleSpec *spec);

#endif
