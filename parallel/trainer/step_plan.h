/* step_plan.h -- a training step as data, known before anything is allocated: the actions of this
 * rank, and the uses of units that they make. */
#ifndef PARALLEL_TRAINER_STEP_PLAN_H
#define PARALLEL_TRAINER_STEP_PLAN_H

#include "configs/config.h"
#include "model/gpt.h"

typedef struct {
    Action *actions;
    Use *uses;
    int64_t n_actions, n_uses;
} StepPlan;

/* The step of `config` over these layers: all its micro-batches. Free with step_plan_free. */
StepPlan step_plan_create(const Config *config, const GptLayers *layers);
/* Leaves the step's first `micros` micro-batches, whose actions and uses stay where they are. */
void step_plan_shorten(StepPlan *plan, const GptLayers *layers, int64_t micros);
/* Bytes of a plan of so many micro-batches, for the memory plan. */
size_t step_plan_bytes(const GptShape *shape, int64_t micros);
void step_plan_free(StepPlan *plan);

#endif
