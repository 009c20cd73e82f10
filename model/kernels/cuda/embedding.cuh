/* embedding.cuh -- contains what lookups in embedding tables (embedding.cu) and their backward
 * (embedding_backward.cu) share. */
#ifndef MODEL_KERNELS_CUDA_EMBEDDING_CUH
#define MODEL_KERNELS_CUDA_EMBEDDING_CUH

#include "model/kernels/cuda/rows.cuh"

/* Returns the row of this table that index[n] selects, or -1 if the table does not have it. */
static __device__ __forceinline__ int64_t table_row(const int32_t *index, int64_t n,
                                                    int64_t first_row, int64_t table_rows)
{
    int64_t row = index[n] - first_row;
    return row >= 0 && row < table_rows ? row : -1;
}

#endif
