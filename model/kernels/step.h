/* step.h -- the structs of one optimizer step: the sums over gradients and losses, the decision
 * that op_step_decide computes from them, and the state that is carried to the next step.
 *
 * They are separate from ops.h so that a file which stores or prints these numbers need not include
 * the ops. StepState, StepStats and StepDecision are stored in device memory and copied to the host
 * as bytes, so every field has 8 bytes and there is no padding. */
#ifndef MODEL_KERNELS_STEP_H
#define MODEL_KERNELS_STEP_H

#include <stdbool.h>
#include <stdint.h>

/* LOSS_WINDOW: number of earlier losses with which a new one is compared. LOSS_WINDOW_LEAST: while
 * there are fewer earlier losses, no loss is a spike. */
enum { LOSS_WINDOW = 64, LOSS_WINDOW_LEAST = 16 };

/* The state of a run besides weights and optimizer slots; part of every checkpoint. It is kept on
 * the device: an overflow must advance neither Adam's t nor the learning rate, and a host that runs
 * one step ahead of the device does not know of the overflow yet. */
typedef struct {
    int64_t samples, tokens; /* consumed so far, skipped steps included */
    int64_t steps, updates;  /* steps tried; updates applied (Adam's t, index into the lr table) */
    int64_t skipped, skips_in_row; /* steps without an update; since the last update: steps skipped
                                      for non-finite gradients */
    double loss_scale;             /* 1 unless fp16 */
    /* DeepSpeed's dynamic loss scaler: overflows still tolerated before the scale halves, the step
     * of the last overflow (-1: none), and the number of steps it has counted. */
    int64_t hysteresis, last_overflow, scale_steps;
    double loss_seed; /* the gradient with which the backward pass starts: loss_scale divided by
                         nominal_targets (StepConstants), the same for the loss of every target */
    int64_t stop;     /* 1: an overflow occurred at the smallest loss scale, and the run must end
                         (EXIT_DIVERGED) */
    int64_t spikes;   /* steps whose loss was a spike (decision_rule.h) */
    int64_t spikes_in_row;  /* spikes that were skipped since the last update */
    int64_t skipped_tokens; /* tokens of the steps without an update */
    /* How many samples of its data the run has skipped so far, and how often it has returned to a
     * checkpoint to do so. Its next sample is number samples + data_offset. */
    int64_t data_offset, rollbacks;
    /* n_losses counts the finite losses of updates. Loss number i, from 0, is stored in losses[i %
     * LOSS_WINDOW], so the array holds the last LOSS_WINDOW of them. Entries not used yet are 0. */
    int64_t n_losses;
    double losses[LOSS_WINDOW];
} StepState;

/* Sums of one step over its micro-batches and ranks. */
typedef struct {
    double sq_norm;       /* squared norm of the gradients as accumulated, before the loss scale is
                             divided out */
    double nats, targets; /* sum of the losses in nats; number of targets in this sum */
} StepStats;

/* The decision that op_step_decide computes from the sums. The update reads it on the device, and
 * the log prints it. */
typedef struct {
    int64_t apply;     /* 0: skip the update */
    int64_t update;    /* t of this update, from 1 */
    double lr;         /* learning rate of this update */
    double grad_scale; /* factor that is applied to every gradient element: clipping, the correction
                          from the nominal to the actual number of targets, and the removal of the
                          loss scale */
    double grad_norm;  /* true norm before clipping */
    double loss;       /* mean nats per target */
    double loss_scale; /* loss scale used in this step */
    int64_t spike;     /* 1: the loss is a spike */
    /* If the loss is a spike: the median of the losses before it, and the size of one deviation
     * (decision_rule.h). Otherwise 0. */
    double median, deviation;
} StepDecision;

/* Constants of a run that op_step_decide needs. */
typedef struct {
    double max_norm;         /* 0: no clipping */
    double nominal_targets;  /* batch x T: the loss and its gradients are divided by this number */
    int64_t summed_ranks;    /* the gradients of the mean loss are multiplied by this: the number of
                                ranks whose gradients are added instead of averaged; 0 means 1 */
    int64_t samples, tokens; /* consumed per step */
    bool skip_nonfinite;     /* true: skip updates with non-finite gradients; false only if the user
                                disabled the check */
    bool dynamic_scale;      /* true: fp16 without a fixed loss scale */
    bool consecutive_hysteresis; /* true: every good step restores the hysteresis, not only one that
                                    doubles the scale */
    int64_t scale_window;        /* good steps after which the scale doubles */
    int64_t hysteresis;          /* overflows until the scale halves */
    double min_scale;
    /* A loss is a spike if it is more than this number of deviations above the median of earlier
     * losses; 0: no loss is a spike. */
    double spike_deviations;
    bool skip_spikes; /* true: a spike skips the update */
} StepConstants;

#endif
