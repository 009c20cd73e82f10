/* embedding_backward.cu -- sums gradient rows per row of an embedding table.
 *
 * The gradient rows of each table row are added in ascending order, so in f32 the bits are the
 * CPU's, except for table rows that are split (below). For this the gradient rows are first sorted
 * by index, using integers only. Each table row's gradient rows are counted, and a stretch (a range
 * of adjacent places) of a list is reserved for that many. The gradient rows are put into their
 * stretches in any order. Then each gradient row finds its final position by counting the smaller
 * row numbers in its stretch. The position of a stretch in the list depends on the order in which
 * blocks run, but its contents do not.
 *
 * A table row with more than PART gradient rows, such as that of a frequent token, would keep one
 * chain of additions busy long after all other table rows are done. So it is split: every PART
 * gradient rows are added by threads of their own, and the sums of these parts are added in
 * ascending order. To sort such a stretch, counting smaller numbers would take time that grows with
 * the square of its length. A block reads the whole index instead and writes down where the table
 * row occurs. */
#include "model/kernels/cuda/embedding.cuh"

/* UNROLL: gradient rows that a thread loads at the same time. RESIDENT: blocks per multiprocessor;
 * without this limit the compiler would use too few registers for UNROLL loads, in order to fit
 * more blocks. PART: the most gradient rows that are added in one chain. SCAN_THREADS: threads of a
 * block that finds the gradient rows of a split table row. */
enum { UNROLL = 8, RESIDENT = 4, PART = 256, SCAN_THREADS = 1024 };

static_assert(SCAN_THREADS % WARP == 0 && SCAN_THREADS <= WARP * WARP,
              "a warp adds up what the warps of a block have found, a lane for each");

/* ---- rows sorted by index -------------------------------------------------------------------- */

/* State of the sort. All arrays except index are in the workspace; all hold int32. Only split table
 * rows have parts; the parts of all table rows are numbered in one sequence. */
typedef struct {
    const int32_t *index; /* (N) */
    int64_t rows, first_row, table_rows;
    int32_t *length, *filled; /* (V') each table row's number of gradient rows: in all, and put into
                                 the list so far */
    int32_t *used, *parts;    /* (1) each: places of the list reserved so far; parts so far */
    int32_t *start;           /* (V') where each table row's stretch starts */
    int32_t *first_part;      /* (V') number of the first part of each split table row */
    int32_t *part_row;        /* (most_parts) the table row of each part */
    int32_t *list, *sorted;   /* (N) gradient rows by table row: in any order, ascending */
    int64_t most_parts;
} Sort;

static __device__ __forceinline__ int parts_of(int length)
{
    return (length + PART - 1) / PART;
}

/* Sets length, filled, used and parts to 0; they are adjacent. */
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

/* Reserves a stretch of the lists for every table row, and numbers for the parts of split ones. A
 * warp reserves the stretches of its 32 table rows with one atomic addition. */
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
    if (length <= PART) return;
    int first = atomicAdd(s.parts, parts_of(length));
    s.first_part[row] = first;
    for (int i = 0; i < parts_of(length); i++)
        s.part_row[first + i] = (int32_t)row;
}

static __global__ void __launch_bounds__(CUT_THREADS) put_kernel(Sort s)
{
    int64_t n = (int64_t)blockIdx.x * CUT_THREADS + threadIdx.x;
    int64_t row = n < s.rows ? table_row(s.index, n, s.first_row, s.table_rows) : -1;
    if (row >= 0) s.list[s.start[row] + atomicAdd(&s.filled[row], 1)] = (int32_t)n;
}

/* Sorts the stretch of each table row that is not split: counts, for every gradient row in it, the
 * gradient rows in it with smaller numbers. Adjacent threads mostly belong to the same stretch, so
 * they read the same addresses. */
static __global__ void __launch_bounds__(CUT_THREADS) sort_kernel(Sort s)
{
    int64_t i = (int64_t)blockIdx.x * CUT_THREADS + threadIdx.x;
    if (i >= *s.used) return;
    int32_t n = s.list[i];
    int64_t row = s.index[n] - s.first_row;
    const int32_t *stretch = s.list + s.start[row];
    int length = s.length[row], smaller = 0;
    if (length > PART) return;
#pragma unroll 8
    for (int j = 0; j < length; j++)
        smaller += stretch[j] < n;
    s.sorted[s.start[row] + smaller] = n;
}

/* Sorts the stretches of split table rows. There is a block for each part; the block of a table
 * row's first part sorts the whole stretch, and the others return at once. Each warp counts the
 * table row's gradient rows in its share of the index. Then it reads its share again and writes
 * these gradient rows in ascending order, after the positions that the warps before it need. */
static __global__ void __launch_bounds__(SCAN_THREADS) scan_kernel(Sort s)
{
    DYN_SHARED(int, found);
    int part = (int)blockIdx.x, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (part >= *s.parts) return;
    int row = s.part_row[part];
    if (s.first_part[row] != part) return;
    int64_t wanted = row + s.first_row;
    int64_t share = (s.rows + SCAN_THREADS - 1) / SCAN_THREADS * WARP;
    int64_t begin = warp * share, end = begin + share < s.rows ? begin + share : s.rows;
    int count = 0;
#pragma unroll 8
    for (int64_t n = begin + lane; n < end; n += WARP)
        count += s.index[n] == wanted;
    count = warp_sum(count);
    if (lane == 0) found[warp] = count;
    __syncthreads();
    int32_t *place = s.sorted + s.start[row] + warp_sum(lane < warp ? found[lane] : 0);
#pragma unroll 8
    for (int64_t n = begin; n < end; n += WARP) {
        bool here = n + lane < end && s.index[n + lane] == wanted;
        unsigned all = __ballot_sync(0xffffffffu, here);
        if (here) place[__popc(all & ((1u << lane) - 1))] = (int32_t)(n + lane);
        place += __popc(all);
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Adds the packs at column `col` of `length` rows of dx, which `rows` lists, to sum, in the order
 * of the list. */
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

/* Computes parts (P, C) f32 = the sum of the gradient rows of dx (N, C) that belong to each part,
 * in ascending order. */
template <class T, int N>
__global__ void __launch_bounds__(CUT_THREADS, RESIDENT)
    part_sums_kernel(Cut cut, DeviceRows<float> parts, DeviceRows<T> dx, Sort s)
{
    int64_t part, pack;
    if (!cut_place(cut, &part, &pack) || part >= *s.parts) return;
    int row = s.part_row[part], first = ((int)part - s.first_part[row]) * PART;
    int length = min(s.length[row] - first, (int)PART);
    float sum[N] = {};
    rows_add<T, N>(sum, dx, s.sorted + s.start[row] + first, length, pack * N);
    store_global<N>(row_at(parts, part, pack * N), sum);
}

/* Computes dtable (V', C) = the sum of the gradient rows of dx (N, C) that belong to each table
 * row, in ascending order; adds it to dtable with accumulate. Of a split table row, adds the sums
 * of its parts (P, C). Each thread computes one pack of a table row. Without accumulate, a table
 * row without gradient rows becomes 0. */
template <class T, class G, int N>
__global__ void __launch_bounds__(CUT_THREADS, RESIDENT)
    table_sums_kernel(Cut cut, DeviceRows<G> dtable, DeviceRows<T> dx, DeviceRows<float> parts,
                      Sort s, bool accumulate)
{
    int64_t row, pack;
    if (!cut_place(cut, &row, &pack)) return;
    int length = s.length[row];
    /* A table row that no token uses keeps its gradient. This is the case for most rows. */
    if (accumulate && length == 0) return;
    float sum[N] = {};
    G *out = row_at(dtable, row, pack * N);
    if (accumulate) load<N>(sum, out);
    if (length <= PART) {
        rows_add<T, N>(sum, dx, s.sorted + s.start[row], length, pack * N);
    } else {
        const float *at = row_at(parts, s.first_part[row], pack * N);
#pragma unroll 4
        for (int i = 0; i < parts_of(length); i++, at += parts.ld) {
            float v[N];
            load<N>(v, at);
#pragma unroll
            for (int k = 0; k < N; k++)
                sum[k] += v[k];
        }
    }
    store_global<N>(out, sum);
}

/* Returns an upper bound of the number of parts of `rows` gradient rows: on average, the parts of a
 * split table row hold more than PART / 2 gradient rows. */
static int64_t most_parts_of(int64_t rows)
{
    return ceil_div(2 * rows, PART);
}

/* Returns the number of int32 in all arrays of a sort, rounded up to a multiple of eight, so that
 * the f32 sums after the arrays are aligned for packs. */
static int64_t sort_length(int64_t rows, int64_t table_rows)
{
    return ceil_div(4 * table_rows + 2 + most_parts_of(rows) + 2 * rows, 8) * 8;
}

/* Returns the sort of an index (N), with its arrays in scratch. */
static Sort sort_of(int32_t *scratch, Tensor index, int64_t first_row, int64_t table_rows)
{
    int64_t rows = tensor_count(index), most_parts = most_parts_of(rows);
    int32_t *used = scratch + 2 * table_rows, *part_row = used + 2 + 2 * table_rows;
    /* What clear_kernel clears comes first. */
    return Sort{.index = (const int32_t *)index.data,
                .rows = rows,
                .first_row = first_row,
                .table_rows = table_rows,
                .length = scratch,
                .filled = scratch + table_rows,
                .used = used,
                .parts = used + 1,
                .start = used + 2,
                .first_part = used + 2 + table_rows,
                .part_row = part_row,
                .list = part_row + most_parts,
                .sorted = part_row + most_parts + rows,
                .most_parts = most_parts};
}

/* Sorts the rows of the index by their table row. */
static void sort_rows(Device *dev, Sort s)
{
    int64_t counts = 2 * s.table_rows + 2;
    int64_t by_row = ceil_div(s.rows, CUT_THREADS), by_index = ceil_div(s.table_rows, CUT_THREADS),
            by_count = ceil_div(counts, CUT_THREADS);
    cudaStream_t stream = cuda_stream(dev);
    /* Several kernels, because each needs what all blocks of the previous one have written. */
    LAUNCH(clear_kernel, by_count, CUT_THREADS, 0, stream, s.length, counts);
    LAUNCH(count_kernel, by_row, CUT_THREADS, 0, stream, s);
    LAUNCH(stretch_kernel, by_index, CUT_THREADS, 0, stream, s);
    LAUNCH(put_kernel, by_row, CUT_THREADS, 0, stream, s);
    LAUNCH(sort_kernel, by_row, CUT_THREADS, 0, stream, s);
    LAUNCH(scan_kernel, s.most_parts, SCAN_THREADS, sizeof(int) * (SCAN_THREADS / WARP), stream, s);
}

/* Sums sorted rows; parts (P, C) has space for the sums of all parts. N is the number of elements
 * in 16 bytes of G, the gradient's type, which is the wider one. */
template <class T, class G>
static void sums_as(Device *dev, Tensor dtable, Tensor dx, Tensor parts, Sort s, bool accumulate)
{
    constexpr int N = (int)(16 / sizeof(G));
    int64_t rows = tensor_rows(dtable), cols = tensor_cols(dtable);
    DeviceRows<float> sums = rows_of<float>(parts);
    if (all_fit(4, dx, parts))
        launch_cut<part_sums_kernel<T, 4>>(dev, s.most_parts, cols / 4, sums, rows_of<T>(dx), s);
    else
        launch_cut<part_sums_kernel<T, 1>>(dev, s.most_parts, cols, sums, rows_of<T>(dx), s);
    if (all_fit(N, dtable, dx))
        launch_cut<table_sums_kernel<T, G, N>>(dev, rows, cols / N, rows_of<G>(dtable),
                                               rows_of<T>(dx), sums, s, accumulate);
    else
        launch_cut<table_sums_kernel<T, G, 1>>(dev, rows, cols, rows_of<G>(dtable), rows_of<T>(dx),
                                               sums, s, accumulate);
}

/* Returns for how many columns the workspace has room for the sums of all parts, after the `ints`
 * 32-bit numbers of the sort: all columns, or a multiple of eight, at least eight. */
static int64_t columns_at_once(Device *dev, int64_t ints, int64_t parts, int64_t cols)
{
    int64_t words = (int64_t)(cuda_device(dev)->workspace_bytes / sizeof(float)) - ints;
    if (words / parts >= cols) return cols;
    return words / parts < 8 ? 8 : words / parts / 8 * 8;
}

void cuda_token_backward(Device *dev, Tensor dtable, Tensor dx, Tensor tokens, int64_t first_row,
                         bool accumulate)
{
    int64_t rows = tensor_count(tokens), table_rows = tensor_rows(dtable);
    if (tensor_count(dtable) == 0) return;
    if (tensor_count(dx) == 0) {
        if (!accumulate) cuda_fill(dev, dtable, 0);
        return;
    }
    CHECK(rows <= INT32_MAX && table_rows <= INT32_MAX, "%lld rows for %lld", (long long)rows,
          (long long)table_rows);
    int64_t ints = sort_length(rows, table_rows), parts = most_parts_of(rows);
    int64_t cols = tensor_cols(dtable), most = columns_at_once(dev, ints, parts, cols);
    int32_t *scratch =
        (int32_t *)cuda_workspace(dev, sizeof(float) * (size_t)(ints + parts * most));
    Sort s = sort_of(scratch, tokens, first_row, table_rows);
    sort_rows(dev, s);
    for (int64_t first = 0; first < cols; first += most) {
        int64_t n = cols - first < most ? cols - first : most;
        Tensor out = tensor_slice_cols(dtable, first, n), in = tensor_slice_cols(dx, first, n);
        Tensor sums = tensor_2d(scratch + ints, F32, parts, n);
        with_storage(dx.dtype, [&](auto t) {
            typedef typename decltype(t)::Type T;
            if (dtable.dtype == F32)
                sums_as<T, float>(dev, out, in, sums, s, accumulate);
            else
                sums_as<T, T>(dev, out, in, sums, s, accumulate);
        });
    }
}

void cuda_position_backward(Device *dev, Tensor dtable, Tensor dx, Tensor positions,
                            bool accumulate)
{
    cuda_token_backward(dev, dtable, dx, positions, 0, accumulate);
}
