/* step_plan.c -- see step_plan.h. */
#include "parallel/trainer/step_plan.h"

#include "model/core/check.h"
#include "parallel/pipeline/schedule.h"

#include <stdlib.h>

StepPlan step_plan_create(const Config *config, const GptLayers *layers)
{
    int64_t micros = config->gradient_accumulation_steps;
    Schedule schedule = schedule_create(
        &(ScheduleSpec){.kind = SCHEDULE_1F1B, .stages = 1, .chunks = 1, .micros = micros}, 0);
    StepPlan plan = {.actions = schedule.action, .n_actions = schedule.n};
    schedule.action = NULL; /* the plan's from here on */
    schedule_free(&schedule);
    plan.uses =
        must_calloc((size_t)gpt_max_uses(&layers->shape, plan.n_actions), sizeof *plan.uses);
    plan.n_uses = gpt_uses(layers, plan.actions, plan.n_actions, plan.uses);
    return plan;
}

void step_plan_shorten(StepPlan *plan, const GptLayers *layers, int64_t micros)
{
    CHECK(2 * micros <= plan->n_actions, "%lld micro-batches of a step of %lld actions",
          (long long)micros, (long long)plan->n_actions);
    plan->n_actions = 2 * micros;
    plan->n_uses = gpt_uses(layers, plan->actions, plan->n_actions, plan->uses);
}

size_t step_plan_bytes(const GptShape *shape, int64_t micros)
{
    return 2 * (size_t)micros * sizeof(Action) +
           (size_t)gpt_max_uses(shape, 2 * micros) * sizeof(Use);
}

void step_plan_free(StepPlan *plan)
{
    free(plan->actions);
    free(plan->uses);
    *plan = (StepPlan){0};
}
