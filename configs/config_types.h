/* config_types.h -- the enums and small structs that are the types of values in struct Config
 * (config.h). */
#ifndef CONFIGS_CONFIG_TYPES_H
#define CONFIGS_CONFIG_TYPES_H

#include "model/core/string_list.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum { POSITION_LEARNED, POSITION_ROPE } PositionKind;
/* The projections of attention that have biases: none; those to q, k and v; or these and the output
 * projection. */
typedef enum { ATTENTION_BIAS_NONE, ATTENTION_BIAS_QKV, ATTENTION_BIAS_ALL } AttentionBias;
typedef enum { ROPE_SCALING_NONE, ROPE_SCALING_LLAMA3 } RopeScalingType;
/* What a run does after a spike of its loss (parallel/run/SPIKES.md). */
typedef enum { HEALTH_WARN, HEALTH_SKIP, HEALTH_ROLLBACK, HEALTH_STOP } HealthPolicy;
typedef struct {
    HealthPolicy policy;
    /* a loss is a spike if it is this many deviations above the median of the losses before it; 0:
     * no loss is */
    double spike_deviations;
    /* after this many rollbacks, the run ends instead of rolling back again (exit code 88) */
    int64_t max_rollbacks;
} HealthConfig;
typedef enum { OPTIMIZER_ADAMW, OPTIMIZER_ADAM, OPTIMIZER_SGD } OptimizerType;
typedef enum {
    SCHEDULER_CONSTANT,
    SCHEDULER_WARMUP_LR,
    SCHEDULER_WARMUP_DECAY_LR,
    SCHEDULER_WARMUP_COSINE_LR,
    SCHEDULER_LR_RANGE_TEST,
    SCHEDULER_ONE_CYCLE,
    SCHEDULER_WSD,
} SchedulerType;
typedef enum { WARMUP_LOG, WARMUP_LINEAR } WarmupType;
/* the shape of WSD's final decay */
typedef enum { DECAY_LINEAR, DECAY_COSINE, DECAY_SQRT } DecayShape;
typedef enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL } RecomputePolicy;
/* Where the optimizer's states are stored. */
typedef enum { OFFLOAD_NONE, OFFLOAD_CPU, OFFLOAD_NVME } OffloadDevice;
typedef struct {
    OffloadDevice device; /* OFFLOAD_CPU: in host memory; OFFLOAD_NVME means OFFLOAD_NONE */
    double ratio;         /* the share of the states in host memory, rounded to whole shards */
    bool pin_memory;      /* no effect: this memory is always page-locked */
} OffloadConfig;
typedef enum { DECAY_ON_MATRICES, DECAY_ON_ALL } WeightDecayOn;
typedef enum { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA } DeviceChoice;
typedef enum { GRAD_DTYPE_AUTO, GRAD_DTYPE_F32, GRAD_DTYPE_F16, GRAD_DTYPE_BF16 } GradDtype;
/* How gradients of data-parallel ranks are combined. `mean` gives the gradient of the whole batch;
 * `sum` gives that gradient times the number of data-parallel ranks. */
typedef enum { GRADIENT_MEAN, GRADIENT_SUM } GradientOp;
/* Whether imported weights must belong to the run's own tokenizer. */
typedef enum { INIT_TOKENIZER_SAME, INIT_TOKENIZER_ANY } InitTokenizer;

/* How the rotations of RoPE are slowed down, so that a model accepts longer texts than in its first
 * training. The numbers are only used if type is llama3 (rope.h). */
typedef struct {
    RopeScalingType type;
    double factor, low_freq_factor, high_freq_factor;
    int64_t original_max_position_embeddings;
} RopeScaling;

typedef struct {
    int count;
    int64_t *item; /* owned by the list */
} IntegerList;

/* Limits of eval.sets: the bytes of a name, so that a console line has room for it, and the number
 * of sets. */
enum { EVAL_SET_NAME_MOST = 20, EVAL_SETS_MOST = 32 };
/* A validation set in addition to the main one. Exactly one of `text` and `shards` (token files) is
 * empty. */
typedef struct {
    char *name;
    StringList text, shards;
} EvalSet;
typedef struct {
    int count;
    EvalSet *item; /* owned by the list */
} EvalSets;

#endif
