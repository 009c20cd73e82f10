/* optimizer.h -- the optimizer: its state for the weights that this rank owns, and the update of
 * these weights.
 *
 * State is kept in named slots (tensors as long as the weights): the optimizer's own slots, and a
 * master copy for weights in 16-bit storage, unless bf16 weights are rounded stochastically and
 * need none. Slots are flat tensors parallel to the store's shards. One op updates all shards, or
 * the shards of one unit. Step count, learning rate and clip factor come from the StepDecision on
 * the device.
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
 * slots are absent. The table of segments is absent if everything is rounded to nearest. */
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
    /* The same tensors, one entry per shard, in the form that the update's op takes. First come the
     * shards with slots on the device, in the order of units, then those with slots on the host. In
     * each place `on`, unit u has the ranges [first_range[on][u], first_range[on][u + 1]). */
    UpdateRange *range;
    int *first_range[SLOTS_PLACES];
    /* For states on the host, from optimizer_open on. */
    Device *dev, update; /* the device, and a view of it on its update stream */
    Event decided;       /* on the compute stream: the decision and all gradients are ready */
    Event *updated;      /* per unit, on the update stream: its shards on the host are updated */
    int last_updated;    /* the last unit to be updated that has states on the host; -1: none has */
    /* Events before and after all updates on that stream, for a stopwatch that sets `timed`. It
     * must do so before optimizer_open, or else a step creates the events. */
    bool timed;
    Event begun, ended;
} Optimizer;

/* Lays out the state and the tables of segments for the store's shards (PURPOSE_UPDATE); the shards
 * of a unit are adjacent. `device` is an arena over device memory; host[unit] is one over
 * page-locked host memory (device_host_alloc) for the slots of a unit, and `host` may be NULL if
 * none are there. With offload_optimizer.ratio below 1 the device keeps slots of at most 1 - ratio
 * of the bytes: going through the shards in the store's order, each one that still has room. If the
 * arenas only measure, their `used` is the only result, and init and step must not be called. Free
 * with optimizer_free in both cases, before the device is closed. */
void optimizer_plan(Optimizer *optimizer, const Config *config, ParamStore *store, Arena *device,
                    Arena *host);
void optimizer_free(Optimizer *optimizer);
/* The bytes that optimizer_plan takes: from the device's arena; the part of these for slots (the
 * others are for tables of segments); and from all of the host's arenas, which have only slots. */
typedef struct {
    size_t device, device_slots, host;
} OptimizerBytes;
/* Returns them, for the memory plan. The store need not be allocated. */
OptimizerBytes optimizer_bytes(const Config *config, ParamStore *store);
/* Sets bytes[0..table->n_units) to the bytes from the host's arenas, unit by unit, and returns the
 * same as optimizer_bytes. */
OptimizerBytes optimizer_bytes_of_units(const Config *config, ParamStore *store, size_t *bytes);

/* Creates, once, what an optimizer_step needs in addition to the state; optimizer_init does it,
 * too. After it, a step with a decision to skip may come before optimizer_init. `dev` must outlive
 * the optimizer. */
void optimizer_open(Optimizer *optimizer, Device *dev);
/* Initialises the state: moments are zero, masters are copies of the store's weights, and the
 * tables of segments are uploaded (the host waits for that). Call it once the weights are
 * initialised or read. */
void optimizer_init(Optimizer *optimizer, Device *dev);

/* Updates every shard according to `decision`, which is on the device; does nothing if it says
 * skip. Then publishes every unit in order, also units of which this rank has no shard. If the
 * store sends updated weights while later units are updated (publish_overlaps), each unit is
 * updated by its own op and published at once. The step's gradients must be complete on the compute
 * stream. Slots on the host, and weights and gradients of their shards, are in use on another
 * stream until the store's next acquire of the unit, or optimizer_await. */
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
 * the averages of AdamW and Adam with bf16.bf16_optimizer_states. */
DType optimizer_slot_dtype(const Config *config, DType storage, int slot);
/* Returns the state in `slot` that belongs to a shard of the store, listed for either purpose, as a
 * flat tensor. Returns NO_TENSOR if the optimizer has no such slot. */
Tensor optimizer_slot_of(const Optimizer *optimizer, const Shard *shard, int slot);

#endif
