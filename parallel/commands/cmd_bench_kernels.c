/* cmd_bench_kernels.c -- the part of `./train bench machine` that measures kernels: a launch,
 * matrix products in each dtype, attention, and memory-bound ops. */
#include "model/core/check.h"
#include "parallel/commands/bench_fit.h"
#include "parallel/commands/cmd_bench_machine.h"
#include "parallel/grid/control.h"
#include "parallel/plan/cost.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_PRODUCTS = 64, LAUNCHES = 1000, HEAD = 128 };

/* Allocates the blocks of memory for the measurements. They are smaller if `ranks` ranks share the
 * memory. */
static void open_blocks(MachineBench *b, int ranks)
{
    b->stats = device_alloc(&b->dev, sizeof(double), "a sum");
    b->blocks = memory_copy_open(&b->dev, max_i64(bench_scaled(b, 1 << 20) * 128 / ranks, 1 << 20));
}

static void close_blocks(MachineBench *b)
{
    memory_copy_close(&b->dev, &b->blocks);
    device_release(&b->dev, b->stats, sizeof(double));
}

/* Empties the caches by reading other memory. If it wrote the memory, the following call would have
 * to wait until the changed cache lines are written back. */
static void evict(MachineBench *b)
{
    Tensor block = tensor_1d(b->blocks.from, F32, b->blocks.bytes / (int64_t)sizeof(float));
    op_sq_norm(&b->dev, tensor_1d(b->stats, F64, 1), &block, 1);
}

/* Returns the median device time of a call whose operands are not in the caches, as in a step. The
 * first call, which may load code, is not counted. */
static double call_seconds(MachineBench *b, const OpCase *c, DType dtype)
{
    double seconds[BENCH_MOST_REPETITIONS];
    Operands o = operands_create(&b->dev, c, dtype);
    Stopwatch watch = {0};
    char text[160];
    if (!b->quiet)
        progress_print(&b->progress, "measuring %s in %s", op_case_describe(c, text, sizeof text),
                       dtype_name(dtype));
    for (int i = -1; i < b->a->repetitions; i++) {
        evict(b);
        stopwatch_start(&b->dev, &watch);
        op_case_run(&b->dev, c, o.tensor, o.decision);
        double s = stopwatch_stop(&b->dev, &watch);
        if (i >= 0) seconds[i] = s;
    }
    stopwatch_close(&b->dev, &watch);
    operands_release(&b->dev, &o);
    return fmax(bench_median(seconds, (int)b->a->repetitions), 1e-9);
}

/* Measures the shortest time that a kernel takes: many kernels in a row, each on a few elements. */
static void measure_launch(MachineBench *b)
{
    double seconds[BENCH_MOST_REPETITIONS];
    void *x = device_alloc(&b->dev, 64, "a small tensor");
    Stopwatch watch = {0};
    progress_print(&b->progress, "measuring a launch");
    for (int i = -1; i < b->a->repetitions; i++) {
        stopwatch_start(&b->dev, &watch);
        for (int k = 0; k < LAUNCHES; k++)
            op_fill(&b->dev, tensor_1d(x, F32, 8), 1);
        double s = stopwatch_stop(&b->dev, &watch);
        if (i >= 0) seconds[i] = s / LAUNCHES;
    }
    stopwatch_close(&b->dev, &watch);
    device_release(&b->dev, x, 64);
    b->launch = b->hardware.launch = bench_median(seconds, (int)b->a->repetitions);
    hardware_limit(&b->hardware);
}

/* Returns the dimensions of the matrix product in a linear layer's op. Does not set its time. */
static MeasuredProduct product_of(const OpCase *c)
{
    if (c->op == OP_linear_backward_input)
        return (MeasuredProduct){.m = c->n, .n = c->cols, .k = c->outputs};
    if (c->op == OP_linear_backward_weight)
        return (MeasuredProduct){.m = c->outputs, .n = c->cols, .k = c->n};
    return (MeasuredProduct){.m = c->n, .n = c->outputs, .k = c->cols};
}

/* Measures the three products of linear layers of several sizes in one dtype. Returns the number of
 * measurements. */
static int measure_products(MachineBench *b, DType dtype, MeasuredProduct product[MOST_PRODUCTS])
{
    static const int64_t
        of_cpu[][2] = {{256, 256}, {256, 1024}, {768, 768}, {768, 2304}, {768, 3072}},
        of_gpu[][2] = {{768, 2304}, {1024, 4096}, {2048, 2048}, {4096, 4096}, {4096, 11008}};
    enum { SHAPES = sizeof of_cpu / sizeof *of_cpu, ROWS = 2 };
    bool host = b->dev.backend->place == PLACE_HOST;
    const int64_t rows[ROWS] = {bench_scaled(b, host ? 64 : 2048),
                                bench_scaled(b, host ? 512 : 16384)};
    int n = 0;
    for (int r = 0; r < ROWS; r++)
        for (int s = 0; s < SHAPES; s++)
            for (int op = OP_linear_forward; op <= OP_linear_backward_weight; op++) {
                OpCase c = {.op = (OpId)op, .n = rows[r]};
                c.cols = bench_scaled(b, host ? of_cpu[s][0] : of_gpu[s][0]);
                c.outputs = bench_scaled(b, host ? of_cpu[s][1] : of_gpu[s][1]);
                if (op == OP_linear_residual_forward) continue;
                product[n] = product_of(&c);
                product[n++].seconds = call_seconds(b, &c, dtype);
            }
    return n;
}

/* Fits the peak FLOP/s of each dtype, and the edge (bench_fit.h). For a GPU that has a preset, the
 * peaks are those of its data sheet, and products in the dtype of training give the share of the
 * peak that large products reach. For all other devices this share is a constant, and the rates of
 * large products give the peaks. */
static void fit_peaks(MachineBench *b)
{
    /* The dtype that training uses comes first, because its products determine the edge. */
    const DType order[] = {b->dtype, b->dtype == F32 ? BF16 : F32, F16, F64};
    MeasuredProduct product[MOST_PRODUCTS];
    Hardware *h = &b->hardware;
    double error, tf32 = h->peak_tf32 / h->peak[BF16];
    if (!b->known) h->product.most = 0.9;
    for (int i = 0; i < (b->known ? 1 : 4); i++) {
        /* A device without f64 keeps the preset's peak. */
        if (order[i] == F64 && b->dev.ops_f64 == NULL) continue;
        int n = measure_products(b, order[i], product);
        /* The upper limit of a GPU's edge is also used on a CPU, where the edge is fitted for one
         * thread and is not larger. */
        if (i == 0)
            h->product.edge =
                fit_edge(product, n, h->launch, hardware_limits("product_edge", true).most);
        double rate = fit_rate(product, n, h->launch, h->product.edge, &error);
        fit_peak(h, order[i], rate, b->known);
    }
    h->peak_tf32 = h->cuda ? tf32 * h->peak[BF16] : h->peak[F32];
}

/* Returns the speed of matrix products within a GPT-2 block, where they also add biases and
 * residuals, apply GELU and accumulate gradients, divided by the speed of bare products. `one`: the
 * figures of one thread, from which the time of the bare products is predicted. */
static double measure_sustained(MachineBench *b, const Hardware *one)
{
    const OpCase *cases;
    double alone = 0, within = 0;
    int n = op_cases_bench(&cases);
    for (int i = 0; i < n; i++) {
        OpCase c = op_case_at(&cases[i], bench_scaled(b, 512));
        bool linear = c.op >= OP_linear_forward && c.op <= OP_linear_backward_weight;
        if (!linear || c.epilogue == EPILOGUE_GELU_OF_SUM) continue;
        MeasuredProduct p = product_of(&c);
        alone += cost_product(one, &COST_OWN, b->dtype, p.m, p.n, p.k, 0);
        within += call_seconds(b, &c, b->dtype);
    }
    return alone / within;
}

/* Measures products on one rank, while the other ranks do the same, each on its part of the CPU's
 * threads. */
static int rank_products(Comm *world, void *context)
{
    MachineBench *all = context, own = *all;
    const DeviceOptions options = {.local_ranks = world->size, .index = world->rank};
    char err[512];
    if (!device_open(&own.dev, all->dev.backend->name, &options, err, sizeof err))
        control_fail(world, EXIT_UNAVAILABLE, "%s", err);
    own.quiet = world->rank > 0;
    open_blocks(&own, world->size);
    own.hardware.product.sustained = 1;
    fit_peaks(&own);
    own.hardware.product.sustained = measure_sustained(&own, &own.hardware);
    comm_barrier(world);
    for (int t = 0; t < DTYPE_COUNT; t++)
        own.hardware.peak[t] *= world->size;
    own.hardware.peak_tf32 *= world->size;
    own.hardware.product.edge *= world->size;
    if (world->rank == 0) all->hardware = own.hardware;
    close_blocks(&own);
    device_close(&own.dev);
    return EXIT_OK;
}

/* Measures products. On a CPU all ranks measure them at once, since a busy core slows the others
 * down; the node's figures are those of all ranks together. Threads that share a product divide its
 * rows, so the edge counts once for each thread. */
static void measure_products_by_type(MachineBench *b)
{
    if (b->dev.backend->place != PLACE_HOST) {
        fit_peaks(b);
        return;
    }
    const LaunchOptions launch = {.timeout = 600};
    int code = launch_ranks(b->hardware.devices_per_node, &launch, rank_products, b);
    if (code != EXIT_OK) exit(code);
}

/* Returns the FLOP/s of attention with heads of 128, on sequences of this length. */
static double attention_rate(MachineBench *b, OpId op, int64_t length, int64_t tokens)
{
    OpCase c = {.op = op, .batch = tokens / length, .tq = length, .tk = length};
    int64_t heads = b->dev.backend->place == PLACE_HOST ? 4 : 16;
    c.attention = (Attention){.heads = heads, .kv_heads = heads, .head_size = HEAD, .scale = 0.1};
    return op_case_flops(&c) / fmax(call_seconds(b, &c, b->dtype) - b->hardware.launch, 1e-9);
}

static void measure_attention(MachineBench *b)
{
    bool host = b->dev.backend->place == PLACE_HOST;
    int64_t shorter = bench_scaled(b, host ? 128 : 1024),
            longer = bench_scaled(b, host ? 512 : 8192);
    Hardware *h = &b->hardware;
    longer = max_i64(longer, 2 * shorter);
    for (int backward = 0; backward < 2; backward++) {
        OpId op = backward ? OP_attention_backward : OP_attention_forward;
        double at_short = attention_rate(b, op, shorter, longer),
               at_long = attention_rate(b, op, longer, longer);
        FittedAttention f = fit_attention((double)shorter, at_short, (double)longer, at_long);
        double share = f.rate / h->peak[b->dtype];
        if (backward) {
            h->attention_backward.share = share;
            h->attention_backward.length = f.length;
        } else {
            h->attention_forward.share = share;
            h->attention_forward.length = f.length;
        }
    }
}

/* Measures the memory bandwidth with a copy. Then measures what share of it kernels reach, with the
 * memory-bound calls of a GPT-2 step, each weighted by its number of calls in a step of 1024
 * tokens. */
static void measure_memory(MachineBench *b)
{
    static const struct {
        OpId op;
        int times;
    } calls[] = {{OP_residual_norm_forward, 24},
                 {OP_norm_backward, 25},
                 {OP_loss, 8},
                 {OP_sq_norm, 15},
                 {OP_adamw, 15}};
    const OpCase *cases;
    int n = op_cases_bench(&cases);
    double seconds[BENCH_MOST_REPETITIONS], bytes = 0, total = 0;
    Stopwatch watch = {0};
    progress_print(&b->progress, "measuring the memory");
    for (int i = -1; i < b->a->repetitions; i++) {
        stopwatch_start(&b->dev, &watch);
        memory_copy_run(&b->dev, &b->blocks);
        double s = stopwatch_stop(&b->dev, &watch);
        if (i >= 0) seconds[i] = s;
    }
    stopwatch_close(&b->dev, &watch);
    Hardware *h = &b->hardware;
    h->memory_bandwidth =
        2.0 * (double)b->blocks.bytes / bench_median(seconds, (int)b->a->repetitions);
    int64_t tokens = bench_scaled(b, b->dev.backend->place == PLACE_HOST ? 1024 : 8192);
    for (size_t k = 0; k < sizeof calls / sizeof *calls; k++) {
        int first = 0;
        while (first < n - 1 && cases[first].op != calls[k].op)
            first++;
        OpCase c = op_case_at(&cases[first], tokens);
        bytes += calls[k].times * op_case_bytes(&c, b->dtype, op_case_grad(&c, b->dtype));
        total += calls[k].times * fmax(call_seconds(b, &c, b->dtype) - h->launch, 1e-9);
    }
    /* Ops that read more than they write may exceed the bandwidth of a copy. */
    h->memory_bandwidth = fmax(h->memory_bandwidth, bytes / total);
    h->memory_efficiency = bytes / total / h->memory_bandwidth;
}

/* Returns the bytes per second in each direction when two copies of equal size run at the same
 * time, each on its own stream: one from page-locked memory to the device, the other back. */
static double copied_rate(MachineBench *b, const Tensor to[2], const Tensor from[2])
{
    double seconds[BENCH_MOST_REPETITIONS];
    Stopwatch watch = {0};
    Event begun = {0}, ended = {0};
    Device other = device_on(&b->dev, b->dev.copy);
    for (int i = -1; i < b->a->repetitions; i++) {
        stopwatch_start(&b->dev, &watch);
        device_event_record(&b->dev, &begun);
        device_event_wait(&other, &begun);
        device_copy(&b->dev, to[0], from[0]);
        device_copy(&other, to[1], from[1]);
        device_event_record(&other, &ended);
        device_event_wait(&b->dev, &ended);
        double s = stopwatch_stop(&b->dev, &watch);
        if (i >= 0) seconds[i] = s;
    }
    device_event_destroy(&b->dev, &begun);
    device_event_destroy(&b->dev, &ended);
    stopwatch_close(&b->dev, &watch);
    return (double)tensor_bytes(to[0]) / bench_median(seconds, (int)b->a->repetitions);
}

static void measure_host_link(MachineBench *b)
{
    int64_t bytes = bench_scaled(b, 256 << 20);
    b->hardware.host_bandwidth = 0;
    if (b->dev.backend->place == PLACE_HOST) return;
    progress_print(&b->progress, "measuring the link to the host");
    void *locked = device_host_alloc(&b->dev, 2 * (size_t)bytes, "the link's measurement"),
         *own = device_alloc(&b->dev, 2 * (size_t)bytes, "the link's measurement");
    Tensor there = tensor_2d(own, U8, 2, bytes), here = tensor_2d(locked, U8, 2, bytes);
    there.place = b->dev.backend->place;
    memset(locked, 1, 2 * (size_t)bytes);
    op_fill(&b->dev, tensor_1d(own, F32, 2 * bytes / (int64_t)sizeof(float)), 0);
    const Tensor to[2] = {tensor_slice_rows(there, 0, 1), tensor_slice_rows(here, 1, 1)},
                 from[2] = {tensor_slice_rows(here, 0, 1), tensor_slice_rows(there, 1, 1)};
    b->hardware.host_bandwidth = copied_rate(b, to, from);
    device_release(&b->dev, own, 2 * (size_t)bytes);
    device_host_release(&b->dev, locked, 2 * (size_t)bytes);
}

void bench_machine_kernels(MachineBench *b)
{
    open_blocks(b, 1);
    measure_launch(b);
    measure_products_by_type(b);
    measure_attention(b);
    measure_memory(b);
    measure_host_link(b);
    close_blocks(b);
}
