/* flash_mask.cuh -- the mask of flash attention, laid over a tile of scores: causal, and from the
 * first key that a query's document has. Which keys a query sees is decided by keys_seen
 * (attention.cuh), which the plain kernels share. */
#ifndef MODEL_KERNELS_CUDA_FLASH_MASK_CUH
#define MODEL_KERNELS_CUDA_FLASH_MASK_CUH

#include "model/kernels/cuda/flash.cuh"

/* s: scores, rows are queries from t on, columns keys from `key` on. They become -infinity where
 * the query does not see the key. The masks are read anew each time, which saves registers: few
 * tiles need them. */
template <int MT, int NT>
__device__ __forceinline__ void scores_hide(float (&s)[MT][NT][4], const AttentionShape &shape,
                                            int64_t b, int t, int key)
{
    t = unmoved(t) + threadIdx.x % WARP / 4;
    key += threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int first, end;
            keys_seen(shape, b, t + m * 16 + i * 8, &first, &end);
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int at = key + n * 8 + e;
                    if (at < first || at >= end) s[m][n][i * 2 + e] = -INFINITY;
                }
        }
}

#endif
