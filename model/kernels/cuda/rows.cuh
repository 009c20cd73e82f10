/* rows.cuh -- how kernels without sums cut a matrix: every thread has one pack of one row.
 *
 * The matrix is rows of packs (of N elements, 16 bytes where pointers and strides allow). A block
 * covers `across` packs of each of several rows; consecutive blocks go along a row first. The only
 * division is of the block's number, the same for all of its threads. */
#ifndef MODEL_KERNELS_CUDA_ROWS_CUH
#define MODEL_KERNELS_CUDA_ROWS_CUH

#include "model/kernels/cuda/kernel.cuh"

enum { CUT_THREADS = 256 };

typedef struct {
    int64_t rows, packs;    /* packs: of a row */
    unsigned column_blocks; /* blocks side by side along a row */
    unsigned across;        /* threads side by side along a row, a power of two */
} Cut;

/* Rows of few packs share a block; few rows stretch it. */
static inline Cut cut_of(int64_t rows, int64_t packs)
{
    unsigned across = CUT_THREADS;
    for (int64_t below = 1; across > WARP && below < rows; below *= 2)
        across /= 2;
    while (across > 1 && across / 2 >= packs)
        across /= 2;
    return Cut{rows, packs, (unsigned)ceil_div(packs, across), across};
}

static inline dim3 cut_block(Cut cut)
{
    return dim3(cut.across, CUT_THREADS / cut.across);
}

static inline dim3 cut_grid(Cut cut)
{
    int64_t blocks = ceil_div(cut.rows, CUT_THREADS / cut.across) * cut.column_blocks;
    CHECK(blocks <= INT32_MAX, "a matrix of %lld x %lld packs is too large for one kernel",
          (long long)cut.rows, (long long)cut.packs);
    return dim3((unsigned)blocks);
}

/* Starts a kernel whose first argument is the cut. Nothing for an empty matrix. */
#define LAUNCH_CUT(kernel, cut, dev, ...)                                                          \
    do {                                                                                           \
        if ((cut).rows > 0 && (cut).packs > 0)                                                     \
            LAUNCH(kernel, cut_grid(cut), cut_block(cut), 0, cuda_stream(dev), cut, __VA_ARGS__);  \
    } while (0)

/* The calling thread's row and pack; false when it has none. */
static __device__ __forceinline__ bool cut_place(Cut cut, int64_t *row, int64_t *pack)
{
    *row = (int64_t)(blockIdx.x / cut.column_blocks) * blockDim.y + threadIdx.y;
    *pack = (int64_t)(blockIdx.x % cut.column_blocks) * blockDim.x + threadIdx.x;
    return *row < cut.rows && *pack < cut.packs;
}

/* The rows of a tensor inside a kernel; data is NULL for an absent one. */
template <class T> struct DeviceRows {
    T *data;
    int64_t ld;
};

template <class T> static inline DeviceRows<T> rows_of(Tensor t)
{
    return DeviceRows<T>{(T *)t.data, t.ld};
}

template <class T>
static __device__ __forceinline__ T *row_at(DeviceRows<T> t, int64_t row, int64_t col)
{
    return t.data + row * t.ld + col;
}

/* N elements as they lie at p, for loads that should be under way before the first is used. */
template <int N, class T> static __device__ __forceinline__ Pack<T, N> raw_load(const T *p)
{
    return *reinterpret_cast<const Pack<T, N> *>(p);
}

template <int N, class T>
static __device__ __forceinline__ void unpack(float (&x)[N], const Pack<T, N> &pack)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = to_float(pack.at[i]);
}

/* Runs the statements with N as the elements of 16 bytes of T if `whole`, else as 1. */
#define WITH_PACKS(whole, T, N, ...)                                                               \
    do {                                                                                           \
        if (whole) {                                                                               \
            constexpr int N = (int)(16 / sizeof(T));                                               \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            constexpr int N = 1;                                                                   \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

/* Runs the statements with G as a gradient's type: T, or float. */
#define WITH_GRADIENT(dtype, T, G, ...)                                                            \
    do {                                                                                           \
        if ((dtype) == F32) {                                                                      \
            typedef float G;                                                                       \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            typedef T G;                                                                           \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

#endif
