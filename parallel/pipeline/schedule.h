/* schedule.h -- a step as data: the list of actions of one rank, from pure functions. Gradient
 * accumulation without a pipeline is the schedule of one stage, so there is one training path. */
#ifndef PARALLEL_PIPELINE_SCHEDULE_H
#define PARALLEL_PIPELINE_SCHEDULE_H

#include "model/core/kinds.h"
#include "model/param/stage.h"

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
    int *slots; /* sets of activations of each chunk */
    int batches, buffers;
} Schedule;

/* Free with schedule_free. */
Schedule schedule_create(const ScheduleSpec *spec, int stage);
void schedule_free(Schedule *schedule);

/* Forward and backward of each micro-batch in turn, one slot. Writes 2 * micros actions. */
int64_t schedule_one_stage(int64_t micros, Action *actions);

#endif
