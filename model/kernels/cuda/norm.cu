/* norm.cu -- computes the forward pass of LayerNorm and RMSNorm over groups of a row (see
 * norm.cuh), alone or fused with the residual sum that precedes them. */
#include "model/kernels/cuda/norm.cuh"

/* Number of packs of N elements that a thread holds of a group: 32 elements in all, but only 16 if
 * N = 1, because the addresses of single elements need registers, too. */
template <int N> static constexpr int HELD = N == 1 ? 16 : 32 / N;

/* Number of packs of each operand that a thread loads before it uses the first of them. Two packs
 * of 16-bit elements (of x and a) take as many registers as their f32 sum, which replaces them; two
 * packs of other sizes would take more than their sum. */
template <int N> static constexpr int LOADED = N == 8 ? 4 : 1;
static_assert(HELD<8> % LOADED<8> == 0, "whole batches");

/* Most threads of a block that works on a single group. */
enum { MOST_THREADS = 1024 };

static_assert(MOST_THREADS / WARP <= WARP, "block_sum has a place for each warp");

template <class T> struct NormForward {
    DeviceRows<T> y, x;
    DeviceRows<T> sum, a; /* with a residual: sum = x + a + bias, and the norm of sum is computed */
    const T *bias, *w, *b; /* bias and b may be NULL */
    float *stats;
    float epsilon;
    bool center; /* true: LayerNorm; false: RMSNorm */
};

template <bool BLOCK> static __device__ __forceinline__ float team_sum(float x, int lanes)
{
    DYN_SHARED(float, shared);
    if (BLOCK) return block_sum(x, shared);
    return lanes == WARP ? warp_sum(x) : lanes_sum(x, lanes);
}

template <int N> static __device__ __forceinline__ void add(float (&v)[N], const float (&u)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] += u[i];
}

/* Loads this thread's packs of the group at `at`, which has `packs` packs. The input of the norm is
 * x or, with RESIDUAL, x + a + bias; this sum is computed and stored here, and v gets its values as
 * rounded to storage. */
template <class T, int N, bool RESIDUAL>
static __device__ __forceinline__ void input_load(float (&v)[HELD<N>][N], const Teams &t,
                                                  const NormForward<T> &p, GroupPlace at, int packs,
                                                  int lane)
{
    int col = at.col + lane * N, next = t.lanes * N;
    const T *x = row_at(p.x, at.row, col), *a = row_at(p.a, at.row, col);
    T *sum = row_at(p.sum, at.row, col);
#pragma unroll
    for (int first = 0; first < HELD<N>; first += LOADED<N>) {
        /* All loads of a batch come before its first store, because the compiler moves no load
         * across a store. */
        Pack<T, N> raw[LOADED<N>], added[LOADED<N>];
#pragma unroll
        for (int k = first; k < first + LOADED<N>; k++) {
            if (lane + k * t.lanes >= packs) continue;
            raw[k - first] = raw_load<N>(x + k * next);
            if (RESIDUAL) added[k - first] = raw_load<N>(a + k * next);
        }
#pragma unroll
        for (int k = first; k < first + LOADED<N>; k++) {
            float u[N];
            if (lane + k * t.lanes >= packs) continue;
            unpack(v[k], raw[k - first]);
            if (!RESIDUAL) continue;
            unpack(u, added[k - first]);
            add(v[k], u);
            if (!p.bias) continue;
            load(u, p.bias + col + k * next);
            add(v[k], u);
        }
#pragma unroll
        for (int k = first; RESIDUAL && k < first + LOADED<N>; k++) {
            if (lane + k * t.lanes >= packs) continue;
            store_global(sum + k * next, v[k]);
            round_all<T>(v[k]);
        }
    }
}

/* Computes (v - mean) / std * w + b in place for one pack, which starts at column `col` of the
 * group. */
template <class T, int N>
static __device__ __forceinline__ void normalise(float (&v)[N], const NormForward<T> &p, int col,
                                                 float mean, float inverse)
{
    float w[N];
    load(w, p.w + col);
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = (v[i] - mean) * inverse * w[i];
    if (!p.b) return;
    load(w, p.b + col);
    add(v, w);
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
    GroupPlace at = place_of(t, group);
    float x[HELD<N>][N], sum = 0, squares = 0;
    input_load<T, N, RESIDUAL>(x, t, p, at, packs, lane);
#pragma unroll
    for (int k = 0; k < HELD<N>; k++)
        if (lane + k * t.lanes < packs)
#pragma unroll
            for (int i = 0; i < N; i++)
                sum += x[k][i];
    /* Computes the mean first and then the sum of squared deviations. This avoids the cancellation
     * in the mean of the squares minus the squared mean. The second sum reads no memory, because
     * the row is in registers. */
    float mean = p.center ? team_sum<BLOCK>(sum, t.lanes) * t.share : 0;
#pragma unroll
    for (int k = 0; k < HELD<N>; k++)
        if (lane + k * t.lanes < packs)
#pragma unroll
            for (int i = 0; i < N; i++)
                squares += (x[k][i] - mean) * (x[k][i] - mean);
    float inverse = rsqrtf(team_sum<BLOCK>(squares, t.lanes) * t.share + p.epsilon);
    /* Backward reads the mean and 1 / std, so that it need not compute them again. */
    if (lane == 0 && packs > 0) {
        p.stats[2 * group] = mean;
        p.stats[2 * group + 1] = inverse;
    }
    T *y = row_at(p.y, at.row, at.col + lane * N);
#pragma unroll
    for (int k = 0; k < HELD<N>; k++) {
        int pack = lane + k * t.lanes;
        if (pack >= packs) continue;
        normalise(x[k], p, pack * N, mean, inverse);
        store_global(y + k * t.lanes * N, x[k]);
    }
}

template <class T, int N, bool RESIDUAL>
static void forward_launch(Device *dev, Tensor x, Tensor w, NormForward<T> p)
{
    Teams t = teams_of(x, w, N, HELD<N>, MOST_THREADS);
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
    bool whole = all_fit(full, y, x, w, b);
    with_packs(x.dtype, whole, [&](auto t, auto n) {
        typedef typename decltype(t)::Type T;
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
        forward_launch<T, n, false>(dev, x, w, p);
    });
}

void cuda_residual_norm_forward(Device *dev, Tensor sum, Tensor y, Tensor stats, Tensor x, Tensor a,
                                Tensor bias, Tensor w, Tensor b, Norm norm)
{
    int64_t full = pack_size(x.dtype);
    bool whole = all_fit(full, sum, y, x, a, bias, w, b);
    with_packs(x.dtype, whole, [&](auto t, auto n) {
        typedef typename decltype(t)::Type T;
        NormForward<T> p = {rows_of<T>(y),        rows_of<T>(x),
                            rows_of<T>(sum),      rows_of<T>(a),
                            (const T *)bias.data, (const T *)w.data,
                            (const T *)b.data,    (float *)stats.data,
                            (float)norm.epsilon,  norm.kind == NORM_LAYERNORM};
        forward_launch<T, n, true>(dev, x, w, p);
    });
}
