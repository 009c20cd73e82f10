/* cuda.h -- what the files of the CUDA backend share: the device's state, errors, scratch, and the
 * ops that the table hands out. Included by C files and, inside kernel.cuh, by .cu files.
 *
 * All work of an op is put on the compute stream of the Device that it is given, which may be a
 * view on another stream (device_on), and nobody waits for it: an op neither allocates nor
 * synchronises. Several Devices, each of its own thread, may share a GPU and its context; nothing
 * here is shared between them. */
#ifndef MODEL_KERNELS_CUDA_CUDA_H
#define MODEL_KERNELS_CUDA_CUDA_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "model/core/check.h"
#include "model/kernels/ops.h"

/* Most scratch that one op may take, unless the device was opened with another amount; products and
 * kernels share it, one op after another. */
#define CUDA_WORKSPACE ((size_t)128 << 20)

enum { CUDA_COMPUTE, CUDA_COPY, CUDA_COMM, CUDA_P2P, CUDA_TP, CUDA_STREAMS };

typedef struct CudaDevice {
    cudaStream_t stream[CUDA_STREAMS];
    void *workspace; /* device memory, 256-byte aligned */
    size_t workspace_bytes;
    int multiprocessors;
    size_t shared_bytes; /* most dynamic shared memory that a block may ask for */
    struct Lt *lt;       /* cuBLASLt and its plans: lt.h */
    char name[128];      /* "NVIDIA H100 80GB HBM3" */
    int major, minor;    /* compute capability */
} CudaDevice;

static inline CudaDevice *cuda_device(const Device *dev)
{
    return (CudaDevice *)dev->impl;
}

static inline cudaStream_t cuda_stream(const Device *dev)
{
    return (cudaStream_t)dev->compute.impl;
}

/* Scratch of the running op, valid until the next op's kernels; contents undefined. More than the
 * device's workspace_bytes is a bug: ops cut their work so that it suffices. So is a call on a
 * stream other than the device's own compute stream, where it would be two ops' at once. */
void *cuda_workspace(const Device *dev, size_t bytes);

/* Ends the run with EXIT_SYSTEM (EXIT_NO_MEMORY for memory, and what to lower), the call and CUDA's
 * words. */
#define CUDA_CHECK(call) cuda_check((call), #call, __FILE__, __LINE__)
void cuda_check(cudaError_t code, const char *call, const char *file, int line);

/* ---- the ops --------------------------------------------------------------------------------- */

#define OP(name, arguments) void cuda_##name arguments;
#define OP_WITHOUT_CUDA(name, arguments)
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA

/* db (O) grad =/+= column sums of dy (N, O): the bias gradient of a linear layer. Partial sums of
 * fixed blocks of rows, added in order: deterministic. (reduce.cu) */
void cuda_bias_sums(Device *dev, Tensor db, Tensor dy, bool accumulate);
/* y = each row a copy of bias (O); y (N, O), same type. (elementwise.cu) */
void cuda_rows_fill(Device *dev, Tensor y, Tensor bias);
/* y (N, O) storage = gelu(sum (N, O) f32 + bias (O, if present)), rounded once; pre (N, O, if
 * present) = sum + bias, rounded. (elementwise.cu) */
void cuda_gelu_of_sum(Device *dev, Tensor y, Tensor pre, Tensor sum, Tensor bias);
/* dx (N, I) storage = product (N, I) f32 * gelu'(pre (N, I) storage), rounded once; for f32 dx may
 * be the product itself. (elementwise.cu) */
void cuda_gelu_multiply(Device *dev, Tensor dx, Tensor product, Tensor pre);
/* d (M, N) =/+= op(a) op(b) in f32, rounded once; a (M, K), or (K, M) when transposed; b (K, N), or
 * (N, K); d storage or f32; any strides. The plain kernel that replaces the library. (gemm_simt.cu)
 */
void cuda_product(Device *dev, Tensor d, Tensor a, bool a_transposed, Tensor b, bool b_transposed,
                  bool accumulate);

#ifdef __cplusplus
}
#endif

#endif
