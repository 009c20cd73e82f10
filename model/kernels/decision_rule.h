/* decision_rule.h -- what op_step_decide does, once for every backend: double arithmetic in this
 * order, each operation rounded once. The .cu file that includes it turns its functions into device
 * functions and is compiled without contraction, as -std=c11 does on the CPU. */
#ifndef MODEL_KERNELS_DECISION_RULE_H
#define MODEL_KERNELS_DECISION_RULE_H

#include "model/kernels/step.h"

#include <math.h>

/* DeepSpeed's dynamic loss scaler, one step. After an overflow that the hysteresis does not forgive
 * the scale halves; `scale_window` steps after the last overflow, and every window from there, it
 * doubles. */
static inline void scale_advance(StepState *state, const StepConstants *constants, bool overflow)
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

/* The decision on a step with these sums; advances the state. lr[0 .. updates] as op_step_decide's
 * table. Every step counts in samples, tokens and steps. steps = updates + skipped; skips_in_row
 * counts non-finite steps since the last update: a step without a single target is skipped too, but
 * is no sign of divergence. */
static inline StepDecision decision_rule(StepState *state, const StepStats *stats, const double *lr,
                                         int64_t updates, const StepConstants *constants)
{
    int64_t last = updates - 1;
    /* A single gradient that is not finite makes the sum of squares so. The gradients carry the
     * loss scale and were divided by the nominal number of targets: `correction` takes both back,
     * so that the norm, and with it clipping, is that of the true mean, or of as many times that
     * as ranks are summed. */
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
