/* step_plan.h -- a training step as data, known before anything is allocated: the schedule of this
 * rank's stage, and the uses of units that its actions make; and what all schedules that run on a
 * model need of memory. */
#ifndef PARALLEL_TRAINER_STEP_PLAN_H
#define PARALLEL_TRAINER_STEP_PLAN_H

#include "configs/config.h"
#include "model/gpt.h"
#include "parallel/pipeline/schedule.h"

typedef struct {
    Schedule schedule;
    Use *uses;
    int64_t n_uses;
} StepPlan;

/* The schedule of a step that the config asks for, on all of its stages. */
ScheduleSpec step_spec(const Config *config);
/* The schedule of so many micro-batches on the stage `at` of a grid of `size`, as `config` asks
 * for, and its uses of these layers; evaluate: forward alone, and no uses. Free with
 * step_plan_free. */
StepPlan step_plan_create(const Config *config, const GptLayers *layers, GridPlace size,
                          GridPlace at, int64_t micros, bool evaluate);
/* Bytes of the plan of `micros` micro-batches of a step, for the memory plan: of one that is made,
 * and the most that one of such a model will take. */
size_t step_plan_bytes(const StepPlan *plan);
size_t step_plan_most_bytes(const Config *config, int64_t micros);
void step_plan_free(StepPlan *plan);

/* Sets of activations of each chunk, places for micro-batches, buffers for what travels. */
typedef struct {
    int *slots;
    int chunks, batches, buffers;
} StepRoom;

/* At least what the schedule needs. Free slots with free. */
void step_room_include(StepRoom *room, int chunks, const Schedule *schedule);

/* How many micro-batches an evaluation puts through the stages together; and, of at most `micros`,
 * how many a warm-up needs to use every connection between stages and to add to a gradient. */
int64_t evaluate_group(GridPlace size);
int64_t warm_up_micros(GridPlace size, int64_t micros);

#endif
