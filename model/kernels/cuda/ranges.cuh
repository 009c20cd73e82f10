/* ranges.cuh -- tables of ranges of memory, which a kernel processes in one launch. The host
 * divides every range into tiles. The table has the number of tiles before each range, from which a
 * block finds the range of its tile. The table is among the kernel's parameters, so nothing has to
 * be uploaded or kept. */
#ifndef MODEL_KERNELS_CUDA_RANGES_CUH
#define MODEL_KERNELS_CUDA_RANGES_CUH

#include "model/kernels/cuda/kernel.cuh"

/* Returns the number of the range in which a tile lies: the last range with range[r].first <= tile.
 * `table` has `ranges` ranges, and range[r].first tiles are before range r. */
template <class Table> static __device__ __forceinline__ int range_of(const Table &table, int tile)
{
    int low = 0, high = table.ranges - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (table.range[middle].first <= tile)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

#endif
