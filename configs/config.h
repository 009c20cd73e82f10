/* config.h -- struct Config, which holds all settings of one run: one field per JSON key, under the
 * same section and name.
 *
 * config_load fills and validates it, in this order: the JSON file, --set, defaults, derived
 * values. config_settle is called once, when a command starts, and adds what no config file can
 * contain, such as the tokenizer's vocabulary size. Outside configs/ every Config is const. The
 * option table (option_table.c) is the only list of keys. */
#ifndef CONFIGS_CONFIG_H
#define CONFIGS_CONFIG_H

#include "configs/config_types.h"
#include "configs/context.h"
#include "configs/grid_place.h"
#include "model/core/check.h"
#include "model/core/device_facts.h"
#include "model/core/dtype.h"
#include "model/core/kinds.h"
#include "model/core/string_list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define CONFIG_RENDEZVOUS "out/.rendezvous" /* the default of parallel.rendezvous */

/* The most ranks and steps that a run can have, and the most ranks that `--ranks N` starts by
 * itself, without a launcher. Error messages never suggest more. */
enum { CONFIG_MAX_RANKS = 65536, CONFIG_MAX_STEPS = 1000000000, CONFIG_OWN_RANKS = 64 };

struct Config {
    struct {
        int64_t num_layers, hidden_size, num_attention_heads;
        int64_t num_key_value_heads; /* default: num_attention_heads */
        int64_t head_dim;            /* default: hidden_size / num_attention_heads */
        /* default: 4 hidden_size; swiglu: 8/3 hidden_size, rounded up to a multiple of 64 */
        int64_t intermediate_size;
        int64_t vocab_size;              /* default: the tokenizer's; 0 before config_settle */
        int64_t max_position_embeddings; /* default: data.seq_length */
        NormKind norm;
        double norm_epsilon;
        PositionKind position;
        double rope_theta;
        RopeScaling rope_scaling;
        ActivationKind activation;
        /* GELU is computed before the sum is rounded (EPILOGUE_GELU_OF_SUM); default: by device */
        bool fused_gelu;
        /* Most rows of logits that the head computes at a time (head.c); 0: as many as fit in 128
         * MiB. Default: by device; -1 before config_settle. */
        int64_t head_chunk_rows;
        bool bias;                    /* LayerNorm's biases; the default of the next two keys */
        AttentionBias attention_bias; /* default: all if `bias`, else none */
        bool mlp_bias;                /* default: bias */
        bool qk_norm, tie_word_embeddings;
        /* standard deviation of initial weights, over sqrt(2 x layers) for residual projections */
        double initializer_range;
    } model;
    struct {
        StringList train, val;     /* token shards: file names or globs */
        StringList text, val_text; /* text or JSONL: file names, globs, folders, "-" for stdin */
        char *corpus;              /* a corpus installed as a system package: "bible-kjv" */
        char *text_key;            /* key of the text in a JSONL line */
        bool skip_bad_lines;       /* JSONL lines without a text are counted and left out */
        char *tokenizer; /* path of a tokenizer; NULL: train a byte-level BPE on the text */
        /* vocabulary size of that BPE, including the end-of-text token */
        int64_t tokenizer_vocab_size;
        /* tokenizer_vocab_size was not given and is only a limit (model.vocab_size or a default): a
         * short text gives a smaller tokenizer. A given size is exact. Not a key. */
        bool tokenizer_vocab_at_most;
        double val_fraction; /* share at the end of the text that is held out */
        int64_t seq_length;
        bool shuffle;
        char *cache; /* folder that caches prepared corpora */
    } data;
    struct {
        int64_t data, tensor, pipeline;
        bool sequence_parallel;
        int64_t shard;           /* data-parallel ranks over which ZeRO shards; 0: all */
        ScheduleKind schedule;   /* default: 1f1b, or interleaved where pipeline_chunks > 1 */
        int64_t pipeline_chunks; /* number of layer ranges per stage */
        /* Number of blocks in each layer range, in layer order: pipeline x pipeline_chunks numbers.
         * If empty, pipeline.partition divides the layers. */
        IntegerList pipeline_split;
        double timeout; /* seconds a rank waits for another before it ends the run (exit code 86) */
        int64_t stop_interval; /* every so many steps, ranks agree whether to stop; 0: automatic */
        char *rendezvous, *interface, *secret_file; /* for a launcher's ranks; NULL: none */
        struct {
            /* per group of ranks: the most thread blocks of one call on a GPU; 0: NCCL decides */
            int64_t pp_max_ctas, dp_max_ctas, replicate_max_ctas, tp_max_ctas, kv_max_ctas,
                tie_max_ctas;
        } nccl;
    } parallel;
    struct {
        /* the rule that divides the layers into ranges; pipeline_split replaces it */
        Partition partition;
    } pipeline;
    struct {
        CpuLevel level;
        int64_t threads; /* 0: allowed cores divided by the ranks on this machine */
        BlasChoice blas;
    } cpu;
    struct {
        bool tf32;
        AttentionKernels attention;
    } cuda;
    DeviceChoice device;
    int64_t seed;

    int64_t train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps;
    int64_t train_steps;
    int64_t train_tokens; /* < 1: not given; otherwise it determines train_steps */
    double max_time; /* seconds after each start until the run stops (exit code 85); 0: no limit */
    int64_t steps_per_print;
    bool wall_clock_breakdown, memory_breakdown, dump_state;
    /* this many updates skipped in a row (not finite, or spikes) end the run (exit code 88) */
    int64_t max_consecutive_skipped_steps;
    HealthConfig health;
    double memory_margin; /* share of a memory that ./train plan keeps free */

    struct {
        OptimizerType type;
        WeightDecayOn weight_decay_on;
        struct {
            double lr, betas[2], eps, weight_decay, momentum, dampening;
            bool bias_correction, adam_w_mode, nesterov;
            bool torch_adam; /* only decides the default of weight_decay */
        } params;
    } optimizer;
    struct {
        SchedulerType type;
        struct {
            double warmup_min_lr, warmup_max_lr; /* warmup_max_lr < 0: use the optimizer's lr */
            int64_t warmup_num_steps, total_num_steps;
            /* < 0: not given; otherwise they determine warmup_num_steps and decay_num_steps */
            double warmup_ratio, decay_ratio;
            WarmupType warmup_type;
            double warmup_min_ratio, cos_min_ratio;
            double lr_range_test_min_lr, lr_range_test_step_rate;
            int64_t lr_range_test_step_size;
            bool lr_range_test_staircase;
            double cycle_min_lr, cycle_max_lr, decay_lr_rate;
            /* a second value < 0 means that it equals the first */
            int64_t cycle_first_step_size, cycle_second_step_size;
            int64_t cycle_first_stair_count, cycle_second_stair_count;
            int64_t decay_step_size;
            bool cycle_momentum;
            int64_t decay_num_steps; /* WSD: length of the final decay */
            double min_lr_ratio;     /* WSD: final lr, as a fraction of the optimizer's lr */
            DecayShape decay_type;   /* WSD: shape of the final decay */
        } params;
    } scheduler;
    double gradient_clipping; /* maximum norm of the gradient; 0: no clipping */

    GradDtype communication_data_type; /* GRAD_DTYPE_AUTO: config_grad_dtype decides */
    /* Only the checks of a config read this: with sequence parallelism, rows are always sent in the
     * dtype of the weights. */
    GradDtype seq_parallel_communication_data_type;
    GradientOp gradient_allreduce_op;
    /* Only the checks of a config read these two. The loss is divided by the whole batch size where
     * it is computed, so a sum over ranks needs no further factor. */
    bool prescale_gradients;
    double gradient_predivide_factor;

    struct {
        bool enabled;
        double loss_scale; /* 0: dynamic loss scaling */
        int64_t initial_scale_power, loss_scale_window, hysteresis;
        bool consecutive_hysteresis;
        double min_loss_scale;
    } fp16;
    struct {
        bool enabled, check_grad_overflow;
        bool bf16_master_weights_and_grads; /* no f32 masters: weights are rounded stochastically */
        bool bf16_optimizer_states;         /* AdamW's moments in bf16 */
    } bf16;
    struct {
        bool enabled;
    } fp64;
    struct {
        GradDtype grad_accum_dtype;
    } data_types;
    /* Sizes are in elements. Only `stage` changes results; the other keys keep them bitwise. */
    struct {
        int64_t stage;       /* ZeRO stage, 0 to 3 */
        bool reduce_scatter; /* false: gradients are all-reduced at every stage */
        /* Consecutive units (parameters of one layer, see param.h) are communicated in one group of
         * collectives until the group has this many elements. A larger unit gets its own group. */
        int64_t reduce_bucket_size, allgather_bucket_size;
        /* default: true at stage 3, or if each rank has its own GPU; otherwise false */
        bool overlap_comm;
        /* Stage 3. prefetch_bucket_size: how many elements may be gathered before they are needed.
         * max_live_parameters: how many may be gathered at the same time. max_reuse_distance: a
         * unit stays gathered if at most this many elements are used before its next use. */
        int64_t stage3_prefetch_bucket_size, stage3_max_live_parameters, stage3_max_reuse_distance;
        /* Stage 3: units of at most param_persistence_threshold elements are never sharded, as long
         * as these units together have at most model_persistence_threshold elements. */
        int64_t stage3_param_persistence_threshold, stage3_model_persistence_threshold;
        OffloadConfig offload_optimizer;
    } zero_optimization;
    struct {
        RecomputePolicy policy;
    } activation_checkpointing;
    struct {
        /* steps: micro-batches per evaluation, over all ranks; 0: all data */
        int64_t interval, steps;
        int64_t patience; /* evaluations in a row without a lower loss that end the run; 0: off */
        EvalSets sets;    /* further validation sets, each evaluated by itself */
        int64_t sample_interval, sample_tokens;
        char *sample_prompt;
        double sample_temperature;
        int64_t sample_top_k;
    } eval;
    struct {
        int64_t save_interval, keep; /* keep: newest checkpoints to keep; 0: all */
        int64_t keep_every;          /* also keep those of steps divisible by this; 0: none */
        bool keep_best;              /* also keep the one with the lowest validation loss, if any */
        bool async; /* training continues during a save, if memory has room for a snapshot */
        /* maximum number of ranks that write; more than all ranks means all. Default: min(8, ranks)
         * if each rank has its own GPU, otherwise 1 */
        int64_t writers;
        bool compare_replicas;    /* compare replicated tensors across ranks before each save */
        int64_t compare_interval; /* steps between further comparisons; 0: only before saves */
        /* where the weights of a new run come from: a checkpoint, a run folder or a Hugging Face
         * folder; NULL: they are initialised from the seed */
        char *init_from;
        InitTokenizer init_from_tokenizer;
    } checkpoint;
    struct {
        bool enabled; /* print communication tables every steps_per_print steps and at the end */
    } comms_logger;
    struct {
        bool enabled;
        /* The events are written to output_path/job_name, or to RUN/tensorboard/job_name if
         * output_path is empty. */
        char *output_path, *job_name;
    } tensorboard;
    struct {
        bool json; /* print JSON lines on the console */
    } logging;
    int64_t world;    /* number of ranks the config was read for; 0: not known */
    char *path;       /* the config file as given on the command line; "" if there was none */
    char *name;       /* the run's name: the file name without folder and extension */
    bool foreign;     /* the file has no section "model": it was written for another program */
    bool settled;     /* true: vocabulary sizes are those of the data; false: they may be limits */
    void *provenance; /* the origin of every value; owned, read with config_origin */
};

/* The errors and notices of one load, sorted by position. Each is a complete message that starts
 * with its position. */
typedef struct {
    int n_errors, n_notices;
    char **error, **notice;
    /* Per error: the command-line options that remove it, one on each line: "KEY=VALUE" for --set,
     * or "--ranks N". NULL: none are known, or the user must choose. */
    char **remedy;
    bool missing;  /* the file could not be opened or read */
    bool *routine; /* per notice: it only reports which default was used (shown with --verbose) */
    bool *idle;    /* per notice: a key has no effect here (counted; shown with --verbose) */
} ConfigReport;

/* Reads `path` ("-" is stdin; NULL: defaults only), applies `sets` ("a.b=value") in order, fills in
 * defaults and derived values, and validates. `context` may be NULL. Returns NULL if
 * report->n_errors > 0; never exits. The caller frees the config and the report. */
const Config *config_load(const char *path, int n_sets, const char *const *sets,
                          const ConfigContext *context, ConfigReport *report);
/* Does the same as config_load, but reads the config from memory. Messages use `path` as its
 * name. */
const Config *config_parse(const ConfigContext *context, const char *path, const char *text,
                           size_t length, int n_sets, const char *const *sets,
                           ConfigReport *report);
void config_free(const Config *config);
void config_report_free(ConfigReport *report);
/* Returns the exit code for a load that failed: EXIT_CONFIG for mistakes in the config,
 * EXIT_MISSING or EXIT_PERMISSION if the file could not be read. */
ExitCode config_report_code(const ConfigReport *report);
/* Prints the errors to `to`, one per line. With `verbose`, all notices are printed before them.
 * Otherwise notices are printed only if there are no errors; keys without effect and notices about
 * defaults are only counted, in a line each. Only rank 0 does this; any other rank prints only the
 * first error, if any, to stderr. */
void config_report_print(const ConfigReport *report, bool verbose, FILE *to);
/* Prints how many keys have no effect; nothing if there is none. */
void config_report_count_idle(const ConfigReport *report, FILE *to);

/* Prints every key with its value and origin ("configs/demo.json:12", "--set", "default",
 * "derived"), as JSON with comments. config_load reads this text back to the same Config. Values
 * that were computed from train_steps, the number of ranks or other batch keys are printed as
 * comments, so that they are computed again if one of those changes. The key "_world" holds the
 * number of ranks, for ConfigContext.stored and .resumed; README.md explains "_shard". */
void config_print(const Config *config, FILE *to);
/* Returns the output of config_print as a malloc'ed string. Checkpoints store this text. */
char *config_text(const Config *config);
/* Prints the same values as strict JSON, without comments: values that config_print prints as
 * comments are left out. config_load reads it back to the same Config. Run folders store it. */
void config_print_json(const Config *config, FILE *to);
/* Prints the value and the origin of every key as strict JSON, one key in a line, with the values
 * that config_print_json leaves out. `earlier` is NULL, or what this function printed before for
 * the same run (`bytes` bytes): an unchanged value keeps its origin from there. */
void config_print_origins(const Config *config, const char *earlier, size_t bytes, FILE *to);
/* Prints every key with its default and help, as JSON with comments (`./train config defaults
 * --all`). */
void config_print_defaults(FILE *to);
/* Prints the names of all keys by section. */
void config_print_index(FILE *to);
/* Returns the origin of a key's value, e.g. "configs/demo.json:12". CHECKs that the key exists. */
const char *config_origin(const Config *config, const char *key);
/* Returns where a key was given, in the form that begins error messages: "configs/demo.json:12:5"
 * or "--set seed=1"; NULL if it was not given. CHECKs that the key exists. */
const char *config_given_at(const Config *config, const char *key);
/* Returns the word for an enum key's value, such as "1f1b" for "parallel.schedule". */
const char *config_word(const Config *config, const char *key);
/* Prints the help of one key, or of all keys in a section. Returns false if there is no such key;
 * then `suggestion` names the most similar key. */
bool config_explain(const char *key, FILE *to, char *suggestion, size_t n);

/* Effect of a changed key on a resumed run: none; rounding; other results; unusable weights. */
typedef enum { EFFECT_NONE, EFFECT_ROUNDING, EFFECT_NUMBERS, EFFECT_IMPOSSIBLE } ConfigEffect;
typedef struct {
    const char *key;
    ConfigEffect effect;
    bool derived;    /* the value is now computed from other keys */
    char *was, *now; /* both values as JSON */
} ConfigDifference;
/* Finds all keys whose values differ, in the order of the option table, and returns their number;
 * config_diff_free frees *out. These values count as equal: a ratio and a step count that give the
 * same number of steps; a vocabulary size that is known only after the data are opened, and any
 * size that it can become; two defaults that depend on the devices of a machine; a default that
 * config_settle has not determined yet, and any value. */
int config_diff(const Config *was, const Config *now, ConfigDifference **out);
void config_diff_free(ConfigDifference *differences, int n);
/* Writes to `out` how to get train_batch_size `batch` from this config, as the middle of a
 * sentence: "write train_batch_size 16". Writes "" if the key was given, or if no number of ranks
 * fits. */
void config_batch_advice(const Config *config, int64_t batch, char *out, size_t n);

/* Facts that are known only when a command starts and that no config file contains. Zero or NULL
 * means "not known". */
typedef struct {
    const char *tokenizer; /* path of the tokenizer to use, overriding data.tokenizer */
    int64_t vocab_size;    /* vocabulary size of the data's tokenizer */
    const char *vocab_of;  /* the name of that tokenizer in error messages */
    /* Returns the minimum of each property over the devices of this config's ranks. It is called
     * only if a value depends on these properties. */
    DeviceFacts (*device)(const Config *config);
    const DeviceFacts *known; /* the properties; then `device` is not called */
    /* The stored config of the run that is resumed: values that depend on the device are taken from
     * it if they are not given, because its earlier steps were computed with them. */
    const Config *run;
    /* The run is only read, not trained: if the devices lack the attention kernels that it was
     * trained with, and no --set asks for them, the portable ones are used. */
    bool opened;
} ConfigFacts;
/* Returns the config with these facts added; the origin of a value that is set here is "derived".
 * Takes ownership of `config`. No other function changes a validated Config. Returns NULL and sets
 * `err`, and the caller still owns `config`, if the devices lack the kernels of cuda.attention, or
 * if model.vocab_size does not fit the data. It fits if it equals the data's vocabulary size or
 * exceeds it by at most a sixteenth of its rows, which are padding. If the tokenizer is trained on
 * the text (config_trains_tokenizer), it is a limit: a smaller vocabulary replaces it, and a larger
 * one is refused. */
const Config *config_settle(const Config *config, const ConfigFacts *facts, char *err, size_t n);
/* Returns whether a run trains its tokenizer on its text: no shards and no tokenizer are given. */
bool config_trains_tokenizer(const Config *config);
/* Returns the vocabulary size that the data are expected to have, according to the config alone. */
int64_t config_likely_vocab(const Config *config);
/* Returns a copy of a config for measuring, after config_settle: one step is one micro-batch, and
 * its phases are timed. If `samples` is false, no memory is planned for sampling text. The copy
 * shares the strings of `config`, which must outlive it; it must not be freed. */
Config config_of_one_micro_batch(const Config *config, bool samples);
/* Returns a copy of what config_of_one_micro_batch returned, in which all ranks together have about
 * as many sequences as one rank has in `config`, and each at least one. For ranks that share a
 * machine's processors, where a whole micro-batch on every rank would take too long. */
Config config_of_one_share(const Config *config);

/* Returns a copy whose sequences have at most `tokens` tokens, rounded up so that tensor-parallel
 * ranks get equal parts. The model is the same; the strings are shared, as in
 * config_of_one_micro_batch. For commands whose sequences are shorter than those of training. */
Config config_of_short_sequences(const Config *config, int64_t tokens);

/* Returns the axis sizes of the config's grid on `ranks` ranks. dp is ranks / (pp x tp), rounded
 * down, so it is 0 if there are too few ranks. If `ranks` is 0, dp is parallel.data. No other code
 * relates the number of ranks to dp, tp and pp. */
GridPlace config_grid(const Config *config, int64_t ranks);
/* Returns the number of ranks of a ZeRO shard group: `data` by default and at ZeRO stage 0. */
int config_shard(const Config *config, int data);
/* Returns a key that describes how several ranks share the work: the one with this number, counted
 * from 0 in the order of the option table; NULL after the last. A config that gives none of these
 * keys (or gives null) is for a single rank, or for data-parallel ranks at ZeRO stage 0. */
const char *config_grid_key(int number);

/* Returns whether weight decay is subtracted from the weights and not added to the gradient. */
bool config_decay_is_decoupled(const Config *config);
/* Returns the dtype of weights and activations in training: F64 with fp64, BF16 with bf16, F16 with
 * fp16, else F32. */
DType config_dtype(const Config *config);
/* Returns the dtype in which gradients are accumulated. Default: F32; F64 with fp64; BF16 if bf16
 * weights have no f32 masters. */
DType config_grad_dtype(const Config *config);
/* Returns the dtype in which gradients are sent between ranks. Default: config_grad_dtype. */
DType config_communication_dtype(const Config *config);

#endif
