/* cmd_bench_kernels.c -- the part of `./train bench machine` that measures kernels: a launch,
 * matrix products by type, attention, and ops that are bound by memory. */
#include "model/core/check.h"
#include "parallel/commands/bench_fit.h"
#include "parallel/commands/cmd_bench_machine.h"

#include <math.h>

enum { MOST_PRODUCTS = 64, LAUNCHES = 1000, HEAD = 128, LARGEST_EDGE = 256 };

/* Returns the median device time of a call whose operands are not in the caches, as in a step. The
 * first call, which may load code, is not counted. */
static double call_seconds(MachineBench *b, const OpCase *c, DType dtype)
{
    double seconds[BENCH_MOST_REPETITIONS];
    Operands o = operands_create(&b->dev, c, dtype);
    Stopwatch watch = {0};
    char text[160];
    progress_print(&b->progress, "measuring %s in %s", op_case_describe(c, text, sizeof text),
                   dtype_name(dtype));
    for (int i = -1; i < b->a->repetitions; i++) {
        memory_copy_run(&b->dev, &b->blocks);
        stopwatch_start(&b->dev, &watch);
        op_case_run(&b->dev, c, o.tensor, o.decision);
        double s = stopwatch_stop(&b->dev, &watch);
        if (i >= 0) seconds[i] = s;
    }
    stopwatch_close(&b->dev, &watch);
    operands_release(&b->dev, &o);
    return fmax(bench_median(seconds, (int)b->a->repetitions), 1e-9);
}

/* The least time of a kernel: many in a row, each on a few elements. */
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
    b->hardware.launch = bench_median(seconds, (int)b->a->repetitions);
    hardware_limit(&b->hardware);
}

/* Measures the three products of linear layers in one dtype; returns their number. */
static int measure_products(MachineBench *b, DType dtype, MeasuredProduct product[MOST_PRODUCTS])
{
    static const int64_t
        of_cpu[][2] = {{64, 256}, {256, 256}, {256, 1024}, {768, 768}, {768, 3072}},
        of_gpu[][2] = {{768, 2304}, {1024, 4096}, {2048, 2048}, {4096, 4096}, {4096, 11008}};
    enum { SHAPES = sizeof of_cpu / sizeof *of_cpu, ROWS = 2 };
    bool host = b->dev.backend->place == PLACE_HOST;
    const int64_t rows[ROWS] = {bench_scaled(b, host ? 128 : 2048),
                                bench_scaled(b, host ? 512 : 16384)};
    int n = 0;
    for (int r = 0; r < ROWS; r++)
        for (int s = 0; s < SHAPES; s++)
            for (int op = OP_linear_forward; op <= OP_linear_backward_weight; op++) {
                OpCase c = {.op = (OpId)op, .n = rows[r]};
                c.cols = bench_scaled(b, host ? of_cpu[s][0] : of_gpu[s][0]);
                c.outputs = bench_scaled(b, host ? of_cpu[s][1] : of_gpu[s][1]);
                MeasuredProduct p = {.m = c.n, .n = c.outputs, .k = c.cols};
                if (op == OP_linear_residual_forward) continue;
                if (op == OP_linear_backward_input)
                    p = (MeasuredProduct){.m = c.n, .n = c.cols, .k = c.outputs};
                if (op == OP_linear_backward_weight)
                    p = (MeasuredProduct){.m = c.outputs, .n = c.cols, .k = c.n};
                p.seconds = call_seconds(b, &c, dtype);
                product[n++] = p;
            }
    return n;
}

/* The rate of large products is the share `most` of the peak, so the peak is not a data sheet's. */
static void measure_peaks(MachineBench *b)
{
    /* The dtype that training uses comes first: its products decide the edge. */
    const DType order[] = {b->dtype, b->dtype == F32 ? BF16 : F32, F16, F64};
    MeasuredProduct product[MOST_PRODUCTS];
    Hardware *h = &b->hardware;
    h->product.most = 0.9;
    h->product.sustained = b->dtype == F32 ? 1 : h->product.sustained;
    for (int i = 0; i < 4; i++) {
        double error;
        /* A device without f64 keeps the preset's peak. */
        if (order[i] == F64 && b->dev.ops_f64 == NULL) continue;
        int n = measure_products(b, order[i], product);
        if (i == 0) h->product.edge = fit_edge(product, n, h->launch, LARGEST_EDGE);
        h->peak[order[i]] =
            fit_rate(product, n, h->launch, h->product.edge, &error) / h->product.most;
    }
}

/* Returns the FLOP/s of attention with heads of 128. */
static double attention_rate(MachineBench *b, OpId op, int64_t length)
{
    OpCase c = {.op = op, .batch = 1, .tq = length, .tk = length};
    int64_t heads = b->dev.backend->place == PLACE_HOST ? 2 : 16;
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
        double at_short = attention_rate(b, op, shorter), at_long = attention_rate(b, op, longer);
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

/* A copy gives the bandwidth; the share of it that kernels reach is that of the calls of a GPT-2
 * step that are bound by memory, each as often as a step of 1024 tokens makes it. */
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
    h->memory_efficiency = bytes / total / h->memory_bandwidth;
}

void bench_machine_kernels(MachineBench *b)
{
    b->blocks = memory_copy_open(&b->dev, bench_scaled(b, 1 << 20) * 128);
    measure_launch(b);
    measure_peaks(b);
    measure_attention(b);
    measure_memory(b);
    memory_copy_close(&b->dev, &b->blocks);
}
