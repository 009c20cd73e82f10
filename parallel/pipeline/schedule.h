/* schedule.h -- a step as data: the list of actions of one rank, from pure functions. Gradient
 * accumulation without a pipeline is the schedule of one stage, so there is one training path. */
#ifndef PARALLEL_PIPELINE_SCHEDULE_H
#define PARALLEL_PIPELINE_SCHEDULE_H

#include "model/core/kinds.h"
#include "model/param/stage.h"

#include <stdio.h>

/* What a schedule is made from: nothing else. Run r of layers is of stage r % stages, its chunk
 * r / stages. */
typedef struct {
    ScheduleKind kind; /* gpipe and 1f1b have one chunk */
    int stages, chunks;
    int64_t micros;
    bool evaluate; /* forward alone, whatever the kind */
} ScheduleSpec;

/* What one stage does. */
typedef struct {
    Action *action;
    int64_t n;
    Transfer *transfer;
    int64_t n_transfers;
    int *slots; /* sets of activations of each chunk; of an evaluation 1 */
    int batches, buffers;
} Schedule;

/* The schedule of a stage. In each chunk micro-batches go forward in ascending order, and backward,
 * too: so all kinds add up gradients in the same order. What is made for another stage is sent, and
 * received there, in one fused group of each right behind the action that has made it: groups of
 * one moment on all stages complete together, so no order of them can lock the stages. A group has
 * at most three transfers. Time and memory are linear in the micro-batches. Free with
 * schedule_free. */
Schedule schedule_create(const ScheduleSpec *spec, int stage);
void schedule_free(Schedule *schedule);

#endif
