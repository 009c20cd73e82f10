/* launch.cuh -- how kernels are started and take shared memory. tests/emu has a twin of this file
 * under the same name that runs the kernels on the CPU. */
#ifndef MODEL_KERNELS_CUDA_LAUNCH_CUH
#define MODEL_KERNELS_CUDA_LAUNCH_CUH

/* Dynamic shared memory beyond this must be asked for kernel by kernel. */
#define SHARED_DEFAULT ((size_t)48 << 10)

/* Starts kernel<<<grid, block, shared bytes, stream>>>(arguments). A kernel with several template
 * arguments stands in parentheses. Every kernel says __launch_bounds__(threads). */
#define LAUNCH(kernel, grid, block, shared, stream, ...)                                           \
    do {                                                                                           \
        size_t launch_shared = (shared);                                                           \
        if (launch_shared > SHARED_DEFAULT)                                                        \
            CUDA_CHECK(cudaFuncSetAttribute((const void *)(kernel),                                \
                                            cudaFuncAttributeMaxDynamicSharedMemorySize,           \
                                            (int)launch_shared));                                  \
        (kernel)<<<(grid), (block), launch_shared, (stream)>>>(__VA_ARGS__);                       \
        CUDA_CHECK(cudaGetLastError());                                                            \
    } while (0)

/* Declares `name`, a pointer to the block's dynamic shared memory: the only shared memory there is
 * (static __shared__ is not used: the twin could not poison it). 128-byte aligned, no more. */
#define DYN_SHARED(type, name)                                                                     \
    extern __shared__ __align__(128) unsigned char shared_bytes_of_block[];                        \
    type *name = reinterpret_cast<type *>(shared_bytes_of_block)

#endif
