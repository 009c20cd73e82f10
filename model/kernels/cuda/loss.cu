/* loss.cu -- computes the cross entropy of rows of logits, writes the gradient in place of the
 * logits, and sums the losses. */
#include "model/kernels/cuda/loss.cuh"
#include "model/kernels/cuda/ordered_sum.cuh"

template <class T> static __device__ __forceinline__ SoftmaxSum softmax_start()
{
    return {-INFINITY, shift_of<T>(-INFINITY), 0.0f};
}

/* Adds N logits to s, which describes the logits read so far (online softmax: Milakov, Gimelshein,
 * arXiv:1805.02867). */
template <class T, int N>
static __device__ __forceinline__ void softmax_add(SoftmaxSum &s, const float (&x)[N])
{
    float most = x[0];
#pragma unroll
    for (int i = 1; i < N; i++)
        most = fmaxf(most, x[i]);
    /* While a row is read, its maximum so far grows only a few times, so the sum is rarely
     * rescaled. */
    if (most > s.most) {
        float shift = shift_of<T>(most);
        s = {most, shift, s.sum * shift_change<T>(s.shift, shift)};
    }
    float sum = exponential<T>(x[0], s.shift);
#pragma unroll
    for (int i = 1; i < N; i++)
        sum += exponential<T>(x[i], s.shift);
    s.sum += sum;
}

/* Returns the running maximum and sum over this thread's part of row x, of which the first vocab
 * elements count. */
template <class T, int N> static __device__ SoftmaxSum part_read(const T *x, int vocab)
{
    SoftmaxSum s = softmax_start<T>();
    packs_read<T, N>(x, vocab, [&s](const float(&v)[N]) { softmax_add<T, N>(s, v); });
    return s;
}

/* Like part_read, but also copies the whole packs to shared memory. Each thread later finds its own
 * packs in `kept`. */
template <class T, int N> static __device__ SoftmaxSum part_keep(const T *x, T *kept, int vocab)
{
    static_assert(N * sizeof(T) == 16, "asynchronous copies are of 16 bytes");
    SoftmaxSum s = softmax_start<T>();
    int stride = (int)blockDim.x * N, whole = vocab / N * N, at = (int)threadIdx.x * N, next = at;
    const T *own = kept + at;
    T *to = kept + at;
    auto copy_next = [&] {
        /* The offset is in bytes, so it is only added to the pointer; an offset in elements would
         * have to be multiplied first. */
        unsigned offset = (unsigned)next * sizeof(T);
        if (next < whole) cp_async_16(to, reinterpret_cast<const char *>(x) + offset);
        cp_async_commit();
        next += stride;
        to += stride;
    };
    for (int k = 0; k < LOSS_BATCH; k++)
        copy_next();
    for (; at < whole; at += stride, own += stride) {
        copy_next();
        /* LOSS_BATCH copies are in progress. No barrier is needed, because each thread waits only
         * for its own copies and reads only what it copied. */
        cp_async_wait<LOSS_BATCH>();
        float v[N];
        load(v, own);
        softmax_add<T, N>(s, v);
    }
    last_pack_read<T, N>(x, vocab, [&s](const float(&v)[N]) { softmax_add<T, N>(s, v); });
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
        if (scale) row_clear<T, N>(x, (int)threadIdx.x * N, cols);
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
    float most = block_max(s.most, sums), shift = shift_of<T>(most);
    s = {most, shift, block_sum(s.sum * shift_change<T>(s.shift, shift), sums + WARP)};
    if (threadIdx.x == 0) losses[blockIdx.x] = (most - chosen) + logf(s.sum * shift_error<T>(most));
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
    with_storage(logits.dtype, [&](auto t) {
        typedef typename decltype(t)::Type T;
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
