/* optimizer.h -- the optimizer: its state for the weights that this rank owns, and the update of
 * these weights.
 *
 * State is kept in named slots: tensors with one element per element of the weights. AdamW and Adam
 * have two, the averages of gradients and of their squares; SGD with momentum has one. Weights in
 * 16-bit storage also have a slot for a master copy, except bf16 weights that are rounded
 * stochastically. Each shard of the store (a part of a parameter unit, store.h) has separate slots,
 * which are flat tensors. One op updates all shards, or the shards of one unit. Step count,
 * learning rate and clip factor come from the StepDecision on the device.
 *
 * With zero_optimization.offload_optimizer.device "cpu" slots are in page-locked host memory, which
 * the device's own kernels read and write. Shards with slots there are updated unit by unit on the
 * device's `update` stream, while the next forward pass begins with the units that have already
 * been updated. */
#ifndef OPTIM_OPTIMIZER_H
#define OPTIM_OPTIMIZER_H

#include "configs/config.h"
#include "model/param/store.h"
#include "optim/optimizer_rules.h"

/* Where the slots of a shard are. */
typedef enum { SLOTS_ON_DEVICE, SLOTS_ON_HOST, SLOTS_PLACES } SlotsPlace;

/* One shard and its state: flat tensors of shard.count elements (optimizer_slot_dtype); unused
 * slots are absent. rounding.segments is absent if everything is rounded to nearest. */
typedef struct {
    Shard shard;
    Tensor slot[SLOT_MAX];
    Rounding rounding;
    SlotsPlace on;
} OptimizerShard;

typedef struct {
    const OptimizerRule *rule;
    const ParamTable *table;
    GridPlace at;                              /* this rank's place in the grid */
    OptimizerConstants constants[GROUP_COUNT]; /* GROUP_NO_DECAY has weight_decay 0 */
    OptimizerShard *shard;
    int n_shards;
    int *first_shard; /* per unit: index of its first shard; n_shards if it has none here */
    /* The tensors of `shard`, one entry per shard, in the form that the update's op takes. First
     * come the shards with slots on the device, in the order of units, then those with slots on the
     * host. In each place `on`, unit u has the ranges [first_range[on][u], first_range[on][u +
     * 1]). */
    UpdateRange *range;
    int *first_range[SLOTS_PLACES];
    /* Used only if slots are on the host; valid after optimizer_open. */
    Device *dev, update; /* the device, and a view of it on its update stream */
    Event decided;       /* on the compute stream: the decision and all gradients are ready */
    Event *updated;      /* per unit, on the update stream: its shards on the host are updated */
    int last_updated;    /* the unit with slots on the host that is updated last; -1: none */
    /* `begun` and `ended` are events before and after all updates of a step on the update stream.
     * They are recorded if `timed` is set. It must be set before optimizer_open, or else a step
     * creates the events. */
    bool timed;
    Event begun, ended;
} Optimizer;

/* Lays out the state and the tables of segments (rounding.h) for the store's shards
 * (PURPOSE_UPDATE); the shards of a unit are adjacent. `device` is an arena over device memory;
 * host[unit] is one over page-locked host memory (device_host_alloc) for the slots of a unit, and
 * `host` may be NULL if no slots are on the host. With offload_optimizer.ratio below 1 the device
 * keeps some of the slots, at most the fraction 1 - ratio of all their bytes: shards are tried in
 * the store's order, and those that still fit are kept. If the arenas only measure, the bytes used
 * in them are the only result, and init and step must not be called. Free with optimizer_free in
 * both cases, before the device is closed. */
void optimizer_plan(Optimizer *optimizer, const Config *config, ParamStore *store, Arena *device,
                    Arena *host);
void optimizer_free(Optimizer *optimizer);
/* The bytes that optimizer_plan takes. `device`: from the device's arena, for slots and tables of
 * segments; `device_slots`: the part of these for slots; `host`: from all of the host's arenas,
 * which have only slots. */
typedef struct {
    size_t device, device_slots, host;
} OptimizerBytes;
/* Returns these sizes, for the memory plan. The store need not be allocated. */
OptimizerBytes optimizer_bytes(const Config *config, ParamStore *store);
/* Does the same as optimizer_bytes, and sets bytes[u] to the bytes from the host's arena of unit u
 * (table->n_units entries). */
OptimizerBytes optimizer_bytes_of_units(const Config *config, ParamStore *store, size_t *bytes);

/* Creates the events that optimizer_step needs; a second call does nothing. optimizer_init calls
 * it. Between the two, optimizer_step may be called only with a decision to skip the update. `dev`
 * must outlive the optimizer. */
void optimizer_open(Optimizer *optimizer, Device *dev);
/* Initialises the state: moments are zero, masters are copies of the store's weights, and the
 * tables of segments are uploaded (the host waits for that). Call it once the weights are
 * initialised or read. */
void optimizer_init(Optimizer *optimizer, Device *dev);

/* Updates every shard according to `decision`, which is on the device; does nothing if it says
 * skip. Then publishes every unit in order, also units of which this rank has no shard. If the
 * store sends updated weights while later units are updated (publish_overlaps), each unit is
 * updated by its own op and published at once. The step's gradients must be complete on the compute
 * stream. On return, slots on the host, and the weights and gradients of their shards, are still in
 * use on the update stream. This ends with the store's next acquire of the unit, or with
 * optimizer_await. */
void optimizer_step(Optimizer *optimizer, Device *dev, ParamStore *store,
                    const StepDecision *decision);

/* Makes the compute stream wait for all updates that have been issued. Call it before reading slots
 * or shards without an acquire. */
void optimizer_await(Optimizer *optimizer);

/* Returns the seconds of the last step's updates on the update stream, if `timed` was set before
 * it; the host waits for them. Returns 0 if there are none. */
double optimizer_seconds(Optimizer *optimizer);

/* Returns whether parameters of this storage type have state in `slot`. The answer is the same on
 * all ranks. */
bool optimizer_has_slot(const Config *config, DType storage, int slot);
/* Returns the type of `slot` for parameters of this storage type: the compute dtype, or bf16 for
 * AdamW's and Adam's averages of gradients and of their squares with bf16.bf16_optimizer_states. */
DType optimizer_slot_dtype(const Config *config, DType storage, int slot);
/* Returns the state in `slot` that belongs to a shard of the store, for PURPOSE_COUNT or
 * PURPOSE_UPDATE, as a flat tensor. Returns NO_TENSOR if the optimizer has no such slot. */
Tensor optimizer_slot_of(const Optimizer *optimizer, const Shard *shard, int slot);

#endif
