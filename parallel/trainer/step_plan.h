/* step_plan.h -- plans a training step before anything is allocated: the schedule of this rank's
 * stage, and the order in which its actions use the units of parameters (a unit is the flat buffer
 * of a block, a table or the head). Also finds how many buffers are enough for all schedules that
 * run on a model. */
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

/* Returns the description of a training step's schedule over all stages, as the config asks for it.
 */
ScheduleSpec step_spec(const Config *config);
/* Creates the schedule of `micros` micro-batches for the stage `at` in a grid of `size`, and the
 * list of its uses of the units of `layers`. With `evaluate`, the schedule has only forward passes
 * and there are no uses. Free with step_plan_free. */
StepPlan step_plan_create(const Config *config, const GptLayers *layers, GridPlace size,
                          GridPlace at, int64_t micros, bool evaluate);
/* For the memory plan: step_plan_bytes returns the bytes of a finished step plan, and
 * step_plan_most_bytes an upper bound for every step plan of `micros` micro-batches. */
size_t step_plan_bytes(const StepPlan *plan);
size_t step_plan_most_bytes(const Config *config, int64_t micros);
void step_plan_free(StepPlan *plan);

/* How much memory schedules need at once: slots[c] sets of activations for chunk c, `batches`
 * micro-batches, and `buffers` buffers for tensors that are sent between stages. */
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
/* Returns the number of micro-batches of an evaluation that needs the most memory: no evaluation of
 * up to evaluate_group micro-batches needs more on any stage. It is the largest number that passes
 * through a chunk before the stage changes to its next chunk. */
int64_t widest_evaluation(GridPlace size);

#endif
