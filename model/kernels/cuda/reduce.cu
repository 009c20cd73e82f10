/* reduce.cu -- computes column sums: of rows of partial sums, and of a gradient, for the bias of a
 * linear layer. */
#include "model/kernels/cuda/reduce.h"

#include "model/kernels/cuda/rows.cuh"

/* Shape of the blocks. ACROSS: threads along the columns. FINAL_ROWS, SUM_ROWS: rows of threads in
 * the two kernels. UNROLL: rows that a thread loads at the same time. RESIDENT: blocks per
 * multiprocessor; without this limit the compiler would use too few registers for UNROLL loads, in
 * order to fit more blocks. */
enum { ACROSS = WARP, FINAL_ROWS = 32, SUM_ROWS = 8, UNROLL = 4, RESIDENT = 4 };

static_assert((int)ACROSS * FINAL_ROWS <= (int)BLOCK_THREADS_MOST && SUM_ROWS <= FINAL_ROWS,
              "the threads of a block");

/* Sums the columns of partials into d, e and f (W each; NULL if absent). Block (x, y) computes
 * columns of the y-th output that is present; the partials of that output start at column y W. d
 * and e are overwritten or, with accumulate, added to; f is overwritten. Each column is summed by
 * 32 threads, one per warp: warp i takes rows i, i + 32, ..., and then the sums of the warps are
 * added in order. */
template <class G>
__global__ void __launch_bounds__(ACROSS *FINAL_ROWS)
    partials_sum_kernel(G *d, G *e, float *f, int64_t width, DeviceRows<const float> partials,
                        int64_t count, bool accumulate)
{
    DYN_SHARED(float, shared);
    int64_t col = (int64_t)blockIdx.x * ACROSS + threadIdx.x;
    float sum = 0;
    if (col < width)
#pragma unroll 4
        for (int64_t p = threadIdx.y; p < count; p += FINAL_ROWS)
            sum += *row_at(partials, p, blockIdx.y * width + col);
    shared[threadIdx.y * ACROSS + threadIdx.x] = sum;
    __syncthreads();
    /* One thread per column adds the sums of the warps in order, so every run has the same bits. */
    if (threadIdx.y > 0 || col >= width) return;
    for (int i = 1; i < FINAL_ROWS; i++)
        sum += shared[i * ACROSS + threadIdx.x];
    G *out = blockIdx.y == 0 ? d : blockIdx.y == 1 ? e : NULL;
    if (out)
        out[col] = from_float<G>(accumulate ? to_float(out[col]) + sum : sum);
    else
        f[col] = sum;
}

void cuda_partials_sum(Device *dev, Tensor d, Tensor e, Tensor f, Tensor partials, bool accumulate)
{
    int64_t width = tensor_count(d);
    int outputs = 1 + tensor_present(e) + tensor_present(f);
    if (width == 0) return;
    CHECK(!tensor_present(e) || e.dtype == d.dtype, "sums of %s and %s", dtype_name(d.dtype),
          dtype_name(e.dtype));
    CHECK(!tensor_present(f) || f.dtype == F32, "sums of %s", dtype_name(f.dtype));
    LaunchGrid grid(ceil_div(width, ACROSS), outputs);
    with_storage(d.dtype, [&](auto t) {
        typedef typename decltype(t)::Type G;
        LAUNCH(partials_sum_kernel<G>, grid, dim3(ACROSS, FINAL_ROWS),
               ACROSS * FINAL_ROWS * sizeof(float), cuda_stream(dev), (G *)d.data, (G *)e.data,
               (float *)f.data, width, rows_of<const float>(partials), tensor_rows(partials),
               accumulate);
    });
}

Tensor cuda_partials(const Device *dev, int64_t most, int64_t cols)
{
    int64_t fit = (int64_t)(cuda_device(dev)->workspace_bytes / sizeof(float)) / cols;
    int64_t rows = most < fit ? most : fit;
    if (rows < 1) rows = 1;
    return tensor_2d(cuda_workspace(dev, sizeof(float) * (size_t)(rows * cols)), F32, rows, cols);
}

/* Writes partials[blockIdx.y] (O) = the column sums of `share` rows of dy (N, O), starting at row
 * blockIdx.y * share. A thread sums one pack of columns over every eighth row and loads four rows
 * at a time; then the sums of the eight threads of a column are added in order. Reads every element
 * once. */
template <class T, int N>
__global__ void __launch_bounds__(ACROSS *SUM_ROWS, RESIDENT)
    column_sums_kernel(float *partials, DeviceRows<T> dy, int64_t rows, int64_t cols, int64_t share)
{
    static_assert(N <= SUM_ROWS, "a block has a thread for each of its columns");
    DYN_SHARED(float, shared);
    int64_t first = (int64_t)blockIdx.x * ACROSS * N, col = first + threadIdx.x * N;
    int64_t begin = blockIdx.y * share, end = begin + share < rows ? begin + share : rows;
    int64_t row = begin + threadIdx.y;
    float sum[N] = {0}, v[N];
    /* Threads outside the matrix have nothing to add, but must take part in the barrier. */
    if (col >= cols) row = end;
    for (; row + (UNROLL - 1) * SUM_ROWS < end; row += UNROLL * SUM_ROWS) {
        Pack<T, N> raw[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            raw[u] = raw_load<N>((const T *)row_at(dy, row + u * SUM_ROWS, col));
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            unpack(v, raw[u]);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] += v[i];
        }
    }
    for (; row < end; row += SUM_ROWS) {
        load<N>(v, row_at(dy, row, col));
#pragma unroll
        for (int i = 0; i < N; i++)
            sum[i] += v[i];
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        shared[(threadIdx.y * ACROSS + threadIdx.x) * N + i] = sum[i];
    __syncthreads();
    int c = threadIdx.y * ACROSS + threadIdx.x;
    if (c >= ACROSS * N || first + c >= cols) return;
    /* One thread per column adds the sums of the eight threads in order, so every run has the same
     * bits. */
    float total = 0;
    for (int i = 0; i < SUM_ROWS; i++)
        total += shared[i * ACROSS * N + c];
    partials[blockIdx.y * cols + first + c] = total;
}

/* Launches twice as many blocks as can be resident at a time, so that later blocks fill the gaps
 * when earlier ones end. Uses fewer if a block would get fewer than 64 rows, which is not worth a
 * block. */
template <class T, int N>
static void column_sums_as(Device *dev, Tensor db, Tensor dy, bool accumulate)
{
    int64_t rows = tensor_rows(dy), cols = tensor_cols(dy), across = ceil_div(cols, ACROSS * N);
    int64_t wanted = ceil_div(2 * RESIDENT * cuda_device(dev)->multiprocessors, across);
    int64_t worth = ceil_div(rows, 64);
    Tensor partials = cuda_partials(dev, wanted < worth ? wanted : worth, cols);
    int64_t share = ceil_div(rows, tensor_rows(partials));
    LAUNCH((column_sums_kernel<T, N>), LaunchGrid(across, tensor_rows(partials)),
           dim3(ACROSS, SUM_ROWS), sizeof(float) * ACROSS * SUM_ROWS * N, cuda_stream(dev),
           (float *)partials.data, rows_of<T>(dy), rows, cols, share);
    cuda_partials_sum(dev, db, NO_TENSOR, NO_TENSOR, partials, accumulate);
}

void cuda_bias_sums(Device *dev, Tensor db, Tensor dy, bool accumulate)
{
    if (tensor_cols(dy) == 0) return;
    with_packs(dy.dtype, packs_fit(dy, pack_size(dy.dtype)), [&](auto t, auto n) {
        column_sums_as<typename decltype(t)::Type, n>(dev, db, dy, accumulate);
    });
}

void cuda_column_sum(Device *dev, Tensor columns, Tensor x)
{
    cuda_bias_sums(dev, columns, x, false);
}
