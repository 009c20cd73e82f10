/* scratch.c -- the scratch memory of the CUDA device's ops: a workspace for one op of the compute
 * stream at a time, and CUDA_STREAM_SCRATCH bytes for each stream. All of it is one allocation. */
#include "model/kernels/cuda/cuda.h"

void *cuda_workspace(const Device *dev, size_t bytes)
{
    const CudaDevice *cuda = cuda_device(dev);
    CHECK(cuda_stream(dev) == cuda->stream[CUDA_COMPUTE],
          "an op that needs scratch runs on the compute stream alone");
    CHECK(bytes <= cuda->workspace_bytes, "%zu bytes of scratch; there are %zu", bytes,
          cuda->workspace_bytes);
    return cuda->workspace;
}

/* Returns the bytes of the workspace, rounded up to where the streams' scratch memory begins. */
static size_t workspace_end(const CudaDevice *cuda)
{
    return (cuda->workspace_bytes + CUDA_STREAM_SCRATCH - 1) & ~(size_t)(CUDA_STREAM_SCRATCH - 1);
}

void *cuda_stream_scratch(const Device *dev, size_t bytes)
{
    const CudaDevice *cuda = cuda_device(dev);
    int i = 0;
    while (i < CUDA_STREAMS && cuda->stream[i] != cuda_stream(dev))
        i++;
    CHECK(i < CUDA_STREAMS && bytes <= CUDA_STREAM_SCRATCH,
          "%zu bytes of scratch for stream %d of %d", bytes, i, CUDA_STREAMS);
    return (char *)cuda->workspace + workspace_end(cuda) + (size_t)i * CUDA_STREAM_SCRATCH;
}

void cuda_workspace_open(CudaDevice *cuda, size_t bytes, bool shared)
{
    size_t available = 0, total = 0;
    cuda->workspace_bytes = bytes > 0 ? bytes : CUDA_WORKSPACE;
    if (cudaMalloc(&cuda->workspace, workspace_end(cuda) + CUDA_STREAMS * CUDA_STREAM_SCRATCH) ==
        cudaSuccess)
        return;
    cudaGetLastError();
    CUDA_CHECK(cudaMemGetInfo(&available, &total));
    fail(
        EXIT_NO_MEMORY,
        "%s has %zu of %zu MiB free, and %zu MiB are needed before any model%s, choose another GPU "
        "by CUDA_VISIBLE_DEVICES, or set device to \"cpu\"",
        cuda->name, available >> 20, total >> 20, cuda->workspace_bytes >> 20,
        shared ? " by each rank that shares it: write fewer --ranks, wait for other programs that "
                 "hold its memory"
               : ": another program holds its memory; wait for it");
}
