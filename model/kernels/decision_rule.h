/* decision_rule.h -- the arithmetic of op_step_decide, shared by all backends: clipping, skipping
 * and loss scaling.
 *
 * All arithmetic is in double, in the order written here, and each operation is rounded once. The
 * .cu file that includes this header is compiled without contraction of products and sums, as
 * -std=c11 does on the CPU. */
#ifndef MODEL_KERNELS_DECISION_RULE_H
#define MODEL_KERNELS_DECISION_RULE_H

#include "model/core/host_device.h"
#include "model/kernels/step.h"

#include <math.h>

/* Advances DeepSpeed's dynamic loss scaler by one step. An overflow first uses up the hysteresis;
 * once that is used up, each overflow halves the scale. The scale doubles scale_window steps after
 * the last overflow, and again after every further scale_window steps. */
static HOST_DEVICE inline void scale_advance(StepState *state, const StepConstants *constants,
                                             bool overflow)
{
    if (overflow) {
        if (state->hysteresis > 1) {
            state->hysteresis--;
        } else if (state->loss_scale <= constants->min_scale) {
            state->stop = 1;
        } else {
            state->loss_scale = fmax(state->loss_scale / 2.0, constants->min_scale);
        }
        state->last_overflow = state->scale_steps;
    } else {
        int64_t good = state->scale_steps - state->last_overflow - 1;
        if (constants->consecutive_hysteresis) state->hysteresis = constants->hysteresis;
        if (good > 0 && good % constants->scale_window == 0) {
            state->loss_scale *= 2.0;
            if (!constants->consecutive_hysteresis) state->hysteresis = constants->hysteresis;
        }
    }
    state->scale_steps++;
}

/* Decides on a step from its sums and advances the state. lr[0 .. updates) is the table described
 * at op_step_decide. Samples, tokens and steps are counted even if the update is skipped, and steps
 * = updates + skipped. skips_in_row counts the non-finite steps since the last update: a step
 * without any target is also skipped, but is no sign of divergence. */
static HOST_DEVICE inline StepDecision decision_rule(StepState *state, const StepStats *stats,
                                                     const double *lr, int64_t updates,
                                                     const StepConstants *constants)
{
    int64_t last = updates - 1;
    /* One non-finite gradient makes the sum of squares non-finite. The gradients were multiplied by
     * the loss scale and divided by the nominal number of targets. `correction` undoes both, so the
     * norm, and with it clipping, applies to the true mean, or to summed_ranks times the mean if
     * the gradients of ranks are added rather than averaged. */
    bool overflow = !isfinite(stats->sq_norm), empty = !(stats->targets > 0.0);
    double correction =
        empty ? 0.0 : constants->nominal_targets / stats->targets / state->loss_scale;
    if (constants->summed_ranks > 0) correction *= (double)constants->summed_ranks;
    double norm = empty && !overflow ? 0.0 : sqrt(stats->sq_norm) * correction, clip = 1.0;
    if (constants->max_norm > 0.0 && constants->max_norm / (norm + 1e-6) < 1.0)
        clip = constants->max_norm / (norm + 1e-6);
    StepDecision decision;
    decision.apply = !empty && !(overflow && constants->skip_nonfinite);
    decision.update = state->updates + 1;
    decision.lr = lr[state->updates < last ? state->updates : last];
    decision.grad_scale = clip * correction;
    decision.grad_norm = norm;
    decision.loss = empty ? 0.0 : stats->nats / stats->targets;
    decision.loss_scale = state->loss_scale;
    state->samples += constants->samples;
    state->tokens += constants->tokens;
    state->steps++;
    if (decision.apply) {
        state->updates++;
        state->skips_in_row = 0;
    } else {
        state->skipped++;
        state->skips_in_row += overflow;
    }
    if (constants->dynamic_scale) scale_advance(state, constants, overflow);
    state->loss_seed = state->loss_scale / constants->nominal_targets;
    return decision;
}

#endif
