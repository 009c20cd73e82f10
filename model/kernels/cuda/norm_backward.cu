/* norm_backward.cu -- the gradients of LayerNorm and RMSNorm. */
#include "model/kernels/cuda/norm.cuh"
#include "model/kernels/cuda/reduce.h"

/* A thread holds `held` packs of N elements: of the gradient, the input, dw and db each. Groups up
 * to 2048 elements have 8 of them to a thread, and registers for the next group besides the one
 * being worked on; wider ones have 16, and add into dx late. */
enum { NARROW = 8, WIDE = 16, NARROW_THREADS = 256, WIDE_THREADS = 512 };

/* A block of a thread's `ELEMENTS`: how many threads it has at most, and how many such blocks an SM
 * keeps: 512 threads either way, which leaves 128 registers to each. */
template <int ELEMENTS> struct NormBlock {
    enum { THREADS = ELEMENTS == NARROW ? NARROW_THREADS : WIDE_THREADS };
    enum { BLOCKS = ELEMENTS == NARROW ? 2 : 1 };
};

/* What is summed over rows. */
typedef struct {
    Tensor w, b, columns;
    bool accumulate;
} NormGradients;

template <class T> struct NormBackward {
    DeviceRows<T> dx, dy, x;
    const T *w;
    const float *stats;
    DeviceRows<float>
        partials; /* of each block: dw, then db, then columns, those that are wanted */
    bool accumulate_dx, center, want_db, want_columns;
    int outputs;  /* how many these are */
    int own_sums; /* floats of shared memory before the threads' column sums */
};

/* A thread's column sums of dx lie in shared memory, which nobody else touches: registers are all
 * taken. Element i of pack k: neighbours in a warp are neighbours in memory. */
template <int N> static __device__ __forceinline__ float *own_sum(float *sums, int k, int i)
{
    return sums + (k * N + i) * blockDim.x + threadIdx.x;
}

/* A lane's part of a group as it comes from memory. */
template <class T, int N, int HELD> struct Fetched {
    Pack<T, N> dy[HELD], x[HELD], dx[HELD];
    float mean, inverse;
};

/* Nothing is read past the last group. */
template <class T, int N, int HELD>
static __device__ __forceinline__ void fetch(Fetched<T, N, HELD> &f, const Teams &t,
                                             const NormBackward<T> &p, int64_t group, int lane)
{
    if (group >= t.groups) return;
    int64_t row, col;
    group_place(t, group, &row, &col);
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int pack = lane + k * t.lanes;
        if (pack >= t.packs) continue;
        f.dy[k] = raw_load<N>((const T *)row_at(p.dy, row, col + pack * N));
        f.x[k] = raw_load<N>((const T *)row_at(p.x, row, col + pack * N));
        if (HELD * N == NARROW && p.accumulate_dx)
            f.dx[k] = raw_load<N>((const T *)row_at(p.dx, row, col + pack * N));
    }
    f.mean = p.stats[2 * group];
    f.inverse = p.stats[2 * group + 1];
}

/* a and b summed over the team, in every lane. A block's sums go through `shared`, 64 floats that
 * nobody writes before the next but one barrier. */
template <bool BLOCK>
static __device__ __forceinline__ void team_sums(float &a, float &b, int lanes, float *shared)
{
    if (!BLOCK) {
        a = lanes_sum(a, lanes);
        b = lanes_sum(b, lanes);
        return;
    }
    a = warp_sum(a);
    b = warp_sum(b);
    if (threadIdx.x % WARP == 0) {
        shared[2 * (threadIdx.x / WARP)] = a;
        shared[2 * (threadIdx.x / WARP) + 1] = b;
    }
    __syncthreads();
    a = b = 0;
    for (int i = 0; i < lanes / WARP; i++) {
        a += shared[2 * i];
        b += shared[2 * i + 1];
    }
}

/* The block's row of partials from its threads' dw, db and columns. Teams of a warp are added in
 * order. */
template <class T, int N, int HELD, bool BLOCK>
static __device__ __forceinline__ void partials_store(const Teams &t, const NormBackward<T> &p,
                                                      const float (&dw)[HELD][N],
                                                      const float (&db)[HELD][N], float *shared)
{
    int lane = threadIdx.x % t.lanes, team = threadIdx.x / t.lanes;
    float *out = row_at(p.partials, blockIdx.x, 0),
          *own = BLOCK ? out : shared + team * p.outputs * t.width;
#pragma unroll
    for (int k = 0; k < HELD; k++)
#pragma unroll
        for (int i = 0; i < N; i++) {
            int col = (lane + k * t.lanes) * N + i;
            if (col >= t.width) continue;
            own[col] = dw[k][i];
            if (p.want_db) own[t.width + col] = db[k][i];
            if (p.want_columns)
                own[(p.outputs - 1) * t.width + col] = *own_sum<N>(shared + p.own_sums, k, i);
        }
    /* A block that has one group writes its sums itself; teams of a warp go through shared
     * memory and are added in order. */
    if (BLOCK) return;
    __syncthreads();
    for (int col = threadIdx.x; col < p.outputs * t.width; col += TEAM_BLOCK) {
        float sum = 0;
        for (int i = 0; i < TEAM_BLOCK / t.lanes; i++)
            sum += shared[i * p.outputs * t.width + col];
        out[col] = sum;
    }
}

/* dx (N, K*W) = or += (g - mean(g) - xhat mean(g xhat)) / std with g = dy w, xhat = (x - mean) /
 * std; for RMSNorm without mean(g). Partial sums of dw = dy xhat, db = dy and columns = dx as
 * rounded over the groups of a block, which are every gridDim-th: their order is fixed by the grid.
 * Reads dy and x (and dx for +=) and writes dx once. dx may be dy: a thread has read its elements
 * before it writes them. */
template <class T, int N, int HELD, bool BLOCK>
__global__ void __launch_bounds__(NormBlock<HELD * N>::THREADS, NormBlock<HELD * N>::BLOCKS)
    norm_backward_kernel(Teams t, NormBackward<T> p)
{
    DYN_SHARED(float, shared);
    const bool narrow = HELD * N == NARROW, ahead = BLOCK && narrow;
    int lane = BLOCK ? threadIdx.x : threadIdx.x % t.lanes, teams = t.threads / t.lanes;
    int64_t group = (int64_t)blockIdx.x * teams + (BLOCK ? 0 : threadIdx.x / t.lanes);
    float dw[HELD][N] = {}, db[HELD][N] = {};
    Fetched<T, N, HELD> f;
    for (int i = 0; p.want_columns && i < HELD * N; i++)
        *own_sum<N>(shared + p.own_sums, 0, i) = 0;
    if (ahead) fetch(f, t, p, group, lane);
    int64_t step = (int64_t)gridDim.x * teams, rounds = (t.groups + step - 1) / step;
    for (int64_t round = 0; round < rounds; round++, group += step) {
        if (!ahead) fetch(f, t, p, group, lane);
        float g[HELD][N], xhat[HELD][N], old[HELD][N], sum_g = 0, sum_gx = 0;
        /* A team without a group goes through the motions: its lanes are needed by shuffles and
         * barriers. */
        int packs = group < t.groups ? t.packs : 0;
        float inverse = f.inverse;
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            int pack = lane + k * t.lanes;
            if (pack >= packs) continue;
            unpack<N>(g[k], f.dy[k]);
            unpack<N>(xhat[k], f.x[k]);
            if (narrow && p.accumulate_dx) unpack<N>(old[k], f.dx[k]);
            float w[N];
            load<N>(w, p.w + pack * N);
#pragma unroll
            for (int i = 0; i < N; i++) {
                xhat[k][i] = (xhat[k][i] - f.mean) * inverse;
                dw[k][i] += g[k][i] * xhat[k][i];
                db[k][i] += g[k][i];
                g[k][i] *= w[i];
                sum_g += g[k][i];
                sum_gx += g[k][i] * xhat[k][i];
            }
        }
        /* The next group's loads go out before this one's sums are waited for: the barrier hides
         * them. */
        if (ahead) fetch(f, t, p, group + step, lane);
        /* Two halves in turn: a thread that is late reads the last round's while others write
         * the next. */
        team_sums<BLOCK>(sum_g, sum_gx, t.lanes, shared + round % 2 * 2 * WARP);
        float mean_g = p.center ? sum_g / t.width : 0, mean_gx = sum_gx / t.width;
        int64_t row, col;
        group_place(t, group, &row, &col);
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            int pack = lane + k * t.lanes;
            if (pack >= packs) continue;
            if (!narrow && p.accumulate_dx) load<N>(old[k], row_at(p.dx, row, col + pack * N));
#pragma unroll
            for (int i = 0; i < N; i++) {
                g[k][i] = inverse * (g[k][i] - mean_g - xhat[k][i] * mean_gx);
                if (p.accumulate_dx) g[k][i] += old[k][i];
                if (p.want_columns) *own_sum<N>(shared + p.own_sums, k, i) += rounded<T>(g[k][i]);
            }
            store<N>(row_at(p.dx, row, col + pack * N), g[k]);
        }
    }
    partials_store<T, N, HELD, BLOCK>(t, p, dw, db, shared);
}

template <class T, int N, int HELD, bool BLOCK>
static void launch(Device *dev, NormBackward<T> p, Teams t, NormGradients d)
{
    typedef NormBlock<HELD * N> Most;
    /* As many blocks as are resident; each leaves a row of partials. */
    int64_t resident =
        (int64_t)(Most::BLOCKS * Most::THREADS / t.threads) * cuda_device(dev)->multiprocessors;
    int64_t needed = ceil_div(t.groups, t.threads / t.lanes);
    Tensor partials =
        cuda_partials(dev, needed < resident ? needed : resident, (int64_t)p.outputs * t.width);
    p.partials = rows_of<float>(partials);
    p.own_sums = BLOCK ? 4 * WARP : p.outputs * t.width * (t.threads / t.lanes);
    int floats = p.own_sums + (p.want_columns ? HELD * N * t.threads : 0);
    LAUNCH((norm_backward_kernel<T, N, HELD, BLOCK>), dim3((unsigned)tensor_rows(partials)),
           dim3((unsigned)t.threads), sizeof(float) * (size_t)floats, cuda_stream(dev), t, p);
    cuda_partials_sum(dev, d.w, d.b, d.columns, partials, d.accumulate);
}

template <class T, int N>
static void backward_as(Device *dev, NormBackward<T> p, Tensor dx, Tensor w, NormGradients d)
{
    if (tensor_count(w) > NARROW * NARROW_THREADS) {
        constexpr int held = N == 1 ? 12 : WIDE / N; /* single ones: their addresses take room */
        Teams t = teams_of(dx, w, N, held, WIDE_THREADS);
        launch<T, N, held, true>(dev, p, t, d);
        return;
    }
    Teams t = teams_of(dx, w, N, NARROW / N, NARROW_THREADS);
    if (team_is_block(t))
        launch<T, N, NARROW / N, true>(dev, p, t, d);
    else
        launch<T, N, NARROW / N, false>(dev, p, t, d);
}

void cuda_norm_backward(Device *dev, Tensor dx, bool accumulate_dx, Tensor columns, Tensor dw,
                        Tensor db, bool accumulate, Tensor dy, Tensor x, Tensor stats, Tensor w,
                        Norm norm)
{
    NormGradients d = {dw, db, columns, accumulate};
    int64_t full = pack_size(x.dtype);
    bool whole =
        packs_fit(dx, full) && packs_fit(dy, full) && packs_fit(x, full) && packs_fit(w, full);
    WITH_STORAGE(x.dtype, T, {
        NormBackward<T> p = {.dx = rows_of<T>(dx),
                             .dy = rows_of<T>(dy),
                             .x = rows_of<T>(x),
                             .w = (const T *)w.data,
                             .stats = (const float *)stats.data,
                             .partials = {},
                             .accumulate_dx = accumulate_dx,
                             .center = norm.kind == NORM_LAYERNORM,
                             .want_db = tensor_present(db),
                             .want_columns = tensor_present(columns),
                             .outputs = 1 + tensor_present(db) + tensor_present(columns),
                             .own_sums = 0};
        WITH_PACKS(whole, T, N, (backward_as<T, N>(dev, p, dx, w, d)));
    });
}
