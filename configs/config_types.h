/* config_types.h -- the types of the values in struct Config (config.h), where a key selects one of
 * several kinds. */
#ifndef CONFIGS_CONFIG_TYPES_H
#define CONFIGS_CONFIG_TYPES_H

#include "model/core/string_list.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum { POSITION_LEARNED, POSITION_ROPE } PositionKind;
/* The projections of the attention that have biases: none, those to q, k and v, or those and the
 * projection of the output. */
typedef enum { ATTENTION_BIAS_NONE, ATTENTION_BIAS_QKV, ATTENTION_BIAS_ALL } AttentionBias;
typedef enum { ROPE_SCALING_NONE, ROPE_SCALING_LLAMA3 } RopeScalingType;
/* What a run does about a spike of its loss (README of parallel/run). */
typedef enum { HEALTH_WARN, HEALTH_SKIP, HEALTH_ROLLBACK, HEALTH_STOP } HealthPolicy;
typedef struct {
    HealthPolicy policy;
    /* a loss this many deviations above the median of those before it is a spike; 0: none is */
    double spike_deviations;
    int64_t max_rollbacks; /* after so many, the next one ends the run instead (exit code 88) */
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
/* Where the optimizer's states lie. */
typedef enum { OFFLOAD_NONE, OFFLOAD_CPU, OFFLOAD_NVME } OffloadDevice;
typedef struct {
    OffloadDevice device; /* OFFLOAD_CPU: in host memory; OFFLOAD_NVME means OFFLOAD_NONE */
    double ratio;         /* the share of them that lies there, rounded to whole shards */
    bool pin_memory;      /* not read: such memory is always page-locked */
} OffloadConfig;
typedef enum { DECAY_ON_MATRICES, DECAY_ON_ALL } WeightDecayOn;
typedef enum { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA } DeviceChoice;
typedef enum { GRAD_DTYPE_AUTO, GRAD_DTYPE_F32, GRAD_DTYPE_F16, GRAD_DTYPE_BF16 } GradDtype;
/* How gradients of data-parallel ranks are combined. `mean` gives the gradient of the whole batch;
 * `sum` gives that gradient times the number of data-parallel ranks. */
typedef enum { GRADIENT_MEAN, GRADIENT_SUM } GradientOp;
/* Whether weights from elsewhere must belong to the run's own tokenizer. */
typedef enum { INIT_TOKENIZER_SAME, INIT_TOKENIZER_ANY } InitTokenizer;

/* How the rotations of RoPE are slowed down, so that a model takes longer texts than those of its
 * first training. The numbers are read where type is llama3 (rope.h). */
typedef struct {
    RopeScalingType type;
    double factor, low_freq_factor, high_freq_factor;
    int64_t original_max_position_embeddings;
} RopeScaling;

typedef struct {
    int count;
    int64_t *item; /* owned by the list */
} IntegerList;

/* Limits of eval.sets: bytes of a name, so that a row of the console fits, and sets. */
enum { EVAL_SET_NAME_MOST = 20, EVAL_SETS_MOST = 32 };
/* A validation set besides the main one: text files, or token shards; the other list is empty. */
typedef struct {
    char *name;
    StringList text, shards;
} EvalSet;
typedef struct {
    int count;
    EvalSet *item; /* owned by the list */
} EvalSets;

#endif
