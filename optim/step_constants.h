/* step_constants.h -- what a config says about a step's decision: clipping, skipping, and the loss
 * scale of fp16. The decision is op_step_decide's; this file gives it its constants and its first
 * state. */
#ifndef OPTIM_STEP_CONSTANTS_H
#define OPTIM_STEP_CONSTANTS_H

#include "configs/config.h"
#include "model/kernels/step.h"

/* Tokens of a step, of all micro-batches and ranks. */
static inline int64_t step_tokens(const Config *config)
{
    return config->train_batch_size * config->data.seq_length;
}
/* The constants of a run on so many data-parallel ranks. */
StepConstants step_constants(const Config *config, int64_t ranks);
/* The state before the first step: nothing consumed, loss scale 2^initial_scale_power (fp16,
 * dynamic), the static scale, or 1. */
StepState step_state_initial(const Config *config);

#endif
