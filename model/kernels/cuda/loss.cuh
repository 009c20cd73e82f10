/* loss.cuh -- contains what loss.cu (whole rows of logits) and loss_cut.cu (rows split among ranks)
 * share: the exponential, reading a row, a row's gradient, and the block size. */
#ifndef MODEL_KERNELS_CUDA_LOSS_CUH
#define MODEL_KERNELS_CUDA_LOSS_CUH

#include "model/kernels/cuda/kernel.cuh"
#include "model/kernels/cuda/ptx.cuh"

#define LOG2_E 1.44269504f

/* LOSS_THREADS: most threads of a block. LOSS_BATCH: packs that a thread loads at the same time.
 * LOSS_SUMS: floats of shared memory for the sums of a block. */
enum { LOSS_THREADS = 512, LOSS_BATCH = 4, LOSS_SUMS = 2 * WARP };

/* Returns the number of threads for a row of `cols` elements that is read in packs of n. */
static inline int loss_threads(int64_t cols, int n)
{
    int64_t warps = ceil_div(ceil_div(cols, n), WARP);
    return warps < LOSS_THREADS / WARP ? (int)warps * WARP : (int)LOSS_THREADS;
}

/* Computes e^x for x <= 0. In f32 the error is about one ulp. For 16-bit types, whose results are
 * rounded anyway, it takes one multiplication and one instruction. */
template <class T> __device__ __forceinline__ float exponential(float x);

template <> __device__ __forceinline__ float exponential<float>(float x)
{
    return expf(x);
}

template <> __device__ __forceinline__ float exponential<bf16>(float x)
{
    return exp2_approx(x * LOG2_E);
}

template <> __device__ __forceinline__ float exponential<f16>(float x)
{
    return exp2_approx(x * LOG2_E);
}

/* Running maximum of the elements seen so far, and the sum of e^(x - most) over them. */
typedef struct {
    float most, sum;
} SoftmaxSum;

/* Calls visit(pack, count) for each of this thread's packs among the first n elements of x, where
 * `count` is the number of elements left from the start of the pack. Loads LOSS_BATCH packs before
 * the first is used. */
template <class T, int N, class Visit>
static __device__ __forceinline__ void packs_read(const T *x, int n, Visit visit)
{
    int stride = (int)blockDim.x * N;
    for (int first = (int)threadIdx.x * N; first < n; first += LOSS_BATCH * stride) {
        Pack<T, N> pack[LOSS_BATCH];
#pragma unroll
        for (int k = 0; k < LOSS_BATCH; k++)
            if (first + k * stride < n)
                pack[k] = *reinterpret_cast<const Pack<T, N> *>(x + first + k * stride);
#pragma unroll
        for (int k = 0; k < LOSS_BATCH; k++)
            if (first + k * stride < n) visit(pack[k], n - first - k * stride);
    }
}

/* Writes the gradient of a row: x[i] = scale / s.sum * e^(from[i] - s.most), minus scale at the
 * target, and 0 from column vocab on. `from` is x itself or a copy of it. */
template <class T, int N>
static __device__ void row_gradient(T *x, const T *from, int cols, int vocab, int target,
                                    SoftmaxSum s, float scale)
{
    float factor = scale / s.sum;
    for (int at = (int)threadIdx.x * N; at < cols; at += (int)blockDim.x * N) {
        float g[N];
        if (at < vocab) {
            load(g, from + at);
#pragma unroll
            for (int i = 0; i < N; i++)
                g[i] = at + i < vocab ? exponential<T>(g[i] - s.most) * factor : 0.0f;
#pragma unroll
            for (int i = 0; i < N; i++)
                if (at + i == target) g[i] -= scale;
        } else {
#pragma unroll
            for (int i = 0; i < N; i++)
                g[i] = 0.0f;
        }
        store(x + at, g);
    }
}

#endif
