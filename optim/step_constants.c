/* step_constants.c -- implements step_constants.h: reads clipping, skipping, loss scale and
 * spikes from the config. */
#include "optim/step_constants.h"

#include <math.h>

static bool scale_is_dynamic(const Config *config)
{
    return config->fp16.enabled && config->fp16.loss_scale == 0.0;
}

StepConstants step_constants(const Config *config, int64_t ranks)
{
    /* Backward divides the gradients by the number of tokens in a full batch, because the number of
     * targets that count in the loss is not known yet. The decision corrects this afterwards.
     * Steps with gradients that are not finite are always skipped, except with bf16, where
     * bf16.check_grad_overflow (a DeepSpeed key) decides: bf16 has the range of f32. */
    int64_t tokens = step_tokens(config);
    return (StepConstants){
        .max_norm = config->gradient_clipping,
        .nominal_targets = (double)tokens,
        .summed_ranks = config->gradient_allreduce_op == GRADIENT_SUM ? ranks : 0,
        .samples = config->train_batch_size,
        .tokens = tokens,
        .skip_nonfinite = !config->bf16.enabled || config->bf16.check_grad_overflow,
        .dynamic_scale = scale_is_dynamic(config),
        .consecutive_hysteresis = config->fp16.consecutive_hysteresis,
        .scale_window = config->fp16.loss_scale_window,
        .hysteresis = config->fp16.hysteresis,
        .min_scale = config->fp16.min_loss_scale,
        .spike_deviations = config->health.spike_deviations,
        .skip_spikes = config->health.policy != HEALTH_WARN,
    };
}

StepState step_state_initial(const Config *config)
{
    double scale = 1.0;
    if (scale_is_dynamic(config)) {
        /* Loss scales are powers of two here, so scaling gradients and removing the scale changes
         * no digits. */
        scale = ldexp(1.0, (int)config->fp16.initial_scale_power);
    } else if (config->fp16.enabled) {
        scale = config->fp16.loss_scale;
    }
    return (StepState){
        .loss_scale = scale,
        .hysteresis = config->fp16.hysteresis,
        .last_overflow = -1, /* the first window starts at the first step */
    };
}
