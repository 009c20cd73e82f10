/* reduce.h -- sums of partial sums, in a fixed order: how a gradient that many blocks add to comes
 * together without atomics. */
#ifndef MODEL_KERNELS_CUDA_REDUCE_H
#define MODEL_KERNELS_CUDA_REDUCE_H

#include "model/kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* d (W) and e (W, if present), any float types, =/+= as `accumulate`, the column sums of partials
 * (P, W or 2W) f32, d's columns before e's. The order of the sum is fixed by P. */
void cuda_partials_sum(Device *dev, Tensor d, Tensor e, Tensor partials, bool accumulate);

/* Scratch for partial sums: (rows, cols) f32, rows at most `most`, but at least 1 and no more than
 * the workspace holds. */
Tensor cuda_partials(const Device *dev, int64_t most, int64_t cols);

#ifdef __cplusplus
}
#endif

#endif
