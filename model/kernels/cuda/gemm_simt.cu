/* gemm_simt.cu -- computes matrix products that cuBLASLt refuses: any strides, any alignment, no
 * tensor cores. On a GPU the tests also compare the library's results with it. */
#include "model/kernels/cuda/kernel.cuh"

/* A block computes TILE x TILE results and a thread SIDE x SIDE of them, in steps of DEPTH terms.
 */
enum { TILE = 64, SIDE = 4, DEPTH = 16, THREADS = (TILE / SIDE) * (TILE / SIDE) };

static_assert(TILE % SIDE == 0, "threads have whole squares of a tile");
static_assert(TILE * DEPTH % THREADS == 0, "each thread loads as many elements of an operand");

/* An operand as a set of vectors along the k dimension: element k of vector `line` is at index line
 * * line_step + k * term_step. */
template <class T> struct Lines {
    const T *at;
    int64_t count, line_step, term_step;
};

/* Loads terms [first, first + DEPTH) of the vectors [line, line + TILE) into shared[DEPTH][TILE],
 * with zeros beyond the operand. Adjacent threads read along the contiguous dimension. */
template <class T>
static __device__ __forceinline__ void load_tile(float *shared, const Lines<T> &f, int64_t line,
                                                 int64_t first, int64_t terms)
{
    bool along_terms = f.term_step == 1;
#pragma unroll
    for (int i = 0; i < TILE * DEPTH / THREADS; i++) {
        int at = i * THREADS + (int)threadIdx.x;
        int l = along_terms ? at / DEPTH : at % TILE, t = along_terms ? at % DEPTH : at / TILE;
        bool inside = line + l < f.count && first + t < terms;
        shared[t * TILE + l] =
            inside ? to_float(f.at[(line + l) * f.line_step + (first + t) * f.term_step]) : 0.0f;
    }
}

/* Computes d (M, N): element (i, j) is the dot product of vectors i of a and j of b, or is
 * increased by it with accumulate. The terms are added in ascending order in f32; the result is
 * rounded once. d's rows are d_step elements apart. */
template <class T, class D>
static __global__ void __launch_bounds__(THREADS)
    product_kernel(D *d, int64_t d_step, Lines<T> a, Lines<T> b, int64_t terms, bool accumulate)
{
    DYN_SHARED(float, shared);
    float *shared_a = shared, *shared_b = shared + DEPTH * TILE;
    int64_t tiles = (b.count + TILE - 1) / TILE;
    int64_t row = blockIdx.x / tiles * TILE, col = blockIdx.x % tiles * TILE;
    int r = (int)threadIdx.x / (TILE / SIDE) * SIDE, c = (int)threadIdx.x % (TILE / SIDE) * SIDE;
    float sum[SIDE][SIDE] = {};
    for (int64_t first = 0; first < terms; first += DEPTH) {
        /* One thread adds the terms of a result in ascending order, so the order depends only on
         * the shape. */
        load_tile(shared_a, a, row, first, terms);
        load_tile(shared_b, b, col, first, terms);
        __syncthreads();
#pragma unroll
        for (int t = 0; t < DEPTH; t++) {
#pragma unroll
            for (int i = 0; i < SIDE; i++)
#pragma unroll
                for (int j = 0; j < SIDE; j++)
                    sum[i][j] += shared_a[t * TILE + r + i] * shared_b[t * TILE + c + j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < SIDE; i++)
#pragma unroll
        for (int j = 0; j < SIDE; j++) {
            /* Tiles at the lower and right border may extend beyond d. */
            if (row + r + i >= a.count || col + c + j >= b.count) continue;
            D *to = d + (row + r + i) * d_step + col + c + j;
            *to = from_float<D>(accumulate ? to_float(*to) + sum[i][j] : sum[i][j]);
        }
}

/* Returns the rows of t as vectors if `rows`, otherwise its columns. */
template <class T> static Lines<T> lines_of(Tensor t, bool rows)
{
    Lines<T> f = {(const T *)t.data, rows ? tensor_rows(t) : tensor_cols(t), rows ? t.ld : 1,
                  rows ? 1 : t.ld};
    return f;
}

template <class T, class D>
static void product(Device *dev, Tensor d, Tensor a, bool a_transposed, Tensor b, bool b_transposed,
                    bool accumulate)
{
    Lines<T> lines_a = lines_of<T>(a, !a_transposed), lines_b = lines_of<T>(b, b_transposed);
    int64_t terms = a_transposed ? tensor_rows(a) : tensor_cols(a);
    int64_t tiles = ceil_div(lines_a.count, TILE) * ceil_div(lines_b.count, TILE);
    if (tiles == 0) return;
    LAUNCH((product_kernel<T, D>), tiles, THREADS, 2 * DEPTH * TILE * sizeof(float),
           cuda_stream(dev), (D *)d.data, d.ld, lines_a, lines_b, terms, accumulate);
}

/* Computes d (M, N) = op(a) op(b), or += with accumulate. a is (M, K), or (K, M) when transposed; b
 * is (K, N), or (N, K). a and b have the storage type; d has the storage type or f32.
 * Deterministic. */
extern "C" void cuda_product(Device *dev, Tensor d, Tensor a, bool a_transposed, Tensor b,
                             bool b_transposed, bool accumulate)
{
    with_storage(a.dtype, [&](auto t) {
        typedef typename decltype(t)::Type T;
        if (d.dtype == F32)
            product<T, float>(dev, d, a, a_transposed, b, b_transposed, accumulate);
        else
            product<T, T>(dev, d, a, a_transposed, b, b_transposed, accumulate);
    });
}
