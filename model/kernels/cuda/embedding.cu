/* embedding.cu -- looks up rows of an embedding table, and sums gradient rows per table row.
 *
 * The gradient rows of each table row are added in ascending order, so in f32 the bits are the
 * CPU's. For this the gradient rows are first sorted by index, using integers only. A count per
 * table row reserves a stretch of a list for it. The gradient rows are put into their stretches in
 * any order. Then each row finds its final place by counting the smaller row numbers in its
 * stretch. The position of a stretch in the list depends on the order in which blocks run, but its
 * contents do not. */
#include "model/kernels/cuda/rows.cuh"

/* UNROLL: gradient rows that a thread loads at the same time. RESIDENT: blocks per multiprocessor;
 * without this limit the compiler would use too few registers for UNROLL loads, in order to fit
 * more blocks. */
enum { UNROLL = 8, RESIDENT = 4 };

/* Returns the row of this table that index[n] selects, or -1 if the table does not have it. */
static __device__ __forceinline__ int64_t table_row(const int32_t *index, int64_t n,
                                                    int64_t first_row, int64_t table_rows)
{
    int64_t row = index[n] - first_row;
    return row >= 0 && row < table_rows ? row : -1;
}

/* ---- forward ----------------------------------------------------------------------------------
 */

/* Copies table row tokens[n] - first_row to x (N, C), bit for bit, or writes zeros if the table
 * does not have that row. */
template <class T, int N>
__global__ void __launch_bounds__(CUT_THREADS)
    token_forward_kernel(Cut cut, DeviceRows<T> x, DeviceRows<T> table, int64_t table_rows,
                         const int32_t *__restrict__ tokens, int64_t first_row)
{
    int64_t n, pack;
    if (!cut_place(cut, &n, &pack)) return;
    int64_t row = table_row(tokens, n, first_row, table_rows);
    if (row < 0) {
        float zero[N] = {};
        store<N>(row_at(x, n, pack * N), zero);
    } else {
        *reinterpret_cast<Pack<T, N> *>(row_at(x, n, pack * N)) =
            raw_load<N>((const T *)row_at(table, row, pack * N));
    }
}

void cuda_token_forward(Device *dev, Tensor x, Tensor table, Tensor tokens, int64_t first_row)
{
    int64_t full = pack_size(x.dtype);
    bool whole = packs_fit(x, full) && packs_fit(table, full);
    WITH_STORAGE(x.dtype, T, WITH_PACKS(whole, T, N, {
                     Cut cut = cut_of(tensor_rows(x), tensor_cols(x) / N);
                     LAUNCH_CUT((token_forward_kernel<T, N>), cut, dev, rows_of<T>(x),
                                rows_of<T>(table), tensor_rows(table), (const int32_t *)tokens.data,
                                first_row);
                 }));
}

/* Adds table row positions[n] to x (N, C). A position outside the table makes the row NaN. */
template <class T, int N>
__global__ void __launch_bounds__(CUT_THREADS)
    position_add_kernel(Cut cut, DeviceRows<T> x, DeviceRows<T> table, int64_t table_rows,
                        const int32_t *__restrict__ positions)
{
    int64_t n, pack;
    if (!cut_place(cut, &n, &pack)) return;
    int64_t row = table_row(positions, n, 0, table_rows);
    float v[N], t[N];
    load<N>(v, row_at(x, n, pack * N));
    if (row >= 0) load<N>(t, row_at(table, row, pack * N));
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = row >= 0 ? v[i] + t[i] : NAN;
    store<N>(row_at(x, n, pack * N), v);
}

void cuda_position_add(Device *dev, Tensor x, Tensor table, Tensor positions)
{
    int64_t full = pack_size(x.dtype);
    bool whole = packs_fit(x, full) && packs_fit(table, full);
    WITH_STORAGE(x.dtype, T, WITH_PACKS(whole, T, N, {
                     Cut cut = cut_of(tensor_rows(x), tensor_cols(x) / N);
                     LAUNCH_CUT((position_add_kernel<T, N>), cut, dev, rows_of<T>(x),
                                rows_of<T>(table), tensor_rows(table),
                                (const int32_t *)positions.data);
                 }));
}

/* ---- backward: rows sorted by index -----------------------------------------------------------
 */

/* State of the sort. All arrays except index are in the workspace; all hold int32. */
typedef struct {
    const int32_t *index; /* (N) */
    int64_t rows, first_row, table_rows;
    int32_t *length, *filled; /* (V') gradient rows of each table row: all, and those put so far */
    int32_t *used;            /* (1) length of the list that is reserved so far */
    int32_t *start;           /* (V') where each table row's stretch starts */
    int32_t *list, *sorted;   /* (N) gradient rows by table row: in any order, ascending */
} Sort;

/* Sets length, filled and used to 0; they are adjacent. */
static __global__ void __launch_bounds__(CUT_THREADS) clear_kernel(int32_t *counts, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * CUT_THREADS + threadIdx.x;
    if (i < n) counts[i] = 0;
}

static __global__ void __launch_bounds__(CUT_THREADS) count_kernel(Sort s)
{
    int64_t n = (int64_t)blockIdx.x * CUT_THREADS + threadIdx.x;
    int64_t row = n < s.rows ? table_row(s.index, n, s.first_row, s.table_rows) : -1;
    if (row >= 0) atomicAdd(&s.length[row], 1);
}

/* Reserves a stretch of the lists for every table row. A warp reserves those of its 32 table rows
 * with one atomic addition. */
static __global__ void __launch_bounds__(CUT_THREADS) stretch_kernel(Sort s)
{
    int64_t row = (int64_t)blockIdx.x * CUT_THREADS + threadIdx.x;
    int lane = threadIdx.x % WARP, length = row < s.table_rows ? s.length[row] : 0, end = length;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        int before = __shfl_up_sync(0xffffffffu, end, step);
        if (lane >= step) end += before;
    }
    /* The position of a stretch depends on which warp comes first. The result does not: rows are
     * read through `start`, and sorted. */
    int base = lane == WARP - 1 ? atomicAdd(s.used, end) : 0;
    base = __shfl_sync(0xffffffffu, base, WARP - 1);
    if (row < s.table_rows) s.start[row] = base + end - length;
}

static __global__ void __launch_bounds__(CUT_THREADS) put_kernel(Sort s)
{
    int64_t n = (int64_t)blockIdx.x * CUT_THREADS + threadIdx.x;
    int64_t row = n < s.rows ? table_row(s.index, n, s.first_row, s.table_rows) : -1;
    if (row >= 0) s.list[s.start[row] + atomicAdd(&s.filled[row], 1)] = (int32_t)n;
}

/* Sorts each stretch by counting, for every row in it, the rows with smaller numbers. The work is
 * the sum of the squared lengths. Adjacent threads mostly belong to the same stretch, so they read
 * the same addresses. */
static __global__ void __launch_bounds__(CUT_THREADS) sort_kernel(Sort s)
{
    int64_t i = (int64_t)blockIdx.x * CUT_THREADS + threadIdx.x;
    if (i >= *s.used) return;
    int32_t n = s.list[i];
    int64_t row = s.index[n] - s.first_row;
    const int32_t *stretch = s.list + s.start[row];
    int length = s.length[row], smaller = 0;
#pragma unroll 8
    for (int j = 0; j < length; j++)
        smaller += stretch[j] < n;
    s.sorted[s.start[row] + smaller] = n;
}

/* ---- backward: sums ---------------------------------------------------------------------------
 */

/* Adds the packs at column `col` of `length` rows of dx to sum, in the order of the list. */
template <class T, int N>
static __device__ __forceinline__ void rows_add(float (&sum)[N], DeviceRows<T> dx,
                                                const int32_t *rows, int length, int64_t col)
{
    int i = 0;
    float v[N];
    for (; i + UNROLL <= length; i += UNROLL) {
        Pack<T, N> raw[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            raw[u] = raw_load<N>((const T *)row_at(dx, rows[i + u], col));
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            unpack(v, raw[u]);
#pragma unroll
            for (int k = 0; k < N; k++)
                sum[k] += v[k];
        }
    }
    for (; i < length; i++) {
        load<N>(v, row_at(dx, rows[i], col));
#pragma unroll
        for (int k = 0; k < N; k++)
            sum[k] += v[k];
    }
}

/* Computes dtable (V', C) = the sum of the gradient rows of dx (N, C) that belong to each table
 * row, in ascending order; adds it to dtable with accumulate. Each thread computes one pack of a
 * table row. Without accumulate, a table row without gradient rows becomes 0. */
template <class T, class G, int N>
__global__ void __launch_bounds__(CUT_THREADS, RESIDENT)
    table_sums_kernel(Cut cut, DeviceRows<G> dtable, DeviceRows<T> dx, Sort s, bool accumulate)
{
    int64_t row, pack;
    if (!cut_place(cut, &row, &pack)) return;
    int length = s.length[row];
    /* A table row that no token uses keeps its gradient; most rows are such. */
    if (accumulate && length == 0) return;
    float sum[N] = {};
    G *out = row_at(dtable, row, pack * N);
    if (accumulate) load<N>(sum, out);
    rows_add<T, N>(sum, dx, s.sorted + s.start[row], length, pack * N);
    store<N>(out, sum);
}

/* Sorts the rows of an index vector by index. The result is in the workspace. */
static Sort sort_rows(Device *dev, Tensor index, int64_t first_row, int64_t table_rows)
{
    int64_t rows = tensor_count(index), counts = 2 * table_rows + 1;
    CHECK(rows <= INT32_MAX && table_rows <= INT32_MAX, "%lld rows for %lld", (long long)rows,
          (long long)table_rows);
    /* length, filled and used come first and next to each other, so that one kernel can clear them.
     */
    int32_t *scratch =
        (int32_t *)cuda_workspace(dev, sizeof(int32_t) * (size_t)(counts + table_rows + 2 * rows));
    Sort s = {.index = (const int32_t *)index.data,
              .rows = rows,
              .first_row = first_row,
              .table_rows = table_rows,
              .length = scratch,
              .filled = scratch + table_rows,
              .used = scratch + 2 * table_rows,
              .start = scratch + counts,
              .list = scratch + counts + table_rows,
              .sorted = scratch + counts + table_rows + rows};
    int64_t by_row = ceil_div(rows, CUT_THREADS), by_index = ceil_div(table_rows, CUT_THREADS),
            by_count = ceil_div(counts, CUT_THREADS);
    cudaStream_t stream = cuda_stream(dev);
    /* Five kernels, because each needs what all blocks of the previous one have written. */
    LAUNCH(clear_kernel, by_count, CUT_THREADS, 0, stream, scratch, counts);
    LAUNCH(count_kernel, by_row, CUT_THREADS, 0, stream, s);
    LAUNCH(stretch_kernel, by_index, CUT_THREADS, 0, stream, s);
    LAUNCH(put_kernel, by_row, CUT_THREADS, 0, stream, s);
    LAUNCH(sort_kernel, by_row, CUT_THREADS, 0, stream, s);
    return s;
}

void cuda_token_backward(Device *dev, Tensor dtable, Tensor dx, Tensor tokens, int64_t first_row,
                         bool accumulate)
{
    if (tensor_count(dtable) == 0) return;
    if (tensor_count(dx) == 0) {
        if (!accumulate) cuda_fill(dev, dtable, 0);
        return;
    }
    Sort s = sort_rows(dev, tokens, first_row, tensor_rows(dtable));
    WITH_STORAGE(dx.dtype, T, WITH_GRADIENT(dtable.dtype, T, G, {
                     /* 16 bytes of the wider type, which is the gradient's */
                     int64_t full = pack_size(dtable.dtype);
                     WITH_PACKS(packs_fit(dtable, full) && packs_fit(dx, full), G, N, {
                         Cut cut = cut_of(tensor_rows(dtable), tensor_cols(dtable) / N);
                         LAUNCH_CUT((table_sums_kernel<T, G, N>), cut, dev, rows_of<G>(dtable),
                                    rows_of<T>(dx), s, accumulate);
                     });
                 }));
}

void cuda_position_backward(Device *dev, Tensor dtable, Tensor dx, Tensor positions,
                            bool accumulate)
{
    cuda_token_backward(dev, dtable, dx, positions, 0, accumulate);
}
