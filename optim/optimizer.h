/* optimizer.h -- the optimizer: its state for the weights that this rank owns, and the update of
 * these weights.
 *
 * State is kept in named slots (tensors as long as the weights): the optimizer's own slots, and a
 * master copy for weights in 16-bit storage, unless bf16 weights are rounded stochastically and
 * need none. Slots are flat tensors parallel to the store's shards. One op updates all shards, or
 * those of a unit. All state comes from one arena. Step count, learning rate and clip factor
 * come from the StepDecision on the device. */
#ifndef OPTIM_OPTIMIZER_H
#define OPTIM_OPTIMIZER_H

#include "configs/config.h"
#include "model/param/store.h"
#include "optim/optimizer_rules.h"

/* One shard and its state: flat tensors of shard.count elements in the compute dtype; unused slots
 * are absent. The table of segments is absent if weights are rounded to nearest. */
typedef struct {
    Shard shard;
    Tensor slot[SLOT_MAX];
    Rounding rounding;
} OptimizerShard;

typedef struct {
    const OptimizerRule *rule;
    const ParamTable *table;
    GridPlace at;                              /* this rank's place in the grid */
    OptimizerConstants constants[GROUP_COUNT]; /* GROUP_NO_DECAY has weight_decay 0 */
    OptimizerShard *shard;
    UpdateRange *range; /* per shard: the same tensors as the update's op takes them */
    int n_shards;
    int *first_shard; /* per unit: index of its first shard; n_shards if it has none here */
} Optimizer;

/* Lays out the state and the tables of segments for the store's shards (PURPOSE_UPDATE); the shards
 * of a unit are adjacent. `device` is an arena over device memory, and `host` one over page-locked
 * host memory (device_host_alloc), which may be NULL if no state is on the host. If the arenas only
 * measure, their `used` is the only result, and init and step must not be called. Free with
 * optimizer_free in both cases. */
void optimizer_plan(Optimizer *optimizer, const Config *config, ParamStore *store, Arena *device,
                    Arena *host);
void optimizer_free(Optimizer *optimizer);
/* The bytes that optimizer_plan takes from its two arenas. */
typedef struct {
    size_t device, host;
} OptimizerBytes;
/* Returns them, for the memory plan. The store need not be allocated. */
OptimizerBytes optimizer_bytes(const Config *config, ParamStore *store);

/* Initialises the state: moments are zero, masters are copies of the store's weights, and the
 * tables of segments are uploaded (the host waits for that). Call it once the weights are
 * initialised or read. */
void optimizer_init(Optimizer *optimizer, Device *dev);

/* Updates every shard according to `decision`, which is on the device; does nothing if it says
 * skip. Then publishes every unit in order, also units of which this rank has no shard. If the
 * store sends updated weights while later units are updated (publish_overlaps), each unit is
 * updated by an op of its own and published at once. The step's gradients must be complete. */
void optimizer_step(Optimizer *optimizer, Device *dev, ParamStore *store,
                    const StepDecision *decision);

/* Returns whether parameters of this storage type have state in `slot`. The answer is the same on
 * all ranks. */
bool optimizer_has_slot(const Config *config, DType storage, int slot);
/* Returns the state in `slot` that belongs to a shard of the store, listed for either purpose, as a
 * flat tensor. Returns NO_TENSOR if the optimizer has no such slot. */
Tensor optimizer_slot_of(const Optimizer *optimizer, const Shard *shard, int slot);

#endif
