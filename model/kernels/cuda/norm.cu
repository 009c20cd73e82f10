/* norm.cu -- computes the forward pass of LayerNorm and RMSNorm over groups of a row (see
 * norm.cuh), alone or fused with the residual sum that precedes them. */
#include "model/kernels/cuda/norm.cuh"

/* Number of packs of N elements that a thread holds of a group: 32 elements. With N = 1 only 16,
 * because the addresses of single elements need registers too. */
#define HELD(N) ((N) == 1 ? 16 : 32 / (N))

/* Most threads of a block that works on a single group. */
enum { MOST_THREADS = 1024 };

template <class T> struct NormForward {
    DeviceRows<T> y, x;
    DeviceRows<T> sum, a;  /* with a residual: sum = x + a + bias, and the norm is that of sum */
    const T *bias, *w, *b; /* bias and b may be NULL */
    float *stats;
    float epsilon;
    bool center; /* LayerNorm */
};

template <bool BLOCK> static __device__ __forceinline__ float team_sum(float x, int lanes)
{
    DYN_SHARED(float, shared);
    return BLOCK ? block_sum(x, shared) : lanes_sum(x, lanes);
}

/* Loads N elements at [row, col] of the input of the norm. That is x or, with RESIDUAL, x + a +
 * bias; this sum is computed and stored here, and v gets its value as rounded to storage. */
template <class T, int N, bool RESIDUAL>
static __device__ __forceinline__ void input_load(float (&v)[N], const NormForward<T> &p,
                                                  int64_t row, int64_t col)
{
    load<N>(v, row_at(p.x, row, col));
    if (!RESIDUAL) return;
    float u[N];
    load<N>(u, row_at(p.a, row, col));
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] += u[i];
    if (p.bias) {
        load<N>(u, p.bias + col);
#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] += u[i];
    }
    store<N>(row_at(p.sum, row, col), v);
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = rounded<T>(v[i]);
}

/* Computes (v - mean) / std * w + b in place for one pack, which starts at column `col` of the
 * group. */
template <class T, int N>
static __device__ __forceinline__ void normalise(float (&v)[N], const NormForward<T> &p,
                                                 int64_t col, float mean, float inverse)
{
    float w[N];
    load<N>(w, p.w + col);
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = (v[i] - mean) * inverse * w[i];
    if (!p.b) return;
    load<N>(w, p.b + col);
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] += w[i];
}

/* Computes y (N, K*W), stats (N*K, 2) and, if RESIDUAL, sum (N, W), as specified in ops.h. Every
 * element is read and written once; mean and variance are summed from registers. y may be x; sum
 * may be x or a. */
template <class T, int N, bool RESIDUAL, bool BLOCK>
__global__ void __launch_bounds__(BLOCK ? MOST_THREADS : TEAM_BLOCK)
    norm_forward_kernel(Teams t, NormForward<T> p)
{
    int lane = BLOCK ? threadIdx.x : threadIdx.x % t.lanes;
    int64_t group =
        BLOCK ? blockIdx.x : (int64_t)blockIdx.x * (TEAM_BLOCK / t.lanes) + threadIdx.x / t.lanes;
    int packs = group < t.groups ? t.packs : 0;
    int64_t row, col;
    group_place(t, group, &row, &col);
    float x[HELD(N)][N], sum = 0, squares = 0;
#pragma unroll
    for (int k = 0; k < HELD(N); k++) {
        int pack = lane + k * t.lanes;
        if (pack < packs) {
            input_load<T, N, RESIDUAL>(x[k], p, row, col + pack * N);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum += x[k][i];
        }
    }
    /* Computes the mean first and then the sum of squared deviations. This avoids the cancellation
     * that a sum of squares minus the squared mean would have. The second sum reads no memory,
     * because the row is in registers. */
    float mean = p.center ? team_sum<BLOCK>(sum, t.lanes) / t.width : 0;
#pragma unroll
    for (int k = 0; k < HELD(N); k++)
        if (lane + k * t.lanes < packs)
#pragma unroll
            for (int i = 0; i < N; i++)
                squares += (x[k][i] - mean) * (x[k][i] - mean);
    float variance = team_sum<BLOCK>(squares, t.lanes) / t.width;
    float inverse = 1 / sqrtf(variance + p.epsilon);
    /* Backward reads the mean and 1 / std, so that it need not compute them again. */
    if (lane == 0 && packs > 0) {
        p.stats[2 * group] = mean;
        p.stats[2 * group + 1] = inverse;
    }
#pragma unroll
    for (int k = 0; k < HELD(N); k++) {
        int pack = lane + k * t.lanes;
        if (pack < packs) {
            normalise<T, N>(x[k], p, pack * N, mean, inverse);
            store<N>(row_at(p.y, row, col + pack * N), x[k]);
        }
    }
}

template <class T, int N, bool RESIDUAL>
static void forward_launch(Device *dev, Tensor x, Tensor w, NormForward<T> p)
{
    Teams t = teams_of(x, w, N, HELD(N), MOST_THREADS);
    int64_t blocks = ceil_div(t.groups, t.threads / t.lanes);
    if (blocks == 0) return;
    if (team_is_block(t))
        LAUNCH((norm_forward_kernel<T, N, RESIDUAL, true>), blocks, dim3((unsigned)t.threads),
               WARP * sizeof(float), cuda_stream(dev), t, p);
    else
        LAUNCH((norm_forward_kernel<T, N, RESIDUAL, false>), blocks, dim3((unsigned)t.threads), 0,
               cuda_stream(dev), t, p);
}

void cuda_norm_forward(Device *dev, Tensor y, Tensor stats, Tensor x, Tensor w, Tensor b, Norm norm)
{
    int64_t full = pack_size(x.dtype);
    bool whole =
        packs_fit(y, full) && packs_fit(x, full) && packs_fit(w, full) && packs_fit(b, full);
    WITH_STORAGE(x.dtype, T, WITH_PACKS(whole, T, N, {
                     NormForward<T> p = {rows_of<T>(y),
                                         rows_of<T>(x),
                                         {},
                                         {},
                                         NULL,
                                         (const T *)w.data,
                                         (const T *)b.data,
                                         (float *)stats.data,
                                         (float)norm.epsilon,
                                         norm.kind == NORM_LAYERNORM};
                     forward_launch<T, N, false>(dev, x, w, p);
                 }));
}

void cuda_residual_norm_forward(Device *dev, Tensor sum, Tensor y, Tensor stats, Tensor x, Tensor a,
                                Tensor bias, Tensor w, Tensor b, Norm norm)
{
    int64_t full = pack_size(x.dtype);
    bool whole = packs_fit(sum, full) && packs_fit(y, full) && packs_fit(x, full) &&
                 packs_fit(a, full) && packs_fit(bias, full) && packs_fit(w, full) &&
                 packs_fit(b, full);
    WITH_STORAGE(x.dtype, T, WITH_PACKS(whole, T, N, {
                     NormForward<T> p = {rows_of<T>(y),        rows_of<T>(x),
                                         rows_of<T>(sum),      rows_of<T>(a),
                                         (const T *)bias.data, (const T *)w.data,
                                         (const T *)b.data,    (float *)stats.data,
                                         (float)norm.epsilon,  norm.kind == NORM_LAYERNORM};
                     forward_launch<T, N, true>(dev, x, w, p);
                 }));
}
