/* kinds.h -- enums that are both values in a config and arguments of ops or devices. */
#ifndef MODEL_CORE_KINDS_H
#define MODEL_CORE_KINDS_H

typedef enum { NORM_LAYERNORM, NORM_RMSNORM } NormKind;
typedef enum { ACTIVATION_GELU, ACTIVATION_RELU2, ACTIVATION_SWIGLU } ActivationKind;

/* The instruction set of the CPU kernels: the best one that the CPU has (auto), or exactly the
 * given one. v3 has AVX2 and FMA, v4 AVX-512. */
typedef enum {
    CPU_LEVEL_AUTO,
    CPU_LEVEL_BASELINE,
    CPU_LEVEL_V3,
    CPU_LEVEL_V4,
    CPU_LEVEL_COUNT
} CpuLevel;

/* The library for matrix products on the CPU: OpenBLAS if it can be loaded (auto), OpenBLAS or an
 * error, or the built-in products. */
typedef enum { BLAS_AUTO, BLAS_OPENBLAS, BLAS_BUILTIN } BlasChoice;

/* Which kernels compute attention on a GPU: those that every GPU runs, or those for compute
 * capability 9.0 alone (Hopper). */
typedef enum { ATTENTION_PORTABLE, ATTENTION_HOPPER } AttentionKernels;

/* The order in which a pipeline processes its micro-batches. GPipe: all forward passes, then all
 * backward passes (Huang et al., arXiv:1811.06965). 1F1B: a stage runs a backward pass as soon as
 * it can (Narayanan et al., arXiv:1806.03377). Interleaved: 1F1B with several groups of layers on
 * each stage (arXiv:2104.04473). */
typedef enum { SCHEDULE_GPIPE, SCHEDULE_1F1B, SCHEDULE_INTERLEAVED } ScheduleKind;

/* The cost that is balanced when layers are divided among pipeline stages: floating-point
 * operations (best), numbers of parameters, or numbers of blocks. */
typedef enum { PARTITION_BEST, PARTITION_PARAMETERS, PARTITION_UNIFORM } Partition;

#endif
