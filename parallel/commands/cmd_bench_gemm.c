/* cmd_bench_gemm.c -- `./train bench gemm`: compares OpenBLAS with the built-in matrix products, on
 * the products of a GPT-2 124M step. Both run alternately on the same operands. */
#include "model/core/check.h"
#include "parallel/commands/cmd_bench.h"

#include <stdio.h>

/* Opens the CPU device with OpenBLAS or with the built-in products. Returns false if OpenBLAS is
 * not installed. */
static bool open_cpu(Device *dev, const BenchArguments *a, BlasChoice blas)
{
    DeviceOptions options = {.threads = a->threads, .local_ranks = 1, .blas = blas};
    char err[256];
    if (device_open(dev, "cpu", &options, err, sizeof err)) return true;
    if (blas != BLAS_OPENBLAS) fail(EXIT_UNAVAILABLE, "%s", err);
    printf("without OpenBLAS: %s\n", err);
    return false;
}

/* Runs the case once and returns its seconds. */
static double timed_run(Device *dev, const OpCase *c, const Operands *o)
{
    Stopwatch watch = {0};
    stopwatch_start(dev, &watch);
    op_case_run(dev, c, o->tensor, o->decision);
    return stopwatch_stop(dev, &watch);
}

/* Measures both devices alternately on the same operands and prints one line. dev[0] (OpenBLAS) may
 * be closed. Returns the rate of dev[1] divided by that of dev[0], or 0 if dev[0] is closed. */
static double gemm_line(Device dev[2], const OpCase *c, const BenchArguments *a)
{
    double seconds[2][BENCH_MOST_REPETITIONS], rate[2] = {0, 0};
    Operands o = operands_create(&dev[1], c, a->dtype);
    char text[160];
    Progress progress = progress_begin_quiet();
    progress_print(&progress, "measuring %s", op_case_describe(c, text, sizeof text));
    /* The devices take turns, so other load on the machine slows both alike. The first round warms
     * up. */
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
    progress_end(&progress);
    printf("%-45s %10.1f %10.1f %9.1f\n", op_case_describe(c, text, sizeof text), rate[0], rate[1],
           100 * share);
    fflush(stdout);
    operands_release(&dev[1], &o);
    return share;
}

static int bench_gemm(const void *values)
{
    /* The products of a block of GPT-2 124M (qkv, projection, up, down) and one chunk of its head.
     */
    static const OpId op[] = {OP_linear_forward, OP_linear_backward_input,
                              OP_linear_backward_weight};
    static const int64_t shape[][2] = {
        {768, 2304}, {768, 768}, {768, 3072}, {3072, 768}, {768, 8192}};
    static const int64_t rows[] = {256, 1024};
    enum { SHAPES = 5, OPS = 3, ROWS = 2 };
    const BenchArguments *a = values;
    Device dev[2] = {{0}, {0}};
    double share[SHAPES * OPS * ROWS];
    char text[160];
    int lines = 0;
    /* Without OpenBLAS the table still shows the built-in products. */
    bool openblas = open_cpu(&dev[0], a, BLAS_OPENBLAS);
    open_cpu(&dev[1], a, BLAS_BUILTIN);
    printf("%s, %s, medians of %lld, in turns\n",
           device_describe(&dev[openblas ? 0 : 1], text, sizeof text), dtype_name(a->dtype),
           (long long)a->repetitions);
    printf("%-45s %10s %10s %9s\n", "N x inputs x outputs", "OpenBLAS", "built-in", "% (GFLOP/s)");
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

const ArgCommand cmd_bench_gemm = {
    .name = "gemm",
    .call = "./train bench gemm",
    .usage = "[options]",
    .summary = "OpenBLAS beside the built-in products",
    .options = bench_options,
    .n_options = BENCH_GEMM_OPTIONS,
    .size = sizeof(BenchArguments),
    .defaults = &bench_defaults,
    .run = bench_gemm,
};
