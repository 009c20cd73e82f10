/* cmd_bench_ops.c -- `./train bench ops` and `./train bench gemm`: medians of single ops, each
 * beside a ceiling measured in the same run: a copy for ops that move data, a large product for
 * those that compute. Times are the device's own, between two events. */
#include "model/core/check.h"
#include "model/kernels/op_cases.h"
#include "parallel/commands/cmd_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_REPETITIONS = 101, MAX_TOKENS = 1 << 20, SCRUB_BYTES = 64 << 20 };

typedef struct {
    DType dtype;
    int64_t repetitions, threads, tokens;
    const char *device;
} Arguments;

/* Opens the device asked for; "auto" may pass over one with a warning. */
static void open_device(Device *dev, const Arguments *a)
{
    DeviceOptions options = {.threads = a->threads, .local_ranks = 1};
    char err[256];
    if (!device_open(dev, a->device, &options, err, sizeof err)) fail(EXIT_UNAVAILABLE, "%s", err);
    device_warn(dev);
    if (a->dtype == F64 && dev->ops_f64 == NULL)
        fail(EXIT_USAGE, "bench ops: %s has no f64; give --dtype f32, bf16 or f16",
             dev->backend->name);
}

/* Opens the CPU with OpenBLAS, which may not be there, or with the built-in products. */
static bool open_cpu(Device *dev, const Arguments *a, BlasChoice blas)
{
    DeviceOptions options = {.threads = a->threads, .local_ranks = 1, .blas = blas};
    char err[256];
    if (device_open(dev, "cpu", &options, err, sizeof err)) return true;
    if (blas != BLAS_OPENBLAS) fail(EXIT_UNAVAILABLE, "%s", err);
    printf("without OpenBLAS: %s\n", err);
    return false;
}

/* ---- operands ---------------------------------------------------------------------------------
 */

/* Device memory of one call, to be given back. */
typedef struct {
    Tensor tensor[CASE_OPERANDS];
    StepDecision *decision;
    int count;
} Operands;

static Tensor words_of(StepDecision *decision)
{
    return tensor_1d(decision, I64, sizeof *decision / sizeof(int64_t));
}

/* What integers start as: steps by a prime, so that rows of a table are visited out of order; zero
 * for first keys; a table of segments. Doubles are one number. By way of the host, which has every
 * type. */
static void fill_from_host(Device *dev, const OpCase *c, const OperandSpec *s, Tensor t)
{
    int64_t n = tensor_count(t), range = (int64_t)(s->high - s->low);
    void *host = must_calloc((size_t)n, dtype_size(t.dtype));
    for (int64_t i = 0; i < n; i++) {
        if (t.dtype == F64)
            ((double *)host)[i] = 0.5 * (s->low + s->high);
        else if (s->fill == FILL_SEGMENTS)
            ((int64_t *)host)[i] = op_bench_segment_word(c, i);
        else if (s->fill == FILL_INTEGER)
            ((int32_t *)host)[i] = (int32_t)(s->low + (double)(i * 7919 % range));
    }
    device_copy(dev, tensor_flat(t), tensor_1d(host, t.dtype, n));
    device_synchronize(dev);
    free(host);
}

static void fill_operand(Device *dev, const OpCase *c, const OperandSpec *s, DType storage,
                         Tensor t)
{
    if (t.dtype == I32 || t.dtype == I64 || (t.dtype == F64 && storage != F64))
        fill_from_host(dev, c, s, t);
    else if (s->fill == FILL_NORMAL)
        op_normal(dev, tensor_flat(t), 1, 2, 0, s->high);
    else
        op_fill(dev, t, 0.5 * (s->low + s->high));
}

static Operands operands_create(Device *dev, const OpCase *c, DType storage)
{
    OperandSpec spec[CASE_OPERANDS];
    Operands o = {.count = op_case_operands(c, spec)};
    StepDecision decision = op_case_decision();
    o.decision = device_alloc(dev, sizeof decision, "a decision");
    device_copy(dev, words_of(o.decision), words_of(&decision));
    device_synchronize(dev);
    for (int i = 0; i < o.count; i++) {
        if (spec[i].role == ROLE_ABSENT) continue;
        Tensor t = {.dtype = op_case_dtype(spec[i].type, storage, op_case_grad(c, storage)),
                    .place = dev->backend->place,
                    .ndim = spec[i].ndim,
                    .ld = spec[i].dim[spec[i].ndim - 1]};
        memcpy(t.dim, spec[i].dim, sizeof spec[i].dim);
        t.data = device_alloc(dev, tensor_bytes(t), spec[i].name);
        fill_operand(dev, c, &spec[i], storage, t);
        o.tensor[i] = t;
    }
    return o;
}

static void operands_release(Device *dev, Operands *o)
{
    device_release(dev, o->decision, sizeof *o->decision);
    for (int i = 0; i < o->count; i++)
        if (tensor_present(o->tensor[i]))
            device_release(dev, o->tensor[i].data, tensor_bytes(o->tensor[i]));
}

/* ---- measuring --------------------------------------------------------------------------------
 */

/* Bytes per second of the copy. */
static double copy_rate(Device *dev, Scrub *scrub, int repetitions)
{
    double seconds[MAX_REPETITIONS];
    Watch watch = {0};
    for (int i = -1; i < repetitions; i++) {
        watch_start(dev, &watch);
        scrub_run(dev, scrub);
        double s = watch_stop(dev, &watch);
        if (i >= 0) seconds[i] = s;
    }
    watch_close(dev, &watch);
    return 2.0 * (double)scrub->bytes / bench_median(seconds, repetitions);
}

/* Median seconds of the call with cold caches, of the device's time. */
static double case_seconds(Device *dev, const OpCase *c, const Arguments *a, Scrub *scrub)
{
    Operands o = operands_create(dev, c, a->dtype);
    double seconds[MAX_REPETITIONS];
    Watch watch = {0};
    op_case_run(dev, c, o.tensor, o.decision);
    for (int i = 0; i < a->repetitions; i++) {
        scrub_run(dev, scrub);
        watch_start(dev, &watch);
        op_case_run(dev, c, o.tensor, o.decision);
        seconds[i] = watch_stop(dev, &watch);
    }
    watch_close(dev, &watch);
    operands_release(dev, &o);
    return bench_median(seconds, (int)a->repetitions);
}

/* One line: the time, the least it could be at the ceilings, what was reached of them. */
static void case_line(Device *dev, const OpCase *c, const Arguments *a, Scrub *scrub, double copy,
                      double product)
{
    char text[160];
    double seconds = case_seconds(dev, c, a, scrub);
    double bytes = op_case_bytes(c, a->dtype, op_case_grad(c, a->dtype)), flops = op_case_flops(c);
    double floor = flops > 0 ? flops / product : bytes / copy;
    printf("%-62s %10.3f %10.3f %9.2f %9.1f %10.1f\n", op_case_describe(c, text, sizeof text),
           1e3 * seconds, 1e3 * floor, 1e-9 * bytes / seconds, 1e-9 * flops / seconds,
           100 * floor / seconds);
    fflush(stdout);
}

static int bench_ops(const void *values)
{
    const Arguments *a = values;
    Device dev;
    char text[160];
    const OpCase *cases;
    open_device(&dev, a);
    Scrub scrub = scrub_open(&dev, op_bench_scaled(SCRUB_BYTES, a->tokens));
    double copy = copy_rate(&dev, &scrub, a->repetitions);
    /* A GPU wants it deep and wide. */
    int64_t width = op_bench_scaled(dev.backend->place == PLACE_HOST ? 768 : 4096, a->tokens);
    const OpCase large = {OP_linear_forward, .n = a->tokens, .cols = width, .outputs = 4 * width};
    double product = op_case_flops(&large) / case_seconds(&dev, &large, a, &scrub);
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
        if (c.stochastic && a->dtype != BF16) continue;
        case_line(&dev, &c, a, &scrub, copy, product);
    }
    scrub_close(&dev, &scrub);
    device_close(&dev);
    return EXIT_OK;
}

/* ---- gemm -------------------------------------------------------------------------------------
 */

/* Seconds of one call. */
static double timed_run(Device *dev, const OpCase *c, const Operands *o)
{
    Watch watch = {0};
    watch_start(dev, &watch);
    op_case_run(dev, c, o->tensor, o->decision);
    return watch_stop(dev, &watch);
}

/* One line: both devices in turns on operands of the same shape. The first may be closed (no
 * OpenBLAS). Returns the second's rate as a share of the first's, 0 without a first. */
static double gemm_line(Device dev[2], const OpCase *c, const Arguments *a)
{
    double seconds[2][MAX_REPETITIONS], rate[2] = {0, 0};
    Operands o = operands_create(&dev[1], c, a->dtype);
    char text[160];
    for (int i = -1; i < a->repetitions; i++) {
        for (int d = 0; d < 2; d++) {
            if (dev[d].backend == NULL) continue;
            double s = timed_run(&dev[d], c, &o);
            if (i >= 0) seconds[d][i] = s;
        }
    }
    for (int d = 0; d < 2; d++)
        if (dev[d].backend)
            rate[d] = 1e-9 * op_case_flops(c) / bench_median(seconds[d], (int)a->repetitions);
    double share = rate[0] > 0 ? rate[1] / rate[0] : 0;
    printf("%-48s %10.1f %10.1f %9.1f\n", op_case_describe(c, text, sizeof text), rate[0], rate[1],
           100 * share);
    fflush(stdout);
    operands_release(&dev[1], &o);
    return share;
}

static int bench_gemm(const void *values)
{
    static const OpId op[] = {OP_linear_forward, OP_linear_backward_input,
                              OP_linear_backward_weight};
    static const int64_t shape[][2] = {
        {768, 2304}, {768, 768}, {768, 3072}, {3072, 768}, {768, 8192}};
    static const int64_t rows[] = {256, 1024};
    enum { SHAPES = 5, OPS = 3, ROWS = 2 };
    const Arguments *a = values;
    Device dev[2] = {{0}, {0}};
    double share[SHAPES * OPS * ROWS];
    char text[160];
    int lines = 0;
    bool openblas = open_cpu(&dev[0], a, BLAS_OPENBLAS);
    open_cpu(&dev[1], a, BLAS_BUILTIN);
    printf("%s, %s, medians of %lld, in turns\n",
           device_describe(&dev[openblas ? 0 : 1], text, sizeof text), dtype_name(a->dtype),
           (long long)a->repetitions);
    printf("%-48s %10s %10s %9s\n", "N x inputs x outputs", "OpenBLAS", "built-in", "% (GFLOP/s)");
    for (int r = 0; r < ROWS; r++)
        for (int s = 0; s < SHAPES; s++)
            for (int i = 0; i < OPS; i++) {
                OpCase c = {op[i], .n = rows[r], .cols = shape[s][0], .outputs = shape[s][1]};
                share[lines++] = gemm_line(dev, &c, a);
            }
    if (openblas)
        printf("built-in: median %.1f %% of OpenBLAS\n", 100 * bench_median(share, lines));
    device_close(&dev[0]);
    device_close(&dev[1]);
    return EXIT_OK;
}

/* ---- command lines ----------------------------------------------------------------------------
 */

static bool parse_dtype(const char *text, void *field, char *err, size_t n)
{
    DType dtype;
    if (!dtype_from_name(text, &dtype) || !dtype_is_float(dtype))
        return error_set(err, n, "--dtype is f64, f32, bf16 or f16, not \"%s\"", text);
    *(DType *)field = dtype;
    return true;
}

enum { DTYPE, REPETITIONS, THREADS, GEMM_OPTIONS, TOKENS = GEMM_OPTIONS, DEVICE, OPS_OPTIONS };
static const ArgOption options[OPS_OPTIONS] = {
    [DTYPE] = {.name = "--dtype",
               .value = "TYPE",
               .help = "f32 (default), f64, bf16 or f16",
               .kind = ARG_OWN,
               .at = offsetof(Arguments, dtype),
               .parse = parse_dtype},
    [REPETITIONS] = {.name = "--repetitions",
                     .value = "N",
                     .help = "of which the median is shown; default 9",
                     .kind = ARG_INTEGER,
                     .at = offsetof(Arguments, repetitions),
                     .least = 1,
                     .most = MAX_REPETITIONS},
    [THREADS] = {.name = "--threads",
                 .value = "N",
                 .help = "of the CPU; default: the cores allowed to this process",
                 .kind = ARG_INTEGER,
                 .at = offsetof(Arguments, threads),
                 .least = 1,
                 .most = 4096},
    [TOKENS] = {.name = "--tokens",
                .value = "N",
                .help = "in the step; default 1024",
                .kind = ARG_INTEGER,
                .at = offsetof(Arguments, tokens),
                .least = 1,
                .most = MAX_TOKENS},
    [DEVICE] = {.name = "--device",
                .value = "NAME",
                .help = "auto (default), cuda or cpu",
                .kind = ARG_NAME,
                .at = offsetof(Arguments, device)},
};

static const Arguments defaults = {
    .dtype = F32, .repetitions = 9, .tokens = 1024, .device = "auto"};

const ArgCommand cmd_bench_ops = {
    .name = "ops",
    .call = "./train bench ops",
    .usage = "[options]",
    .summary = "the calls of a GPT-2 124M training step, each beside its floor",
    .options = options,
    .n_options = OPS_OPTIONS,
    .size = sizeof(Arguments),
    .defaults = &defaults,
    .run = bench_ops,
};

const ArgCommand cmd_bench_gemm = {
    .name = "gemm",
    .call = "./train bench gemm",
    .usage = "[options]",
    .summary = "OpenBLAS beside the built-in products",
    .options = options,
    .n_options = GEMM_OPTIONS,
    .size = sizeof(Arguments),
    .defaults = &defaults,
    .run = bench_gemm,
};
