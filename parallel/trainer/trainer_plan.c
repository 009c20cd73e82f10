/* trainer_plan.c -- the memory plan. */
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/trainer/trainer.h"

#include <stdlib.h>

/* a + b, or the most that can be said: such a plan is refused by its sum. */
static size_t plus(size_t a, size_t b)
{
    size_t sum;
    return __builtin_add_overflow(a, b, &sum) ? SIZE_MAX : sum;
}

/* What a step keeps on the host, page-locked or not: batches and records on their way, pieces of
 * checkpoints, and the list of its actions and uses. */
static size_t host_bytes(const Config *config, const GptShape *shape, int64_t rows)
{
    int64_t actions = 2 * config->gradient_accumulation_steps, uses = gpt_max_uses(shape, actions);
    return plus(feed_host_bytes(rows),
                TRAINER_HISTORY * sizeof(StepOutcome) + CHECKPOINT_STAGING_BYTES +
                    (size_t)actions * sizeof(Action) + (size_t)uses * sizeof(Use));
}

MemoryPlan memory_plan(const Config *config)
{
    GptShape shape = gpt_shape(config);
    GptLayers layers;
    ParamTable table = {0};
    int64_t B = config->train_micro_batch_size_per_gpu, T = config->data.seq_length;
    gpt_layers_build(&layers, &table, &shape);
    ZeroBytes zero = zero_bytes(&table, shape.grad_dtype, true);
    GptBytes gpt = gpt_bytes(&shape, B, T, GPT_TRAIN);
    MemoryPlan plan = {.weights = zero.weights,
                       .gradients = zero.gradients,
                       .activations = gpt.activations,
                       .scratch = gpt.scratch};
    plan.optimizer = optimizer_bytes(config, &table);
    plan.other = sizeof(TrainerState) + (size_t)config->train_steps * sizeof(double) +
                 feed_bytes(B * T) + gpt.angles;
    if (config->eval.sample_tokens > 0)
        plan.other = plus(plan.other, decoder_bytes(&shape, shape.P));
    const size_t parts[] = {plan.weights,     plan.gradients, plan.optimizer,
                            plan.activations, plan.scratch,   plan.other};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        plan.total = plus(plan.total, parts[i]);
    plan.host = host_bytes(config, &shape, B * T);
    /* Padding, left out of files, is below a percent. */
    size_t saved = plus(plan.weights, plan.optimizer);
    plan.checkpoint = saved > INT64_MAX ? INT64_MAX : (int64_t)saved;
    gpt_layers_free(&layers);
    param_table_free(&table);
    return plan;
}
