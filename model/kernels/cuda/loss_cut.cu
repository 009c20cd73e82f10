/* loss_cut.cu -- cross entropy of rows of logits of which each rank has some columns: the largest
 * of them, their terms of the sum, and the losses and gradients once both are those of all ranks.
 * One block a row; every kernel reads the row once. */
#include "model/kernels/cuda/loss.cuh"
#include "model/kernels/cuda/rows.cuh"

/* A rank's logits inside a kernel: rows of `cols`, ld apart, of which the first `own` are columns
 * of the vocabulary, from column `first` on. */
template <class T> struct CutRows {
    T *at;
    int64_t ld;
    int cols, own, first, vocab;
};

/* The row's target as a column of this rank's; negative where it has none or another rank has it.
 */
template <class T>
static __device__ __forceinline__ int own_target(const CutRows<T> &logits, int target)
{
    int own = target - logits.first;
    return target >= 0 && own < logits.own ? own : -1;
}

/* most = the largest of the row's columns of the vocabulary. A NaN may go unseen here, the sum of
 * exponentials finds it. */
template <class T, int N>
static __global__ void __launch_bounds__(LOSS_THREADS)
    loss_max_kernel(float *most, CutRows<const T> logits)
{
    DYN_SHARED(float, sums);
    float x = -INFINITY;
    packs_read<T, N>(logits.at + (int64_t)blockIdx.x * logits.ld, logits.own,
                     [&x](const Pack<T, N> &pack, int real) {
#pragma unroll
                         for (int i = 0; i < N; i++)
                             if (i < real) x = fmaxf(x, to_float(pack.at[i]));
                     });
    x = block_max(x, sums);
    if (threadIdx.x == 0) most[blockIdx.x] = x;
}

/* terms = {sum of e^(x - most), x of the target - most}. A target beyond the vocabulary gives a
 * NaN. */
template <class T, int N>
static __global__ void __launch_bounds__(LOSS_THREADS)
    loss_terms_kernel(float *terms, CutRows<const T> logits, const int32_t *targets,
                      const float *mosts)
{
    DYN_SHARED(float, sums);
    const T *x = logits.at + (int64_t)blockIdx.x * logits.ld;
    int target = targets[blockIdx.x], own = own_target(logits, target);
    float most = mosts[blockIdx.x], sum = 0.0f;
    terms += 2 * (int64_t)blockIdx.x;
    if (target >= 0)
        packs_read<T, N>(x, logits.own, [&sum, most](const Pack<T, N> &pack, int real) {
#pragma unroll
            for (int i = 0; i < N; i++)
                if (i < real) sum += exponential<T>(to_float(pack.at[i]) - most);
        });
    sum = block_sum(sum, sums);
    if (threadIdx.x != 0) return;
    terms[0] = sum;
    terms[1] = own >= 0 ? to_float(x[own]) - most : target < logits.vocab ? 0.0f : NAN;
}

/* The row's loss, and with a scale its gradient in place. */
template <class T, int N>
static __global__ void __launch_bounds__(LOSS_THREADS)
    loss_finish_kernel(float *losses, CutRows<T> logits, const int32_t *targets, const float *mosts,
                       const float *terms, const double *scale)
{
    T *x = logits.at + (int64_t)blockIdx.x * logits.ld;
    int target = targets[blockIdx.x], own = own_target(logits, target);
    SoftmaxSum s = {mosts[blockIdx.x], terms[2 * (int64_t)blockIdx.x]};
    float loss = logf(s.sum) - terms[2 * (int64_t)blockIdx.x + 1];
    if (threadIdx.x == 0) losses[blockIdx.x] = target >= 0 ? loss : 0.0f;
    if (scale)
        row_gradient<T, N>(x, x, logits.cols, target >= 0 ? logits.own : 0, own, s, (float)*scale);
}

template <class T> static CutRows<T> cut_rows(Tensor logits, int64_t first_col, int64_t vocab_size)
{
    int64_t cols = tensor_cols(logits), own = vocab_size - first_col;
    own = own < 0 ? 0 : own < cols ? own : cols;
    return {(T *)logits.data, logits.ld, (int)cols, (int)own, (int)first_col, (int)vocab_size};
}

/* Starts kernel<T, N> with a block for each row of the logits, whose type and place say T and N. */
#define LAUNCH_ROWS(kernel, dev, logits, ...)                                                      \
    do {                                                                                           \
        if (tensor_rows(logits) == 0) break;                                                       \
        WITH_STORAGE(                                                                              \
            (logits).dtype, T,                                                                     \
            WITH_PACKS(packs_fit(logits, pack_size((logits).dtype)), T, N,                         \
                       LAUNCH((kernel<T, N>), (unsigned)tensor_rows(logits),                       \
                              loss_threads(tensor_cols(logits), N), LOSS_SUMS * sizeof(float),     \
                              cuda_stream(dev), __VA_ARGS__)));                                    \
    } while (0)

extern "C" void cuda_loss_max(Device *dev, Tensor most, Tensor logits, int64_t first_col,
                              int64_t vocab_size)
{
    LAUNCH_ROWS(loss_max_kernel, dev, logits, (float *)most.data,
                cut_rows<const T>(logits, first_col, vocab_size));
}

extern "C" void cuda_loss_terms(Device *dev, Tensor terms, Tensor logits, Tensor targets,
                                Tensor most, int64_t first_col, int64_t vocab_size)
{
    LAUNCH_ROWS(loss_terms_kernel, dev, logits, (float *)terms.data,
                cut_rows<const T>(logits, first_col, vocab_size), (const int32_t *)targets.data,
                (const float *)most.data);
}

extern "C" void cuda_loss_finish(Device *dev, Tensor losses, Tensor logits, Tensor targets,
                                 Tensor most, Tensor terms, int64_t first_col, int64_t vocab_size,
                                 Tensor scale, bool backward)
{
    LAUNCH_ROWS(loss_finish_kernel, dev, logits, (float *)losses.data,
                cut_rows<T>(logits, first_col, vocab_size), (const int32_t *)targets.data,
                (const float *)most.data, (const float *)terms.data,
                backward ? (const double *)scale.data : nullptr);
}
