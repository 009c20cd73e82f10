/* launch.cuh -- isolates CUDA's own syntax for kernel launches and shared memory. tests/emu has a
 * file of the same name that runs the kernels on the CPU. */
#ifndef MODEL_KERNELS_CUDA_LAUNCH_CUH
#define MODEL_KERNELS_CUDA_LAUNCH_CUH

/* Starts a kernel. Only LAUNCH in kernel.cuh uses it; LAUNCH also checks for launch errors. `name`
 * is for messages of the emulated device. */
#define KERNEL_START(kernel, name, grid, block, shared, stream, ...)                               \
    (kernel)<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__)

/* Declares `name`, a pointer to the block's dynamic shared memory, which is 128-byte aligned. A
 * kernel that needs a larger alignment, such as 1,024 bytes for swizzled tiles, requests that many
 * additional bytes and aligns the pointer itself: a declaration cannot move the memory, and all
 * kernels of a file share one. Kernels must not use static __shared__ variables: the emulator in
 * tests/emu could not fill them with the pattern that exposes reads of uninitialised memory. */
#define DYN_SHARED(type, name)                                                                     \
    extern __shared__ __align__(128) unsigned char shared_bytes_of_block[];                        \
    type *name = reinterpret_cast<type *>(shared_bytes_of_block)

#endif
