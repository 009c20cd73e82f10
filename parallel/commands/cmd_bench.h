/* cmd_bench.h -- declares the commands of `./train bench` and the helpers that they share: device
 * timers, medians, memory loops, and the operands of ops. */
#ifndef PARALLEL_COMMANDS_CMD_BENCH_H
#define PARALLEL_COMMANDS_CMD_BENCH_H

#include "model/core/args.h"
#include "model/core/device.h"
#include "model/core/progress.h"
#include "model/kernels/op_cases.h"

extern const ArgCommand cmd_bench_step, cmd_bench_ops, cmd_bench_gemm, cmd_bench_comm,
    cmd_bench_parallel, cmd_bench_machine;

/* Measures the time between two events on the device. */
typedef struct {
    Event from, to;
} Stopwatch;

/* stopwatch_stop returns the device time in seconds since stopwatch_start, and waits for the work
 * that was enqueued in between. */
void stopwatch_start(Device *dev, Stopwatch *w);
double stopwatch_stop(Device *dev, Stopwatch *w);
void stopwatch_close(Device *dev, Stopwatch *w);

/* Returns the median of x[0..n); sorts x. */
double bench_median(double *x, int n);

/* A loop over n elements with four float reads and three float writes for each element, which is
 * the memory traffic of AdamW in f32: MEMORY_LOOP_BYTES per element. On the CPU, its threads run
 * the loop in place. On a GPU, it is replaced by device copies of as many bytes. */
enum { MEMORY_LOOP_BYTES = 28 };
typedef struct {
    float *a, *b, *c, *d;
    int64_t n, tasks;
} MemoryLoop;

MemoryLoop memory_loop_open(Device *dev, int64_t n);
void memory_loop_run(Device *dev, MemoryLoop *l);

/* A copy between two blocks of device memory: by all CPU threads on the CPU, by a device copy on a
 * GPU. Its measured rate is the upper limit for ops that move data. Before another call is
 * measured, such a copy evicts that call's operands from the caches. */
typedef struct {
    char *to, *from;
    int64_t bytes, tasks;
} MemoryCopy;

MemoryCopy memory_copy_open(Device *dev, int64_t bytes);
void memory_copy_run(Device *dev, MemoryCopy *s);
void memory_copy_close(Device *dev, MemoryCopy *s);

/* The buffers for a replay of a step's matrix products: inputs, outputs, weights and their
 * gradients. Each product uses the next range of the weights or gradients. */
typedef struct {
    Device *dev;
    DType dtype, gradient; /* of the model's storage; of the weights' gradients */
    void *x, *y, *w, *g;   /* device memory; g is NULL if the gradients have the storage type */
    int64_t n_x, n_y, n_weights;
    int64_t at; /* index of the next weight that a product will use */
} Replay;

/* Allocates the buffers in the size that the list of products in the profile needs, and fills them
 * with normally distributed numbers. `n_weights` is the number of the model's weights. */
Replay replay_open(Device *dev, DType dtype, const Profile *list, int64_t n_weights);
/* Queues all products of the list, without bias and epilogue. Each result has the dtype that it had
 * in the step: a product that writes f32 gradients takes longer than one that writes 16 bits. */
void replay_run(Replay *r, const Profile *list);
void replay_close(Replay *r);

/* The options of `bench ops`; `bench gemm` takes the first three. */
typedef struct {
    DType dtype;
    int64_t repetitions, threads, tokens;
    const char *device;
    const char *only; /* NULL: all ops */
} BenchArguments;
enum { BENCH_GEMM_OPTIONS = 3, BENCH_OPS_OPTIONS = 6, BENCH_MOST_REPETITIONS = 101 };
extern const ArgOption bench_options[BENCH_OPS_OPTIONS];
extern const BenchArguments bench_defaults;

/* The device memory for the operands of one call. */
typedef struct {
    Tensor tensor[CASE_OPERANDS];
    StepDecision *decision;
    int count;
} Operands;

/* Allocates operands with the shapes of case `c` and fills them with numbers from their usual
 * ranges. `storage` is the dtype of the model's weights and activations. */
Operands operands_create(Device *dev, const OpCase *c, DType storage);
void operands_release(Device *dev, Operands *o);

#endif
