/* reduce.h -- sums of partial sums, in a fixed order: how a gradient that many blocks add to comes
 * together without atomics. */
#ifndef MODEL_KERNELS_CUDA_REDUCE_H
#define MODEL_KERNELS_CUDA_REDUCE_H

#include "model/kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* d (W) and e (W, if present), one float type, =/+= as `accumulate`, and f (W, if present) f32 =,
 * the column sums of partials f32: rows of W for each one that is present, in this order. The
 * order of the sum is fixed by the number of rows. */
void cuda_partials_sum(Device *dev, Tensor d, Tensor e, Tensor f, Tensor partials, bool accumulate);

/* Scratch for partial sums: (rows, cols) f32, rows at most `most`, but at least 1 and no more than
 * the workspace holds. */
Tensor cuda_partials(const Device *dev, int64_t most, int64_t cols);

#ifdef __cplusplus
}
#endif

#endif
