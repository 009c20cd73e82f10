/* trainer.c -- opens, warms up and closes a trainer, and makes optimizer steps. See trainer.h. */
#include "parallel/trainer/trainer.h"

#include "optim/lr_schedule.h"
#include "optim/step_constants.h"
#include "parallel/grid/control.h"
#include "parallel/grid/machines.h"
#include "parallel/pipeline/pipeline.h"
#include "parallel/trainer/decide.h"
#include "parallel/trainer/evaluate.h"
#include "parallel/trainer/save.h"

#include <stdlib.h>

static LoaderOptions train_options(const Trainer *t)
{
    const Config *c = t->config;
    return (LoaderOptions){.split = SPLIT_TRAIN,
                           .B = c->train_micro_batch_size_per_gpu,
                           .T = c->data.seq_length,
                           .vocab_size = c->model.vocab_size,
                           .seed = (uint64_t)c->seed,
                           .shuffle = c->data.shuffle,
                           .dp_rank = t->session.grid.at.dp,
                           .dp_size = t->session.grid.size.dp,
                           .micros = c->gradient_accumulation_steps};
}

static bool open_loaders(Trainer *t, char *err, size_t n)
{
    const Config *c = t->config;
    LoaderOptions options = train_options(t);
    if (t->session.counted) return true;
    if (!loader_create(&t->train, t->data, &options, err, n)) return false;
    if (t->data->val.n_files == 0) return true;
    options.split = SPLIT_VAL;
    options.micros = INT64_MAX;
    /* The first eval.steps x B windows are evaluated, whatever the number of ranks. If this product
     * does not fit into 64 bits, the data have fewer windows; the limit is then 0, which means all
     * windows. */
    if (__builtin_mul_overflow(c->eval.steps, options.B, &options.max_windows))
        options.max_windows = 0;
    if (!loader_create(&t->val, t->data, &options, err, n)) return false;
    t->sets = must_calloc((size_t)t->data->n_sets + 1, sizeof(Loader *));
    for (; t->n_sets < t->data->n_sets; t->n_sets++) {
        options.tokens = &t->data->sets[t->n_sets].tokens;
        if (!loader_create(&t->sets[t->n_sets], t->data, &options, err, n)) return false;
    }
    return true;
}

/* Allocates memory for micro-batches on the device, and computes the constants of a step. */
static void open_feed(Trainer *t)
{
    const Config *c = t->config;
    feed_open(&t->feed, &t->session.dev, c->train_micro_batch_size_per_gpu * c->data.seq_length,
              t->session.room.batches);
    t->feed.train = t->train;
    t->feed.val = t->val;
    t->feed.unread = t->session.counted;
    t->feed.position = &t->position;
    t->feed.micros = c->gradient_accumulation_steps;
    t->constants = step_constants(c, t->session.grid.size.dp);
}

/* Computes the learning rates of all updates, and copies them to the device. */
static void fill_lr_table(Trainer *t)
{
    Device *dev = &t->session.dev;
    int64_t n = t->config->train_steps;
    double *lr = must_alloc(t->lr_bytes);
    lr_schedule_fill(t->config, lr, n);
    /* All ranks take rank 0's values, because machines may differ in the last digit of a cosine. */
    if (t->session.world) control_share(t->session.world, lr, t->lr_bytes);
    device_copy(dev, t->lr_table, tensor_1d(lr, F64, n));
    device_synchronize(dev);
    free(lr);
}

/* Allocates what a step needs on the device besides the model: the step's state, the learning rate
 * of every update, and micro-batches. */
static void open_state(Trainer *t)
{
    Device *dev = &t->session.dev;
    t->state = device_alloc(dev, sizeof *t->state, "the step's state");
    t->lr_memory = device_alloc(dev, t->lr_bytes, "the learning rates");
    t->lr_table = tensor_1d(t->lr_memory, F64, t->config->train_steps);
    /* A counted device reads no learning rates. For a long run, computing them would take more time
     * and memory than everything else that is counted. */
    if (!t->session.counted) fill_lr_table(t);
    open_feed(t);
}

static void open_model(Trainer *t)
{
    Session *s = &t->session;
    const Config *c = t->config;
    t->gpt = gpt_create(&s->dev, &s->layers, s->params, &s->tp, c->train_micro_batch_size_per_gpu,
                        c->data.seq_length, GPT_TRAIN, s->room.slots);
    gpt_connect(t->gpt, feed_batch, &t->feed, &t->state->stats, &t->state->state.loss_seed);
}

static void open_optimizer(Trainer *t)
{
    t->optimizer_memory =
        device_alloc(&t->session.dev, t->optimizer_bytes.device, "optimizer state");
    Arena arena = device_arena(&t->session.dev, t->optimizer_memory, t->optimizer_bytes.device);
    int units = t->session.table.n_units;
    size_t *host = must_calloc((size_t)units, sizeof *host);
    optimizer_bytes_of_units(t->config, t->session.params, host);
    host_states_open(&t->host_states, &t->session.dev, host, units);
    free(host);
    optimizer_plan(&t->optimizer, t->config, t->session.params, &arena, t->host_states.arena);
    t->optimizer.timed =
        t->config->wall_clock_breakdown && t->session.dev.backend->place != PLACE_HOST;
    optimizer_open(&t->optimizer, &t->session.dev);
    t->norm = grad_norm_create(t->session.params);
}

/* Computes the sizes of the trainer's own allocations from the layout of the store. */
static void measure(Trainer *t)
{
    t->optimizer_bytes = optimizer_bytes(t->config, t->session.params);
    t->lr_bytes = (size_t)t->config->train_steps * sizeof(double);
}

void trainer_measure(Trainer *t, const Config *config)
{
    *t = (Trainer){.config = config};
    session_build(&t->session, config, NULL, true);
    measure(t);
}

bool trainer_open(Trainer *t, const Config *config, Comm *world, char *err, size_t n)
{
    *t = (Trainer){.config = config};
    if (!session_open(&t->session, config, world, true, err, n)) return false;
    measure(t);
    return true;
}

void trainer_open_counted(Trainer *t, const Config *config, Comm *world, const CountedFacts *facts)
{
    *t = (Trainer){.config = config};
    session_open_counted(&t->session, config, world, facts, true);
    measure(t);
}

bool trainer_samples(const Config *config, const DataSet *data)
{
    return config->eval.sample_tokens > 0 && (data->tokenizer != NULL || data->random);
}

bool trainer_allocate(Trainer *t, const Config *config, const DataSet *data, char *err, size_t n)
{
    Session *s = &t->session;
    int64_t planned = t->config->gradient_accumulation_steps;
    t->config = s->config = config;
    t->data = data;
    if (config->gradient_accumulation_steps != planned) {
        /* A dry run has fewer micro-batches. The memory planned for a whole step is more than
         * enough for it. */
        step_plan_free(&s->step);
        s->step = step_plan_create(config, &s->layers, s->grid.size, s->grid.at,
                                   config->gradient_accumulation_steps, false);
    }
    session_allocate(s);
    if (!open_loaders(t, err, n)) return false;
    open_state(t);
    decide_open(t);
    open_model(t);
    if (trainer_samples(config, data))
        t->decoder = decoder_create(&s->dev, &s->layers, s->params, &s->uncut, session_relay(s),
                                    s->layers.shape.P);
    open_optimizer(t);
    save_open(t);
    if (config->wall_clock_breakdown) phases_open(&t->phases, s, s->step.schedule.n);
    /* The warm-up comes before session_connect, because loading a kernel may wait for another GPU,
     * and libraries load their kernels at the first use. NCCL's calls transfer nothing yet. */
    if (session_connects(s) && !s->counted) trainer_warm_up(t);
    session_connect(s);
    session_init_weights(s);
    /* optimizer_init copies master weights from the shards. A gather that has not ended yet may
     * still be writing the shards, because it assembles the whole weights in the same memory. So it
     * is waited for. */
    device_synchronize(&s->dev);
    optimizer_init(&t->optimizer, &t->session.dev);
    trainer_set_state(t, step_state_initial(config));
    return true;
}

bool trainer_shrink(Trainer *t, const Config *config, char *err, size_t n)
{
    gpt_destroy(t->gpt);
    feed_close(&t->feed);
    loader_free(t->train);
    t->train = NULL;
    t->config = config;
    session_shrink(&t->session, config);
    LoaderOptions options = train_options(t);
    if (!loader_create(&t->train, t->data, &options, err, n)) return false;
    open_feed(t);
    open_model(t);
    trainer_set_state(t, step_state_initial(config));
    return true;
}

void trainer_close(Trainer *t)
{
    Device *dev = &t->session.dev;
    loader_free(t->train);
    loader_free(t->val);
    for (int i = 0; i < t->n_sets; i++)
        loader_free(t->sets[i]);
    free(t->sets);
    /* t->gpt is set if and only if trainer_allocate has completed. That function can return false
     * only while it opens the loaders, and at that time only the session has been allocated; any
     * later failure ends the program. If t->gpt is NULL, there are no events to destroy, and after
     * trainer_measure there is not even a device. */
    if (t->gpt) {
        session_meet(&t->session);
        save_close(t);
        optimizer_free(&t->optimizer);
        grad_norm_free(&t->norm);
        gpt_destroy(t->gpt);
        decoder_destroy(t->decoder);
        device_release(dev, t->optimizer_memory, t->optimizer_bytes.device);
        host_states_close(&t->host_states, dev);
        device_release(dev, t->lr_memory, t->lr_bytes);
        feed_close(&t->feed);
        phases_close(&t->phases, &t->session);
        decide_close(t);
        device_release(dev, t->state, sizeof *t->state);
    }
    session_close(&t->session);
    *t = (Trainer){0};
}

static void mark_phase(void *trainer)
{
    Trainer *t = trainer;
    phases_mark(&t->phases, &t->session, t->feed.seconds);
}

/* Runs the step's actions; with wall_clock_breakdown, the device marks the borders between them. */
static void run_actions(Trainer *t)
{
    Stage stage = gpt_stage(t->gpt);
    bool timed = t->config->wall_clock_breakdown;
    if (timed) mark_phase(t);
    session_run(&t->session, &stage, &t->session.step.schedule, timed ? mark_phase : NULL, t);
}

/* Waits before a step, so that the host does not get too far ahead of the device. */
static void limit_lead(Trainer *t)
{
    int64_t ended = t->steps - TRAINER_LEAD; /* the step that must have ended */
    if (ended < 0 || machines_of(t->session.world).count == 1) return;
    device_event_synchronize(&t->session.dev, &t->recorded[ended % TRAINER_HISTORY]);
}

/* Adds the last step's updates of optimizer states in host memory to the phases. optimizer_seconds
 * waits for these updates. They ended before this step had used all weights, so the host waits no
 * longer than it will wait in phases_add. */
static void time_last_updates(Trainer *t)
{
    if (!t->untimed_update) return;
    const TrainerRecord *last = &t->records[(t->steps - 1) % TRAINER_HISTORY];
    if (!last->decision.apply) return; /* a skipped update moves no states */
    t->phases.seconds.updates += optimizer_seconds(&t->optimizer);
    t->phases.seconds.updated_bytes += (double)t->host_states.bytes;
}

void trainer_step(Trainer *t)
{
    Device *dev = &t->session.dev;
    ParamStore *params = t->session.params;
    Flight *flight = t->session.flight;
    flight_at(flight, t->steps + 1, -1, FLIGHT_BEGIN);
    limit_lead(t);
    if (t->config->wall_clock_breakdown) phases_begin(&t->phases);
    params->step_begin(params, t->session.step.uses, t->session.step.n_uses);
    run_actions(t);
    flight_action(flight, -1, FLIGHT_GRADIENTS);
    params->step_end(params); /* now all gradients are final */
    flight_action(flight, -1, FLIGHT_DECIDE);
    trainer_decide(t);
    flight_action(flight, -1, FLIGHT_UPDATE);
    time_last_updates(t);
    /* The update is always issued; if the decision is to skip, it writes nothing. */
    optimizer_step(&t->optimizer, dev, params, &t->state->decision);
    t->untimed_update = t->config->wall_clock_breakdown && t->optimizer.timed;
    trainer_record(t);
    flight_action(flight, -1, FLIGHT_BETWEEN);
    if (t->config->wall_clock_breakdown) {
        mark_phase(t);
        phases_add(&t->phases, &t->session, &t->session.step.schedule);
    }
    /* Skipped steps count, too. The position in the data and the schedule of saves depend on the
     * number of steps issued, so the host knows both without waiting for the device. */
    t->steps++;
    t->samples += t->constants.samples;
    t->position += t->constants.samples;
}

/* Runs a step of few micro-batches, then an evaluation. If the config has at least two
 * micro-batches, the step has two or more, so that one adds to the gradients of another. Training
 * will use the same data again, because a batch depends only on its position. */
static void warm_up_model(Trainer *t)
{
    Session *s = &t->session;
    ParamStore *params = s->params;
    Stage stage = gpt_stage(t->gpt);
    int64_t micros = warm_up_micros(s->grid.size, t->config->gradient_accumulation_steps);
    StepPlan few = step_plan_create(t->config, &s->layers, s->grid.size, s->grid.at, micros, false);
    params->step_begin(params, few.uses, few.n_uses);
    session_run(s, &stage, &few.schedule, NULL, NULL);
    params->step_end(params);
    step_plan_free(&few);
    if (t->val == NULL) return;
    gpt_set_stats(t->gpt, &t->state->eval_stats);
    evaluate_warm_up(s, t->gpt);
    gpt_set_stats(t->gpt, &t->state->stats);
}

void trainer_warm_up(Trainer *t)
{
    Device *dev = &t->session.dev;
    ParamStore *params = t->session.params;
    StepDecision nothing = {.apply = 0};
    Feed feed = t->feed;
    if (dev->backend->place == PLACE_HOST) return;
    StepState kept = trainer_state(t);
    warm_up_model(t);
    trainer_decide(t);
    /* The update runs with a decision to skip: its kernels are loaded, and no weight changes. */
    device_copy_words(dev, &t->state->decision, &nothing, sizeof nothing);
    optimizer_step(&t->optimizer, dev, params, &t->state->decision);
    /* Passes over a prompt and over a single token need matrix products of other shapes than steps
     * do. */
    free(trainer_sample(t, t->config->eval.sample_prompt, 1));
    params->step_begin(params, NULL, 0);
    if (t->decoder && decoder_room(t->decoder) > 0) decoder_feed(t->decoder, &(int32_t){0}, 1);
    params->step_end(params);
    /* trainer_decide has advanced the state, which is restored here. It has also cleared the sums.
     * The gradients can stay, because the first step overwrites them. */
    device_copy_words(dev, &t->state->state, &kept, sizeof kept);
    device_synchronize(dev);
    t->feed.seconds = feed.seconds;
    t->feed.target_bytes = feed.target_bytes;
}

void trainer_set_state(Trainer *t, StepState state)
{
    /* The loss seed depends on this config's batch size, so it is computed here and not taken from
     * the checkpoint. */
    state.loss_seed = state.loss_scale / t->constants.nominal_targets;
    device_copy_words(&t->session.dev, &t->state->state, &state, sizeof state);
    device_synchronize(&t->session.dev);
    t->steps = t->steps_read = state.steps;
    t->untimed_update = false;
    t->samples = state.samples;
    t->position = state.samples + state.data_offset;
}

StepState trainer_state(Trainer *t)
{
    StepState state;
    device_copy_words(&t->session.dev, &state, &t->state->state, sizeof state);
    device_synchronize(&t->session.dev);
    return state;
}
