/* launch.cuh -- what of a launch and of shared memory is CUDA's own syntax. tests/emu has a twin of
 * this file under the same name that runs the kernels on the CPU. */
#ifndef MODEL_KERNELS_CUDA_LAUNCH_CUH
#define MODEL_KERNELS_CUDA_LAUNCH_CUH

/* Starts a kernel; for LAUNCH in kernel.cuh, which also looks at what came of it. */
#define KERNEL_START(kernel, grid, block, shared, stream, ...)                                     \
    (kernel)<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__)

/* Declares `name`, a pointer to the block's dynamic shared memory: the only shared memory there is
 * (static __shared__ is not used: the twin could not poison it). 128-byte aligned, no more. */
#define DYN_SHARED(type, name)                                                                     \
    extern __shared__ __align__(128) unsigned char shared_bytes_of_block[];                        \
    type *name = reinterpret_cast<type *>(shared_bytes_of_block)

#endif
