/* launch_size.cuh -- checks the size of a launch against CUDA's limits. Counts of blocks stay
 * int64_t up to here and become 32-bit numbers only after the check, so no count is cut off. */
#ifndef MODEL_KERNELS_CUDA_LAUNCH_SIZE_CUH
#define MODEL_KERNELS_CUDA_LAUNCH_SIZE_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#include "model/kernels/cuda/cuda.h"

/* CUDA's limits, which are the same on all devices that the kernels support. */
enum {
    GRID_X_MOST = INT32_MAX,
    GRID_YZ_MOST = 65535,
    BLOCK_THREADS_MOST = 1024, /* of a whole block, so also along x and y */
    BLOCK_Z_MOST = 64,
    PARAMETER_BYTES = 4096 /* of a kernel's parameters, with every compiler */
};

/* A number of blocks. It is made only from signed numbers: an unsigned one may be a larger count
 * that has already been truncated. */
struct BlockCount {
    int64_t n;
    BlockCount(int count) : n(count)
    {
    }
    BlockCount(int64_t count) : n(count)
    {
    }
    BlockCount(unsigned) = delete;
    BlockCount(size_t) = delete;
};

/* The blocks of a launch along x, y and z. The compiler accepts no dim3 in its place: the 32-bit
 * numbers of a dim3 would cut off larger counts silently. */
struct LaunchGrid {
    int64_t x, y, z;
    explicit LaunchGrid(BlockCount blocks_x, BlockCount blocks_y = 1, BlockCount blocks_z = 1)
        : x(blocks_x.n), y(blocks_y.n), z(blocks_z.n)
    {
    }
};

/* Returns the grid for a launch of `kernel`. Ends the program if the grid is empty or exceeds
 * CUDA's limits. */
static inline dim3 launch_grid(LaunchGrid grid, const char *kernel)
{
    CHECK(grid.x > 0 && grid.x <= GRID_X_MOST && grid.y > 0 && grid.y <= GRID_YZ_MOST &&
              grid.z > 0 && grid.z <= GRID_YZ_MOST,
          "a launch of %s with %lld x %lld x %lld blocks; there must be 1 x 1 x 1 to %d x %d x %d",
          kernel, (long long)grid.x, (long long)grid.y, (long long)grid.z, GRID_X_MOST,
          GRID_YZ_MOST, GRID_YZ_MOST);
    return dim3((unsigned)grid.x, (unsigned)grid.y, (unsigned)grid.z);
}

/* Returns the block size for a launch of `kernel`. Ends the program if the block is empty or
 * exceeds CUDA's limits. */
static inline dim3 launch_block(dim3 block, const char *kernel)
{
    CHECK(block.x > 0 && block.x <= BLOCK_THREADS_MOST && block.y > 0 &&
              block.y <= BLOCK_THREADS_MOST && block.z > 0 && block.z <= BLOCK_Z_MOST &&
              block.x * block.y * block.z <= BLOCK_THREADS_MOST,
          "a launch of %s with blocks of %u x %u x %u threads; there must be 1 to %d, and at most "
          "%d along z",
          kernel, block.x, block.y, block.z, BLOCK_THREADS_MOST, BLOCK_Z_MOST);
    return block;
}

#endif
