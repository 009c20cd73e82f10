/* schedule_order.h -- a schedule as all stages live through it: when each begins and ends which
 * action.
 *
 * Time is in ticks: a forward takes one, a backward two, and what an action has made is there for
 * the others at its end. From this one time line the actions of every stage are made, so that they
 * fit each other. */
#ifndef PARALLEL_PIPELINE_SCHEDULE_ORDER_H
#define PARALLEL_PIPELINE_SCHEDULE_ORDER_H

#include "parallel/pipeline/schedule.h"

typedef struct {
    int64_t tick;
    bool ends; /* or begins */
    int stage;
    ActionKind kind; /* none is an exchange */
    int chunk;
    int64_t micro;
} TimelineEvent;

/* Told of all events in their order; in one tick all ends come before all beginnings. False: no
 * more. */
typedef bool (*TimelineWatch)(void *context, const TimelineEvent *event);

/* Plays the schedule. Takes time linear in the micro-batches, and memory that does not depend on
 * them. In every chunk micro-batches go forward in ascending order, and backward, too. */
void timeline_play(const ScheduleSpec *spec, TimelineWatch watch, void *context);
/* Ticks that an action takes. */
int timeline_ticks(ActionKind kind);
/* Ticks of the whole schedule: up to the end of its last action. */
int64_t timeline_length(const ScheduleSpec *spec);
/* The part of them in which a stage stands still, as 0.25 for a quarter. */
double timeline_bubble(const ScheduleSpec *spec);

#endif
