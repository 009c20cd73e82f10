/* loss_cut.cu -- computes the cross entropy when the columns of the logits are split among ranks,
 * in three kernels: the largest logit of each row, the row's sum of exponentials, and the losses
 * and gradients. The caller combines the results of the first two over all ranks. Every kernel uses
 * one block per row and reads the row once. */
#include "model/kernels/cuda/loss.cuh"

/* A rank's part of the logits inside a kernel: rows of `cols` elements, ld apart. The first `own`
 * of them are columns of the vocabulary, which start at column `first` of it. */
template <class T> struct CutRows {
    T *at;
    int64_t ld;
    int cols, own, first, vocab;
};

/* Returns the row's target as a column of this rank, or a negative number if the row has no target
 * or another rank has it. */
template <class T>
static __device__ __forceinline__ int own_target(const CutRows<T> &logits, int target)
{
    int own = target - logits.first;
    return target >= 0 && own < logits.own ? own : -1;
}

/* Computes `most`, the largest logit of this rank's vocabulary columns of each row. It may miss a
 * NaN; the sum of exponentials then becomes NaN. */
template <class T, int N>
static __global__ void __launch_bounds__(LOSS_THREADS)
    loss_max_kernel(float *most, CutRows<const T> logits)
{
    DYN_SHARED(float, sums);
    float x = -INFINITY;
    packs_read<T, N>(logits.at + (int64_t)blockIdx.x * logits.ld, logits.own,
                     [&x](const float(&v)[N]) {
#pragma unroll
                         for (int i = 0; i < N; i++)
                             x = fmaxf(x, v[i]);
                     });
    x = block_max(x, sums);
    if (threadIdx.x == 0) most[blockIdx.x] = x;
}

/* Computes terms = {sum of e^(x - most), target's x - most} for each row. A target beyond the
 * vocabulary makes the second term NaN. */
template <class T, int N>
static __global__ void __launch_bounds__(LOSS_THREADS)
    loss_terms_kernel(float *terms, CutRows<const T> logits, const int32_t *targets,
                      const float *mosts)
{
    DYN_SHARED(float, sums);
    const T *x = logits.at + (int64_t)blockIdx.x * logits.ld;
    int target = targets[blockIdx.x], own = own_target(logits, target);
    float most = mosts[blockIdx.x], shift = shift_of<T>(most), sum = 0.0f;
    terms += 2 * (int64_t)blockIdx.x;
    if (target >= 0)
        packs_read<T, N>(x, logits.own, [&sum, shift](const float(&v)[N]) {
#pragma unroll
            for (int i = 0; i < N; i++)
                sum += exponential<T>(v[i], shift);
        });
    sum = block_sum(sum, sums);
    if (threadIdx.x != 0) return;
    terms[0] = target >= 0 ? sum * shift_error<T>(most) : 0.0f;
    terms[1] = own >= 0 ? to_float(x[own]) - most : target < logits.vocab ? 0.0f : NAN;
}

/* Computes each row's loss from the terms of all ranks and, with a scale, replaces the row by its
 * gradient. */
template <class T, int N>
static __global__ void __launch_bounds__(LOSS_THREADS)
    loss_finish_kernel(float *losses, CutRows<T> logits, const int32_t *targets, const float *mosts,
                       const float *terms, const double *scale)
{
    T *x = logits.at + (int64_t)blockIdx.x * logits.ld;
    int target = targets[blockIdx.x], own = own_target(logits, target);
    float most = mosts[blockIdx.x], sum = terms[2 * (int64_t)blockIdx.x];
    float loss = logf(sum) - terms[2 * (int64_t)blockIdx.x + 1];
    if (threadIdx.x == 0) losses[blockIdx.x] = target >= 0 ? loss : 0.0f;
    if (!scale) return;
    if (target < 0)
        row_clear<T, N>(x, (int)threadIdx.x * N, logits.cols);
    else
        row_gradient<T, N>(x, x, logits.cols, logits.own, own,
                           {most, shift_of<T>(most), sum / shift_error<T>(most)}, (float)*scale);
}

template <class T> static CutRows<T> cut_rows(Tensor logits, int64_t first_col, int64_t vocab_size)
{
    int64_t cols = tensor_cols(logits), own = vocab_size - first_col;
    own = own < 0 ? 0 : own < cols ? own : cols;
    return {(T *)logits.data, logits.ld, (int)cols, (int)own, (int)first_col, (int)vocab_size};
}

/* Launches a kernel with one block per row of the logits, which it reads in packs of n. */
template <auto KERNEL, class... Arguments>
static void launch_rows(Device *dev, Tensor logits, int n, const Arguments &...arguments)
{
    if (tensor_rows(logits) == 0) return;
    LAUNCH(KERNEL, tensor_rows(logits), loss_threads(tensor_cols(logits), n),
           LOSS_SUMS * sizeof(float), cuda_stream(dev), arguments...);
}

extern "C" void cuda_loss_max(Device *dev, Tensor most, Tensor logits, int64_t first_col,
                              int64_t vocab_size)
{
    with_packs(logits.dtype, packs_fit(logits, pack_size(logits.dtype)), [&](auto t, auto n) {
        typedef typename decltype(t)::Type T;
        launch_rows<loss_max_kernel<T, n>>(dev, logits, n, (float *)most.data,
                                           cut_rows<const T>(logits, first_col, vocab_size));
    });
}

extern "C" void cuda_loss_terms(Device *dev, Tensor terms, Tensor logits, Tensor targets,
                                Tensor most, int64_t first_col, int64_t vocab_size)
{
    with_packs(logits.dtype, packs_fit(logits, pack_size(logits.dtype)), [&](auto t, auto n) {
        typedef typename decltype(t)::Type T;
        launch_rows<loss_terms_kernel<T, n>>(
            dev, logits, n, (float *)terms.data, cut_rows<const T>(logits, first_col, vocab_size),
            (const int32_t *)targets.data, (const float *)most.data);
    });
}

extern "C" void cuda_loss_finish(Device *dev, Tensor losses, Tensor logits, Tensor targets,
                                 Tensor most, Tensor terms, int64_t first_col, int64_t vocab_size,
                                 Tensor scale, bool backward)
{
    const double *factor = backward ? (const double *)scale.data : nullptr;
    with_packs(logits.dtype, packs_fit(logits, pack_size(logits.dtype)), [&](auto t, auto n) {
        typedef typename decltype(t)::Type T;
        launch_rows<loss_finish_kernel<T, n>>(
            dev, logits, n, (float *)losses.data, cut_rows<T>(logits, first_col, vocab_size),
            (const int32_t *)targets.data, (const float *)most.data, (const float *)terms.data,
            factor);
    });
}
