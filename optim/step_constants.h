/* step_constants.h -- the settings of a config that decide what happens to a step's gradients:
 * clipping, skipping, the loss scale of fp16, and loss spikes. op_step_decide makes the decision on
 * the device; this file computes its constants and its initial state. */
#ifndef OPTIM_STEP_CONSTANTS_H
#define OPTIM_STEP_CONSTANTS_H

#include "configs/config.h"
#include "model/kernels/step.h"

/* Returns the number of tokens in a step, over all micro-batches and ranks. */
static inline int64_t step_tokens(const Config *config)
{
    return config->train_batch_size * config->data.seq_length;
}
/* Returns the constants for a run on `ranks` data-parallel ranks. */
StepConstants step_constants(const Config *config, int64_t ranks);
/* Returns the state before the first step: no data consumed, and a loss scale of
 * 2^initial_scale_power (dynamic, fp16), the static scale, or 1. */
StepState step_state_initial(const Config *config);

#endif
