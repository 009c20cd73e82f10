/* load.cu -- loads all kernels of the program. CUDA would load each at its first launch, and then
 * wait for work of the device while it holds locks of the driver. Other ranks' communication may be
 * part of that work, and may need the same locks. */
#include "model/kernels/cuda/kernel.cuh"

const KernelNode *KernelNode::first;

extern "C" void cuda_load_kernels(void)
{
    cudaFuncAttributes attributes;
    for (const KernelNode *node = KernelNode::first; node != NULL; node = node->next)
        CUDA_CHECK(cudaFuncGetAttributes(&attributes, node->kernel));
}
