/* known_keys.c -- lists DeepSpeed keys that are known but not implemented here: which of their
 * values are accepted, and which are refused with the key's name.
 *
 * A value is refused if it would change results. It is accepted with a notice if it only concerns
 * where or how DeepSpeed does its work, if it asks for a tool that does not affect training, or if
 * this program always behaves so. It is accepted silently if it belongs to a feature that is off or
 * has no effect. */
#include "configs/reader/options.h"

#define IGNORED(key_, inert_, ...)                                                                 \
    {                                                                                              \
        .key = key_, .kind = KNOWN_IGNORED, .inert = inert_, .why = __VA_ARGS__                    \
    }
#define IGNORED_LIKE(key_, example_, why_)                                                         \
    {                                                                                              \
        .key = key_, .kind = KNOWN_IGNORED, .example = example_, .why = why_                       \
    }
#define QUIET(key_, why_)                                                                          \
    {                                                                                              \
        .key = key_, .kind = KNOWN_QUIET, .why = why_                                              \
    }
#define UNBUILT(key_, inert_, why_)                                                                \
    {                                                                                              \
        .key = key_, .kind = KNOWN_UNBUILT, .inert = inert_, .why = why_                           \
    }
/* An UNBUILT row that also names keys which do what this key asks for. */
#define UNBUILT_BUT(key_, inert_, why_, helps_)                                                    \
    {                                                                                              \
        .key = key_, .kind = KNOWN_UNBUILT, .inert = inert_, .why = why_, .helps = helps_          \
    }
#define SWITCH(key_, why_)                                                                         \
    {                                                                                              \
        .key = key_, .kind = KNOWN_SWITCH, .why = why_                                             \
    }
#define TOOL(key_, why_)                                                                           \
    {                                                                                              \
        .key = key_, .kind = KNOWN_TOOL, .why = why_                                               \
    }
#define ON_SWITCH(key_, why_)                                                                      \
    {                                                                                              \
        .key = key_, .kind = KNOWN_ON_SWITCH, .why = why_                                          \
    }
#define DEEP_SWITCH(key_, why_)                                                                    \
    {                                                                                              \
        .key = key_, .kind = KNOWN_DEEP_SWITCH, .why = why_                                        \
    }
#define SHORT(key_, name_, why_)                                                                   \
    {                                                                                              \
        .key = key_, .kind = KNOWN_SHORT, .stands_for = name_, .why = why_                         \
    }
/* The values in `inert` are treated as if the key were absent. */
#define ALIAS(key_, name_, ...)                                                                    \
    {                                                                                              \
        .key = key_, .kind = KNOWN_ALIAS, .stands_for = name_, .why = "another name of " name_,    \
        __VA_ARGS__                                                                                \
    }
#define TREE(key_, why_)                                                                           \
    {                                                                                              \
        .key = key_, .kind = KNOWN_TREE, .why = why_                                               \
    }
#define WRONG(key_, why_)                                                                          \
    {                                                                                              \
        .key = key_, .kind = KNOWN_WRONG, .why = why_                                              \
    }
/* These rows take their explanation from a feature. More fields may follow: `why`, if the key has
 * an explanation of its own, `example`, `stands_for`. */
#define IGNORED_OF(feature_, key_, ...)                                                            \
    {                                                                                              \
        .key = key_, .kind = KNOWN_IGNORED, .feature = FEATURE_##feature_, .inert = __VA_ARGS__    \
    }
#define UNBUILT_OF(feature_, key_, ...)                                                            \
    {                                                                                              \
        .key = key_, .kind = KNOWN_UNBUILT, .feature = FEATURE_##feature_, .inert = __VA_ARGS__    \
    }
#define QUIET_OF(feature_, key_)                                                                   \
    {                                                                                              \
        .key = key_, .kind = KNOWN_QUIET, .feature = FEATURE_##feature_                            \
    }

/* One row for each feature that is not implemented and has several keys. asks: what a refused key
 * asks for that only this feature could do. idle: why the feature's other keys have no effect. The
 * rows of these keys name the feature, so that its texts are written only here. */
const KnownFeature known_feature[] = {
    [FEATURE_OFFLOAD] = {.idle = "parameters stay on the device"},
    [FEATURE_CPU_UPDATE] = {.idle = "no CPU update: the device updates states wherever they are"},
    [FEATURE_NVME] = {.idle = "nothing is kept on a disk"},
    [FEATURE_CHECKPOINT_WRITER] =
        {.idle = "checkpoint.async says whether training goes on while a checkpoint is written"},
    [FEATURE_MONITOR] = {.idle = "metrics.jsonl in the run folder has every number"},
    [FEATURE_FLOPS_PROFILER] = {.idle = "FLOP/s are always printed"},
    [FEATURE_MUON] = {.asks = "Muon"},
    [FEATURE_LAMB] = {.asks = "Lamb"},
    [FEATURE_ONE_BIT_ADAM] = {.asks = "1-bit Adam"},
    [FEATURE_ZERO_ONE_ADAM] = {.asks = "0/1 Adam"},
    [FEATURE_ONE_BIT_LAMB] = {.asks = "1-bit Lamb"},
    [FEATURE_MOMENTUM_CYCLING] = {.asks = "cycling of momentum"},
};

const KnownKey known_table[] = {
    /* The engine and its data loader. */
    UNBUILT("managed_gradient_accumulation", "|true|", "accumulation boundaries set by user code"),
    IGNORED_LIKE("log_level", "\"\"", "log level of DeepSpeed's engine"),
    IGNORED("timers.throughput.enabled", "|true|", "tokens per second are always printed"),
    IGNORED("timers.throughput.synchronized", "|true|", "steps are timed on the device"),
    IGNORED("dataloader_drop_last", "|false|", "a stream of tokens has no short batch"),
    IGNORED_LIKE("vocabulary_size", "0", "the vocabulary is padded inside to a fast size"),
    UNBUILT("sequence_parallel_size", "|1|", "context parallelism"),
    IGNORED("use_data_before_expert_parallelism", "|false|", "order of expert ranks"),
    /* Optimizers and schedulers. The params of an optimizer that is not implemented are refused
     * even if optimizer.type does not ask for it, because they show that it is wanted. */
    IGNORED("optimizer.legacy_fusion", "|false|", "fusion of optimizer kernels"),
    UNBUILT("optimizer.params.amsgrad", "|false|", "AMSGrad"),
    IGNORED("optimizer.params.set_grad_none", "|true|", "how PyTorch clears gradients"),
    ALIAS("optimizer.params.fp32_optimizer_states", "bf16.bf16_optimizer_states", .inert = "|true|",
          .negated = true),
    ALIAS("optimizer.params.max_grad_norm", "gradient_clipping"),
    UNBUILT_OF(MUON, "optimizer.params.muon_lr", 0),
    UNBUILT_OF(MUON, "optimizer.params.adam_lr", 0),
    UNBUILT_OF(MUON, "optimizer.params.ns_method", 0),
    UNBUILT_OF(LAMB, "optimizer.params.max_coeff", 0),
    UNBUILT_OF(LAMB, "optimizer.params.min_coeff", 0),
    UNBUILT_OF(LAMB, "optimizer.params.eps_inside_sqrt", 0),
    UNBUILT_OF(ONE_BIT_ADAM, "optimizer.params.freeze_step", 0),
    UNBUILT_OF(ONE_BIT_ADAM, "optimizer.params.cuda_aware", 0),
    UNBUILT_OF(ONE_BIT_ADAM, "optimizer.params.comm_backend_name", 0),
    UNBUILT_OF(ZERO_ONE_ADAM, "optimizer.params.var_freeze_step", 0),
    UNBUILT_OF(ZERO_ONE_ADAM, "optimizer.params.var_update_scaler", 0),
    UNBUILT_OF(ZERO_ONE_ADAM, "optimizer.params.local_step_scaler", 0),
    UNBUILT_OF(ZERO_ONE_ADAM, "optimizer.params.local_step_clipper", 0),
    UNBUILT_OF(ONE_BIT_LAMB, "optimizer.params.coeff_beta", 0),
    UNBUILT_OF(ONE_BIT_LAMB, "optimizer.params.factor_max", 0),
    UNBUILT_OF(ONE_BIT_LAMB, "optimizer.params.factor_min", 0),
    UNBUILT_OF(ONE_BIT_LAMB, "optimizer.params.factor_threshold", 0),
    UNBUILT_OF(MOMENTUM_CYCLING, "scheduler.params.cycle_min_mom", 0),
    UNBUILT_OF(MOMENTUM_CYCLING, "scheduler.params.cycle_max_mom", 0),
    UNBUILT_OF(MOMENTUM_CYCLING, "scheduler.params.decay_mom_rate", "|0|"),
    /* Communication between ranks. */
    ALIAS("seq_parallel_comm_data_type", "seq_parallel_communication_data_type"),
    IGNORED("sparse_gradients", "|false|",
            "gradients of embeddings are dense; the sums are the same"),
    IGNORED("disable_allgather", "|false|", "DeepSpeed does not use it either"),
    IGNORED("zero_allow_untested_optimizer", "|false|", "every optimizer here is tested"),
    IGNORED_OF(CPU_UPDATE, "zero_force_ds_cpu_optimizer", "|true|"),
    IGNORED("graph_harvesting", "|false|", "CUDA graphs of DeepSpeed's bf16 optimizer"),
    /* Types. A key that asks to store anything in fewer bits is refused, because this changes
     * results. */
    WRONG("fp16.type",
          "not a key of DeepSpeed's fp16 (GPT-NeoX writes it); remove it, and enable bf16 or fp16"),
    IGNORED("fp16.auto_cast", "|false|", "inputs are tokens"),
    UNBUILT("fp16.fp16_master_weights_and_grads", "|false|", "fp16 master weights"),
    WRONG("bf16.check_overflow", "the key is called check_grad_overflow; write that"),
    IGNORED("bf16.immediate_grad_update", "|false|", "accumulation is always immediate"),
    UNBUILT("data_types.param_dtype", 0, "a type of weights beside fp16, bf16 and fp64"),
    IGNORED_LIKE("data_types.buffer_dtype", "\"\"", "the model has no buffers"),
    SWITCH("amp", "NVIDIA Apex; bf16 does without"),
    SWITCH("torch_autocast", "autocast of PyTorch"),
    /* ZeRO. Keys that only control how DeepSpeed arranges memory are accepted without effect,
     * because units are flat buffers here. So are keys that only control where states are stored
     * (offload, hpZ, MiCS): the memory plan refuses a run whose states do not fit. Keys that ask to
     * store anything in fewer bits are refused. */
    SHORT("zero_optimization", "zero_optimization.stage", "true is stage 1, false stage 0"),
    IGNORED("zero_optimization.contiguous_gradients", "|true|",
            "the gradients of a unit always lie side by side"),
    IGNORED("zero_optimization.use_multi_rank_bucket_allreduce", "|true|",
            "each sum gives every rank its part of the unit"),
    IGNORED("zero_optimization.allgather_partitions", "|true|",
            "the parts of a unit are always gathered in one call"),
    IGNORED("zero_optimization.load_from_fp32_weights", "|true|",
            "checkpoints keep the fp32 weights"),
    IGNORED("zero_optimization.elastic_checkpoint", "|false|",
            "every checkpoint loads on any number of ranks"),
    IGNORED("zero_optimization.ignore_unused_parameters", "|true|",
            "every parameter has a gradient"),
    IGNORED("zero_optimization.round_robin_gradients", "|false|",
            "no gradients are copied to the host"),
    IGNORED("zero_optimization.sub_group_size", "|1000000000|",
            "the update works in place and needs no room by the size of its group"),
    /* Names without "stage3_" are the names of DeepSpeed's internal fields, which its config files
     * may use as well. */
    ALIAS("zero_optimization.prefetch_bucket_size",
          "zero_optimization.stage3_prefetch_bucket_size"),
    ALIAS("zero_optimization.param_persistence_threshold",
          "zero_optimization.stage3_param_persistence_threshold"),
    ALIAS("zero_optimization.model_persistence_threshold",
          "zero_optimization.stage3_model_persistence_threshold"),
    ALIAS("zero_optimization.max_live_parameters", "zero_optimization.stage3_max_live_parameters"),
    ALIAS("zero_optimization.max_reuse_distance", "zero_optimization.stage3_max_reuse_distance"),
    IGNORED("zero_optimization.stage3_gather_16bit_weights_on_model_save", "|false|",
            "checkpoints hold whole tensors at every stage"),
    IGNORED("zero_optimization.stage3_gather_fp16_weights_on_model_save", "|false|",
            "checkpoints hold whole tensors at every stage",
            .stands_for = "zero_optimization.stage3_gather_16bit_weights_on_model_save"),
    IGNORED("zero_optimization.gather_16bit_weights_on_model_save", "|false|",
            "checkpoints hold whole tensors at every stage",
            .stands_for = "zero_optimization.stage3_gather_16bit_weights_on_model_save"),
    IGNORED("zero_optimization.stage3_module_granularity_threshold", "|0|",
            "a unit is a block, or what stands before or behind them"),
    IGNORED("zero_optimization.module_granularity_threshold", "|0|",
            "a unit is a block, or what stands before or behind them",
            .stands_for = "zero_optimization.stage3_module_granularity_threshold"),
    IGNORED("zero_optimization.stage3_use_all_reduce_for_fetch_params", "|false|",
            "weights are gathered, not summed"),
    IGNORED("zero_optimization.use_all_reduce_for_fetch_params", "|false|",
            "weights are gathered, not summed",
            .stands_for = "zero_optimization.stage3_use_all_reduce_for_fetch_params"),
    IGNORED("zero_optimization.stage3_allgather_sequential", "|false|",
            "a unit's tensors are gathered in one call"),
    IGNORED("zero_optimization.memory_efficient_linear", "|true|", "a detail of PyTorch"),
    IGNORED("zero_optimization.override_module_apply", "|true|", "a detail of PyTorch"),
    IGNORED("zero_optimization.pipeline_loading_checkpoint", "|false|",
            "checkpoints are read in pieces of bounded size"),
    IGNORED("zero_optimization.log_trace_cache_warnings", "|false|",
            "the order of uses is known before the first step"),
    IGNORED("zero_optimization.enable_sanity_checks", "|false|", "checks are always on"),
    IGNORED("zero_optimization.save_muon_momentum_buffer_in_memory", "|false|",
            "no optimizer here is Muon"),
    IGNORED("zero_optimization.legacy_stage1", "|false|", "stage 1 has one form here"),
    /* The options offload_optimizer.device, .ratio and .pin_memory have rows in option_table.c. */
    QUIET_OF(NVME, "zero_optimization.offload_optimizer.nvme_path"),
    IGNORED("zero_optimization.offload_optimizer.buffer_count", "|4|",
            "no buffers: the device reads and writes states wherever they are"),
    IGNORED_OF(NVME, "zero_optimization.offload_optimizer.pipeline_read", "|false|"),
    IGNORED_OF(NVME, "zero_optimization.offload_optimizer.pipeline_write", "|false|"),
    QUIET_OF(NVME, "zero_optimization.offload_optimizer.pipeline"),
    IGNORED_OF(NVME, "zero_optimization.offload_optimizer.fast_init", "|false|"),
    IGNORED_OF(CPU_UPDATE, "zero_optimization.offload_optimizer.super_offload", "|false|"),
    IGNORED_OF(CPU_UPDATE, "zero_optimization.offload_optimizer.cpuadam_cores_perc", "|0.8|"),
    IGNORED_OF(OFFLOAD, "zero_optimization.offload_param.device", "|\"none\"|"),
    QUIET_OF(OFFLOAD, "zero_optimization.offload_param.nvme_path"),
    QUIET_OF(OFFLOAD, "zero_optimization.offload_param.buffer_count"),
    QUIET_OF(OFFLOAD, "zero_optimization.offload_param.pin_memory"),
    QUIET_OF(OFFLOAD, "zero_optimization.offload_param.buffer_size"),
    QUIET_OF(OFFLOAD, "zero_optimization.offload_param.max_in_cpu"),
    ALIAS("zero_optimization.cpu_offload", "zero_optimization.offload_optimizer.device",
          .inert = "|false|\"auto\"|", .means = "\"cpu\""),
    IGNORED_OF(OFFLOAD, "zero_optimization.cpu_offload_param", "|false|"),
    IGNORED_OF(OFFLOAD, "zero_optimization.cpu_offload_params", "|false|"),
    QUIET("zero_optimization.cpu_offload_use_pin_memory",
          "memory of states on the host is always page-locked"),
    /* For this key, and for mics_shard_size below, values below 2 mean that there are no shard
     * groups; parallel.c checks which other values have an effect. */
    ALIAS("zero_optimization.zero_hpz_partition_size", "parallel.shard",
          .inert = "|-1|0|1|\"auto\"|", .positive_only = true),
    UNBUILT_BUT("zero_optimization.zero_quantized_weights", "|false|", "ZeRO++ weight quantisation",
                "parallel.shard keeps gathers of weights within neighbouring ranks"),
    UNBUILT_BUT("zero_optimization.zero_quantized_nontrainable_weights", "|false|",
                "ZeRO++ weight quantisation",
                "parallel.shard keeps gathers of weights within neighbouring ranks"),
    UNBUILT_BUT("zero_optimization.zero_quantized_gradients", "|false|",
                "ZeRO++ gradient quantisation",
                "communication_data_type sends gradients in 16 bits, and parallel.shard sends them "
                "between groups once a step"),
    UNBUILT_BUT("zero_optimization.zeropp_loco_param", 0, "ZeRO++ error feedback",
                "communication_data_type sends gradients in 16 bits"),
    ALIAS("zero_optimization.mics_shard_size", "parallel.shard", .inert = "|-1|0|1|\"auto\"|",
          .positive_only = true),
    IGNORED("zero_optimization.mics_hierarchical_params_gather", "|false|",
            "weights are gathered in one step"),
    TREE("zero_optimization.leaf_module", "modules of Hugging Face models"),
    UNBUILT_BUT(
        "zero_optimization.zenflow", 0, "asynchronous offload",
        "with offload_optimizer.device \"cpu\" states on the host are updated beside the next "
        "forward pass"),
    WRONG("zero_optimization.grad_hooks", "documented by DeepSpeed, and refused by it; remove it"),
    WRONG("zero_optimization.aio", "belongs at the top level; move it there"),
    ALIAS("allgather_size", "zero_optimization.allgather_bucket_size"),
    TREE("aio", "no NVMe offload"),
    /* Tensor, expert and pipeline parallelism. 0 means "off" for autotp_size, but is not a valid
     * tp_size. */
    ALIAS("tensor_parallel.autotp_size", "parallel.tensor", .inert = "|0|\"auto\"|"),
    IGNORED("tensor_parallel.tp_overlap_comm", "|false|",
            "sums between tensor-parallel ranks always have a stream of their own"),
    ALIAS("tensor_parallel.tp.tp_size", "parallel.tensor", .inert = "|\"auto\"|"),
    IGNORED("tensor_parallel.tp.tp_grain_size", "|1|", "every rank has an equal part"),
    UNBUILT("tensor_parallel.partition_config", 0, "another slicing of the model"),
    QUIET("tensor_parallel.preset_model", "the model is known here"),
    QUIET("tensor_parallel.dtype", "the model is known here"),
    QUIET("tensor_parallel.injection_policy_tuple", "the model is known here"),
    QUIET("tensor_parallel.keep_module_on_host", "the model is known here"),
    QUIET("tensor_parallel.replace_with_kernel_inject", "the model is known here"),
    QUIET("tensor_parallel.kernel_inject", "the model is known here"),
    SWITCH("expert_parallel", "mixture of experts"),
    ALIAS("pipeline.stages", "parallel.pipeline", .inert = "|\"auto\"|"),
    IGNORED("pipeline.seed_layers", "|false|", "random numbers are counted, not drawn in turn"),
    IGNORED("pipeline.activation_checkpoint_interval", "|0|",
            "activation_checkpointing.policy says for all layers what is computed again"),
    IGNORED("pipeline.pipe_partitioned", "|true|",
            "with parallel.sequence_parallel each rank sends the rows that it has, else all"),
    IGNORED("pipeline.grad_partitioned", "|true|",
            "with parallel.sequence_parallel each rank sends the rows that it has, else all"),
    IGNORED("pipeline.use_reentrant", "|true|", "a detail of PyTorch"),
    /* Recomputation. This program's own key for it is activation_checkpointing.policy. */
    IGNORED("activation_checkpointing.partition_activations", "|false|",
            "parallel.sequence_parallel cuts activations over tensor-parallel ranks"),
    IGNORED("activation_checkpointing.cpu_checkpointing", "|false|",
            "activations stay on the device; activation_checkpointing.policy \"full\" keeps the "
            "fewest"),
    IGNORED("activation_checkpointing.contiguous_memory_optimization", "|false|",
            "memory is always contiguous"),
    IGNORED_LIKE("activation_checkpointing.number_checkpoints", "0", "memory is always contiguous"),
    IGNORED("activation_checkpointing.synchronize_checkpoint_boundary", "|false|",
            "a debugging aid of DeepSpeed's"),
    IGNORED("activation_checkpointing.profile", "|false|", "wall_clock_breakdown times the phases"),
    /* Checkpoints. Here they always hold whole tensors, on every grid. */
    IGNORED("checkpoint.tag_validation", "|\"Warn\"|\"WARN\"|\"warn\"|",
            "rank 0 names a checkpoint for all"),
    IGNORED("checkpoint.load_universal", "|false|", "every checkpoint loads on every layout"),
    IGNORED("checkpoint.use_node_local_storage", "|false|",
            "all ranks are on one node, and the run folder has the checkpoints"),
    IGNORED("checkpoint.parallel_write.pipeline_stage", "|false|",
            "checkpoint.writers says how many ranks write"),
    IGNORED("checkpoint.checkpoint_serialization", "|true|", "checkpoints are safetensors"),
    IGNORED_OF(CHECKPOINT_WRITER, "checkpoint.writer.decoupled", "|false|"),
    QUIET_OF(CHECKPOINT_WRITER, "checkpoint.writer.type"),
    QUIET_OF(CHECKPOINT_WRITER, "checkpoint.writer.io_buffer_size"),
    QUIET_OF(CHECKPOINT_WRITER, "checkpoint.writer.io_buffer_double"),
    QUIET_OF(CHECKPOINT_WRITER, "checkpoint.writer.show_statistics"),
    QUIET_OF(CHECKPOINT_WRITER, "checkpoint.writer.data_parallel"),
    QUIET_OF(CHECKPOINT_WRITER, "checkpoint.writer.io_multiplier"),
    /* Keys that users may expect in a section of this program. A config contains no output
     * paths. */
    WRONG("checkpoint.dir",
          "the run folder holds the checkpoints; write --out DIR on the command line"),
    WRONG("checkpoint.resume", "write --resume auto|never|PATH on the command line"),
    TOOL("nebula", "the run folder has the checkpoints"),
    TREE("datastates_ckpt", "the run folder has the checkpoints"),
    /* Monitors and profilers. Only "enabled" gives a notice. */
    IGNORED_OF(MONITOR, "csv_monitor.enabled", "|false|"),
    QUIET_OF(MONITOR, "csv_monitor.output_path"),
    QUIET_OF(MONITOR, "csv_monitor.job_name"),
    IGNORED_OF(MONITOR, "wandb.enabled", "|false|"),
    QUIET_OF(MONITOR, "wandb.group"),
    QUIET_OF(MONITOR, "wandb.team"),
    QUIET_OF(MONITOR, "wandb.project"),
    IGNORED_OF(MONITOR, "comet.enabled", "|false|"),
    QUIET_OF(MONITOR, "comet.samples_log_interval"),
    QUIET_OF(MONITOR, "comet.project"),
    QUIET_OF(MONITOR, "comet.workspace"),
    QUIET_OF(MONITOR, "comet.api_key"),
    QUIET_OF(MONITOR, "comet.experiment_name"),
    QUIET_OF(MONITOR, "comet.experiment_key"),
    QUIET_OF(MONITOR, "comet.online"),
    QUIET_OF(MONITOR, "comet.mode"),
    IGNORED("comms_logger.verbose", "|false|", "a table of all calls is printed, not every call"),
    IGNORED("comms_logger.prof_all", "|true|", "every operation is counted"),
    QUIET("comms_logger.prof_ops", "every operation is counted"),
    IGNORED("comms_logger.debug", "|false|", "a debugging aid of DeepSpeed's"),
    IGNORED_OF(FLOPS_PROFILER, "flops_profiler.enabled", "|false|"),
    QUIET_OF(FLOPS_PROFILER, "flops_profiler.recompute_fwd_factor"),
    QUIET_OF(FLOPS_PROFILER, "flops_profiler.profile_step"),
    QUIET_OF(FLOPS_PROFILER, "flops_profiler.module_depth"),
    QUIET_OF(FLOPS_PROFILER, "flops_profiler.top_modules"),
    QUIET_OF(FLOPS_PROFILER, "flops_profiler.detailed"),
    QUIET_OF(FLOPS_PROFILER, "flops_profiler.output_file"),
    TOOL("autotuning", "nothing is searched; the config is taken as it is"),
    TOOL("hybrid_engine", "./train generate writes text from any checkpoint"),
    /* Features that change the trained model: they must be off. */
    SWITCH("elasticity", "batch sizes from the number of ranks"),
    SWITCH("curriculum_learning", "sequence-length warmup"),
    SWITCH("progressive_layer_drop", "dropping of layers"),
    SWITCH("eigenvalue", "eigenvalues of the Hessian"),
    SWITCH("quantize_training", "quantised training"),
    /* This is the only feature that DeepSpeed turns on merely because its section is there. */
    ON_SWITCH("weight_quantization", "quantised weights"),
    SWITCH("data_efficiency.data_sampling", "curriculum sampling"),
    SWITCH("data_efficiency.data_routing", "random layer-token drop"),
    /* DeepSpeed reads these two keys only for the two features above. */
    QUIET("data_efficiency.enabled", "its features are off"),
    QUIET("data_efficiency.seed", "its features are off"),
    DEEP_SWITCH("compression_training", "compression"),
    UNBUILT("sparse_attention", 0, "sparse attention"),
    /* torch.compile changes no number, so its whole section is accepted. */
    IGNORED("compile.deepcompile", "|false|", "torch.compile"),
    TREE("compile", "torch.compile"),
};
const int known_count = sizeof known_table / sizeof *known_table;

const char *known_why(const KnownKey *known)
{
    const KnownFeature *feature = &known_feature[known->feature];
    if (known->why != NULL) return known->why;
    return known->kind == KNOWN_UNBUILT ? feature->asks : feature->idle;
}
