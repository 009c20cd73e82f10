/* kinds.h -- choices that both the config and the kernels name. */
#ifndef MODEL_CORE_KINDS_H
#define MODEL_CORE_KINDS_H

typedef enum { NORM_LAYERNORM, NORM_RMSNORM } NormKind;
typedef enum { ACTIVATION_GELU, ACTIVATION_RELU2, ACTIVATION_SWIGLU } ActivationKind;

#endif
