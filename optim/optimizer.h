/* optimizer.h -- Adam, AdamW and SGD over what this rank owns of the weights.
 *
 * State is a set of named slots per parameter (the master weights of 16-bit storage, unless bf16
 * weights are their own and are rounded stochastically; exp_avg and exp_avg_sq, or momentum), kept
 * as flat buffers beside the store's owned runs, so one pass over a run updates all its parameters.
 * All of it comes from one arena; step count, lr and clipping come from the device's StepDecision.
 */
#ifndef OPTIM_OPTIMIZER_H
#define OPTIM_OPTIMIZER_H

#include "configs/config.h"
#include "model/kernels/ops.h"
#include "model/param/param.h"

typedef enum { SLOT_MASTER, SLOT_EXP_AVG, SLOT_EXP_AVG_SQ, SLOT_MOMENTUM, SLOT_COUNT } Slot;

/* "master", "exp_avg", "exp_avg_sq", "momentum": checkpoints append them to the parameter's name.
 */
extern const char *const slot_name[SLOT_COUNT];

/* One owned run and its state: flat tensors of run.count elements in compute dtype; unused slots
 * are absent. Its table of segments is absent where weights are rounded to nearest. */
typedef struct {
    OwnedRun run;
    Tensor slot[SLOT_COUNT];
    Rounding rounding;
} OptimizerRun;

typedef struct {
    OptimizerType type;
    const ParamTable *table;
    AdamW adamw[GROUP_COUNT]; /* per group: GROUP_NO_DECAY has weight_decay 0 */
    Sgd sgd[GROUP_COUNT];
    OptimizerRun *run;
    int n_runs;
    int *first_run; /* per unit: where its runs begin; n_runs where it has none here */
} Optimizer;

/* Bytes of the state of a rank that owns the whole table: for the memory plan, before there is a
 * store. */
size_t optimizer_bytes(const Config *config, const ParamTable *table);

/* Lays the state and the tables of segments out over `arena` for the store's runs (PURPOSE_UPDATE),
 * runs of a unit adjacent.
 * With a measuring arena only arena->used means something, and neither init nor step may be called.
 * Free with optimizer_free either way. */
void optimizer_plan(Optimizer *optimizer, const Config *config, ParamStore *store, Arena *arena);
void optimizer_free(Optimizer *optimizer);

/* Fresh state: moments zero, masters = the store's weights, segments uploaded (the host waits for
 * them). Call once the weights are initialised or read. */
void optimizer_init(Optimizer *optimizer, Device *dev);
/* weights = masters, rounded, and publishes every unit: after masters came from a checkpoint.
 * Nothing without masters. */
void optimizer_weights_from_masters(Optimizer *optimizer, Device *dev, ParamStore *store);

/* One update of every owned run by `decision` (on the device; nothing happens when it says skip),
 * each unit published as soon as it is done. Needs the step's finished gradients. */
void optimizer_step(Optimizer *optimizer, Device *dev, ParamStore *store,
                    const StepDecision *decision);

/* The state of row `param` in `slot` as a tensor of its logical shape (padding rows and columns
 * left out; ld may exceed the row). False if the optimizer has no such slot or this rank does not
 * own the row. */
bool optimizer_slot(const Optimizer *optimizer, const ParamTable *table, int param, Slot slot,
                    Tensor *view);

#endif
