/* cmd_bench.h -- the commands of `./train bench`, and how they measure. */
#ifndef PARALLEL_COMMANDS_CMD_BENCH_H
#define PARALLEL_COMMANDS_CMD_BENCH_H

#include "model/core/args.h"
#include "model/core/device.h"
#include "model/kernels/op_cases.h"

extern const ArgCommand cmd_bench_step, cmd_bench_ops, cmd_bench_gemm, cmd_bench_comm,
    cmd_bench_parallel;

/* Between two marks on the device's time line. */
typedef struct {
    Event from, to;
} Stopwatch;

/* Seconds of the device's time since stopwatch_start; waits for what was asked for in between. */
void stopwatch_start(Device *dev, Stopwatch *w);
double stopwatch_stop(Device *dev, Stopwatch *w);
void stopwatch_close(Device *dev, Stopwatch *w);

/* Median of x[0..n), which it sorts. */
double bench_median(double *x, int n);

/* Four reads and three writes of n floats, as AdamW has them in f32: MEMORY_LOOP_BYTES an element.
 * Where the host computes, in place by its threads; elsewhere as copies of as many bytes. */
enum { MEMORY_LOOP_BYTES = 28 };
typedef struct {
    float *a, *b, *c, *d;
    int64_t n, tasks;
} MemoryLoop;

MemoryLoop memory_loop_open(Device *dev, int64_t n);
void memory_loop_run(Device *dev, MemoryLoop *l);

/* A copy between two blocks of device memory: by all the host's threads where it computes, else by
 * the device. Timed, it is the ceiling of what moves data; run before a call, it leaves none of the
 * call's operands in the caches. */
typedef struct {
    char *to, *from;
    int64_t bytes, tasks;
} MemoryCopy;

MemoryCopy memory_copy_open(Device *dev, int64_t bytes);
void memory_copy_run(Device *dev, MemoryCopy *s);
void memory_copy_close(Device *dev, MemoryCopy *s);

/* What ops and gemm take: gemm the first three options of ops. */
typedef struct {
    DType dtype;
    int64_t repetitions, threads, tokens;
    const char *device;
} BenchArguments;
enum { BENCH_GEMM_OPTIONS = 3, BENCH_OPS_OPTIONS = 5, BENCH_MOST_REPETITIONS = 101 };
extern const ArgOption bench_options[BENCH_OPS_OPTIONS];
extern const BenchArguments bench_defaults;

/* Device memory of one call. */
typedef struct {
    Tensor tensor[CASE_OPERANDS];
    StepDecision *decision;
    int count;
} Operands;

/* Operands of the case's shapes, of which `storage` is the type that a model would keep, filled
 * with ordinary numbers. */
Operands operands_create(Device *dev, const OpCase *c, DType storage);
void operands_release(Device *dev, Operands *o);

#endif
