/* choices.h -- declares the lists of words that keys of type OPTION_CHOICE accept; private to
 * configs/. */
#ifndef CONFIGS_READER_CHOICES_H
#define CONFIGS_READER_CHOICES_H

#include "configs/reader/options.h"

extern const Choice norm_choices[], position_choices[], attention_bias_choices[],
    rope_scaling_choices[], activation_choices[], level_choices[], blas_choices[],
    attention_choices[], device_choices[], optimizer_choices[], decay_on_choices[],
    scheduler_choices[], warmup_choices[], decay_choices[], grad_choices[], policy_choices[],
    communication_choices[], gradient_op_choices[], init_tokenizer_choices[], schedule_choices[],
    partition_choices[], health_choices[], offload_choices[];

#endif
