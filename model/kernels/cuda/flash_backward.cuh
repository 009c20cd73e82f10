/* flash_backward.cuh -- declares the two halves of attention backward on tensor cores, which use
 * the formulas and the division into two kernels of attention_backward.cu.
 *
 * The two kernels compute seven matrix products where a single kernel would need five. In return,
 * every sum has one owner and a fixed order, without atomics, semaphores or sums in global memory.
 * A single kernel could also fix the order, if one block looped over all keys of a head, but it
 * would need many heads to keep a GPU busy. */
#ifndef MODEL_KERNELS_CUDA_FLASH_BACKWARD_CUH
#define MODEL_KERNELS_CUDA_FLASH_BACKWARD_CUH

#include "model/kernels/cuda/attention.cuh"

/* Launch the kernels of `pairs` (batch row, kv head) pairs from pair0 on. flash_backward_query
 * computes dq, and the delta of all query heads of these pairs. flash_backward_key then reads delta
 * and computes dk and dv. */
extern "C" {
void flash_backward_query(Device *dev, const BackwardCall *c, int pair0, int pairs);
void flash_backward_key(Device *dev, const BackwardCall *c, int pair0, int pairs);
}

#endif
