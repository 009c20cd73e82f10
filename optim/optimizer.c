/* optimizer.c -- implements optimizer.h: lays out the optimizer's state, initialises it, and
 * updates the weights. */
#include "optim/optimizer.h"

#include "model/core/check.h"
#include "optim/rounding.h"

#include <stdlib.h>

/* Returns whether weights of this type are rounded stochastically and have no master copy. */
static bool rounds_stochastically(const Config *config, DType storage)
{
    return storage == BF16 && config->bf16.bf16_master_weights_and_grads;
}

/* Returns whether weights of this type have a master copy in the type in which updates are
 * computed. */
static bool keeps_masters(const Config *config, DType storage)
{
    return storage != dtype_compute(storage) && !rounds_stochastically(config, storage);
}

/* Returns whether the averages of gradients and of their squares are kept in bf16 for weights of
 * this type. */
static bool keeps_bf16_moments(const Config *config, DType storage)
{
    return storage == BF16 && config->bf16.bf16_optimizer_states &&
           optimizer_rule(config->optimizer.type)->op == OP_adamw;
}

DType optimizer_slot_dtype(const Config *config, DType storage, int slot)
{
    bool moment = slot >= SLOT_FIRST && keeps_bf16_moments(config, storage);
    return moment ? BF16 : dtype_compute(storage);
}

bool optimizer_has_slot(const Config *config, DType storage, int slot)
{
    int own = optimizer_rule_slots(optimizer_rule(config->optimizer.type), config);
    if (slot == SLOT_MASTER) return keeps_masters(config, storage);
    return slot >= SLOT_FIRST && slot < SLOT_FIRST + own;
}

/* Lays out the slots and the table of segments (rounding.h) of own->shard; the shard's tensors need
 * not be allocated yet. */
static void plan_shard(OptimizerShard *own, const Config *config, ParamStore *store, Arena *device,
                       Arena *host)
{
    const ParamTable *table = store->table;
    const Shard *shard = &own->shard;
    DType storage = table->unit[shard->unit].dtype;
    Arena *arena = own->on == SLOTS_ON_HOST ? &host[shard->unit] : device;
    for (int slot = 0; slot < SLOT_MAX; slot++)
        if (optimizer_has_slot(config, storage, slot))
            own->slot[slot] = arena_tensor(arena, optimizer_slot_dtype(config, storage, slot), 1,
                                           shard->count, 0, 0);
    if (!rounds_stochastically(config, storage) && !keeps_bf16_moments(config, storage)) return;
    int segments =
        rounding_segments(table, &store->at, shard->unit, shard->offset, shard->count, NULL, 0);
    own->rounding.seed = (uint64_t)config->seed;
    own->rounding.segments = arena_tensor(device, I64, 2, segments, SEGMENT_WORDS, 0);
}

/* Returns the bytes of a shard's slots. */
static double slot_bytes(const Config *config, DType storage, const Shard *shard)
{
    double bytes = 0;
    for (int slot = 0; slot < SLOT_MAX; slot++)
        if (optimizer_has_slot(config, storage, slot))
            bytes += (double)shard->count *
                     (double)dtype_size(optimizer_slot_dtype(config, storage, slot));
    return bytes;
}

/* Returns the i-th unit in the order of updates. */
static int unit_in_turn(const ParamStore *store, int i)
{
    return store->order ? store->order[i] : i;
}

/* Decides whether each shard's slots are on the device or on the host. Shards are tried in the
 * order of updates, which is the order in which steps use the units. The slots of a shard stay on
 * the device if they still fit into the bytes that offload_optimizer.ratio leaves there. So the
 * units that a step uses first are updated without access to the host's memory, and their forward
 * pass runs while later units are updated. */
static void choose_places(Optimizer *optimizer, const Config *config, const ParamStore *store)
{
    const OffloadConfig *offload = &config->zero_optimization.offload_optimizer;
    const Unit *unit = optimizer->table->unit;
    double room = 0;
    if (offload->device != OFFLOAD_CPU) return;
    for (int i = 0; i < optimizer->n_shards; i++) {
        const Shard *shard = &optimizer->shard[i].shard;
        room += (1.0 - offload->ratio) * slot_bytes(config, unit[shard->unit].dtype, shard);
    }
    for (int i = 0; i < optimizer->table->n_units; i++) {
        int u = unit_in_turn(store, i), at = optimizer->first_shard[u];
        for (; at < optimizer->n_shards && optimizer->shard[at].shard.unit == u; at++) {
            OptimizerShard *own = &optimizer->shard[at];
            double bytes = slot_bytes(config, unit[u].dtype, &own->shard);
            own->on = bytes > room ? SLOTS_ON_HOST : SLOTS_ON_DEVICE;
            if (bytes > room)
                optimizer->last_updated = u;
            else
                room -= bytes;
        }
    }
}

/* Lists the ranges of the shards with slots in the place `on`, in optimizer->range from index `n`
 * on. Returns the index after the last. */
static int list_ranges(Optimizer *optimizer, SlotsPlace on, int n)
{
    int units = optimizer->table->n_units, i = 0;
    int *first = optimizer->first_range[on] = must_calloc((size_t)units + 1, sizeof *first);
    for (int u = 0; u < units; u++) {
        first[u] = n;
        for (; i < optimizer->n_shards && optimizer->shard[i].shard.unit == u; i++) {
            const OptimizerShard *own = &optimizer->shard[i];
            if (own->on != on) continue;
            optimizer->range[n++] = (UpdateRange){
                .weight = own->shard.weight,
                .grad = own->shard.grad,
                .master = own->slot[SLOT_MASTER],
                .slot = {own->slot[SLOT_FIRST], own->slot[SLOT_FIRST + 1]},
                .rounding = own->rounding,
                .group = own->shard.group,
            };
        }
    }
    return first[units] = n;
}

void optimizer_plan(Optimizer *optimizer, const Config *config, ParamStore *store, Arena *device,
                    Arena *host)
{
    const OptimizerRule *rule = optimizer_rule(config->optimizer.type);
    *optimizer = (Optimizer){
        .rule = rule,
        .table = store->table,
        .at = store->at,
        .constants = {[GROUP_DECAY] =
                          rule->constants(config, config->optimizer.params.weight_decay),
                      [GROUP_NO_DECAY] = rule->constants(config, 0.0)},
        .n_shards = store->shards(store, PURPOSE_UPDATE, NULL, 0),
        .last_updated = -1,
    };
    size_t n = (size_t)optimizer->n_shards, units = (size_t)store->table->n_units;
    Shard *listed = must_calloc(n, sizeof *listed);
    store->shards(store, PURPOSE_UPDATE, listed, optimizer->n_shards);
    optimizer->shard = must_calloc(n, sizeof *optimizer->shard);
    /* The store lists its shards unit by unit, so the shards of a unit are adjacent. A unit without
     * a shard on this rank keeps the value n_shards, so that a loop over its shards ends at
     * once. */
    optimizer->range = must_calloc(n, sizeof *optimizer->range);
    optimizer->updated = must_calloc(units, sizeof *optimizer->updated);
    optimizer->first_shard = must_calloc(units, sizeof(int));
    for (int u = 0; u < store->table->n_units; u++)
        optimizer->first_shard[u] = optimizer->n_shards;
    for (int i = 0; i < optimizer->n_shards; i++) {
        int *first = &optimizer->first_shard[listed[i].unit];
        if (i < *first) *first = i;
        optimizer->shard[i].shard = listed[i];
    }
    free(listed);
    choose_places(optimizer, config, store);
    for (int i = 0; i < optimizer->n_shards; i++)
        plan_shard(&optimizer->shard[i], config, store, device, host);
    list_ranges(optimizer, SLOTS_ON_HOST, list_ranges(optimizer, SLOTS_ON_DEVICE, 0));
}

/* Returns whether the slots of any of the unit's shards are on the host. */
static bool has_updates(const Optimizer *optimizer, int unit)
{
    const int *first = optimizer->first_range[SLOTS_ON_HOST];
    return first[unit] < first[unit + 1];
}

void optimizer_free(Optimizer *optimizer)
{
    bool events = optimizer->dev != NULL && optimizer->last_updated >= 0;
    for (int u = 0; events && u < optimizer->table->n_units; u++)
        if (has_updates(optimizer, u)) device_event_destroy(optimizer->dev, &optimizer->updated[u]);
    if (events) device_event_destroy(optimizer->dev, &optimizer->decided);
    if (events) device_event_destroy(optimizer->dev, &optimizer->begun);
    if (events) device_event_destroy(optimizer->dev, &optimizer->ended);
    free(optimizer->shard);
    free(optimizer->range);
    free(optimizer->first_shard);
    free(optimizer->first_range[SLOTS_ON_DEVICE]);
    free(optimizer->first_range[SLOTS_ON_HOST]);
    free(optimizer->updated);
    *optimizer = (Optimizer){0};
}

OptimizerBytes optimizer_bytes_of_units(const Config *config, ParamStore *store, size_t *bytes)
{
    int units = store->table->n_units;
    Optimizer measured;
    Arena device = arena_measuring(), *host = must_calloc((size_t)units, sizeof *host);
    optimizer_plan(&measured, config, store, &device, host);
    OptimizerBytes sum = {.device = device.peak};
    for (int i = 0; i < measured.n_shards; i++) {
        const OptimizerShard *own = &measured.shard[i];
        DType storage = store->table->unit[own->shard.unit].dtype;
        if (own->on == SLOTS_ON_DEVICE)
            sum.device_slots += (size_t)slot_bytes(config, storage, &own->shard);
    }
    optimizer_free(&measured);
    for (int u = 0; u < units; u++) {
        bytes[u] = host[u].peak;
        sum.host += bytes[u];
    }
    free(host);
    return sum;
}

OptimizerBytes optimizer_bytes(const Config *config, ParamStore *store)
{
    size_t *bytes = must_calloc((size_t)store->table->n_units, sizeof *bytes);
    OptimizerBytes sum = optimizer_bytes_of_units(config, store, bytes);
    free(bytes);
    return sum;
}

/* Copies the shard's table of segments to its tensor on the device. */
static void upload_segments(const Optimizer *optimizer, const OptimizerShard *own, Device *dev)
{
    const Shard *shard = &own->shard;
    Tensor there = own->rounding.segments;
    if (!tensor_present(there)) return;
    int n = (int)tensor_rows(there);
    Segment *segment = must_calloc((size_t)n, sizeof *segment);
    rounding_segments(optimizer->table, &optimizer->at, shard->unit, shard->offset, shard->count,
                      segment, n);
    device_copy(dev, there, tensor_2d(segment, I64, n, SEGMENT_WORDS));
    device_synchronize(dev);
    free(segment);
}

void optimizer_open(Optimizer *optimizer, Device *dev)
{
    if (optimizer->dev) return;
    optimizer->dev = dev;
    optimizer->update = device_on(dev, dev->update);
    /* The first record of an event creates it, which no step may do. */
    if (optimizer->last_updated >= 0) device_event_record(dev, &optimizer->decided);
    if (optimizer->last_updated >= 0 && optimizer->timed) {
        device_event_record_timed(&optimizer->update, &optimizer->begun);
        device_event_record_timed(&optimizer->update, &optimizer->ended);
    }
    for (int u = 0; u < optimizer->table->n_units; u++)
        if (has_updates(optimizer, u))
            device_event_record(&optimizer->update, &optimizer->updated[u]);
}

void optimizer_init(Optimizer *optimizer, Device *dev)
{
    optimizer_open(optimizer, dev);
    for (int i = 0; i < optimizer->n_shards; i++) {
        OptimizerShard *own = &optimizer->shard[i];
        upload_segments(optimizer, own, dev);
        for (int slot = 0; slot < SLOT_MAX; slot++) {
            if (!tensor_present(own->slot[slot])) continue;
            /* The master copy starts as an exact copy of the weight; the other slots are averages
             * and start at zero. */
            if (slot == SLOT_MASTER) {
                op_copy(dev, own->slot[slot], own->shard.weight);
            } else {
                op_fill(dev, own->slot[slot], 0.0);
            }
        }
    }
}

/* Returns how many of the ranges [first, end), from the first one on, have weights of one type, so
 * that one op can update them. */
static int alike(const Optimizer *optimizer, int first, int end)
{
    DType dtype = optimizer->range[first].weight.dtype;
    int n = 1;
    while (first + n < end && optimizer->range[first + n].weight.dtype == dtype)
        n++;
    return n;
}

/* Updates the ranges of units [from, to) whose slots are in the place `on`. */
static void update_units(const Optimizer *optimizer, SlotsPlace on, int from, int to, Device *dev,
                         const StepDecision *decision)
{
    int end = optimizer->first_range[on][to];
    for (int first = optimizer->first_range[on][from], n; first < end; first += n) {
        n = alike(optimizer, first, end);
        OptimizerUpdate update = {.range = optimizer->range + first,
                                  .n = n,
                                  .constants = optimizer->constants,
                                  .decision = decision};
        optimizer->rule->update(dev, &update);
    }
}

/* Updates the unit's shards whose slots are on the host. Returns the event that follows the update,
 * or NULL if there are no such shards. */
static Event *update_on_host(Optimizer *optimizer, int unit, const StepDecision *decision)
{
    if (!has_updates(optimizer, unit)) return NULL;
    update_units(optimizer, SLOTS_ON_HOST, unit, unit + 1, &optimizer->update, decision);
    device_event_record(&optimizer->update, &optimizer->updated[unit]);
    return &optimizer->updated[unit];
}

void optimizer_step(Optimizer *optimizer, Device *dev, ParamStore *store,
                    const StepDecision *decision)
{
    int units = optimizer->table->n_units;
    bool timed = optimizer->timed && optimizer->last_updated >= 0;
    if (optimizer->last_updated >= 0) {
        device_event_record(dev, &optimizer->decided);
        device_event_wait(&optimizer->update, &optimizer->decided);
    }
    if (timed) device_event_record_timed(&optimizer->update, &optimizer->begun);
    if (!store->publish_overlaps) update_units(optimizer, SLOTS_ON_DEVICE, 0, units, dev, decision);
    for (int i = 0; i < units; i++) {
        int u = unit_in_turn(store, i);
        if (store->publish_overlaps)
            update_units(optimizer, SLOTS_ON_DEVICE, u, u + 1, dev, decision);
        store->publish(store, u, update_on_host(optimizer, u, decision));
    }
    if (timed) device_event_record_timed(&optimizer->update, &optimizer->ended);
}

double optimizer_seconds(Optimizer *optimizer)
{
    if (!optimizer->timed || optimizer->last_updated < 0) return 0;
    return device_event_seconds(optimizer->dev, &optimizer->begun, &optimizer->ended);
}

void optimizer_await(Optimizer *optimizer)
{
    /* The update stream executes in order, so the last event comes after all updates. */
    if (optimizer->last_updated >= 0)
        device_event_wait(optimizer->dev, &optimizer->updated[optimizer->last_updated]);
}

Tensor optimizer_slot_of(const Optimizer *optimizer, const Shard *shard, int slot)
{
    /* If `shard` is a shard for PURPOSE_COUNT, it is inside one of the optimizer's own shards
     * (PURPOSE_UPDATE), because both are split at the borders of ranges. */
    for (int i = optimizer->first_shard[shard->unit]; i < optimizer->n_shards; i++) {
        const Shard *own = &optimizer->shard[i].shard;
        int64_t before = shard->offset - own->offset;
        if (own->unit != shard->unit) break;
        if (before < 0 || before + shard->count > own->count) continue;
        Tensor flat = optimizer->shard[i].slot[slot];
        return tensor_present(flat) ? tensor_slice_rows(flat, before, shard->count) : NO_TENSOR;
    }
    fail(EXIT_BUG, "element %lld of unit %d is updated by nobody here", (long long)shard->offset,
         shard->unit);
}
