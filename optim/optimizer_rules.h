/* optimizer_rules.h -- the optimizers as a table, one row each: what state it keeps per parameter,
 * the constants of its arithmetic, and the op that updates a range.
 *
 * All that the program knows of an optimizer is in its row: memory plans, checkpoints and
 * benchmarks walk it. The arithmetic itself is the op's (model/kernels/update_rule.h). */
#ifndef OPTIM_OPTIMIZER_RULES_H
#define OPTIM_OPTIMIZER_RULES_H

#include "configs/config.h"
#include "model/kernels/ops.h"

/* Slots are the tensors of state that go with a weight, each of its length. The first is the master
 * copy of 16-bit weights, which depends on their storage and not on the optimizer; the
 * optimizer's own follow, in the order of its row. */
enum { SLOT_MASTER, SLOT_FIRST, SLOT_OWN_MAX = 2, SLOT_MAX = SLOT_FIRST + SLOT_OWN_MAX };

/* What an op needs beside the step's decision. */
typedef union {
    AdamW adamw;
    Sgd sgd;
} OptimizerConstants;

/* The operands of one update: flat, dense, of equal length. */
typedef struct {
    Tensor weight, grad;
    const Tensor *slot; /* SLOT_MAX tensors; absent where there is no such state */
    const OptimizerConstants *constants;
    const StepDecision *decision; /* on the device */
    const Rounding *rounding;     /* NULL: weights are rounded to nearest */
} OptimizerUpdate;

typedef struct {
    const char *name;               /* as optimizer.type writes it */
    const char *slot[SLOT_OWN_MAX]; /* names of its own slots; NULL after the last */
    /* Whether it does without its own slots under this config; NULL: it never does. */
    bool (*stateless)(const Config *config);
    OptimizerConstants (*constants)(const Config *config, double weight_decay);
    OpId op; /* which update() calls: what a profile counts it under */
    void (*update)(Device *dev, const OptimizerUpdate *update);
} OptimizerRule;

const OptimizerRule *optimizer_rule(OptimizerType type);
/* How many slots of its own the optimizer keeps under this config: the first of its row. */
int optimizer_rule_slots(const OptimizerRule *rule, const Config *config);
/* "master", or the row's name of the slot: checkpoints append it to the parameter's name. */
const char *optimizer_slot_name(const OptimizerRule *rule, int slot);

#endif
