/* step_plan.c -- creates the schedule of a step and its list of unit uses, and computes their
 * sizes. See step_plan.h. */
#include "parallel/trainer/step_plan.h"

#include "model/core/check.h"

#include <stdlib.h>

ScheduleSpec step_spec(const Config *config)
{
    bool stages = config->parallel.pipeline > 1;
    return (ScheduleSpec){.kind = config->parallel.schedule,
                          .stages = (int)config->parallel.pipeline,
                          .chunks = stages ? (int)config->parallel.pipeline_chunks : 1,
                          .micros = config->gradient_accumulation_steps};
}

StepPlan step_plan_create(const Config *config, const GptLayers *layers, GridPlace size,
                          GridPlace at, int64_t micros, bool evaluate)
{
    /* With a single stage, each backward pass directly follows its forward pass, whatever schedule
     * the config gives for several stages. */
    ScheduleSpec spec = {.kind = size.pp > 1 ? config->parallel.schedule : SCHEDULE_1F1B,
                         .stages = size.pp,
                         .chunks = layers->n_chunks,
                         .micros = micros,
                         .evaluate = evaluate};
    StepPlan plan = {.schedule = schedule_create(&spec, at.pp)};
    if (evaluate) return plan;
    const Schedule *s = &plan.schedule;
    plan.n_uses = gpt_uses(layers, s->action, s->n, NULL);
    plan.uses = must_calloc((size_t)plan.n_uses + 1, sizeof *plan.uses);
    gpt_uses(layers, s->action, s->n, plan.uses);
    return plan;
}

size_t step_plan_bytes(const StepPlan *plan)
{
    const Schedule *s = &plan->schedule;
    return (size_t)s->n * sizeof *s->action + (size_t)s->n_transfers * sizeof *s->transfer +
           (size_t)plan->n_uses * sizeof *plan->uses;
}

size_t step_plan_most_bytes(const Config *config, int64_t micros)
{
    /* Each micro-batch has a forward and a backward on each chunk. Each of these receives a tensor
     * and sends one, at worst in separate groups of transfers. */
    bool stages = config->parallel.pipeline > 1;
    int64_t chunks = stages ? config->parallel.pipeline_chunks : 1, actions = 2 * micros * chunks,
            transfers = stages ? 2 * actions : 0;
    return (size_t)(actions + transfers) * sizeof(Action) + (size_t)transfers * sizeof(Transfer) +
           (size_t)actions * (size_t)(config->model.num_layers + 4) * sizeof(Use);
}

void step_plan_free(StepPlan *plan)
{
    schedule_free(&plan->schedule);
    free(plan->uses);
    *plan = (StepPlan){0};
}

void step_room_include(StepRoom *room, int chunks, const Schedule *schedule)
{
    if (room->slots == NULL) room->slots = must_calloc((size_t)chunks, sizeof *room->slots);
    room->chunks = chunks;
    for (int c = 0; c < chunks; c++)
        if (schedule->slots[c] > room->slots[c]) room->slots[c] = schedule->slots[c];
    if (schedule->batches > room->batches) room->batches = schedule->batches;
    if (schedule->buffers > room->buffers) room->buffers = schedule->buffers;
}

int64_t evaluate_group(GridPlace size)
{
    /* Four micro-batches per stage keep the stages' idle time below a fifth. A single stage is
     * never idle, so the watch can be called after every micro-batch. */
    return size.pp > 1 ? 4 * size.pp : 1;
}

int64_t widest_evaluation(GridPlace size)
{
    return 2 * size.pp - 1;
}

int64_t warm_up_micros(GridPlace size, int64_t micros)
{
    /* Two micro-batches per stage: the second adds to gradients that the first has written. */
    int64_t enough = 2 * size.pp;
    return micros < enough ? micros : enough;
}
