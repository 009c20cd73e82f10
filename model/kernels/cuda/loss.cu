/* loss.cu -- computes the cross entropy of rows of logits, writes the gradient in place of the
 * logits, and sums the losses. */
#include "model/kernels/cuda/loss.cuh"
#include "model/kernels/cuda/ordered_sum.cuh"

/* Returns s extended by the logits of a pack, of which the first `real` count. Milakov, Gimelshein,
 * arXiv:1805.02867. */
template <class T, int N>
static __device__ __forceinline__ SoftmaxSum softmax_add(SoftmaxSum s, Pack<T, N> pack, int real)
{
    float x[N], most = s.most, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) {
        x[i] = i < real ? to_float(pack.at[i]) : -INFINITY;
        most = fmaxf(most, x[i]);
    }
    float from = most == -INFINITY ? 0.0f : most; /* if all logits so far are -infinity, the sum
                                                   * stays 0 */
#pragma unroll
    for (int i = 0; i < N; i++)
        sum += exponential<T>(x[i] - from);
    return {most, s.sum * exponential<T>(s.most - from) + sum};
}

/* Returns the running maximum and sum over this thread's part of row x, of which the first vocab
 * elements count. */
template <class T, int N> static __device__ SoftmaxSum part_read(const T *x, int vocab)
{
    SoftmaxSum s = {-INFINITY, 0.0f};
    packs_read<T, N>(
        x, vocab, [&s](const Pack<T, N> &pack, int real) { s = softmax_add<T, N>(s, pack, real); });
    return s;
}

/* Like part_read, but also copies the row to shared memory, in packs of 16 bytes. Each thread later
 * finds its own packs in `kept`. */
template <class T, int N> static __device__ SoftmaxSum part_keep(const T *x, T *kept, int vocab)
{
    SoftmaxSum s = {-INFINITY, 0.0f};
    int stride = (int)blockDim.x * N, next = (int)threadIdx.x * N;
    for (int at = next - LOSS_BATCH * stride; at < vocab; at += stride, next += stride) {
        if (next < vocab) cp_async_16(kept + next, x + next);
        cp_async_commit();
        /* The first rounds only start copies; from then on LOSS_BATCH of them are in progress. No
         * barrier is needed, because each thread waits only for its own copies and reads only what
         * it copied. */
        if (at < 0) continue;
        cp_async_wait<LOSS_BATCH>();
        Pack<T, N> pack = *reinterpret_cast<const Pack<T, N> *>(kept + at);
        s = softmax_add<T, N>(s, pack, vocab - at);
    }
    return s;
}

/* Computes the loss of a row of logits and, with a scale, replaces the row by its gradient. One
 * block per row; rows have `cols` elements and are ld apart. With KEEP the row is kept in shared
 * memory, so it is read and written once: 2 x cols elements in all. Otherwise it is read twice. A
 * target beyond the vocabulary makes the loss NaN. */
template <class T, int N, bool KEEP>
static __global__ void __launch_bounds__(LOSS_THREADS)
    loss_kernel(float *losses, T *logits, const int32_t *targets, int64_t ld, int cols, int vocab,
                const double *scale)
{
    DYN_SHARED(float, sums);
    T *kept = reinterpret_cast<T *>(sums + LOSS_SUMS), *x = logits + (int64_t)blockIdx.x * ld;
    int target = targets[blockIdx.x];
    if (target < 0) {
        if (threadIdx.x == 0) losses[blockIdx.x] = 0.0f;
        if (scale) row_gradient<T, N>(x, x, cols, 0, -1, {0.0f, 1.0f}, 0.0f);
        return;
    }
    float chosen = target < vocab ? to_float(x[target]) : NAN; /* read before the gradient
                                                                * overwrites it */
    SoftmaxSum s;
    if constexpr (KEEP)
        s = part_keep<T, N>(x, kept, vocab);
    else
        s = part_read<T, N>(x, vocab);
    /* Each thread's sum is relative to its own maximum, so it is rescaled to the block's maximum
     * before the sums are added. */
    float most = block_max(s.most, sums);
    s = {most, block_sum(s.sum * expf(s.most - most), sums + WARP)};
    if (threadIdx.x == 0) losses[blockIdx.x] = (s.most - chosen) + logf(s.sum);
    if (scale) row_gradient<T, N>(x, KEEP ? kept : x, cols, vocab, target, s, (float)*scale);
}

template <class T, int N, bool KEEP>
static void loss_launch(Device *dev, Tensor losses, Tensor logits, Tensor targets, int vocab,
                        const double *scale)
{
    int64_t rows = tensor_rows(logits), cols = tensor_cols(logits);
    int threads = loss_threads(cols, N);
    size_t shared = LOSS_SUMS * sizeof(float) + (KEEP ? (size_t)cols * sizeof(T) : 0);
    if (rows == 0) return;
    LAUNCH((loss_kernel<T, N, KEEP>), rows, threads, shared, cuda_stream(dev), (float *)losses.data,
           (T *)logits.data, (const int32_t *)targets.data, logits.ld, (int)cols, vocab, scale);
}

extern "C" void cuda_loss(Device *dev, Tensor losses, Tensor logits, Tensor targets,
                          int64_t vocab_size, Tensor scale, bool backward)
{
    const double *factor = backward ? (const double *)scale.data : nullptr;
    size_t row = (size_t)tensor_cols(logits) * dtype_size(logits.dtype);
    bool packs = packs_fit(logits, pack_size(logits.dtype));
    bool fits = LOSS_SUMS * sizeof(float) + row <= cuda_device(dev)->shared_bytes;
    int vocab = (int)vocab_size;
    WITH_STORAGE(logits.dtype, T, {
        constexpr int N = 16 / sizeof(T);
        if (packs && fits && backward)
            loss_launch<T, N, true>(dev, losses, logits, targets, vocab, factor);
        else if (packs)
            loss_launch<T, N, false>(dev, losses, logits, targets, vocab, factor);
        else
            loss_launch<T, 1, false>(dev, losses, logits, targets, vocab, factor);
    });
}

extern "C" void cuda_loss_sum(Device *dev, Tensor stats, Tensor losses, Tensor targets)
{
    LAUNCH(ordered_sum_kernel<float>, 1, ORDERED_THREADS, sizeof(OrderedShared), cuda_stream(dev),
           (double *)stats.data, (const float *)losses.data, (const int32_t *)targets.data,
           tensor_count(losses));
}
