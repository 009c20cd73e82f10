/* trainer_plan.c -- the memory plan, and saving and loading a trainer. */
#include "model/core/log.h"
#include "model/core/version.h"
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

bool trainer_save(Trainer *t, const char *run, const char *config_text, const char *machine,
                  char *err, size_t n)
{
    StepState state = trainer_state(t);
    CheckpointContents contents = {.weights = t->weights,
                                   .n_weights = t->session.table.n_params,
                                   .slots = t->slots,
                                   .n_slots = t->n_slots,
                                   .state = &state,
                                   .config = config_text,
                                   .machine = machine,
                                   .code = program_version(),
                                   .data = t->data->identity};
    /* 0: every one is wanted, and none makes room. */
    int keep = t->keep_all ? 0 : (int)t->config->checkpoint.keep;
    bool saved = keep > 0 ? checkpoint_write_making_room(&t->io, run, &contents, err, n)
                          : checkpoint_write(&t->io, run, &contents, err, n);
    if (!saved || keep == 0) return saved;
    if (!checkpoint_prune(&t->io, run, state.steps, keep, err, n))
        log_warning("%s; older checkpoints stay", err);
    return true;
}

bool trainer_load(Trainer *t, Checkpoint *checkpoint, char *err, size_t n)
{
    Device *dev = &t->session.dev;
    if (!session_load_weights(&t->session, &t->io, checkpoint, err, n)) return false;
    if (!checkpoint_read(&t->io, checkpoint, CHECKPOINT_SLOTS, t->slots, t->n_slots, err, n))
        return false;
    StepState state = checkpoint_manifest(checkpoint)->state;
    state.loss_seed = state.loss_scale / t->rules.nominal_targets;
    int64_t words = (int64_t)(sizeof state / sizeof(int64_t));
    device_copy(dev, tensor_1d(&t->state->state, I64, words), tensor_1d(&state, I64, words));
    device_synchronize(dev);
    t->steps = t->drained = state.steps;
    t->samples = state.samples;
    return true;
}
