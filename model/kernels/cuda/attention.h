/* attention.h -- declares the three implementations of attention on CUDA; attention.c chooses
 * between them.
 *
 * "Plain" computes in float and accepts head sizes up to 256 and all storage types. It is used for
 * f32, and the tests compare the other implementations with it. "Flash" uses tensor cores and needs
 * 16-bit storage. "Hopper" also uses instructions that only compute capability 9.0 has, and is used
 * on request; it needs 16-bit storage and head size 64 or 128. */
#ifndef MODEL_KERNELS_CUDA_ATTENTION_H
#define MODEL_KERNELS_CUDA_ATTENTION_H

#include "model/kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Largest head size that the CPU and the portable CUDA kernels accept. */
enum { ATTENTION_MAX_HEAD = 256 };

/* For the contracts of these functions see op_attention_forward and op_attention_backward in ops.h.
 * The plain and flash functions do not compute the gradients of the biases of q, k and v.
 * attention.c computes these gradients afterwards, with attention_bias_sums. */
void plain_attention_forward(Device *dev, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                             Attention attention, Tensor first_key);
void plain_attention_backward(Device *dev, const AttentionTensors *t, bool accumulate,
                              Attention attention);

void flash_attention_forward(Device *dev, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                             Attention attention, Tensor first_key);
void flash_attention_backward(Device *dev, const AttentionTensors *t, bool accumulate,
                              Attention attention);

/* Returns whether the program has the kernels for Hopper, which are compiled for sm_90a alone. A
 * build without sm_90a has functions in their place that end the program. */
bool hopper_attention_built(void);
void hopper_attention_forward(Device *dev, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                              Attention attention, Tensor first_key);
void hopper_attention_backward(Device *dev, const AttentionTensors *t, bool accumulate,
                               Attention attention);

/* Computes the gradients of the biases of q, k and v, if the call requests them, by reading dq, dk
 * and dv again. */
void attention_bias_sums(Device *dev, const AttentionTensors *t);

/* Returns how many of `pairs` (batch row, kv head) pairs one pass of backward can process. Each
 * pair needs `each` floats of workspace. Ends the program if not even one pair fits. */
static inline int64_t attention_portion(const Device *dev, int64_t each, int64_t pairs)
{
    int64_t fitting = (int64_t)(cuda_device(dev)->workspace_bytes / sizeof(float)) / each;
    CHECK(fitting > 0, "attention over %lld queries of a group of heads", (long long)each);
    return fitting < pairs ? fitting : pairs;
}

#ifdef __cplusplus
}
#endif

#endif
