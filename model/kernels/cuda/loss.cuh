/* loss.cuh -- what the losses of whole and of cut rows of logits share: exponentials, the reading
 * and the gradient of a row, and how a block is cut. */
#ifndef MODEL_KERNELS_CUDA_LOSS_CUH
#define MODEL_KERNELS_CUDA_LOSS_CUH

#include "model/kernels/cuda/kernel.cuh"
#include "model/kernels/cuda/ptx.cuh"

#define LOG2_E 1.44269504f

/* Threads of a block at most, packs under way at a time, floats for the sums of a block. */
enum { LOSS_THREADS = 512, LOSS_BATCH = 4, LOSS_SUMS = 2 * WARP };

/* Threads of the block of a row of packs of n elements. */
static inline int loss_threads(int64_t cols, int n)
{
    int64_t warps = ceil_div(ceil_div(cols, n), WARP);
    return warps < LOSS_THREADS / WARP ? (int)warps * WARP : (int)LOSS_THREADS;
}

/* e^x for x <= 0: exact to an ulp where the result stays f32, one multiplication and one
 * instruction where it is rounded to 16 bits. */
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

/* A running maximum, and the sum of e^(x - most) over what went in. */
typedef struct {
    float most, sum;
} SoftmaxSum;

/* Calls visit(pack, how many of its elements count) for this thread's packs of the first n elements
 * of x; a batch of packs is under way at a time. */
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

/* x (cols) = factor e^(from - most), less scale at the target; 0 from vocab on. `from` is the row
 * itself, or its copy. */
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
