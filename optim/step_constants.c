/* step_constants.c -- see step_constants.h. */
#include "optim/step_constants.h"

#include <math.h>

static bool scale_is_dynamic(const Config *config)
{
    return config->fp16.enabled && config->fp16.loss_scale == 0.0;
}

StepConstants step_constants(const Config *config, int64_t ranks)
{
    /* Backward divides by the tokens of a full batch, before anybody knows how many targets count;
     * the decision corrects by those that did. Only bf16 may leave gradients unchecked: it has the
     * range of f32, and DeepSpeed has a key for it. */
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
    };
}

StepState step_state_initial(const Config *config)
{
    double scale = 1.0;
    if (scale_is_dynamic(config)) {
        /* Powers of two: scaling gradients and taking the scale off again leaves their digits. */
        scale = ldexp(1.0, (int)config->fp16.initial_scale_power);
    } else if (config->fp16.enabled) {
        scale = config->fp16.loss_scale;
    }
    return (StepState){
        .loss_scale = scale,
        .hysteresis = config->fp16.hysteresis,
        .last_overflow = -1, /* the first window counts from the first step */
    };
}
