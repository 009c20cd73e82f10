/* schedule.h -- a step as data: the list of actions of one rank, from pure functions. Gradient
 * accumulation without a pipeline is the schedule of one stage, so there is one training path. */
#ifndef PARALLEL_PIPELINE_SCHEDULE_H
#define PARALLEL_PIPELINE_SCHEDULE_H

#include "model/param/stage.h"

/* Forward and backward of each micro-batch in turn, one slot. Writes 2 * micros actions. */
int64_t schedule_one_stage(int64_t micros, Action *actions);

#endif
