/* cmd_bench_ops.c -- `./train bench ops`: the median time of each op, compared with a limit
 * measured in the same run: a memory copy for ops that move data, a large matrix product for ops
 * that compute. Times are device times between two events. */
#include "model/core/check.h"
#include "model/core/min_max.h"
#include "parallel/commands/cmd_bench.h"

#include <stdio.h>
#include <string.h>

enum { MEMORY_COPY_BYTES = 64 << 20 };

/* Opens the requested device, with the attention kernels for Hopper if `hopper`. "auto" may skip a
 * GPU that cannot be used, with a warning. */
static void open_device(Device *dev, const BenchArguments *a, bool hopper)
{
    DeviceOptions options = {.threads = a->threads, .local_ranks = 1, .hopper_attention = hopper};
    char err[256];
    if (!device_open(dev, a->device, &options, err, sizeof err)) fail(EXIT_UNAVAILABLE, "%s", err);
    device_warn(dev);
    if (a->dtype == F64 && dev->ops_f64 == NULL)
        fail(EXIT_USAGE, "bench ops: %s has no f64; give --dtype f32, bf16 or f16",
             dev->backend->name);
}

/* Returns the bytes per second that the copy reads and writes. */
static double copy_rate(Device *dev, MemoryCopy *blocks, int repetitions)
{
    double seconds[BENCH_MOST_REPETITIONS];
    Stopwatch watch = {0};
    /* The first round is not counted; it only touches the pages. */
    for (int i = -1; i < repetitions; i++) {
        stopwatch_start(dev, &watch);
        memory_copy_run(dev, blocks);
        double s = stopwatch_stop(dev, &watch);
        if (i >= 0) seconds[i] = s;
    }
    stopwatch_close(dev, &watch);
    return 2.0 * (double)blocks->bytes / bench_median(seconds, repetitions);
}

/* Returns the median device time of the call in seconds, with cold caches. */
static double case_seconds(Device *dev, const OpCase *c, const BenchArguments *a,
                           MemoryCopy *blocks)
{
    Operands o = operands_create(dev, c, a->dtype);
    double seconds[BENCH_MOST_REPETITIONS];
    Stopwatch watch = {0};
    /* The first call of an op is not timed: it may load code or choose an algorithm. */
    op_case_run(dev, c, o.tensor, o.decision);
    for (int i = 0; i < a->repetitions; i++) {
        memory_copy_run(dev, blocks); /* evicts the operands from the caches */
        stopwatch_start(dev, &watch);
        op_case_run(dev, c, o.tensor, o.decision);
        seconds[i] = stopwatch_stop(dev, &watch);
    }
    stopwatch_close(dev, &watch);
    operands_release(dev, &o);
    return bench_median(seconds, (int)a->repetitions);
}

/* Returns whether this GPU has the attention kernels for Hopper, and they can compute the case. */
static bool has_hopper(const Device *dev, const OpCase *c, DType dtype)
{
    DeviceFacts facts = dev->backend->facts ? dev->backend->facts(dev->index) : (DeviceFacts){0};
    int64_t head = c->attention.head_size;
    return facts.capability == 90 && !facts.lacks_hopper && dtype_size(dtype) == 2 &&
           (head == 64 || head == 128);
}

/* Prints one line: the time of the call, the least time that the limits `copy` (bytes per second)
 * and `product` (operations per second) allow, and the ratio of the two. `kernels` follows the name
 * of the case. */
static void case_line(Device *dev, const OpCase *c, const char *kernels, const BenchArguments *a,
                      MemoryCopy *blocks, double copy, double product)
{
    char text[160];
    Progress progress = progress_begin_quiet();
    progress_print(&progress, "measuring %s", op_case_describe(c, text, sizeof text));
    double seconds = case_seconds(dev, c, a, blocks);
    progress_end(&progress);
    /* An op that computes is compared with the product, any other op with the copy. */
    double bytes = op_case_bytes(c, a->dtype, op_case_grad(c, a->dtype)), flops = op_case_flops(c);
    double floor = flops > 0 ? flops / product : bytes / copy;
    op_case_describe(c, text, sizeof text);
    printf("%s%-*s %10.3f %10.3f %9.2f %9.1f %10.1f\n", text,
           (int)max_i64(62 - (int64_t)strlen(text), 0), kernels, 1e3 * seconds, 1e3 * floor,
           1e-9 * bytes / seconds, 1e-9 * flops / seconds, 100 * floor / seconds);
    fflush(stdout);
}

/* Prints the lines of one case. On a GPU attention has a line for each kind of kernels. */
static void case_lines(Device *dev, Device *hopper, const OpCase *c, const BenchArguments *a,
                       MemoryCopy *blocks, double copy, double product)
{
    bool chosen = (c->op == OP_attention_forward || c->op == OP_attention_backward) &&
                  dev->backend->place == PLACE_DEVICE;
    case_line(dev, c, chosen ? ", portable" : "", a, blocks, copy, product);
    if (!chosen || !has_hopper(dev, c, a->dtype)) return;
    if (hopper->backend == NULL) open_device(hopper, a, true);
    case_line(hopper, c, ", hopper", a, blocks, copy, product);
}

static int bench_ops(const void *values)
{
    const BenchArguments *a = values;
    Device dev, hopper = {0}; /* hopper: opened when it is needed */
    char text[160];
    const OpCase *cases;
    open_device(&dev, a, false);
    Progress progress = progress_begin_quiet();
    progress_print(&progress, "measuring the ceilings");
    MemoryCopy blocks = memory_copy_open(&dev, op_bench_scaled(MEMORY_COPY_BYTES, a->tokens));
    double copy = copy_rate(&dev, &blocks, a->repetitions);
    /* The arithmetic limit is measured with a product that is large enough to keep the device busy.
     */
    int64_t width = op_bench_scaled(dev.backend->place == PLACE_HOST ? 768 : 4096, a->tokens);
    const OpCase large = {OP_linear_forward, .n = a->tokens, .cols = width, .outputs = 4 * width};
    double product = op_case_flops(&large) / case_seconds(&dev, &large, a, &blocks);
    progress_end(&progress);
    int count = op_cases_bench(&cases);
    printf("%s, %s, %lld tokens, medians of %lld, cold caches\n",
           device_describe(&dev, text, sizeof text), dtype_name(a->dtype), (long long)a->tokens,
           (long long)a->repetitions);
    printf("ceilings: copy loop %.2f GB/s; product %lldx%lldx%lld %.1f GFLOP/s\n", 1e-9 * copy,
           (long long)a->tokens, (long long)width, (long long)(4 * width), 1e-9 * product);
    printf("%-62s %10s %10s %9s %9s %10s\n", "op", "ms", "floor ms", "GB/s", "GFLOP/s",
           "% ceiling");
    for (int i = 0; i < count; i++) {
        OpCase c = op_case_at(&cases[i], a->tokens);
        /* Stochastic rounding and bf16 moments are used only with bf16 weights. */
        if ((c.stochastic || c.moments) && a->dtype != BF16) continue;
        if (a->only && strstr(op_name[c.op], a->only) == NULL) continue;
        case_lines(&dev, &hopper, &c, a, &blocks, copy, product);
    }
    memory_copy_close(&dev, &blocks);
    if (hopper.backend) device_close(&hopper);
    device_close(&dev);
    return EXIT_OK;
}

const ArgCommand cmd_bench_ops = {
    .name = "ops",
    .call = "./train bench ops",
    .usage = "[options]",
    .summary = "the calls of a GPT-2 124M training step, each beside its floor",
    .options = bench_options,
    .n_options = BENCH_OPS_OPTIONS,
    .size = sizeof(BenchArguments),
    .defaults = &bench_defaults,
    .run = bench_ops,
};
