/* norm_backward.cu -- computes the gradients of LayerNorm and RMSNorm. */
#include "model/kernels/cuda/norm.cuh"
#include "model/kernels/cuda/reduce.h"

/* Elements of a group that a thread holds, and threads of a team (the threads that work on one
 * group). A thread holds packs of N elements of the gradient, the input, dw, db and the column sums
 * of dx. In groups of up to 2048 elements a thread holds 8 elements of each, which leaves registers
 * to load the next group while it works on the current one. In wider groups it holds 16, keeps the
 * column sums in shared memory, and reads the old dx only just before it adds to it. */
enum { NARROW = 8, WIDE = 16, NARROW_THREADS = 256, WIDE_THREADS = 512 };

/* Largest number of threads in a block whose threads hold ELEMENTS elements, and the number of such
 * blocks per multiprocessor. Both cases have 512 threads per multiprocessor, which leaves 128
 * registers to each. */
template <int ELEMENTS> struct NormBlock {
    enum { THREADS = ELEMENTS == NARROW ? NARROW_THREADS : WIDE_THREADS };
    enum { BLOCKS = ELEMENTS == NARROW ? 2 : 1 };
    static_assert(THREADS * BLOCKS == 512 && THREADS % WARP == 0, "128 registers for each thread");
};

static_assert((int)TEAM_BLOCK <= (int)NARROW_THREADS,
              "teams of lanes fit into a block of the narrow form");
static_assert(WIDE_THREADS / WARP <= WARP, "each warp of a block has a place for its sums");

/* Outputs that are summed over rows. `columns` are the column sums of dx. */
typedef struct {
    Tensor w, b, columns;
    bool accumulate;
} NormGradients;

template <class T> struct NormBackward {
    DeviceRows<T> dx, dy, x;
    const T *w;
    const float *stats;
    DeviceRows<float> partials; /* one row per block: dw, then db and columns if present */
    bool accumulate_dx, center, want_db, want_columns;
    int outputs;  /* outputs in a row of partials: dw, db, columns */
    int own_sums; /* floats of shared memory in front of the column sums */
};

/* A thread's sums over groups. In wide groups (WIDE), and if packs are single elements, whose
 * addresses need registers too, the column sums are in shared memory. */
template <int N, int HELD> struct OwnSums {
    enum { IN_REGISTERS = HELD * N == NARROW && N > 1 };
    float dw[HELD][N], db[HELD][N];
    float columns[IN_REGISTERS ? HELD : 1][N];
    float *shared; /* column sums of all threads, if they are not in registers */
};

/* Returns this thread's sum of dx for element i of pack k. In shared memory adjacent lanes of a
 * warp have adjacent addresses. */
template <int N, int HELD>
static __device__ __forceinline__ float &column_sum(OwnSums<N, HELD> &sums, int k, int i)
{
    if constexpr (OwnSums<N, HELD>::IN_REGISTERS)
        return sums.columns[k][i];
    else
        return sums.shared[(k * N + i) * blockDim.x + threadIdx.x];
}

/* A lane's part of a group, as loaded from memory, and where its gradient belongs. */
template <class T, int N, int HELD> struct Fetched {
    Pack<T, N> dy[HELD], x[HELD], dx[HELD];
    T *out;
    float mean, inverse;
    int packs; /* 0 past the last group */
};

/* A lane's part of a group: g = dy w and xhat = (x - mean) / std; the sums of g and of g xhat; old:
 * the previous dx, if the new one is added to it. The other fields are those of Fetched. */
template <class T, int N, int HELD> struct Part {
    float g[HELD][N], xhat[HELD][N], old[HELD][N], sum_g, sum_gx;
    T *out;
    float inverse;
    int packs;
};

/* Loads this lane's part of the group at `at` into f. Reads nothing if `group` is past the last
 * one. */
template <class T, int N, int HELD>
static __device__ __forceinline__ void fetch(Fetched<T, N, HELD> &f, const Teams &t,
                                             const NormBackward<T> &p, int64_t group, GroupPlace at,
                                             int lane)
{
    f.packs = group < t.groups ? t.packs : 0;
    if (f.packs == 0) return;
    int col = at.col + lane * N, next = t.lanes * N;
    const T *dy = row_at(p.dy, at.row, col), *x = row_at(p.x, at.row, col);
    f.out = row_at(p.dx, at.row, col);
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        if (lane + k * t.lanes >= t.packs) continue;
        f.dy[k] = raw_load<N>(dy + k * next);
        f.x[k] = raw_load<N>(x + k * next);
        if (HELD * N == NARROW && p.accumulate_dx)
            f.dx[k] = raw_load<N>((const T *)f.out + k * next);
    }
    f.mean = p.stats[2 * group];
    f.inverse = p.stats[2 * group + 1];
}

/* Computes the part of a group from what was fetched, and adds to dw and db. */
template <class T, int N, int HELD>
static __device__ __forceinline__ void part_read(Part<T, N, HELD> &part, OwnSums<N, HELD> &sums,
                                                 const Fetched<T, N, HELD> &f, const Teams &t,
                                                 const NormBackward<T> &p, int lane)
{
    part.sum_g = part.sum_gx = 0;
    part.out = f.out;
    part.inverse = f.inverse;
    part.packs = f.packs;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int pack = lane + k * t.lanes;
        if (pack >= f.packs) continue;
        float w[N], dy[N];
        load(w, p.w + pack * N);
        unpack(dy, f.dy[k]);
        unpack(part.xhat[k], f.x[k]);
        if (HELD * N == NARROW && p.accumulate_dx) unpack(part.old[k], f.dx[k]);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float xhat = (part.xhat[k][i] - f.mean) * f.inverse, g = dy[i] * w[i];
            sums.dw[k][i] += dy[i] * xhat;
            sums.db[k][i] += dy[i];
            part.sum_g += g;
            part.sum_gx += g * xhat;
            part.xhat[k][i] = xhat;
            part.g[k][i] = g;
        }
    }
}

/* Computes and stores dx of a group, and adds it to the column sums. mean_g, mean_gx: the means of
 * g and of g xhat over the group. */
template <class T, int N, int HELD>
static __device__ __forceinline__ void part_write(Part<T, N, HELD> &part, OwnSums<N, HELD> &sums,
                                                  const Teams &t, const NormBackward<T> &p,
                                                  int lane, float mean_g, float mean_gx)
{
    T *out = part.out;
#pragma unroll
    for (int k = 0; k < HELD; k++, out += t.lanes * N) {
        if (lane + k * t.lanes >= part.packs) continue;
        float(&dx)[N] = part.g[k];
        if (HELD * N != NARROW && p.accumulate_dx) load(part.old[k], out);
#pragma unroll
        for (int i = 0; i < N; i++) {
            dx[i] = part.inverse * (dx[i] - mean_g - part.xhat[k][i] * mean_gx);
            if (p.accumulate_dx) dx[i] += part.old[k][i];
        }
        if (p.want_columns) {
            round_all<T>(dx);
#pragma unroll
            for (int i = 0; i < N; i++)
                column_sum(sums, k, i) += dx[i];
        }
        store_global(out, dx);
    }
}

/* Sums a and b over the team, the threads that work on one group; each of them gets the sums. If
 * the team is a block, the sums pass through `shared`: 64 floats that no thread may overwrite
 * before the barrier of the next call. */
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

/* Writes the block's row of partial sums: adds the sums of the block's teams (norm.cuh) in
 * order. */
template <class T, int N, int HELD, bool BLOCK>
static __device__ __forceinline__ void partials_store(const Teams &t, const NormBackward<T> &p,
                                                      OwnSums<N, HELD> &sums, float *shared)
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
            own[col] = sums.dw[k][i];
            if (p.want_db) own[t.width + col] = sums.db[k][i];
            if (p.want_columns) own[(p.outputs - 1) * t.width + col] = column_sum(sums, k, i);
        }
    /* If the team is the whole block, it has written its sums directly. Otherwise the sums of the
     * teams are in shared memory and are added in order. */
    if (BLOCK) return;
    __syncthreads();
    for (int col = threadIdx.x; col < p.outputs * t.width; col += TEAM_BLOCK) {
        float sum = 0;
        for (int i = 0; i < TEAM_BLOCK / t.lanes; i++)
            sum += shared[i * p.outputs * t.width + col];
        out[col] = sum;
    }
}

/* Computes dx (N, K*W) = (g - mean(g) - xhat mean(g xhat)) / std, or += with accumulate_dx, where g
 * = dy w and xhat = (x - mean) / std; RMSNorm has no mean(g). Also writes each block's partial sums
 * of dw = dy xhat, db = dy and columns = the rounded dx. A block processes every gridDim-th set of
 * groups, so the grid fixes the order of the sums.
 *
 * Reads dy and x (and dx for +=) and writes dx once each. dx may be dy: a thread reads its elements
 * before it writes them. */
template <class T, int N, int HELD, bool BLOCK>
__global__ void __launch_bounds__(NormBlock<HELD * N>::THREADS, NormBlock<HELD * N>::BLOCKS)
    norm_backward_kernel(Teams t, NormBackward<T> p)
{
    DYN_SHARED(float, shared);
    constexpr bool AHEAD = BLOCK && HELD * N == NARROW;
    int lane = BLOCK ? threadIdx.x : threadIdx.x % t.lanes, teams = t.threads / t.lanes;
    int64_t group = (int64_t)blockIdx.x * teams + (BLOCK ? 0 : threadIdx.x / t.lanes);
    int64_t step = (int64_t)gridDim.x * teams, rounds = (t.groups + step - 1) / step;
    GroupPlace at = place_of(t, group), advance = place_of(t, step);
    OwnSums<N, HELD> sums = {};
    Fetched<T, N, HELD> f;
    sums.shared = shared + p.own_sums;
    for (int i = 0; !sums.IN_REGISTERS && p.want_columns && i < HELD * N; i++)
        column_sum(sums, 0, i) = 0;
    if (AHEAD) fetch(f, t, p, group, at, lane);
    for (int64_t round = 0; round < rounds; round++) {
        if (!AHEAD) fetch(f, t, p, group, at, lane);
        /* A team without a group still runs the loop, because the shuffles and barriers need all
         * its threads. */
        Part<T, N, HELD> part;
        part_read(part, sums, f, t, p, lane);
        group += step;
        at = place_after(t, at, advance);
        /* Loads the next group before waiting for this group's sums, so that the loads overlap with
         * the barrier. */
        if (AHEAD) fetch(f, t, p, group, at, lane);
        /* Alternates between two halves of `shared`: a slow thread may still read the previous
         * round's sums while others write those of the next. */
        team_sums<BLOCK>(part.sum_g, part.sum_gx, t.lanes, shared + round % 2 * 2 * WARP);
        part_write(part, sums, t, p, lane, p.center ? part.sum_g * t.share : 0,
                   part.sum_gx * t.share);
    }
    partials_store<T, N, HELD, BLOCK>(t, p, sums, shared);
}

template <class T, int N, int HELD, bool BLOCK>
static void launch(Device *dev, NormBackward<T> p, Teams t, NormGradients d)
{
    typedef NormBlock<HELD * N> Most;
    /* Launches at most as many blocks as can be resident at once; each writes one row of
     * partials. */
    int64_t resident =
        (int64_t)(Most::BLOCKS * Most::THREADS / t.threads) * cuda_device(dev)->multiprocessors;
    int64_t needed = ceil_div(t.groups, t.threads / t.lanes);
    Tensor partials =
        cuda_partials(dev, needed < resident ? needed : resident, (int64_t)p.outputs * t.width);
    p.partials = rows_of<float>(partials);
    p.own_sums = BLOCK ? 4 * WARP : p.outputs * t.width * (t.threads / t.lanes);
    bool shared_columns = p.want_columns && !OwnSums<N, HELD>::IN_REGISTERS;
    int floats = p.own_sums + (shared_columns ? HELD * N * t.threads : 0);
    LAUNCH((norm_backward_kernel<T, N, HELD, BLOCK>), tensor_rows(partials),
           dim3((unsigned)t.threads), sizeof(float) * (size_t)floats, cuda_stream(dev), t, p);
    cuda_partials_sum(dev, d.w, d.b, d.columns, partials, d.accumulate);
}

template <class T, int N>
static void backward_as(Device *dev, NormBackward<T> p, Tensor dx, Tensor w, NormGradients d)
{
    if (tensor_count(w) > NARROW * NARROW_THREADS) {
        constexpr int held = N == 1 ? 12 : WIDE / N; /* 12 single elements: their addresses need
                                                      * registers too */
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
    bool whole = all_fit(full, dx, dy, x, w);
    with_packs(x.dtype, whole, [&](auto t, auto n) {
        typedef typename decltype(t)::Type T;
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
        backward_as<T, n>(dev, p, dx, w, d);
    });
}
