/* optimizer_rules.c -- the table of optimizers: AdamW, Adam and SGD; see optimizer_rules.h. */
#include "optim/optimizer_rules.h"

#include "model/core/check.h"

_Static_assert((int)GROUP_COUNT <= (int)UPDATE_GROUPS,
               "an update takes the constants of every group");

/* ---- AdamW and Adam -------------------------------------------------------------------------- */

static OptimizerConstants adamw_constants(const Config *config, double weight_decay)
{
    return (OptimizerConstants){
        .adamw = {.beta1 = config->optimizer.params.betas[0],
                  .beta2 = config->optimizer.params.betas[1],
                  .epsilon = config->optimizer.params.eps,
                  .weight_decay = weight_decay,
                  .decoupled = config_decay_is_decoupled(config),
                  .bias_correction = config->optimizer.params.bias_correction}};
}

static void adamw_update(Device *dev, const OptimizerUpdate *u)
{
    AdamW hyper[GROUP_COUNT];
    for (int group = 0; group < GROUP_COUNT; group++)
        hyper[group] = u->constants[group].adamw;
    op_adamw(dev, u->range, u->n, u->decision, hyper);
}

/* ---- SGD ------------------------------------------------------------------------------------- */

static bool sgd_stateless(const Config *config)
{
    return config->optimizer.params.momentum == 0.0;
}

static OptimizerConstants sgd_constants(const Config *config, double weight_decay)
{
    return (OptimizerConstants){.sgd = {.momentum = config->optimizer.params.momentum,
                                        .dampening = config->optimizer.params.dampening,
                                        .weight_decay = weight_decay,
                                        .nesterov = config->optimizer.params.nesterov}};
}

static void sgd_update(Device *dev, const OptimizerUpdate *u)
{
    Sgd hyper[GROUP_COUNT];
    for (int group = 0; group < GROUP_COUNT; group++)
        hyper[group] = u->constants[group].sgd;
    op_sgd(dev, u->range, u->n, u->decision, hyper);
}

/* ---- the table of optimizers ----------------------------------------------------------------- */

static const OptimizerRule rules[] = {
    [OPTIMIZER_ADAMW] = {.name = "AdamW",
                         .slot = {"exp_avg", "exp_avg_sq"},
                         .constants = adamw_constants,
                         .op = OP_adamw,
                         .update = adamw_update},
    [OPTIMIZER_ADAM] = {.name = "Adam",
                        .slot = {"exp_avg", "exp_avg_sq"},
                        .constants = adamw_constants,
                        .op = OP_adamw,
                        .update = adamw_update},
    [OPTIMIZER_SGD] = {.name = "SGD",
                       .slot = {"momentum"},
                       .stateless = sgd_stateless,
                       .constants = sgd_constants,
                       .op = OP_sgd,
                       .update = sgd_update},
};

const OptimizerRule *optimizer_rule(OptimizerType type)
{
    CHECK((size_t)type < sizeof rules / sizeof *rules, "optimizer type %d", (int)type);
    return &rules[type];
}

int optimizer_rule_slots(const OptimizerRule *rule, const Config *config)
{
    int n = 0;
    if (rule->stateless != NULL && rule->stateless(config)) return 0;
    while (n < SLOT_OWN_MAX && rule->slot[n] != NULL)
        n++;
    return n;
}

const char *optimizer_slot_name(const OptimizerRule *rule, int slot)
{
    return slot == SLOT_MASTER ? "master" : rule->slot[slot - SLOT_FIRST];
}
