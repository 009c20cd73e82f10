/* step_plan.h -- plans a training step before anything is allocated: the schedule of this rank's
 * stage, and the order in which its actions use the units of parameters (a unit is the flat buffer
 * of a block, a table or the head). Also determines how much memory all schedules that run on a
 * model need. */
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

/* Returns the spec of a training step's schedule, over all stages, as the config asks for. */
ScheduleSpec step_spec(const Config *config);
/* Creates the schedule of `micros` micro-batches for the stage `at` in a grid of `size`, and the
 * list of its uses of the units of `layers`. With `evaluate`, the schedule has only forward passes
 * and there are no uses. Free with step_plan_free. */
StepPlan step_plan_create(const Config *config, const GptLayers *layers, GridPlace size,
                          GridPlace at, int64_t micros, bool evaluate);
/* Return the bytes of a plan, for the memory plan: step_plan_bytes the bytes of a finished plan,
 * step_plan_most_bytes an upper bound for any plan of `micros` micro-batches. */
size_t step_plan_bytes(const StepPlan *plan);
size_t step_plan_most_bytes(const Config *config, int64_t micros);
void step_plan_free(StepPlan *plan);

/* How much a schedule holds at once: sets of activations of each chunk, micro-batches, and buffers
 * for tensors between stages. */
typedef struct {
    int *slots;
    int chunks, batches, buffers;
} StepRoom;

/* Raises the numbers in `room` to at least what the schedule needs. Free room->slots with free. */
void step_room_include(StepRoom *room, int chunks, const Schedule *schedule);

/* evaluate_group returns how many micro-batches an evaluation sends through the stages together.
 * warm_up_micros returns how many a warm-up needs, at most `micros`, to use every connection
 * between stages and to add to a gradient at least once. */
int64_t evaluate_group(GridPlace size);
int64_t warm_up_micros(GridPlace size, int64_t micros);
/* Returns a number of micro-batches; no evaluation of a group needs more room on a stage than an
 * evaluation of so many. It is the largest number that passes through a chunk before the stage
 * changes to its next chunk. */
int64_t widest_evaluation(GridPlace size);

#endif
