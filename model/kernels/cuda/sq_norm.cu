/* sq_norm.cu -- computes the squared norm of the gradients, with the CPU's bits: partial sums of
 * blocks of elements, which are then added in order. */
#include "model/kernels/cuda/ordered_sum.cuh"
#include "model/kernels/cuda/ranges.cuh"

enum { SUMS = 16, SQ_NORM_THREADS = 128, SQ_NORM_BATCH = 16, NORM_RANGES = 160 };
enum { SQ_NORM_TEAMS = SQ_NORM_THREADS / SUMS };
static_assert(WARP % SUMS == 0, "the lanes that process a block of elements are in one warp");
static_assert(SQ_NORM_BLOCK % (SUMS * SQ_NORM_BATCH) == 0, "whole blocks have whole batches");

/* The tensors of a launch. A tile is a block of SQ_NORM_BLOCK elements; `first` is the number of
 * tiles in the tensors before this one. */
template <class T> struct NormTable {
    int ranges, tiles;
    struct {
        const T *x;
        int64_t n;
        int first;
    } range[NORM_RANGES];
};
static_assert(sizeof(NormTable<float>) + sizeof(double *) <= PARAMETER_BYTES, "too many tensors");

/* Computes partial[b] = the sum of the squares of the elements of tile b. As on the CPU, it keeps
 * sixteen sums in double, each over every sixteenth element, and adds them in halves. Then it adds
 * the elements left over when the count is not a multiple of sixteen. Sixteen threads process a
 * tile, and each loads a batch of elements at a time. The square of a float is exact in double, so
 * fused additions do not change any bit. */
template <class T>
static __global__ void __launch_bounds__(SQ_NORM_THREADS)
    sq_norm_kernel(double *partial, NormTable<T> table)
{
    int lane = threadIdx.x % SUMS, tile = (int)(blockIdx.x * SQ_NORM_TEAMS + threadIdx.x / SUMS);
    int r = range_of(table, tile);
    int64_t at = (int64_t)(tile - table.range[r].first) * SQ_NORM_BLOCK;
    /* Sixteen lanes process a tile. The last block may have more groups of sixteen lanes than there
     * are tiles left. */
    int64_t rest = tile < table.tiles ? table.range[r].n - at : 0;
    int count = rest < SQ_NORM_BLOCK ? (int)rest : SQ_NORM_BLOCK, whole = count - count % SUMS;
    double sum = 0.0;
    const T *x = table.range[r].x + at;
    /* Loads a whole batch before adding, because otherwise each addition would wait for its load.
     */
    for (int first = lane; first < whole; first += SUMS * SQ_NORM_BATCH) {
        float a[SQ_NORM_BATCH];
#pragma unroll
        for (int k = 0; k < SQ_NORM_BATCH; k++)
            a[k] = first + k * SUMS < whole ? to_float(x[first + k * SUMS]) : 0.0f;
#pragma unroll
        for (int k = 0; k < SQ_NORM_BATCH; k++)
            sum = fma((double)a[k], (double)a[k], sum);
    }
#pragma unroll
    for (int half = SUMS / 2; half > 0; half /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, half);
    /* One thread adds the remaining elements in order, as the CPU does after its sixteen sums. */
    if (lane != 0 || count == 0) return;
    for (int i = whole; i < count; i++)
        sum += (double)to_float(x[i]) * (double)to_float(x[i]);
    partial[tile] = sum;
}

/* Writes the partial sums of n <= NORM_RANGES tensors; returns the number of partial sums. */
template <class T>
static int64_t sq_norm_launch(Device *dev, double *partial, const Tensor *x, int n)
{
    NormTable<T> table = {};
    int64_t tiles = 0;
    for (int i = 0; i < n; i++) {
        table.range[i] = {(const T *)x[i].data, tensor_count(x[i]), (int)tiles};
        tiles += ceil_div(tensor_count(x[i]), SQ_NORM_BLOCK);
    }
    CHECK(tiles <= INT32_MAX - SQ_NORM_TEAMS, "%lld tiles", (long long)tiles);
    table.ranges = n;
    table.tiles = (int)tiles;
    if (tiles > 0)
        LAUNCH(sq_norm_kernel<T>, ceil_div(tiles, SQ_NORM_TEAMS), SQ_NORM_THREADS, 0,
               cuda_stream(dev), partial, table);
    return tiles;
}

extern "C" void cuda_sq_norm(Device *dev, Tensor stats, const Tensor *x, int n)
{
    int64_t blocks = 0, done = 0;
    for (int i = 0; i < n; i++)
        blocks += ceil_div(tensor_count(x[i]), SQ_NORM_BLOCK);
    if (blocks == 0) return;
    double *partial = (double *)cuda_workspace(dev, sizeof(double) * (size_t)blocks);
    for (int i = 0; i < n; i += NORM_RANGES) {
        int some = n - i < NORM_RANGES ? n - i : NORM_RANGES;
        with_storage(x[0].dtype, [&](auto t) {
            done += sq_norm_launch<typename decltype(t)::Type>(dev, partial + done, x + i, some);
        });
    }
    LAUNCH(ordered_sum_kernel<double>, 1, ORDERED_THREADS, sizeof(OrderedShared), cuda_stream(dev),
           (double *)stats.data, (const double *)partial, (const int32_t *)nullptr, blocks);
}
