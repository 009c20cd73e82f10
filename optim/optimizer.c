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

bool optimizer_has_slot(const Config *config, DType storage, int slot)
{
    int own = optimizer_rule_slots(optimizer_rule(config->optimizer.type), config);
    if (slot == SLOT_MASTER) return keeps_masters(config, storage);
    return slot >= SLOT_FIRST && slot < SLOT_FIRST + own;
}

/* Lays out slots and segments for own->shard; the shard's tensors need not be allocated yet. */
static void plan_shard(OptimizerShard *own, const Config *config, ParamStore *store, Arena *device)
{
    const ParamTable *table = store->table;
    const Shard *shard = &own->shard;
    DType storage = table->unit[shard->unit].dtype;
    for (int slot = 0; slot < SLOT_MAX; slot++)
        if (optimizer_has_slot(config, storage, slot))
            own->slot[slot] = arena_tensor(device, dtype_compute(storage), 1, shard->count, 0, 0);
    if (!rounds_stochastically(config, storage)) return;
    int segments =
        rounding_segments(table, &store->at, shard->unit, shard->offset, shard->count, NULL, 0);
    own->rounding.seed = (uint64_t)config->seed;
    own->rounding.segments = arena_tensor(device, I64, 2, segments, SEGMENT_WORDS, 0);
}

void optimizer_plan(Optimizer *optimizer, const Config *config, ParamStore *store, Arena *device,
                    Arena *host)
{
    (void)host; /* all state is on the device */
    const OptimizerRule *rule = optimizer_rule(config->optimizer.type);
    *optimizer = (Optimizer){
        .rule = rule,
        .table = store->table,
        .at = store->at,
        .constants = {[GROUP_DECAY] =
                          rule->constants(config, config->optimizer.params.weight_decay),
                      [GROUP_NO_DECAY] = rule->constants(config, 0.0)},
        .n_shards = store->shards(store, PURPOSE_UPDATE, NULL, 0),
    };
    size_t n = (size_t)optimizer->n_shards;
    Shard *listed = must_calloc(n, sizeof *listed);
    store->shards(store, PURPOSE_UPDATE, listed, optimizer->n_shards);
    optimizer->shard = must_calloc(n, sizeof *optimizer->shard);
    /* The store lists its shards unit by unit, so the shards of a unit are adjacent. A unit without
     * a shard on this rank keeps the value n_shards, so that a loop over its shards ends at
     * once. */
    optimizer->range = must_calloc(n, sizeof *optimizer->range);
    optimizer->first_shard = must_calloc((size_t)store->table->n_units, sizeof(int));
    for (int u = 0; u < store->table->n_units; u++)
        optimizer->first_shard[u] = optimizer->n_shards;
    for (int i = 0; i < optimizer->n_shards; i++) {
        OptimizerShard *own = &optimizer->shard[i];
        int *first = &optimizer->first_shard[listed[i].unit];
        if (i < *first) *first = i;
        own->shard = listed[i];
        plan_shard(own, config, store, device);
        optimizer->range[i] = (UpdateRange){
            .weight = own->shard.weight,
            .grad = own->shard.grad,
            .master = own->slot[SLOT_MASTER],
            .slot = {own->slot[SLOT_FIRST], own->slot[SLOT_FIRST + 1]},
            .rounding = own->rounding,
            .group = own->shard.group,
        };
    }
    free(listed);
}

void optimizer_free(Optimizer *optimizer)
{
    free(optimizer->shard);
    free(optimizer->range);
    free(optimizer->first_shard);
    *optimizer = (Optimizer){0};
}

OptimizerBytes optimizer_bytes(const Config *config, ParamStore *store)
{
    Optimizer measured;
    Arena device = arena_measuring(), host = arena_measuring();
    optimizer_plan(&measured, config, store, &device, &host);
    optimizer_free(&measured);
    return (OptimizerBytes){.device = device.peak, .host = host.peak};
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

void optimizer_init(Optimizer *optimizer, Device *dev)
{
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

/* Returns how many shards from `first` on, but before `end`, have weights of one type, so that one
 * op can update them. */
static int alike(const Optimizer *optimizer, int first, int end)
{
    DType dtype = optimizer->range[first].weight.dtype;
    int n = 1;
    while (first + n < end && optimizer->range[first + n].weight.dtype == dtype)
        n++;
    return n;
}

/* Updates the shards `first` to `end`. */
static void update_shards(Optimizer *optimizer, int first, int end, Device *dev,
                          const StepDecision *decision)
{
    for (int n; first < end; first += n) {
        n = alike(optimizer, first, end);
        OptimizerUpdate update = {.range = optimizer->range + first,
                                  .n = n,
                                  .constants = optimizer->constants,
                                  .decision = decision};
        optimizer->rule->update(dev, &update);
    }
}

void optimizer_step(Optimizer *optimizer, Device *dev, ParamStore *store,
                    const StepDecision *decision)
{
    int units = optimizer->table->n_units;
    for (int u = 0, i = 0, first; u < units;) {
        int part = store->publish_overlaps ? u + 1 : units; /* the part ends before this unit */
        for (first = i; i < optimizer->n_shards && optimizer->shard[i].shard.unit < part; i++)
            ;
        update_shards(optimizer, first, i, dev, decision);
        for (; u < part; u++)
            store->publish(store, u, NULL);
    }
}

Tensor optimizer_slot_of(const Optimizer *optimizer, const Shard *shard, int slot)
{
    /* A shard that is counted is always inside one that is updated, because both are split at the
     * borders of ranges. */
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
