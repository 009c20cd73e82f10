/* flash_mask.cuh -- applies the attention mask to a tile of scores in flash attention: the causal
 * mask, and the first key of each query's document. keys_seen (attention.cuh) decides which keys a
 * query sees; the plain kernels use it too. */
#ifndef MODEL_KERNELS_CUDA_FLASH_MASK_CUH
#define MODEL_KERNELS_CUDA_FLASH_MASK_CUH

#include "model/kernels/cuda/attention.cuh"

/* Sets the scores in s to -infinity where the query does not see the key. Rows of s are the queries
 * from t on, columns the keys from `key` on. Reads the masks again for every tile: only a few tiles
 * need them, and keeping them would cost registers. */
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

/* Like scores_hide, for transposed scores: rows of s are the keys from `key` on, columns the
 * queries from t on. first[i] is the first key that query t + i sees. */
template <int MT, int NT>
__device__ __forceinline__ void scores_hide_transposed(float (&s)[MT][NT][4],
                                                       const AttentionShape &shape,
                                                       const int *first, int key, int t)
{
    key = unmoved(key) + threadIdx.x % WARP / 4;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int query = n * 8 + threadIdx.x % 4 * 2 + e, last = t + query + shape.offset;
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int at = key + m * 16 + i * 8;
                    if (at < first[query] || at > last) s[m][n][i * 2 + e] = -INFINITY;
                }
        }
}

#endif
