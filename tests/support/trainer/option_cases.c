/* option_cases.c -- the table of runs that show the effect of each option. See option_cases.h. */
#include "tests/support/trainer/option_cases.h"

#include "model/core/check.h"

#define ROPE "model.position=rope"
/* With twelve tokens of original length and the frequencies of heads of eight elements, one
 * rotation is fast, one is slow, and two are in between. */
#define SLOWED                                                                                     \
    "model.rope_scaling={\"factor\": 8, \"low_freq_factor\": 0.1, \"high_freq_factor\": 1, "       \
    "\"original_max_position_embeddings\": 12}"
#define LLAMA3 ROPE, "model.rope_theta=100", "model.rope_scaling.type=llama3", SLOWED
#define BF16   "bf16.enabled=true"
#define FP16   "fp16.enabled=true"
#define SHARDS "data.train=one.bin", "model.vocab_size=300"
#define SGD    "optimizer.type=SGD", "optimizer.params.lr=0.1"
#define ADAM   "optimizer.type=Adam"
#define WARMUP "scheduler.type=WarmupLR", "scheduler.params.warmup_num_steps=4"
#define DECAY  "scheduler.type=WarmupDecayLR", "scheduler.params.warmup_num_steps=2"
#define COSINE "scheduler.type=WarmupCosineLR", "scheduler.params.warmup_num_steps=3"
#define RANGE  "scheduler.type=LRRangeTest", "scheduler.params.lr_range_test_step_size=2"
#define CYCLE                                                                                      \
    "scheduler.type=OneCycle",                                                                     \
        "scheduler.params={\"cycle_min_lr\": 0.001, \"cycle_max_lr\": 0.1, "                       \
        "\"cycle_momentum\": false, \"cycle_first_step_size\": 2}"
#define WSD "scheduler.type=WSD", "scheduler.params.warmup_num_steps=2"
/* In these runs, gradients fit fp16 at a loss scale of 2^20 and overflow at 2^22. */
#define SCALE(power) FP16, ("fp16.initial_scale_power=" #power)

#define ZERO2  "zero_optimization.stage=2"
#define ZERO3  "zero_optimization={\"stage\": 3, \"stage3_param_persistence_threshold\": 0}"
#define EVENTS "tensorboard.enabled=true"
#define COMMS  "comms_logger.enabled=true"
#define STAGES                                                                                     \
    "parallel.pipeline=2", "model.num_layers=4", "model.intermediate_size=32",                     \
        "train_micro_batch_size_per_gpu=1"

#define ON_RANKS(key_, value_, ...)                                                                \
    {                                                                                              \
        .key = key_, .value = value_, .ranks = 2, .set = { __VA_ARGS__ }                           \
    }
#define SEE(key_, value_, ...)                                                                     \
    {                                                                                              \
        .key = key_, .value = value_, .set = { __VA_ARGS__ }                                       \
    }

const OptionCase option_cases[] = {
    SEE("model.num_layers", "2"),
    SEE("model.hidden_size", "48"),
    SEE("model.num_attention_heads", "2"),
    SEE("model.num_key_value_heads", "2"),
    SEE("model.head_dim", "16"),
    SEE("model.intermediate_size", "96"),
    SEE("model.vocab_size", "600", SHARDS),
    SEE("model.max_position_embeddings", "32"),
    SEE("model.max_position_embeddings", "32", ROPE),
    SEE("model.norm", "rmsnorm"),
    SEE("model.norm_epsilon", "0.01"),
    SEE("model.norm_epsilon", "0.01", "model.norm=rmsnorm"),
    SEE("model.position", "rope"),
    SEE("model.rope_theta", "100", ROPE),
    {.key = "model.rope_scaling.type", .value = "llama3", .beside = SLOWED, .set = {ROPE}},
    SEE("model.rope_scaling.factor", "2", LLAMA3),
    SEE("model.rope_scaling.low_freq_factor", "0.2", LLAMA3),
    SEE("model.rope_scaling.high_freq_factor", "1.5", LLAMA3),
    SEE("model.rope_scaling.original_max_position_embeddings", "16", LLAMA3),
    SEE("model.activation", "relu2"),
    SEE("model.activation", "swiglu"),
    SEE("model.fused_gelu", "true", BF16),
    SEE("model.head_chunk_rows", "16"),
    SEE("model.bias", "false"),
    SEE("model.attention_bias", "qkv"),
    SEE("model.attention_bias", "qkv", "model.bias=false"),
    SEE("model.mlp_bias", "false"),
    SEE("model.qk_norm", "true"),
    SEE("model.tie_word_embeddings", "false"),
    SEE("model.initializer_range", "0.03"),
    SEE("data.train", "two.bin", SHARDS),
    SEE("data.val", "two.bin", SHARDS),
    SEE("data.text", "other.txt"),
    SEE("data.val_text", "other.txt"),
    {.key = "data.corpus", .value = "none-such", .code = EXIT_MISSING},
    SEE("data.text_key", "loud", "data.text=lines.jsonl"),
    {.key = "data.skip_bad_lines", .elsewhere = "data.sh"},
    SEE("data.tokenizer", "large/tokenizer.json"),
    SEE("data.tokenizer_vocab_size", "400"),
    SEE("data.val_fraction", "0.2"),
    SEE("data.seq_length", "12"),
    SEE("data.shuffle", "false"),
    SEE("data.cache", "run/corpora"),
    {.key = "parallel.data", .value = "2", .code = EXIT_CONFIG},
    ON_RANKS("parallel.data", "2"),
    {.key = "parallel.tensor", .value = "2", .code = EXIT_CONFIG},
    ON_RANKS("parallel.tensor", "2", COMMS),
    {.key = "parallel.pipeline", .value = "2", .code = EXIT_CONFIG},
    ON_RANKS("parallel.pipeline", "2", "model.num_layers=4", COMMS),
    ON_RANKS("parallel.sequence_parallel", "true", "parallel.tensor=2", COMMS),
    ON_RANKS("parallel.schedule", "gpipe", STAGES, COMMS),
    ON_RANKS("parallel.pipeline_chunks", "2", STAGES, COMMS),
    ON_RANKS("parallel.pipeline_split", "[2, 2]", STAGES, COMMS),
    ON_RANKS("pipeline.partition", "uniform", STAGES, COMMS),
    SEE("seq_parallel_communication_data_type", "fp16"),
    ON_RANKS("parallel.shard", "1", ZERO3, COMMS),
    ON_RANKS("parallel.timeout", "30"),
    ON_RANKS("parallel.stop_interval", "3"),
    ON_RANKS("parallel.rendezvous", "elsewhere"),
    ON_RANKS("parallel.interface", "lo"),
    ON_RANKS("parallel.secret_file", "secret"),
    {.key = "parallel.nccl.pp_max_ctas", .elsewhere = "test_reserve"},
    {.key = "parallel.nccl.dp_max_ctas", .elsewhere = "test_reserve"},
    {.key = "parallel.nccl.replicate_max_ctas", .elsewhere = "test_reserve"},
    {.key = "parallel.nccl.tp_max_ctas", .elsewhere = "test_reserve"},
    {.key = "parallel.nccl.kv_max_ctas", .elsewhere = "test_reserve"},
    {.key = "parallel.nccl.tie_max_ctas", .elsewhere = "test_reserve"},
    ON_RANKS("zero_optimization.stage", "1", COMMS),
    ON_RANKS("zero_optimization.stage", "2", COMMS),
    ON_RANKS("zero_optimization.stage", "3", COMMS),
    ON_RANKS("zero_optimization.reduce_scatter", "false", ZERO2, COMMS),
    ON_RANKS("zero_optimization.reduce_bucket_size", "5000", "communication_data_type=bf16"),
    ON_RANKS("zero_optimization.allgather_bucket_size", "5000", ZERO3, COMMS),
    ON_RANKS("zero_optimization.overlap_comm", "true", "communication_data_type=bf16"),
    ON_RANKS("zero_optimization.stage3_prefetch_bucket_size", "0", ZERO3, COMMS),
    ON_RANKS("zero_optimization.stage3_max_live_parameters", "25600", ZERO3, COMMS),
    ON_RANKS("zero_optimization.stage3_max_reuse_distance", "0", ZERO3, COMMS),
    ON_RANKS("zero_optimization.stage3_param_persistence_threshold", "1000", ZERO3, COMMS),
    ON_RANKS("zero_optimization.stage3_model_persistence_threshold", "0", ZERO3,
             "zero_optimization.stage3_param_persistence_threshold=1000", COMMS),
    SEE("zero_optimization.offload_optimizer.device", "cpu"),
    SEE("zero_optimization.offload_optimizer.ratio", "0.5",
        "zero_optimization.offload_optimizer.device=cpu"),
    SEE("zero_optimization.offload_optimizer.pin_memory", "false"),
    ON_RANKS("communication_data_type", "bf16", COMMS),
    ON_RANKS("gradient_allreduce_op", "sum", SGD, "gradient_clipping=0"),
    ON_RANKS("prescale_gradients", "true"),
    ON_RANKS("gradient_predivide_factor", "2"),
    {.key = "cpu.level", .value = "baseline", .shows = "baseline"},
    {.key = "cpu.threads", .value = "2", .shows = "2 threads"},
    {.key = "cpu.blas", .value = "openblas", .shows = "built-in products"},
    {.key = "cuda.tf32", .elsewhere = "test_emu_products"},
    {.key = "device", .value = "cuda", .shows = "built-in products"},
    SEE("seed", "8"),
    SEE("train_batch_size", "6"),
    SEE("train_micro_batch_size_per_gpu", "1"),
    SEE("gradient_accumulation_steps", "2", "train_micro_batch_size_per_gpu=auto"),
    SEE("train_steps", "5"),
    SEE("train_tokens", "257"),
    {.key = "max_time", .value = "1e-9", .code = EXIT_REQUEUE},
    {.key = "steps_per_print", .value = "2", .shows = "\n3 "},
    {.key = "wall_clock_breakdown", .value = "true", .shows = "backward"},
    {.key = "memory_breakdown", .value = "true", .shows = "after a step"},
    SEE("memory_margin", "0.5"),
    {.key = "dump_state", .value = "true", .shows = "\"weight_decay_on\""},
    /* A run that skips its last updates ends with 88, so it cannot be compared. */
    {.key = "max_consecutive_skipped_steps", .elsewhere = "program/numbers.sh"},
    {.key = "health.policy", .elsewhere = "test_run_health"},
    {.key = "health.spike_deviations", .elsewhere = "test_run_health"},
    {.key = "health.max_rollbacks", .elsewhere = "test_run_rollback"},
    SEE("optimizer.type", "SGD"),
    SEE("optimizer.weight_decay_on", "all"),
    SEE("optimizer.params.lr", "0.02"),
    SEE("optimizer.params.betas", "[0.5, 0.999]"),
    SEE("optimizer.params.betas", "[0.9, 0.99]"),
    SEE("optimizer.params.eps", "0.001"),
    SEE("optimizer.params.weight_decay", "0.2"),
    SEE("optimizer.params.weight_decay", "0.2", SGD),
    SEE("optimizer.params.momentum", "0.9", SGD, "optimizer.params.momentum=0.5"),
    {"optimizer.params.momentum", "0.9", .set = {SGD}, .impossible = true},
    {"optimizer.params.momentum", "0", .set = {SGD, "optimizer.params.momentum=0.5"},
     .impossible = true},
    SEE("optimizer.params.dampening", "0.5", SGD, "optimizer.params.momentum=0.9"),
    SEE("optimizer.params.bias_correction", "false"),
    SEE("optimizer.params.adam_w_mode", "false", ADAM),
    SEE("optimizer.params.torch_adam", "true", "optimizer.params.weight_decay=null"),
    SEE("optimizer.params.nesterov", "true", SGD, "optimizer.params.momentum=0.9"),
    SEE("scheduler.type", "WarmupLR"),
    SEE("scheduler.params.warmup_min_lr", "0.001", WARMUP),
    SEE("scheduler.params.warmup_max_lr", "0.02", WARMUP),
    SEE("scheduler.params.warmup_max_lr", "0.02", DECAY),
    SEE("scheduler.params.warmup_num_steps", "3", WARMUP),
    SEE("scheduler.params.warmup_num_steps", "2", COSINE),
    SEE("scheduler.params.warmup_num_steps", "3", WSD),
    SEE("scheduler.params.warmup_ratio", "0.5", "scheduler.type=WarmupLR",
        "scheduler.params.warmup_ratio=0.3"),
    SEE("scheduler.params.warmup_ratio", "0.5", "scheduler.type=WSD",
        "scheduler.params.warmup_ratio=0.3"),
    SEE("scheduler.params.decay_ratio", "0.5", "scheduler.type=WSD",
        "scheduler.params.warmup_ratio=0.3", "scheduler.params.decay_ratio=0.2"),
    SEE("scheduler.params.total_num_steps", "12", DECAY),
    SEE("scheduler.params.total_num_steps", "12", COSINE),
    SEE("scheduler.params.warmup_type", "linear", WARMUP),
    SEE("scheduler.params.warmup_type", "linear", COSINE),
    SEE("scheduler.params.warmup_min_ratio", "0.5", COSINE),
    SEE("scheduler.params.cos_min_ratio", "0.5", COSINE),
    SEE("scheduler.params.lr_range_test_min_lr", "0.01", RANGE),
    SEE("scheduler.params.lr_range_test_step_rate", "5", RANGE),
    SEE("scheduler.params.lr_range_test_step_size", "3", RANGE),
    SEE("scheduler.params.lr_range_test_staircase", "true", RANGE),
    SEE("scheduler.params.cycle_min_lr", "0.002", CYCLE),
    SEE("scheduler.params.cycle_max_lr", "0.02", CYCLE),
    SEE("scheduler.params.decay_lr_rate", "2", CYCLE, "scheduler.params.cycle_second_step_size=1",
        "scheduler.params.decay_step_size=1"),
    SEE("scheduler.params.decay_step_size", "1", CYCLE, "scheduler.params.cycle_second_step_size=1",
        "scheduler.params.decay_lr_rate=2"),
    SEE("scheduler.params.cycle_first_step_size", "3", CYCLE),
    SEE("scheduler.params.cycle_second_step_size", "3", CYCLE),
    SEE("scheduler.params.cycle_first_stair_count", "3", CYCLE,
        "scheduler.params.cycle_second_stair_count=0"),
    SEE("scheduler.params.cycle_second_stair_count", "3", CYCLE),
    {.key = "scheduler.params.cycle_momentum",
     .value = "true",
     .set = {CYCLE},
     .code = EXIT_CONFIG},
    SEE("scheduler.params.decay_num_steps", "3", WSD),
    SEE("scheduler.params.min_lr_ratio", "0.5", WSD, "scheduler.params.decay_num_steps=4"),
    SEE("scheduler.params.decay_type", "cosine", WSD, "scheduler.params.decay_num_steps=4"),
    SEE("scheduler.params.decay_type", "sqrt", WSD, "scheduler.params.decay_num_steps=4"),
    SEE("gradient_clipping", "0.01"),
    SEE("gradient_clipping", "0", SGD),
    SEE("fp16.enabled", "true"),
    SEE("fp16.loss_scale", "100", FP16),
    SEE("fp16.initial_scale_power", "22", FP16),
    SEE("fp16.loss_scale_window", "1", SCALE(20)),
    SEE("fp16.hysteresis", "1", SCALE(22)),
    /* Overflows twice, has one good step, and overflows again. The last overflow is forgiven only
     * if the good step restores the hysteresis. */
    {.key = "fp16.consecutive_hysteresis",
     .value = "false",
     .set = {SCALE(21), "fp16.consecutive_hysteresis=true", "fp16.min_loss_scale=1048576", "seed=2",
             "optimizer.params={\"lr\": 0.1, \"weight_decay\": 0}"},
     .code = EXIT_DIVERGED},
    {.key = "fp16.min_loss_scale",
     .value = "8388608",
     .set = {SCALE(24), "fp16.hysteresis=1"},
     .code = EXIT_DIVERGED},
    SEE("bf16.enabled", "true"),
    {.key = "bf16.check_grad_overflow", .elsewhere = "test_optim"},
    SEE("bf16.bf16_master_weights_and_grads", "true", BF16),
    SEE("bf16.bf16_optimizer_states", "true", BF16),
    SEE("fp64.enabled", "true"),
    SEE("data_types.grad_accum_dtype", "bf16", BF16),
    SEE("activation_checkpointing.policy", "selective"),
    SEE("activation_checkpointing.policy", "full"),
    SEE("eval.interval", "3"),
    SEE("eval.steps", "3"),
    /* Without a learning rate no evaluation brings a lower loss than the first. */
    SEE("eval.patience", "1", "optimizer.params.lr=0"),
    SEE("eval.sets", "{\"other\": {\"text\": \"other.txt\"}}"),
    SEE("eval.sample_interval", "3"),
    SEE("eval.sample_tokens", "9"),
    SEE("eval.sample_prompt", "king"),
    SEE("eval.sample_temperature", "0.1"),
    SEE("eval.sample_top_k", "2"),
    SEE("checkpoint.save_interval", "3", "checkpoint.keep=0"),
    SEE("checkpoint.keep", "1"),
    SEE("checkpoint.keep_every", "1", "checkpoint.save_interval=1", "checkpoint.keep=5"),
    SEE("checkpoint.keep_best", "false"),
    SEE("checkpoint.async", "false"),
    ON_RANKS("checkpoint.writers", "2"),
    {.key = "checkpoint.compare_replicas", .elsewhere = "test_run_replicas"},
    {.key = "checkpoint.compare_interval", .elsewhere = "test_run_replicas"},
    {.key = "checkpoint.init_from", .value = "none-such", .code = EXIT_MISSING},
    {.key = "checkpoint.init_from_tokenizer", .elsewhere = "init_from.sh"},
    {.key = "comms_logger.enabled", .value = "true", .ranks = 2, .shows = "all-reduce"},
    SEE("tensorboard.enabled", "true"),
    SEE("tensorboard.output_path", "run/logs", EVENTS),
    SEE("tensorboard.job_name", "job", EVENTS),
    {.key = "logging.json", .value = "true", .shows = "\"event\""},
};
const int option_case_count = sizeof option_cases / sizeof *option_cases;
