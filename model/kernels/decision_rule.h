/* decision_rule.h -- the arithmetic of op_step_decide, shared by all backends: clipping, skipping,
 * loss scaling and spikes of the loss.
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

/* ---- spikes ---------------------------------------------------------------------------------- */

/* A spike is a loss above median + spike_deviations x deviation. The median is that of the last
 * LOSS_WINDOW finite losses of updates. The deviation is 1.4826 times the median distance of these
 * losses from their median; if they are normally distributed, this is their standard deviation. A
 * loss that is not finite is a spike, too.
 *
 * The deviation is at least LOSS_FLOOR times the median: with losses that hardly differ, for
 * example at a small learning rate, any rise would otherwise be a spike. The median of n numbers is
 * the one with n / 2 numbers before it in ascending order, so it is always one of them. */
#define LOSS_FLOOR 0x1p-8

/* Returns the median of x[0..n), n > 0. If `around` is not NULL, returns the median of the
 * distances |x[i] - *around| instead. Takes O(n^2) time and no extra memory; few steps need it. */
static HOST_DEVICE inline double losses_median(const double *x, int64_t n, const double *around)
{
    for (int64_t i = 0; i < n; i++) {
        double at = around ? fabs(x[i] - *around) : x[i];
        int64_t less = 0, same = 0;
        for (int64_t j = 0; j < n; j++) {
            double other = around ? fabs(x[j] - *around) : x[j];
            less += other < at;
            same += other == at;
        }
        if (less <= n / 2 && n / 2 < less + same) return at;
    }
    return 0.0; /* not reached: all losses are finite */
}

/* Determines whether decision->loss is a spike. If it is, sets the decision's fields spike, median
 * and deviation. */
static HOST_DEVICE inline void spike_find(StepDecision *decision, const StepState *state,
                                          const StepConstants *constants)
{
    int64_t n = state->n_losses, below = 0;
    double deviations = constants->spike_deviations, loss = decision->loss;
    if (n > LOSS_WINDOW) n = LOSS_WINDOW;
    if (!(deviations > 0.0) || n < LOSS_WINDOW_LEAST) return;
    /* A loss that is not far enough above the median even for the smallest possible deviation is no
     * spike. This test takes one pass, and is enough in almost all steps. */
    for (int64_t i = 0; i < n; i++) {
        double x = state->losses[i];
        below += !(loss <= x + deviations * (LOSS_FLOOR * x));
    }
    if (below <= n / 2) return;
    double median = losses_median(state->losses, n, NULL),
           deviation = 1.4826 * losses_median(state->losses, n, &median);
    if (!(deviation > LOSS_FLOOR * median)) deviation = LOSS_FLOOR * median;
    if (loss <= median + deviations * deviation) return;
    decision->spike = 1;
    decision->median = median;
    decision->deviation = deviation;
}

/* Adds the loss of an update to the window with which later losses are compared. */
static HOST_DEVICE inline void losses_add(StepState *state, double loss)
{
    if (!isfinite(loss)) return;
    state->losses[state->n_losses % LOSS_WINDOW] = loss;
    state->n_losses++;
}

/* ---- the decision ---------------------------------------------------------------------------- */

/* Decides on a step from its sums and advances the state. lr[0 .. updates) holds the learning
 * rates, as described at op_step_decide. Samples, tokens and steps are counted even if the update
 * is skipped, so steps = updates + skipped.
 *
 * skips_in_row counts the steps with non-finite gradients since the last update, and spikes_in_row
 * the skipped spikes since then. A step without any target is also skipped but is in neither of the
 * two counts, because it is no sign of divergence. A step that is skipped because of non-finite
 * gradients is not a spike, whatever its loss. */
static HOST_DEVICE inline StepDecision decision_rule(StepState *state, const StepStats *stats,
                                                     const double *lr, int64_t updates,
                                                     const StepConstants *constants)
{
    int64_t last = updates - 1;
    /* One non-finite gradient makes the sum of squares non-finite, so this test covers all
     * gradients. The gradients were multiplied by the loss scale and divided by the nominal number
     * of targets. `correction` undoes both and divides by the actual number of targets. So the
     * norm, and with it clipping, applies to the gradient of the mean loss. If the gradients of
     * ranks are added rather than averaged, it applies to summed_ranks times that gradient. */
    bool overflow = !isfinite(stats->sq_norm), empty = !(stats->targets > 0.0);
    double correction =
        empty ? 0.0 : constants->nominal_targets / stats->targets / state->loss_scale;
    if (constants->summed_ranks > 0) correction *= (double)constants->summed_ranks;
    double norm = empty && !overflow ? 0.0 : sqrt(stats->sq_norm) * correction, clip = 1.0;
    if (constants->max_norm > 0.0 && constants->max_norm / (norm + 1e-6) < 1.0)
        clip = constants->max_norm / (norm + 1e-6);
    StepDecision decision = {0};
    decision.apply = !empty && !(overflow && constants->skip_nonfinite);
    decision.update = state->updates + 1;
    decision.lr = lr[state->updates < last ? state->updates : last];
    decision.grad_scale = clip * correction;
    decision.grad_norm = norm;
    decision.loss = empty ? 0.0 : stats->nats / stats->targets;
    decision.loss_scale = state->loss_scale;
    if (decision.apply) spike_find(&decision, state, constants);
    if (decision.spike && constants->skip_spikes) decision.apply = 0;
    state->samples += constants->samples;
    state->tokens += constants->tokens;
    state->steps++;
    if (decision.apply) {
        state->updates++;
        state->skips_in_row = state->spikes_in_row = 0;
        losses_add(state, decision.loss);
    } else {
        state->skipped++;
        state->skipped_tokens += constants->tokens;
        state->skips_in_row += overflow && !decision.spike;
        state->spikes_in_row += decision.spike;
    }
    state->spikes += decision.spike;
    if (constants->dynamic_scale) scale_advance(state, constants, overflow);
    state->loss_seed = state->loss_scale / constants->nominal_targets;
    return decision;
}

#endif
