/* rows.cuh -- divides a matrix among threads for kernels without sums over a row: each thread
 * processes one pack of one row.
 *
 * A pack is N adjacent elements: 16 bytes if pointers and strides allow it, otherwise one element.
 * A block covers `across` packs in each of several rows. Consecutive blocks continue along the row
 * before they go on to the next rows. A thread finds its row and column with a single division,
 * that of the block's number, whose result is the same for all threads of the block. */
#ifndef MODEL_KERNELS_CUDA_ROWS_CUH
#define MODEL_KERNELS_CUDA_ROWS_CUH

#include "model/kernels/cuda/kernel.cuh"

enum { CUT_THREADS = 256 };

static_assert((int)CUT_THREADS >= (int)WARP && (CUT_THREADS & (CUT_THREADS - 1)) == 0,
              "a block is divided by powers of two");

typedef struct {
    int64_t rows, packs;    /* packs: packs per row */
    unsigned column_blocks; /* blocks along a row */
    unsigned across;        /* threads of a block along a row, a power of two */
} Cut;

/* Returns how to divide a matrix of `rows` rows of `packs` packs. Short rows share a block. If
 * there are few rows, a block covers more of each row. */
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

static inline int64_t cut_grid(Cut cut)
{
    return ceil_div(cut.rows, CUT_THREADS / cut.across) * ceil_div(cut.packs, cut.across);
}

/* Starts a kernel for a matrix of `rows` rows of `packs` packs. The kernel's first argument is the
 * cut, and the others follow. Does nothing if the matrix is empty. */
template <auto KERNEL, class... Arguments>
static void launch_cut(Device *dev, int64_t rows, int64_t packs, const Arguments &...arguments)
{
    if (rows == 0 || packs == 0) return;
    Cut cut = cut_of(rows, packs);
    LAUNCH(KERNEL, cut_grid(cut), cut_block(cut), 0, cuda_stream(dev), cut, arguments...);
}

/* Sets *row and *pack to those of the calling thread. Returns false if the thread is outside the
 * matrix. */
static __device__ __forceinline__ bool cut_place(Cut cut, int64_t *row, int64_t *pack)
{
    *row = (int64_t)(blockIdx.x / cut.column_blocks) * blockDim.y + threadIdx.y;
    *pack = (int64_t)(blockIdx.x % cut.column_blocks) * blockDim.x + threadIdx.x;
    return *row < cut.rows && *pack < cut.packs;
}

/* A tensor's rows as a kernel sees them; data is NULL if the tensor is absent. */
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

/* Loads N elements at p without converting them. Several such loads can be in progress before the
 * first result is used. */
template <int N, class T> static __device__ __forceinline__ Pack<T, N> raw_load(const T *p)
{
    return *reinterpret_cast<const Pack<T, N> *>(p);
}

#endif
