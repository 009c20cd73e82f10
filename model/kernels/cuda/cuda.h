/* cuda.h -- declares what the files of the CUDA backend share: the device's state, error checks,
 * scratch memory, and the ops of the backend's table. C files include it directly, .cu files
 * through kernel.cuh.
 *
 * Every op queues its work on the compute stream of the Device that it is given and returns without
 * waiting; that Device may be a view of the GPU on another stream (device_on). An op neither
 * allocates memory nor synchronises. Several Devices, each with its own thread, may use the same
 * GPU and CUDA context; they share none of the state declared here. */
#ifndef MODEL_KERNELS_CUDA_CUDA_H
#define MODEL_KERNELS_CUDA_CUDA_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "model/core/check.h"
#include "model/kernels/ops.h"

/* Default size of a device's scratch memory in bytes; DeviceOptions.scratch overrides it. Library
 * products and kernels share it, one op at a time. */
#define CUDA_WORKSPACE ((size_t)128 << 20)

enum { CUDA_COMPUTE, CUDA_COPY, CUDA_COMM, CUDA_P2P, CUDA_TP, CUDA_UPDATE, CUDA_STREAMS };

/* Bytes of scratch memory of each stream, in addition to the scratch memory above. */
enum { CUDA_STREAM_SCRATCH = 256 };

typedef struct CudaDevice {
    cudaStream_t stream[CUDA_STREAMS];
    void *workspace; /* device memory, 256-byte aligned; the streams' scratch memory follows it */
    size_t workspace_bytes;
    int multiprocessors;
    size_t shared_bytes; /* largest dynamic shared memory of one block */
    struct Lt *lt;       /* cuBLASLt and its plans; see lt.h */
    char name[128];      /* such as "NVIDIA H100 80GB HBM3" */
    int major, minor;    /* compute capability */
    void *map_encoder;   /* the driver's encoder of tensor maps; see tensor_map.h */
    /* Attention uses the kernels for Hopper where it can: DeviceOptions.hopper_attention. */
    bool hopper_attention;
} CudaDevice;

static inline CudaDevice *cuda_device(const Device *dev)
{
    return (CudaDevice *)dev->impl;
}

static inline cudaStream_t cuda_stream(const Device *dev)
{
    return (cudaStream_t)dev->compute.impl;
}

/* Returns the scratch memory for the op that is being queued. Its contents are undefined, and the
 * next op's kernels overwrite it. Ends the program if `bytes` exceeds the device's workspace_bytes
 * (ops split their work so that it fits), or if dev is a view on a stream other than the compute
 * stream: two ops could then use the scratch memory at the same time. */
void *cuda_workspace(const Device *dev, size_t bytes);
/* Returns scratch memory that only the Device's stream uses, for an op that may run on any stream.
 * Its contents are undefined, and the next op on this stream may overwrite it. Ends the program if
 * `bytes` exceeds CUDA_STREAM_SCRATCH or the Device's stream is not one of CudaDevice.stream. */
void *cuda_stream_scratch(const Device *dev, size_t bytes);
/* Allocates both kinds of scratch memory, with `bytes` for the workspace (0: CUDA_WORKSPACE). Ends
 * the program if that fails: a GPU without room for the scratch memory has no room for a model
 * either. When ranks share a GPU (`shared`), each rank allocates its own. */
void cuda_workspace_open(CudaDevice *cuda, size_t bytes, bool shared);
/* Loads all kernels of the program on the current device, so that none is loaded later, by its
 * first launch. The kernels for Hopper are skipped on other GPUs, for which they have no code.
 * (load.cu) */
void cuda_load_kernels(const CudaDevice *cuda);

/* Ends the program when a CUDA call fails: with EXIT_NO_MEMORY and advice on saving memory when it
 * ran out of memory, otherwise with EXIT_SYSTEM. The message names the call and quotes CUDA's
 * description of the error. */
#define CUDA_CHECK(call) cuda_check((call), #call, __FILE__, __LINE__)
void cuda_check(cudaError_t code, const char *call, const char *file, int line);

/* ---- the ops --------------------------------------------------------------------------------- */

#define OP(name, arguments) void cuda_##name arguments;
#define OP_WITHOUT_CUDA(name, arguments)
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA

/* Implements Backend.mark. (memory.cu) */
void cuda_mark(Device *dev, Stream stream, int64_t *word, int64_t value);
/* Computes the bias gradient of a linear layer: the column sums of dy (N, O). Overwrites db (O) or,
 * with accumulate, adds to it. Sums fixed blocks of rows, then adds these partial sums in order, so
 * the result is deterministic. (reduce.cu) */
void cuda_bias_sums(Device *dev, Tensor db, Tensor dy, bool accumulate);
/* Sets every row of y (N, O) to bias (O); both have the same type. (elementwise.cu) */
void cuda_rows_fill(Device *dev, Tensor y, Tensor bias);
/* Computes y (N, O) = gelu(sum (N, O) f32 + bias (O)), rounded once to y's type. If pre (N, O) is
 * present, stores sum + bias in it, rounded. The bias may be absent. (elementwise.cu) */
void cuda_gelu_of_sum(Device *dev, Tensor y, Tensor pre, Tensor sum, Tensor bias);
/* Computes dx (N, I) = product (N, I) f32 * gelu'(pre (N, I)), rounded once. dx and pre have the
 * storage type; if that is f32, dx may be the product itself. (elementwise.cu) */
void cuda_gelu_multiply(Device *dev, Tensor dx, Tensor product, Tensor pre);
/* Computes d (M, N) = op(a) op(b), or adds the product to d with accumulate. Sums in f32 and rounds
 * once. a is (M, K), or (K, M) when transposed; b is (K, N), or (N, K). d has the storage type or
 * f32. Accepts any strides. This plain kernel is used when cuBLASLt refuses a product.
 * (gemm_simt.cu) */
void cuda_product(Device *dev, Tensor d, Tensor a, bool a_transposed, Tensor b, bool b_transposed,
                  bool accumulate);

#ifdef __cplusplus
}
#endif

#endif
