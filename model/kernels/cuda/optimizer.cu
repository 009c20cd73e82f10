/* optimizer.cu -- computes the decision on each step, AdamW and SGD. The bits are the same as on
 * the CPU: the arithmetic is in headers that both backends share, and this file is compiled without
 * contraction. */
#include "model/kernels/cuda/ranges.cuh"
#include "model/kernels/cuda/rounding.cuh"

/* Definitions that the shared headers need. */
typedef float real;
#define real_sqrt(x) sqrtf(x)
#include "model/kernels/decision_rule.h"
#include "model/kernels/update_rule.h"

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

/* ---- constants of an update -------------------------------------------------------------------
 */

/* The hyperparameters of each group. */
template <class Hyper> struct HyperTable {
    Hyper group[UPDATE_GROUPS];
};

static __device__ __forceinline__ UpdateConstants constants_of(const StepDecision *decision,
                                                               const AdamW *hyper)
{
    return adamw_constants(decision, hyper);
}

static __device__ __forceinline__ UpdateConstants constants_of(const StepDecision *decision,
                                                               const Sgd *hyper)
{
    return sgd_constants(decision, hyper);
}

/* Computes the constants of an update, with one thread per group of hyperparameters. Powers of beta
 * in double are slow on a GPU, so they are computed once, not by every block of the update. */
template <class Hyper>
static __global__ void __launch_bounds__(UPDATE_GROUPS)
    update_constants_kernel(UpdateConstants *constants, const StepDecision *decision,
                            const __grid_constant__ HyperTable<Hyper> table)
{
    constants[threadIdx.x] = constants_of(decision, &table.group[threadIdx.x]);
}

/* ---- updates --------------------------------------------------------------------------------- */

/* A block updates one tile at a time: UPDATE_TILE elements of a range, or the rest of the range.
 * UPDATE_BLOCKS is the number of blocks per multiprocessor. */
enum { UPDATE_THREADS = 256, UPDATE_BLOCKS = 4, UPDATE_PACK = 4, UPDATE_TILE = 4096 };
/* Blocks per multiprocessor if AdamW's averages are in bf16: two random numbers for each weight
 * need more registers. */
enum { UPDATE_BLOCKS_MOMENTS = 3 };
/* There is a block for each tile, but at most this many if some state is in page-locked memory of
 * the host. To use a link of 45 GB/s with a latency of 1.5 us fully, 68 KB must be in transit at
 * any time; 16 blocks have three times that many. The rest of the GPU stays free for the forward
 * pass beside the update. */
enum { UPDATE_HOST_BLOCKS = 16 };
enum { UPDATE_RANGES = 54 };
static_assert(UPDATE_TILE % (UPDATE_THREADS * UPDATE_PACK) == 0,
              "a tile has whole rounds of packs");

/* The ranges of a launch. `first` is the number of tiles in the ranges before this one. */
typedef struct {
    void *weight;
    const void *grad;
    float *master;
    void *slot[2];
    const Segment *segment;
    int64_t n;
    int segments, first, group;
} TableRange;

typedef struct {
    uint64_t seed;
    int ranges, tiles;
    TableRange range[UPDATE_RANGES];
} UpdateTable;
static_assert(sizeof(UpdateTable) + 2 * sizeof(void *) <= PARAMETER_BYTES, "too many ranges");

/* A tile: the elements from `at` to `end` of a range, and the range's arrays. */
template <class T, class G, class M> struct Tile {
    T *weight;
    const G *grad;
    float *master;
    M *slot[2];
    int64_t at, end;
};

template <class T, class G, class M>
static __device__ __forceinline__ Tile<T, G, M> tile_of(const UpdateTable &table, int r, int number)
{
    Tile<T, G, M> tile;
    tile.weight = (T *)table.range[r].weight;
    tile.grad = (const G *)table.range[r].grad;
    tile.master = table.range[r].master;
    tile.slot[0] = (M *)table.range[r].slot[0];
    tile.slot[1] = (M *)table.range[r].slot[1];
    tile.at = (int64_t)(number - table.range[r].first) * UPDATE_TILE;
    tile.end = min(tile.at + UPDATE_TILE, table.range[r].n);
    return tile;
}

/* Updates the tiles of a table with AdamW, N elements at a time. A block takes every gridDim.x-th
 * tile; the bits do not depend on the number of blocks. Masters are optional. M is the type of the
 * running averages m and v. R determines how weights without masters, and averages of squares in
 * bf16, are rounded.
 *
 * Reads grad, value, m and v and writes value, m, v and the weight, once each. With f32 masters and
 * gradients and 16-bit weights these are 30 bytes per element; without masters and with 16-bit
 * gradients, 22; with averages in bf16, 8 fewer. */
template <class T, class G, class M, int N, class R>
static __global__ void
__launch_bounds__(UPDATE_THREADS, sizeof(M) == sizeof(bf16) ? UPDATE_BLOCKS_MOMENTS : UPDATE_BLOCKS)
    adamw_kernel(UpdateTable table, const StepDecision *decision, const UpdateConstants *constants)
{
    if (!decision->apply) return;
    int64_t update = decision->update;
    for (int number = (int)blockIdx.x; number < table.tiles; number += (int)gridDim.x) {
        int r = range_of(table, number);
        const Tile<T, G, M> t = tile_of<T, G, M>(table, r, number);
        R rounding(table.seed, table.range[r].segment, table.range[r].segments);
        const UpdateConstants k = constants[table.range[r].group];
        for (int64_t i = t.at + (int)threadIdx.x * N; i < t.end; i += UPDATE_THREADS * N) {
            float p[N], g[N], m[N], v[N];
            load(g, t.grad + i);
            load(m, t.slot[0] + i);
            load(v, t.slot[1] + i);
            if (t.master)
                load(p, t.master + i);
            else
                load(p, t.weight + i);
#pragma unroll
            for (int j = 0; j < N; j++)
                p[j] = adamw_element(p[j], g[j], &m[j], &v[j], &k);
            store(t.slot[0] + i, m);
            store_squares(t.slot[1], v, i, update, rounding);
            if (t.master) store(t.master + i, p);
            if (sizeof(M) == sizeof(bf16) && t.master)
                store(t.weight + i, p);
            else
                store_weights(t.weight, p, i, update, rounding);
        }
    }
}

/* Updates the tiles of a table with SGD, in the same way as adamw_kernel. Plain SGD if there is no
 * slot for the momentum. */
template <class T, class G, int N, class R>
static __global__ void __launch_bounds__(UPDATE_THREADS, UPDATE_BLOCKS)
    sgd_kernel(UpdateTable table, const StepDecision *decision, const UpdateConstants *constants)
{
    if (!decision->apply) return;
    int64_t update = decision->update;
    for (int number = (int)blockIdx.x; number < table.tiles; number += (int)gridDim.x) {
        int r = range_of(table, number);
        const Tile<T, G, float> t = tile_of<T, G, float>(table, r, number);
        R rounding(table.seed, table.range[r].segment, table.range[r].segments);
        const UpdateConstants k = constants[table.range[r].group];
        float *momentum = t.slot[0];
        for (int64_t i = t.at + (int)threadIdx.x * N; i < t.end; i += UPDATE_THREADS * N) {
            float p[N], g[N], b[N];
            load(g, t.grad + i);
            if (t.master)
                load(p, t.master + i);
            else
                load(p, t.weight + i);
            if (momentum) load(b, momentum + i);
#pragma unroll
            for (int j = 0; j < N; j++)
                p[j] = momentum ? sgd_element(p[j], g[j], &b[j], &k)
                                : sgd_plain_element(p[j], g[j], &k);
            if (momentum) store(momentum + i, b);
            if (t.master) store(t.master + i, p);
            store_weights(t.weight, p, i, update, rounding);
        }
    }
}

/* A call of op_adamw (if `adam` is true) or of op_sgd. */
typedef struct {
    const UpdateRange *range;
    int n;
    bool adam, packs; /* packs: all ranges are aligned for them */
    const StepDecision *decision;
    const UpdateConstants *constants; /* of each group */
} Update;

/* Returns whether any master weights or optimizer slots of the range are in host memory, which the
 * kernels access over the link to the host. */
static bool on_host(const UpdateRange *r)
{
    const Tensor *state[] = {&r->master, &r->slot[0], &r->slot[1]};
    for (const Tensor *t : state)
        if (tensor_present(*t) && t->place == PLACE_HOST) return true;
    return false;
}

/* Launches the update of n <= UPDATE_RANGES ranges. */
template <class T, class G, class M, int N, class R>
static void update_launch(Device *dev, const Update *u, const UpdateRange *range, int n)
{
    UpdateTable table = {};
    int64_t tiles = 0, blocks;
    bool host = false;
    for (int i = 0; i < n; i++) {
        const UpdateRange *r = &range[i];
        Tensor segments = r->rounding.segments;
        table.range[i] = {r->weight.data,
                          r->grad.data,
                          (float *)r->master.data,
                          {r->slot[0].data, r->slot[1].data},
                          (const Segment *)segments.data,
                          tensor_count(r->weight),
                          tensor_present(segments) ? (int)tensor_rows(segments) : 0,
                          (int)tiles,
                          r->group};
        tiles += ceil_div(tensor_count(r->weight), UPDATE_TILE);
        host = host || on_host(r);
    }
    CHECK(tiles <= INT32_MAX, "%lld tiles", (long long)tiles);
    table.seed = range->rounding.seed;
    table.ranges = n;
    table.tiles = (int)tiles;
    blocks = tiles;
    if (host && blocks > UPDATE_HOST_BLOCKS) blocks = UPDATE_HOST_BLOCKS;
    if (tiles == 0) return;
    if (u->adam)
        LAUNCH((adamw_kernel<T, G, M, N, R>), blocks, UPDATE_THREADS, 0, cuda_stream(dev), table,
               u->decision, u->constants);
    else if (sizeof(M) == sizeof(float))
        LAUNCH((sgd_kernel<T, G, N, R>), blocks, UPDATE_THREADS, 0, cuda_stream(dev), table,
               u->decision, u->constants);
}

template <class T, class G, class M, int N, class R>
static void update_all(Device *dev, const Update *u)
{
    for (int i = 0; i < u->n; i += UPDATE_RANGES)
        update_launch<T, G, M, N, R>(dev, u, u->range + i,
                                     u->n - i < UPDATE_RANGES ? u->n - i : UPDATE_RANGES);
}

/* Selects the kernel by the gradient's type and by whether all tensors are aligned for packs. */
template <class T, class M, class R> static void update_typed(Device *dev, const Update *u)
{
    bool wide = u->range->grad.dtype != u->range->weight.dtype;
    if (wide && u->packs)
        update_all<T, float, M, UPDATE_PACK, R>(dev, u);
    else if (wide)
        update_all<T, float, M, 1, R>(dev, u);
    else if (u->packs)
        update_all<T, T, M, UPDATE_PACK, R>(dev, u);
    else
        update_all<T, T, M, 1, R>(dev, u);
}

/* Computes the constants from the hyperparameters of all groups, then updates the ranges. */
template <class Hyper>
static void update(Device *dev, const UpdateRange *range, int n, const StepDecision *decision,
                   const Hyper *hyper, bool adam)
{
    UpdateConstants *constants =
        (UpdateConstants *)cuda_stream_scratch(dev, UPDATE_GROUPS * sizeof *constants);
    HyperTable<Hyper> table = {};
    Update u = {range, n, adam, true, decision, constants};
    int groups = update_groups(range, n);
    for (int i = 0; i < n; i++) {
        const UpdateRange *r = &range[i];
        u.packs = u.packs && packs_fit(r->weight, UPDATE_PACK) && packs_fit(r->grad, UPDATE_PACK) &&
                  packs_fit(r->master, UPDATE_PACK) && packs_fit(r->slot[0], UPDATE_PACK) &&
                  packs_fit(r->slot[1], UPDATE_PACK);
    }
    for (int i = 0; i < groups; i++)
        table.group[i] = hyper[i];
    LAUNCH(update_constants_kernel<Hyper>, 1, groups, 0, cuda_stream(dev), constants, decision,
           table);
    /* Weights of an update that rounds stochastically are always bf16 (op_adamw and op_sgd check
     * it), so one instance is enough for each type of AdamW's averages. */
    if (adam && range->slot[1].dtype == BF16)
        update_typed<bf16, bf16, Stochastic>(dev, &u);
    else if (tensor_present(range->rounding.segments))
        update_typed<bf16, float, Stochastic>(dev, &u);
    else
        with_storage(range->weight.dtype, [&](auto t) {
            update_typed<typename decltype(t)::Type, float, ToNearest>(dev, &u);
        });
}

extern "C" void cuda_adamw(Device *dev, const UpdateRange *range, int n,
                           const StepDecision *decision, const AdamW *hyper)
{
    update(dev, range, n, decision, hyper, true);
}

extern "C" void cuda_sgd(Device *dev, const UpdateRange *range, int n, const StepDecision *decision,
                         const Sgd *hyper)
{
    update(dev, range, n, decision, hyper, false);
}
