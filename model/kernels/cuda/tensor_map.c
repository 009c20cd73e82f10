/* tensor_map.c -- makes tensor maps with the driver's encoder. The program is not linked with the
 * driver, so that it also starts on machines without one; the runtime finds the function. */
#include "model/kernels/cuda/tensor_map.h"

/* The type of the encoder, cuTensorMapEncodeTiled, and the version of CUDA that introduced it. */
typedef CUresult (*Encoder)(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                            void *address, const cuuint64_t *size, const cuuint64_t *stride,
                            const cuuint32_t *box, const cuuint32_t *step,
                            CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                            CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);
enum { ENCODER_VERSION = 12000, RANK = 4 };

void tensor_map_find(CudaDevice *cuda)
{
    enum cudaDriverEntryPointQueryResult found;
    cudaError_t code = cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &cuda->map_encoder, ENCODER_VERSION, cudaEnableDefault, &found);
    if (code != cudaSuccess) cudaGetLastError(); /* clears the error */
    if (code != cudaSuccess || found != cudaDriverEntryPointSuccess) cuda->map_encoder = NULL;
}

void tensor_map_heads(const Device *dev, CUtensorMap *map, Tensor x, int64_t heads,
                      int64_t head_size, int rows)
{
    Encoder encode = (Encoder)cuda_device(dev)->map_encoder;
    /* A tensor with a single row may have any stride, but the driver requires a multiple of 16
     * bytes. */
    int64_t element = (int64_t)dtype_size(x.dtype),
            row = (tensor_rows(x) > 1 ? x.ld : x.dim[2]) * element;
    CHECK(x.ndim == 3 && x.dim[2] == heads * head_size && head_size % MAP_COLUMNS == 0,
          "a map of %lld heads of %lld columns over a tensor of %d dimensions", (long long)heads,
          (long long)head_size, x.ndim);
    if (encode == NULL)
        fail(EXIT_SYSTEM,
             "the NVIDIA driver here has no cuTensorMapEncodeTiled, which attention for Hopper "
             "needs; update the driver, or write \"portable\" for cuda.attention");
    const cuuint64_t size[RANK] = {(cuuint64_t)head_size, (cuuint64_t)heads, (cuuint64_t)x.dim[1],
                                   (cuuint64_t)x.dim[0]};
    const cuuint64_t stride[RANK - 1] = {(cuuint64_t)(head_size * element), (cuuint64_t)row,
                                         (cuuint64_t)(x.dim[1] * row)};
    const cuuint32_t box[RANK] = {MAP_COLUMNS, 1, (cuuint32_t)rows, 1}, step[RANK] = {1, 1, 1, 1};
    CUresult code = encode(
        map, x.dtype == BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        RANK, x.data, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code != CUDA_SUCCESS)
        fail(EXIT_SYSTEM,
             "cuTensorMapEncodeTiled refuses (error %d) a map of %lld heads of %lld columns, %lld "
             "tokens and %lld batch rows, with %lld bytes between rows, at %p",
             (int)code, (long long)heads, (long long)head_size, (long long)x.dim[1],
             (long long)x.dim[0], (long long)row, x.data);
}
