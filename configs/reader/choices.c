/* choices.c -- lists the words that each key of type OPTION_CHOICE accepts. */
#include "configs/reader/choices.h"

/* If several names have the same value, the first one is printed and all are read. A value of -1
 * marks a name that is known but not implemented; a config that uses it is refused with that
 * reason. */
const Choice norm_choices[] = {{"layernorm", NORM_LAYERNORM, 0}, {"rmsnorm", NORM_RMSNORM, 0}, {0}};
const Choice position_choices[] = {
    {"learned", POSITION_LEARNED, 0}, {"rope", POSITION_ROPE, 0}, {0}};
const Choice attention_bias_choices[] = {{"none", ATTENTION_BIAS_NONE, 0},
                                         {"qkv", ATTENTION_BIAS_QKV, 0},
                                         {"all", ATTENTION_BIAS_ALL, 0},
                                         {0}};
/* The entries with -1 are further types that Hugging Face's configs may have. */
const Choice rope_scaling_choices[] = {{"none", ROPE_SCALING_NONE, 0},
                                       {"llama3", ROPE_SCALING_LLAMA3, 0},
                                       {"linear", -1, 0},
                                       {"dynamic", -1, 0},
                                       {"yarn", -1, 0},
                                       {"longrope", -1, 0},
                                       {0}};
const Choice activation_choices[] = {{"gelu", ACTIVATION_GELU, 0},
                                     {"relu2", ACTIVATION_RELU2, 0},
                                     {"swiglu", ACTIVATION_SWIGLU, 0},
                                     {0}};
const Choice level_choices[] = {{"auto", CPU_LEVEL_AUTO, 0},
                                {"baseline", CPU_LEVEL_BASELINE, 0},
                                {"x86-64-v3", CPU_LEVEL_V3, 0},
                                {"x86-64-v4", CPU_LEVEL_V4, 0},
                                {0}};
const Choice blas_choices[] = {
    {"auto", BLAS_AUTO, 0}, {"openblas", BLAS_OPENBLAS, 0}, {"builtin", BLAS_BUILTIN, 0}, {0}};
const Choice attention_choices[] = {
    {"portable", ATTENTION_PORTABLE, 0}, {"hopper", ATTENTION_HOPPER, 0}, {0}};
const Choice device_choices[] = {
    {"auto", DEVICE_AUTO, 0}, {"cpu", DEVICE_CPU, 0}, {"cuda", DEVICE_CUDA, 0}, {0}};
/* DeepSpeed reads the names of its own optimizers without regard to case; SGD is PyTorch's, and its
 * case must match. */
const Choice optimizer_choices[] = {{"AdamW", OPTIMIZER_ADAMW, 1},
                                    {"Adam", OPTIMIZER_ADAM, 1},
                                    {"SGD", OPTIMIZER_SGD, 0},
                                    {"Lion", -1, 1},
                                    {"Lamb", -1, 1},
                                    {"Adagrad", -1, 1},
                                    {"Muon", -1, 1},
                                    {"OneBitAdam", -1, 1},
                                    {"ZeroOneAdam", -1, 1},
                                    {"OneBitLamb", -1, 1},
                                    {"MuAdam", -1, 1},
                                    {"MuAdamW", -1, 1},
                                    {"MuSGD", -1, 1},
                                    {0}};
const Choice decay_on_choices[] = {
    {"matrices", DECAY_ON_MATRICES, 0}, {"all", DECAY_ON_ALL, 0}, {0}};
const Choice scheduler_choices[] = {{"Constant", SCHEDULER_CONSTANT, 0},
                                    {"WarmupLR", SCHEDULER_WARMUP_LR, 0},
                                    {"WarmupDecayLR", SCHEDULER_WARMUP_DECAY_LR, 0},
                                    {"WarmupCosineLR", SCHEDULER_WARMUP_COSINE_LR, 0},
                                    {"LRRangeTest", SCHEDULER_LR_RANGE_TEST, 0},
                                    {"OneCycle", SCHEDULER_ONE_CYCLE, 0},
                                    {"WSD", SCHEDULER_WSD, 0},
                                    {0}};
const Choice warmup_choices[] = {{"log", WARMUP_LOG, 0}, {"linear", WARMUP_LINEAR, 0}, {0}};
const Choice decay_choices[] = {
    {"linear", DECAY_LINEAR, 0}, {"cosine", DECAY_COSINE, 0}, {"sqrt", DECAY_SQRT, 0}, {0}};
const Choice grad_choices[] = {{"auto", GRAD_DTYPE_AUTO, 0},
                               {"fp32", GRAD_DTYPE_F32, 0},
                               {"fp16", -1, 0},
                               {"bf16", GRAD_DTYPE_BF16, 0},
                               {0}};
const Choice policy_choices[] = {{"none", RECOMPUTE_NONE, 0},
                                 {"selective", RECOMPUTE_SELECTIVE, 0},
                                 {"full", RECOMPUTE_FULL, 0},
                                 {0}};
const Choice communication_choices[] = {
    {"fp32", GRAD_DTYPE_F32, 0}, {"fp16", GRAD_DTYPE_F16, 0}, {"bf16", GRAD_DTYPE_BF16, 0}, {0}};
const Choice gradient_op_choices[] = {{"mean", GRADIENT_MEAN, 0}, {"sum", GRADIENT_SUM, 0}, {0}};
const Choice init_tokenizer_choices[] = {
    {"same", INIT_TOKENIZER_SAME, 0}, {"any", INIT_TOKENIZER_ANY, 0}, {0}};
const Choice schedule_choices[] = {{"gpipe", SCHEDULE_GPIPE, 0},
                                   {"1f1b", SCHEDULE_1F1B, 0},
                                   {"interleaved", SCHEDULE_INTERLEAVED, 0},
                                   {0}};
const Choice offload_choices[] = {
    {"none", OFFLOAD_NONE, 0}, {"cpu", OFFLOAD_CPU, 0}, {"nvme", OFFLOAD_NVME, 0}, {0}};
const Choice health_choices[] = {{"warn", HEALTH_WARN, 1},
                                 {"skip", HEALTH_SKIP, 1},
                                 {"rollback", HEALTH_ROLLBACK, 1},
                                 {"stop", HEALTH_STOP, 1},
                                 {0}};
/* DeepSpeed's partition methods, which it reads without regard to case. */
const Choice partition_choices[] = {{"best", PARTITION_BEST, 1},
                                    {"parameters", PARTITION_PARAMETERS, 1},
                                    {"uniform", PARTITION_UNIFORM, 1},
                                    {"type:", -1, 1},
                                    {"profile", -1, 1},
                                    {0}};
