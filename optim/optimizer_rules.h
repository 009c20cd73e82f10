/* optimizer_rules.h -- the optimizers as a table with one row each: the state that the optimizer
 * keeps per parameter, its constants, and the op that updates weights.
 *
 * The rest of the program uses only the row: memory plans, checkpoints and benchmarks read it. The
 * arithmetic itself is in model/kernels/update_rule.h. */
#ifndef OPTIM_OPTIMIZER_RULES_H
#define OPTIM_OPTIMIZER_RULES_H

#include "configs/config.h"
#include "model/kernels/ops.h"
#include "model/param/param.h"

/* Slots number the state tensors that belong to a weight; each tensor has as many elements as the
 * weight. SLOT_MASTER is the master copy of a 16-bit weight: whether it exists depends on the
 * storage type, not on the optimizer. From SLOT_FIRST on come the states that the kind of optimizer
 * needs, such as AdamW's averages, in the order of OptimizerRule.slot. */
enum { SLOT_MASTER, SLOT_FIRST, SLOT_OWN_MAX = 2, SLOT_MAX = SLOT_FIRST + SLOT_OWN_MAX };

/* The constants that an op needs in addition to the step's decision. */
typedef union {
    AdamW adamw;
    Sgd sgd;
} OptimizerConstants;

/* The operands of one update. */
typedef struct {
    const UpdateRange *range; /* n ranges; a range's group is its ParamGroup */
    int n;
    const OptimizerConstants *constants; /* one entry for each ParamGroup */
    const StepDecision *decision;        /* in device memory */
} OptimizerUpdate;

typedef struct {
    const char *name;               /* value of optimizer.type */
    const char *slot[SLOT_OWN_MAX]; /* names of the slots from SLOT_FIRST on; NULL after the last */
    /* Returns whether the optimizer needs none of these slots under this config; NULL: it always
     * needs them. */
    bool (*stateless)(const Config *config);
    OptimizerConstants (*constants)(const Config *config, double weight_decay);
    OpId op; /* the op that update() calls; profiles use its name */
    void (*update)(Device *dev, const OptimizerUpdate *update);
} OptimizerRule;

const OptimizerRule *optimizer_rule(OptimizerType type);
/* Returns how many of the slots in rule->slot the optimizer keeps under this config: the first ones
 * of the array. The master copy is not counted. */
int optimizer_rule_slots(const OptimizerRule *rule, const Config *config);
/* Returns the name of the slot: "master", or its name in rule->slot. Checkpoints append it to the
 * parameter's name. */
const char *optimizer_slot_name(const OptimizerRule *rule, int slot);

#endif
