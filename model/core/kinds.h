/* kinds.h -- enums that are values of a config and arguments of ops or devices alike. */
#ifndef MODEL_CORE_KINDS_H
#define MODEL_CORE_KINDS_H

typedef enum { NORM_LAYERNORM, NORM_RMSNORM } NormKind;
typedef enum { ACTIVATION_GELU, ACTIVATION_RELU2, ACTIVATION_SWIGLU } ActivationKind;

/* Instruction set that the CPU's kernels are compiled for: the best that the CPU has (auto), or
 * exactly this one. v3 has AVX2 and FMA, v4 AVX-512. */
typedef enum {
    CPU_LEVEL_AUTO,
    CPU_LEVEL_BASELINE,
    CPU_LEVEL_V3,
    CPU_LEVEL_V4,
    CPU_LEVEL_COUNT
} CpuLevel;

/* Who computes the CPU's matrix products: OpenBLAS if it can be loaded (auto), OpenBLAS or no run,
 * or the built-in products. */
typedef enum { BLAS_AUTO, BLAS_OPENBLAS, BLAS_BUILTIN } BlasChoice;

/* The order of a pipeline's micro-batches. GPipe: all forward, then all backward (Huang et al.,
 * arXiv:1811.06965). 1F1B: a stage goes backward as soon as it can (Narayanan et al.,
 * arXiv:1806.03377). Interleaved: 1F1B over several runs of layers a stage (arXiv:2104.04473). */
typedef enum { SCHEDULE_GPIPE, SCHEDULE_1F1B, SCHEDULE_INTERLEAVED } ScheduleKind;

/* By what a pipeline's layers are cut into stages: equal floating-point operations (best), numbers
 * of parameters, or numbers of blocks. */
typedef enum { PARTITION_BEST, PARTITION_PARAMETERS, PARTITION_UNIFORM } Partition;

#endif
