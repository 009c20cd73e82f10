/* reduce.h -- adds partial sums in a fixed order. Blocks that contribute to the same gradient write
 * partial sums, which are then added without atomics. */
#ifndef MODEL_KERNELS_CUDA_REDUCE_H
#define MODEL_KERNELS_CUDA_REDUCE_H

#include "model/kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Adds up the rows of `partials` (f32). Each row holds W columns for d, then W for e if e is
 * present, then W for f if f is present. d (W) and e (W) have the same float type; they are
 * overwritten or, with accumulate, added to. f (W) is f32 and always overwritten. The number of
 * rows fixes the order of the additions. */
void cuda_partials_sum(Device *dev, Tensor d, Tensor e, Tensor f, Tensor partials, bool accumulate);

/* Returns scratch memory for partial sums as an f32 tensor (rows, cols). rows is the smaller of
 * `most` and what the workspace can hold, but at least 1. */
Tensor cuda_partials(const Device *dev, int64_t most, int64_t cols);

#ifdef __cplusplus
}
#endif

#endif
