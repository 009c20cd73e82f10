/* load.cu -- loads all kernels of the program at the start. Otherwise CUDA would load each kernel
 * at its first launch, and would then wait for work of the device while it holds locks of the
 * driver. That work may include communication with other ranks, which may need the same locks: a
 * deadlock. */
#include "model/kernels/cuda/kernel.cuh"

const KernelNode *KernelNode::first;

/* Returns whether the kernel has code for sm_90a only: the kernels of hopper_*.cu have names with
 * "hopper_". */
static bool only_for_hopper(const KernelNode *node)
{
    return strstr(node->name, "hopper_") != NULL;
}

extern "C" void cuda_load_kernels(const CudaDevice *cuda)
{
    cudaFuncAttributes attributes;
    bool hopper = cuda->major == 9 && cuda->minor == 0;
    for (const KernelNode *node = KernelNode::first; node != NULL; node = node->next)
        if (hopper || !only_for_hopper(node))
            CUDA_CHECK(cudaFuncGetAttributes(&attributes, node->kernel));
}
