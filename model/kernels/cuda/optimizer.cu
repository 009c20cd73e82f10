/* optimizer.cu -- computes the gradient norm, the decision on each step, AdamW and SGD. The bits
 * are the same as on the CPU: the arithmetic is in headers that both backends share, and this file
 * is compiled without contraction. */
#include "model/kernels/cuda/ordered_sum.cuh"

/* Definitions that the shared headers need; their functions are compiled for host and device. */
typedef float real;
#define real_sqrt(x) sqrtf(x)
#define inline inline __host__ __device__
#include "model/kernels/decision_rule.h"
#include "model/kernels/rounding_rule.h"
#include "model/kernels/update_rule.h"
#undef inline

/* ---- norm ------------------------------------------------------------------------------------ */

enum { SUMS = 16, SQ_NORM_THREADS = 128, SQ_NORM_BATCH = 16 };

/* Computes partial[b] = the sum of the squares of elements b SQ_NORM_BLOCK up to the next block's.
 * As on the CPU, it keeps sixteen sums in double, each over every sixteenth element, and adds them
 * in halves. Then it adds the elements left over when the count is not a multiple of sixteen.
 * Sixteen threads process a block of elements, and each loads a batch of elements at a time. The
 * square of a float is exact in double, so fused additions do not change any bit. */
template <class T>
static __global__ void __launch_bounds__(SQ_NORM_THREADS)
    sq_norm_kernel(double *partial, const T *x, int64_t n)
{
    int lane = threadIdx.x % SUMS;
    int64_t block = (int64_t)blockIdx.x * (SQ_NORM_THREADS / SUMS) + (int64_t)threadIdx.x / SUMS;
    int64_t rest = n - block * SQ_NORM_BLOCK;
    int count = rest < 0 ? 0 : rest < SQ_NORM_BLOCK ? (int)rest : SQ_NORM_BLOCK;
    int whole = count - count % SUMS;
    double sum = 0.0;
    x += block * SQ_NORM_BLOCK;
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
    partial[block] = sum;
}

extern "C" void cuda_sq_norm(Device *dev, Tensor stats, Tensor x)
{
    int64_t n = tensor_count(x), blocks = ceil_div(n, SQ_NORM_BLOCK);
    double *partial = (double *)cuda_workspace(dev, sizeof(double) * (size_t)blocks);
    int64_t grid = ceil_div(blocks, SQ_NORM_THREADS / SUMS);
    if (n == 0) return;
    WITH_STORAGE(x.dtype, T,
                 LAUNCH(sq_norm_kernel<T>, grid, SQ_NORM_THREADS, 0, cuda_stream(dev), partial,
                        (const T *)x.data, n));
    LAUNCH(ordered_sum_kernel<double>, 1, ORDERED_THREADS, sizeof(OrderedShared), cuda_stream(dev),
           (double *)stats.data, (const double *)partial, (const int32_t *)nullptr, blocks);
}

/* ---- decision -------------------------------------------------------------------------------- */

/* Applies decision_rule and resets the statistics. One thread is enough for these few numbers; they
 * stay on the device for the next kernels. */
static __global__ void __launch_bounds__(1)
    step_decide_kernel(StepState *state, StepStats *stats, StepDecision *decision, const double *lr,
                       int64_t updates, StepConstants constants)
{
    *decision = decision_rule(state, stats, lr, updates, &constants);
    stats->sq_norm = stats->nats = stats->targets = 0.0;
}

extern "C" void cuda_step_decide(Device *dev, StepState *state, StepStats *stats,
                                 StepDecision *decision, Tensor lr_table,
                                 const StepConstants *constants)
{
    LAUNCH(step_decide_kernel, 1, 1, 0, cuda_stream(dev), state, stats, decision,
           (const double *)lr_table.data, tensor_count(lr_table), *constants);
}

/* ---- how weights are stored ------------------------------------------------------------------ */

/* Rounds weights to nearest even. */
struct ToNearest {
};

/* Rounds weights stochastically. A place is the index of a weight in the updated range; a segment
 * is a part of that range that belongs to one parameter. `at` is the segment of the place that the
 * thread has reached; a thread's places only ascend. */
struct Stochastic {
    uint64_t seed;
    const Segment *at, *end;
};

/* Advances r.at to the segment that contains place i. */
static __device__ __forceinline__ void segment_find(Stochastic &r, int64_t i)
{
    while (r.at + 1 < r.end && r.at[1].start <= i)
        r.at++;
}

/* Returns 16 random bits for each of the places i .. i + N - 1; those of the first place are the
 * lowest. One Philox block is enough if all places are in one segment, one row and one half of a
 * Philox block. Otherwise, at borders and in rows of odd width, the bits are drawn one element at a
 * time. */
template <int N>
static __device__ __forceinline__ uint64_t noise_of(Stochastic &r, int64_t i, int64_t update)
{
    static_assert(N == 1 || N == 4, "64 bits hold four elements' noise, half a block");
    uint32_t word[4];
    segment_find(r, i);
    int64_t element = segment_element(r.at, i);
    bool whole = element % N == 0 && (r.at + 1 == r.end || r.at[1].start >= i + N) &&
                 segment_element(r.at, i + N - 1) == element + N - 1;
    if (N == 4 && whole) {
        rounding_words(r.seed, r.at->stream, update, element / ROUNDING_BLOCK, word);
        return element & 4 ? (uint64_t)word[3] << 32 | word[2] : (uint64_t)word[1] << 32 | word[0];
    }
    uint64_t noise = 0;
#pragma unroll 1
    for (int j = 0; j < N; j++) {
        segment_find(r, i + j);
        element = segment_element(r.at, i + j);
        rounding_words(r.seed, r.at->stream, update, element / ROUNDING_BLOCK, word);
        noise |= (uint64_t)rounding_bits(word, element) << (16 * j);
    }
    return noise;
}

/* Stores p as the N weights from place i on, rounded as the type of the last argument says. */
template <class T, int N>
static __device__ __forceinline__ void store_weights(T *weight, const float (&p)[N], int64_t i,
                                                     int64_t, ToNearest &)
{
    store(weight + i, p);
}

template <int N>
static __device__ __forceinline__ void store_weights(bf16 *weight, const float (&p)[N], int64_t i,
                                                     int64_t update, Stochastic &to)
{
    uint64_t noise = noise_of<N>(to, i, update);
    Pack<bf16, N> pack;
#pragma unroll
    for (int j = 0; j < N; j++)
        pack.at[j] =
            __ushort_as_bfloat16(rounding_bf16(p[j], (uint32_t)(noise >> (16 * j)) & 0xffffu));
    *reinterpret_cast<Pack<bf16, N> *>(weight + i) = pack;
}

/* ---- updates --------------------------------------------------------------------------------- */

/* An update launches only as many blocks as can run at once, and each loops over its part of the
 * range. So the constants of the step, which only the device knows, are computed once per block. */
enum { UPDATE_THREADS = 256, UPDATE_BLOCKS = 4, UPDATE_PACK = 4 };

/* Updates n elements with AdamW, N at a time. Masters are optional; R selects how weights are
 * rounded. Reads grad, value, m and v and writes value, m, v and the weight, once each. With f32
 * masters and gradients and 16-bit weights that is 30 bytes per element; without masters and with
 * 16-bit gradients, 22. */
template <class T, class G, int N, class R>
static __global__ void __launch_bounds__(UPDATE_THREADS, UPDATE_BLOCKS)
    adamw_kernel(T *weight, const G *grad, float *master, float *exp_avg, float *exp_avg_sq,
                 int64_t n, const StepDecision *decision, AdamW hyper, R rounding)
{
    DYN_SHARED(UpdateConstants, constants);
    if (!decision->apply) return;
    /* Powers of beta in double are slow on a GPU, so only one thread of a block computes them. */
    if (threadIdx.x == 0) *constants = adamw_constants(decision, &hyper);
    __syncthreads();
    const UpdateConstants k = *constants;
    int64_t step = (int64_t)gridDim.x * UPDATE_THREADS * N, update = decision->update;
    for (int64_t i = ((int64_t)blockIdx.x * UPDATE_THREADS + threadIdx.x) * N; i < n; i += step) {
        float p[N], g[N], m[N], v[N];
        load(g, grad + i);
        load(m, exp_avg + i);
        load(v, exp_avg_sq + i);
        if (master)
            load(p, master + i);
        else
            load(p, weight + i);
#pragma unroll
        for (int j = 0; j < N; j++)
            p[j] = adamw_element(p[j], g[j], &m[j], &v[j], &k);
        store(exp_avg + i, m);
        store(exp_avg_sq + i, v);
        if (master) store(master + i, p);
        store_weights(weight, p, i, update, rounding);
    }
}

/* Updates n elements with SGD, in the same way as adamw_kernel. Plain SGD if momentum is NULL. */
template <class T, class G, int N, class R>
static __global__ void __launch_bounds__(UPDATE_THREADS, UPDATE_BLOCKS)
    sgd_kernel(T *weight, const G *grad, float *master, float *momentum, int64_t n,
               const StepDecision *decision, Sgd hyper, R rounding)
{
    DYN_SHARED(UpdateConstants, constants);
    if (!decision->apply) return;
    /* Computed by one thread in double, as in adamw_kernel. */
    if (threadIdx.x == 0) *constants = sgd_constants(decision, &hyper);
    __syncthreads();
    const UpdateConstants k = *constants;
    int64_t step = (int64_t)gridDim.x * UPDATE_THREADS * N, update = decision->update;
    for (int64_t i = ((int64_t)blockIdx.x * UPDATE_THREADS + threadIdx.x) * N; i < n; i += step) {
        float p[N], g[N], b[N];
        load(g, grad + i);
        if (master)
            load(p, master + i);
        else
            load(p, weight + i);
        if (momentum) load(b, momentum + i);
#pragma unroll
        for (int j = 0; j < N; j++)
            p[j] =
                momentum ? sgd_element(p[j], g[j], &b[j], &k) : sgd_plain_element(p[j], g[j], &k);
        if (momentum) store(momentum + i, b);
        if (master) store(master + i, p);
        store_weights(weight, p, i, update, rounding);
    }
}

/* Operands of an update. slot[] holds m and v, or the momentum. Exactly one of adamw and sgd is not
 * NULL. */
typedef struct {
    Tensor weight, grad, master, slot[2];
    const StepDecision *decision;
    const AdamW *adamw;
    const Sgd *sgd;
    const Rounding *rounding;
} UpdateOperands;

template <class T, class G, int N, class R>
static void update_launch(Device *dev, const UpdateOperands *u, R rounding)
{
    int64_t n = tensor_count(u->weight), blocks = ceil_div(n, UPDATE_THREADS * N);
    int64_t most = (int64_t)UPDATE_BLOCKS * cuda_device(dev)->multiprocessors;
    int64_t grid = blocks < most ? blocks : most;
    T *weight = (T *)u->weight.data;
    const G *grad = (const G *)u->grad.data;
    float *master = (float *)u->master.data, *slot0 = (float *)u->slot[0].data,
          *slot1 = (float *)u->slot[1].data;
    if (u->adamw)
        LAUNCH((adamw_kernel<T, G, N, R>), grid, UPDATE_THREADS, sizeof(UpdateConstants),
               cuda_stream(dev), weight, grad, master, slot0, slot1, n, u->decision, *u->adamw,
               rounding);
    else
        LAUNCH((sgd_kernel<T, G, N, R>), grid, UPDATE_THREADS, sizeof(UpdateConstants),
               cuda_stream(dev), weight, grad, master, slot0, n, u->decision, *u->sgd, rounding);
}

/* Selects the kernel by the gradient's type and by whether all tensors are aligned for packs. */
template <class T, class R>
static void update_typed(Device *dev, const UpdateOperands *u, R rounding)
{
    bool wide = u->grad.dtype != u->weight.dtype;
    bool packs = packs_fit(u->weight, UPDATE_PACK) && packs_fit(u->grad, UPDATE_PACK) &&
                 packs_fit(u->master, UPDATE_PACK) && packs_fit(u->slot[0], UPDATE_PACK) &&
                 packs_fit(u->slot[1], UPDATE_PACK);
    if (wide && packs)
        update_launch<T, float, UPDATE_PACK>(dev, u, rounding);
    else if (wide)
        update_launch<T, float, 1>(dev, u, rounding);
    else if (packs)
        update_launch<T, T, UPDATE_PACK>(dev, u, rounding);
    else
        update_launch<T, T, 1>(dev, u, rounding);
}

static void update(Device *dev, const UpdateOperands *u)
{
    if (tensor_count(u->weight) == 0) return;
    if (u->rounding) {
        const Segment *segment = (const Segment *)u->rounding->segments.data;
        /* Stochastically rounded weights are always bf16 (op_adamw and op_sgd check it), so one
         * instance is enough. */
        Stochastic rounding = {u->rounding->seed, segment,
                               segment + tensor_rows(u->rounding->segments)};
        update_typed<bf16>(dev, u, rounding);
        return;
    }
    WITH_STORAGE(u->weight.dtype, T, update_typed<T>(dev, u, ToNearest{}));
}

extern "C" void cuda_adamw(Device *dev, Tensor weight, Tensor grad, Tensor master, Tensor exp_avg,
                           Tensor exp_avg_sq, const StepDecision *decision, const AdamW *hyper,
                           const Rounding *rounding)
{
    UpdateOperands u = {weight,   grad,  master,  {exp_avg, exp_avg_sq},
                        decision, hyper, nullptr, rounding};
    update(dev, &u);
}

extern "C" void cuda_sgd(Device *dev, Tensor weight, Tensor grad, Tensor master, Tensor momentum,
                         const StepDecision *decision, const Sgd *hyper, const Rounding *rounding)
{
    UpdateOperands u = {weight,   grad,    master, {momentum, NO_TENSOR},
                        decision, nullptr, hyper,  rounding};
    update(dev, &u);
}
