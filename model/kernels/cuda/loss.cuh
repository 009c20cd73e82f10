/* loss.cuh -- contains what loss.cu (whole rows of logits) and loss_cut.cu (rows split among ranks)
 * share: the exponential, reading a row, a row's gradient, and the block size. */
#ifndef MODEL_KERNELS_CUDA_LOSS_CUH
#define MODEL_KERNELS_CUDA_LOSS_CUH

#include "model/kernels/cuda/rows.cuh"

#include <float.h>

/* LOSS_THREADS: most threads of a block. LOSS_BATCH: packs that a thread loads at the same time.
 * LOSS_SUMS: floats of shared memory for the sums of a block. */
enum { LOSS_THREADS = 512, LOSS_BATCH = 4, LOSS_SUMS = 2 * WARP };

static_assert(LOSS_THREADS % WARP == 0 && LOSS_THREADS <= WARP * WARP,
              "block_sum and block_max take whole warps, at most as many as a warp has lanes");
static_assert(LOSS_SUMS * sizeof(float) % 16 == 0,
              "a row that is kept in shared memory after the sums starts on a boundary of a pack");

/* Returns the number of threads for a row of `cols` elements that is read in packs of n. */
static inline int loss_threads(int64_t cols, int n)
{
    int64_t warps = ceil_div(ceil_div(cols, n), WARP);
    return warps < LOSS_THREADS / WARP ? (int)warps * WARP : (int)LOSS_THREADS;
}

/* ---- exponentials ------------------------------------------------------------------------------
 * e^(x - most) for many logits x of a row, of which `most` is the largest. In f32 the error is
 * about one ulp. For 16-bit types, whose results are rounded anyway, an exponential takes one fused
 * multiplication and one instruction: 2^(x log2(e) - shift), where the shift is most log2(e),
 * rounded once for the row. This rounding changes all exponentials of the row by the same factor. A
 * gradient divides by their sum, so it does not contain the factor; a loss is corrected by
 * shift_error. If the largest logit exceeds 2.3e38, its shift is infinite and the loss NaN. */

/* Returns the shift for the largest logit. It is finite if all logits are -infinity, so that their
 * exponentials are 0. */
template <class T> static __device__ __forceinline__ float shift_of(float most)
{
    return fmaxf(sizeof(T) == 4 ? most : most * (float)LOG2_E, -FLT_MAX);
}

/* Returns e^(x - most) for shift = shift_of(most), x <= most. */
template <class T> static __device__ __forceinline__ float exponential(float x, float shift)
{
    if constexpr (sizeof(T) == 4)
        return expf(x - shift);
    else
        return exp2_approx(fmaf(x, (float)LOG2_E, -shift));
}

/* Returns the factor that converts exponentials with the shift `from` to exponentials with the
 * larger shift `to`. */
template <class T> static __device__ __forceinline__ float shift_change(float from, float to)
{
    return sizeof(T) == 4 ? expf(from - to) : exp2_approx(from - to);
}

/* Returns e^(x - most) divided by its exponential<T>(x, shift_of(most)): 2^(shift - most log2(e)).
 * fmaf computes the error of the rounded product exactly. */
template <class T> static __device__ __forceinline__ float shift_error(float most)
{
    return sizeof(T) == 4 ? 1.0f : exp2f(-fmaf(most, (float)LOG2_E, -shift_of<T>(most)));
}

/* The largest of some logits, its shift, and the sum of their exponentials with this shift. */
typedef struct {
    float most, shift, sum;
} SoftmaxSum;

/* ---- rows ------------------------------------------------------------------------------------ */

/* Calls visit(v) with the pack that lies only in part within the first n elements of x, if there is
 * one. Its elements from the n-th on are -infinity in v. The last thread does this, because it has
 * the fewest whole packs. */
template <class T, int N, class Visit>
static __device__ __forceinline__ void last_pack_read(const T *x, int n, Visit visit)
{
    int at = n / N * N;
    if (at == n || threadIdx.x != blockDim.x - 1) return;
    float v[N];
    load(v, x + at);
#pragma unroll
    for (int i = 0; i < N; i++)
        if (at + i >= n) v[i] = -INFINITY;
    visit(v);
}

/* Calls visit(v) with the elements of each of this thread's packs among the first n elements of x.
 * Loads LOSS_BATCH packs before the first is used. Elements after the n-th are -infinity. */
template <class T, int N, class Visit>
static __device__ __forceinline__ void packs_read(const T *x, int n, Visit visit)
{
    int stride = (int)blockDim.x * N, whole = n / N * N;
    for (int first = (int)threadIdx.x * N; first < whole; first += LOSS_BATCH * stride) {
        Pack<T, N> pack[LOSS_BATCH];
#pragma unroll
        for (int k = 0; k < LOSS_BATCH; k++)
            if (first + k * stride < whole) pack[k] = raw_load<N>(x + first + k * stride);
#pragma unroll
        for (int k = 0; k < LOSS_BATCH; k++) {
            float v[N];
            if (first + k * stride >= whole) break;
            unpack(v, pack[k]);
            visit(v);
        }
    }
    last_pack_read<T, N>(x, n, visit);
}

/* Writes zeros to this thread's packs of a row, from its pack at column `at` on. */
template <class T, int N> static __device__ void row_clear(T *x, int at, int cols)
{
    float zeros[N] = {};
#pragma unroll 1
    for (; at < cols; at += (int)blockDim.x * N)
        store_global(x + at, zeros);
}

/* Writes the gradient of a row: x[i] = scale / s.sum * e^(x[i] - s.most), minus scale at the
 * target, and 0 from column vocab on. `from` is x itself or a copy of the whole packs before vocab.
 * There is no target if it is negative. */
template <class T, int N>
static __device__ void row_gradient(T *x, const T *from, int cols, int vocab, int target,
                                    SoftmaxSum s, float scale)
{
    int stride = (int)blockDim.x * N, whole = vocab / N * N, at = (int)threadIdx.x * N;
    float factor = scale / s.sum, g[N];
    /* The thread that has the target's pack writes this element again at the end. So no pack has to
     * be searched for it. */
    bool own = target >= 0 && target < vocab && target / N % (int)blockDim.x == (int)threadIdx.x;
    float chosen = own ? to_float(x[target]) : 0.0f;
    for (; at < whole; at += stride) {
        load(g, from + at);
#pragma unroll
        for (int i = 0; i < N; i++)
            g[i] = exponential<T>(g[i], s.shift) * factor;
        store_global(x + at, g);
    }
    if (at < vocab) {
        load(g, x + at);
#pragma unroll
        for (int i = 0; i < N; i++)
            g[i] = at + i < vocab ? exponential<T>(g[i], s.shift) * factor : 0.0f;
        store_global(x + at, g);
        at += stride;
    }
    row_clear<T, N>(x, at, cols);
    if (own) x[target] = from_float<T>(exponential<T>(chosen, s.shift) * factor - scale);
}

#endif
