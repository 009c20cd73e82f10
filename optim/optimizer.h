/* optimizer.h -- one optimizer over what this rank owns of the weights.
 *
 * State is a set of named slots per parameter: the master weights of 16-bit storage (unless bf16
 * weights are their own and are rounded stochastically), and those of the optimizer's row. Slots
 * are flat buffers beside the store's shards, so one pass over a shard updates all its
 * parameters. All of it comes from one arena; step count, lr and clipping come from the device's
 * StepDecision. */
#ifndef OPTIM_OPTIMIZER_H
#define OPTIM_OPTIMIZER_H

#include "configs/config.h"
#include "model/param/store.h"
#include "optim/optimizer_rules.h"

/* One shard and its state: flat tensors of shard.count elements in compute dtype; unused slots
 * are absent. Its table of segments is absent where weights are rounded to nearest. */
typedef struct {
    Shard shard;
    Tensor slot[SLOT_MAX];
    Rounding rounding;
} OptimizerShard;

typedef struct {
    const OptimizerRule *rule;
    const ParamTable *table;
    GridPlace at;                              /* this rank's place */
    OptimizerConstants constants[GROUP_COUNT]; /* GROUP_NO_DECAY has weight_decay 0 */
    OptimizerShard *shard;
    int n_shards;
    int *first_shard; /* per unit: where its shards begin; n_shards where it has none here */
} Optimizer;

/* Lays the state and the tables of segments out over `arena` for the store's shards
 * (PURPOSE_UPDATE), those of a unit adjacent. With a measuring arena only arena->used means
 * something, and neither init nor step may be called. Free with optimizer_free either way. */
void optimizer_plan(Optimizer *optimizer, const Config *config, ParamStore *store, Arena *arena);
void optimizer_free(Optimizer *optimizer);
/* Bytes that optimizer_plan takes of its arena, for the memory plan. The store need not be
 * allocated. */
size_t optimizer_bytes(const Config *config, ParamStore *store);

/* Fresh state: moments zero, masters = the store's weights, segments uploaded (the host waits for
 * them). Call once the weights are initialised or read. */
void optimizer_init(Optimizer *optimizer, Device *dev);

/* One update of every shard by `decision` (on the device; nothing happens when it says skip), each
 * unit published as soon as it is done, also where this rank has none of its shards. Needs the
 * step's finished gradients. */
void optimizer_step(Optimizer *optimizer, Device *dev, ParamStore *store,
                    const StepDecision *decision);

/* Whether rows of this storage type have state in `slot`: on all ranks alike, whatever they own. */
bool optimizer_has_slot(const Config *config, DType storage, int slot);
/* The state in `slot` of what a shard of the store describes, of either purpose: flat, as its
 * weight. NO_TENSOR where the optimizer has no such slot. */
Tensor optimizer_slot_of(const Optimizer *optimizer, const Shard *shard, int slot);

#endif
