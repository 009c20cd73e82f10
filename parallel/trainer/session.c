/* session.c -- builds the model on an open device, with its store and grid, and allocates them.
 * session_device.c opens the device. See session.h. */
#include "parallel/trainer/session.h"

#include "model/core/check.h"
#include "model/core/recorder.h"
#include "model/kernels/ops.h"
#include "model/param/init.h"
#include "parallel/checkpoint/source.h"
#include "parallel/grid/control.h"
#include "parallel/grid/tp.h"
#include "parallel/pipeline/split.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool session_connects(const Session *s)
{
    return s->gpus == GPUS_EACH;
}

/* Returns whether the devices are to be connected by NCCL. In a counted world they are not, because
 * there are no other ranks. */
static bool uses_nccl(const Session *s)
{
    return session_connects(s) && !s->counted;
}

static Grid open_grid(const Config *config, Comm *world)
{
    if (world == NULL) return grid_single();
    GridPlace size = config_grid(config, world->size);
    GridGroups groups = {.kv = (int)config->model.num_key_value_heads,
                         .tied = config->model.tie_word_embeddings,
                         .shard = config_shard(config, size.dp)};
    return grid_open(world, size, &groups);
}

/* Returns the cost of row `row` of the table of layers. */
static LayerCost layer_cost(const Config *config, const GptLayers *m, const ParamTable *table,
                            int row)
{
    LayerCost cost = {.flops = (int64_t)gpt_layer_flops(&m->whole, config->data.seq_length, row)};
    for (int u = 0; u < m->row[row].n_units; u++) {
        const Unit *unit = &table->unit[m->row[row].unit[u]];
        for (int p = unit->first; p < unit->first + unit->count; p++)
            cost.parameters += param_count(&table->param[p]);
    }
    return cost;
}

int *session_borders(const Config *config, int runs)
{
    const IntegerList *split = &config->parallel.pipeline_split;
    GptShape whole = gpt_shape(config, (int)config->parallel.tensor);
    int *border = must_calloc((size_t)runs + 1, sizeof *border);
    if (split->count > 0) {
        pipeline_split_blocks(split->item, runs, border);
        return border;
    }
    GptLayers layers;
    ParamTable table = {0};
    gpt_layers_build(&layers, &table, &whole, &LAYERS_WHOLE);
    LayerCost *cost = must_calloc((size_t)layers.n_rows, sizeof *cost);
    for (int r = 0; r < layers.n_rows; r++)
        cost[r] = layer_cost(config, &layers, &table, r);
    pipeline_split(cost, layers.n_rows, runs, config->pipeline.partition, border);
    free(cost);
    gpt_layers_free(&layers);
    param_table_free(&table);
    return border;
}

/* Computes the room for all schedules that this session may run: steps and evaluations. */
static void make_room(Session *s, bool gradients)
{
    const Config *c = s->config;
    GridPlace size = s->grid.size, at = s->grid.at;
    int chunks = s->layers.n_chunks;
    if (gradients) {
        s->step = step_plan_create(c, &s->layers, size, at, c->gradient_accumulation_steps, false);
        /* The room for a step is also enough for the warm-up and for a dry run. */
        step_room_include(&s->room, chunks, &s->step.schedule);
    }
    StepPlan evaluation = step_plan_create(c, &s->layers, size, at, widest_evaluation(size), true);
    step_room_include(&s->room, chunks, &evaluation.schedule);
    step_plan_free(&evaluation);
}

void session_build(Session *s, const Config *config, Comm *world, bool gradients)
{
    ZeroOptions options = zero_options(config, gradients);
    s->config = config;
    s->world = world;
    s->grid = open_grid(config, world);
    s->tp = (Region){0};
    GptShape shape = gpt_shape(config, s->grid.size.tp);
    int stages = s->grid.size.pp, chunks = stages > 1 ? (int)config->parallel.pipeline_chunks : 1;
    int *border = stages > 1 ? session_borders(config, stages * chunks) : NULL;
    LayersPart part = {.size = s->grid.size,
                       .at = s->grid.at,
                       .sequence_parallel = config->parallel.sequence_parallel,
                       .chunks = chunks,
                       .border = border};
    gpt_layers_build(&s->layers, &s->table, &shape, &part);
    free(border);
    make_room(s, gradients);
    options.uses = s->step.uses;
    options.n_uses = s->step.n_uses;
    s->store = zero_create(&s->table, &s->grid, &options);
    s->params = zero_params(s->store);
}

/* Creates the flight recorder. From here on it records the calls of the device, of the world and of
 * groups that are made from the world. */
static void open_flight(Session *s, Comm *world)
{
    s->flight = flight_create();
    flight_attach(s->flight, &s->dev);
    if (world) comm_flight(world, s->flight);
}

bool session_open(Session *s, const Config *config, Comm *world, bool gradients, char *err,
                  size_t n)
{
    *s = (Session){0};
    bool opened = session_open_device(&s->dev, config, world, err, n);
    /* All ranks must take part in what follows, so no rank begins it unless all have opened their
     * devices. */
    bool good = world ? control_agree(world, opened, err, n) : opened;
    if (!good) {
        if (opened) device_close(&s->dev);
        *s = (Session){0};
        return false;
    }
    if (world) s->gpus = gpus_agree(world, &s->dev);
    if (gradients) open_flight(s, world);
    session_build(s, config, world, gradients);
    return true;
}

void session_open_counted(Session *s, const Config *config, Comm *world, const CountedFacts *facts,
                          bool gradients)
{
    *s = (Session){.counted = true};
    device_counted_open(&s->dev, facts);
    /* Set as on the real device that the config asks for. */
    s->dev.attention_sums_biases = config->cuda.attention == ATTENTION_HOPPER;
    if (world->size > 1 && s->dev.backend->place == PLACE_DEVICE) s->gpus = GPUS_EACH;
    session_build(s, config, world, gradients);
}

/* Opens the connection between stages for micro-batches of the config's size. */
static void open_pipeline(Session *s)
{
    const Config *c = s->config;
    const GptShape *shape = &s->layers.shape;
    int64_t rows = c->train_micro_batch_size_per_gpu * c->data.seq_length;
    s->pipeline = pipeline_create(&s->dev, &s->grid.pp, s->room.buffers, shape->dtype,
                                  shape_stream_rows(shape, rows), shape->C);
}

void session_allocate(Session *s)
{
    const Config *c = s->config;
    GridNccl nccl = grid_nccl(c);
    device_warn(&s->dev);
    if (uses_nccl(s)) grid_prepare(&s->grid, &s->dev, &nccl);
    zero_allocate(s->store, &s->dev);
    s->tp = tp_region_open(&s->grid.tp, &s->dev, s->config->parallel.sequence_parallel);
    s->uncut = s->tp;
    s->uncut.parts = 1;
    s->uncut.part = 0;
    if (s->grid.size.pp == 1) return;
    open_pipeline(s);
    relay_open(&s->stages, &s->dev, &s->grid.pp, s->layers.n_chunks);
    s->relay = relay_of(&s->stages);
}

void session_connect(Session *s)
{
    if (!uses_nccl(s)) return;
    device_synchronize(&s->dev);
    grid_connect(&s->grid, s->world);
    s->dev.fixed = true;
}

void session_meet(Session *s)
{
    if (!uses_nccl(s)) return;
    device_synchronize(&s->dev);
    comm_barrier(s->world);
    s->dev.fixed = false;
}

void session_shrink(Session *s, const Config *config)
{
    s->config = config;
    if (s->pipeline == NULL) return;
    pipeline_destroy(s->pipeline);
    open_pipeline(s);
}

void session_close(Session *s)
{
    if (s->params == NULL) return;
    tp_region_close(&s->tp);
    zero_destroy(s->store);
    pipeline_destroy(s->pipeline);
    relay_close(&s->stages);
    step_plan_free(&s->step);
    free(s->room.slots);
    gpt_layers_free(&s->layers);
    param_table_free(&s->table);
    grid_close(&s->grid);
    if (s->world) comm_flight(s->world, NULL);
    flight_detach(s->flight, &s->dev);
    if (s->dev.backend) device_close(&s->dev);
    flight_free(s->flight);
    *s = (Session){0};
}

void session_run(Session *s, const Stage *stage, const Schedule *schedule,
                 void (*after)(void *context), void *context)
{
    static const FlightAction action_of[] = {[ACT_FORWARD] = FLIGHT_FORWARD,
                                             [ACT_BACKWARD] = FLIGHT_BACKWARD,
                                             [ACT_EVALUATE] = FLIGHT_EVALUATE,
                                             [ACT_EXCHANGE] = FLIGHT_TRANSFERS};
    for (int64_t i = 0; i < schedule->n; i++) {
        const Action *action = &schedule->action[i];
        recorder_action(&s->dev, i);
        flight_action(s->flight, action->micro, action_of[action->kind]);
        pipeline_run(s->pipeline, stage, action, 1, schedule->transfer);
        if (after) after(context);
    }
    recorder_action(&s->dev, -1);
}

const Relay *session_relay(const Session *s)
{
    return s->grid.size.pp > 1 ? &s->relay : NULL;
}

CommSeconds session_comm_seconds(const Session *s)
{
    const Comm *of[GRID_COMMS];
    CommSeconds all = {0};
    grid_comms(&s->grid, of);
    for (int i = 0; i < GRID_COMMS; i++) {
        const CommCounts *c = comm_counts(of[i]);
        if (of[i]->size == 1) continue;
        if (of[i] == &s->grid.pp || of[i] == &s->grid.tie) {
            all.exchanges += c->seconds - c->waited;
            all.stages += c->waited;
        } else if (of[i] == &s->grid.tp) {
            all.tensor += c->seconds;
        } else {
            all.collectives += c->seconds;
        }
    }
    return all;
}

bool session_agree(Session *s, bool good, char *err, size_t n)
{
    return s->world ? control_agree(s->world, good, err, n) : good;
}

bool session_all_go_on(Session *s, bool go_on)
{
    return s->world ? control_max(s->world, !go_on) == 0 : go_on;
}

int64_t session_first(Session *s, int64_t value)
{
    if (s->world) control_share(s->world, &value, sizeof value);
    return value;
}

int64_t session_sum_over_data(Session *s, int64_t value)
{
    return control_sum(&s->grid.dp, value);
}

void session_init_weights(Session *s)
{
    param_init(&s->dev, s->params, (uint64_t)s->config->seed);
}

/* A parameter is contiguous in its unit, and a rank has at most one contiguous part of a unit. So
 * each parameter has at most one extent: one range of elements that this rank holds. */
void session_extents(Session *s, Purpose purpose, SessionExtent *out)
{
    const ParamTable *table = &s->table;
    int n = s->params->shards(s->params, purpose, NULL, 0);
    Shard *shard = must_calloc((size_t)n + 1, sizeof *shard);
    ParamExtent *found = must_calloc((size_t)table->n_params + 1, sizeof *found);
    s->params->shards(s->params, purpose, shard, n);
    memset(out, 0, (size_t)table->n_params * sizeof *out);
    for (int i = 0; i < n; i++) {
        int extents = param_extents(table, &s->grid.at, shard[i].unit, shard[i].offset,
                                    shard[i].count, found, table->n_params);
        for (int e = 0; e < extents; e++)
            out[found[e].param] = (SessionExtent){.extent = found[e], .shard = shard[i]};
    }
    free(found);
    free(shard);
}

void session_weights(Session *s, Purpose purpose, Piece *out)
{
    SessionExtent *extents = must_calloc((size_t)s->table.n_params, sizeof *extents);
    session_extents(s, purpose, extents);
    for (int p = 0; p < s->table.n_params; p++) {
        const Param *row = &s->table.param[p];
        const SessionExtent *e = &extents[p];
        out[p] = piece_of_row(row->name, row, row->dtype);
        if (e->extent.count > 0) piece_fill(&out[p], &e->extent, e->shard.weight, e->shard.offset);
    }
    free(extents);
}

bool session_take_weights(Session *s, CheckpointIo *io, WeightSource *source, Take *take,
                          const Piece *masters, char *err, size_t n)
{
    int count = s->table.n_params;
    Piece *weights = must_calloc((size_t)count, sizeof *weights),
          *none = must_calloc((size_t)count, sizeof *none);
    session_weights(s, PURPOSE_UPDATE, weights);
    bool good = take_fits(source, take, weights, count, err, n);
    good = session_agree(s, good, err, n) &&
           take_weights(io, source, take, weights, masters ? masters : none, count, err, n);
    free(none);
    free(weights);
    return good;
}

/* Loads the weights of a checkpoint that contains only weights. */
static bool read_alone(Session *s, CheckpointIo *io, Checkpoint *checkpoint, char *err, size_t n)
{
    Take take = {.from = checkpoint_folder(checkpoint), .same_ids = true};
    WeightSource *source = NULL;
    bool opened = checkpoint_source_open(checkpoint, &source, err, n);
    bool good = session_agree(s, opened, err, n) &&
                session_take_weights(s, io, source, &take, NULL, err, n);
    if (opened) source->close(source);
    return good;
}

bool session_read_weights(Session *s, CheckpointIo *io, Checkpoint *checkpoint, char *err, size_t n)
{
    if (checkpoint_weights_only(checkpoint)) return read_alone(s, io, checkpoint, err, n);
    Piece *weights = must_calloc((size_t)s->table.n_params, sizeof *weights);
    session_weights(s, PURPOSE_UPDATE, weights);
    bool ok =
        checkpoint_read(io, checkpoint, CHECKPOINT_WEIGHTS, weights, s->table.n_params, err, n);
    free(weights);
    return ok;
}

void session_publish_weights(Session *s)
{
    for (int u = 0; u < s->table.n_units; u++)
        s->params->publish(s->params, u, NULL);
}
