/* step.h -- the numbers of one optimizer step: what it sums, what op_step_decide makes of the sums,
 * and the state that goes on to the next step.
 *
 * Apart from ops.h, so that a file which stores or prints these numbers includes no op. StepState,
 * StepStats and StepDecision lie in device memory and are copied to the host as bytes, so their
 * fields are 8 bytes each and there is no padding. */
#ifndef MODEL_KERNELS_STEP_H
#define MODEL_KERNELS_STEP_H

#include <stdbool.h>
#include <stdint.h>

/* The state of a run besides weights and optimizer slots. It lives on the device: on an overflow
 * neither Adam's t nor the learning rate may advance, and a host that runs a step ahead of the
 * device does not know of the overflow yet. Part of every checkpoint. */
typedef struct {
    int64_t samples, tokens; /* consumed so far, skipped steps included */
    int64_t steps, updates;  /* steps tried; updates applied (Adam's t, index into the lr table) */
    int64_t skipped, skips_in_row; /* steps without an update; non-finite ones since the last */
    double loss_scale;             /* 1 unless fp16 */
    /* DeepSpeed's dynamic loss scaler: overflows still forgiven before the scale halves, the step
     * of the last overflow (-1: none), and the steps it has counted. */
    int64_t hysteresis, last_overflow, scale_steps;
    double loss_seed; /* loss_scale / nominal targets: the gradient of the sum of losses, with which
                         backward starts */
    int64_t stop;     /* 1: overflow at the smallest loss scale; the run must end (EXIT_DIVERGED) */
} StepState;

/* What one step sums over micro-batches and ranks. */
typedef struct {
    double sq_norm;       /* of the gradients as accumulated: still times the loss scale */
    double nats, targets; /* summed loss, number of targets that counted */
} StepStats;

/* What op_step_decide makes of the sums: read by the update on the device, and by the log. */
typedef struct {
    int64_t apply;     /* 0: skip the update */
    int64_t update;    /* t of this update, from 1 */
    double lr;         /* of this update */
    double grad_scale; /* factor on every gradient element: clip x nominal / actual targets / loss
                          scale */
    double grad_norm;  /* true norm before clipping */
    double loss;       /* mean nats per target */
    double loss_scale; /* in force during the step */
} StepDecision;

/* Constants of a run that op_step_decide needs. */
typedef struct {
    double max_norm;             /* 0: no clipping */
    double nominal_targets;      /* batch x T: what the loss was divided by at its source */
    int64_t summed_ranks;        /* the gradient is that of the mean loss times this; 0: times 1 */
    int64_t samples, tokens;     /* consumed per step */
    bool skip_nonfinite;         /* false only where the user asked for unchecked gradients */
    bool dynamic_scale;          /* fp16 without a fixed loss scale */
    bool consecutive_hysteresis; /* every good step restores the hysteresis, not only a doubling */
    int64_t scale_window;        /* good steps after which the scale doubles */
    int64_t hysteresis;          /* overflows until the scale halves */
    double min_scale;
} StepConstants;

#endif
