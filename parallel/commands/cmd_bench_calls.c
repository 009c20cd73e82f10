/* cmd_bench_calls.c -- measures the collectives and messages between ranks, for `./train bench
 * comm` and `./train bench machine`. */
#include "parallel/commands/cmd_bench_calls.h"
#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/figures.h"
#include "model/kernels/ops.h"
#include "parallel/comm/nccl/nccl.h"
#include "parallel/grid/control.h"
#include "parallel/grid/machines.h"

#include <stdio.h>

/* The device and the buffers of one rank. */
typedef struct {
    Device dev;
    int64_t bytes; /* the size of the largest call, and of x and y each */
    float *x;
    float *y; /* receives messages */
} Mine;

static void call(Comm *world, Mine *p, int verb, int64_t bytes)
{
    int n = world->size;
    /* All ranks get parts of equal size. If n is not a power of two, the total is slightly smaller
     * than `bytes`. */
    int64_t part = bytes / (int64_t)sizeof(float) / n;
    Tensor whole = tensor_1d(p->x, F32, part * n), other = tensor_1d(p->y, F32, part * n);
    Tensor own = tensor_slice_rows(whole, world->rank * part, part);
    switch (verb) {
    case COMM_ALL_REDUCE: comm_all_reduce(world, &p->dev, whole, REDUCE_SUM); break;
    case COMM_REDUCE_SCATTER: comm_reduce_scatter(world, &p->dev, own, whole); break;
    case COMM_ALL_GATHER: comm_all_gather(world, &p->dev, whole, own); break;
    case COMM_BROADCAST: comm_broadcast(world, &p->dev, whole, 0); break;
    case BOTH_WAYS:
        comm_group_begin(world);
        comm_send(world, &p->dev, whole, (world->rank + 1) % n);
        comm_receive(world, &p->dev, other, (world->rank + n - 1) % n);
        comm_group_end(world);
        break;
    default: /* ONE_WAY: the last of an odd number of ranks has no partner */
        if (world->rank % 2 == 1)
            comm_receive(world, &p->dev, other, world->rank - 1);
        else if (world->rank + 1 < n)
            comm_send(world, &p->dev, whole, world->rank + 1);
    }
}

/* Makes `calls` calls in a row and returns the mean seconds per call. */
static double time_calls(Comm *world, Mine *p, int verb, int64_t bytes, int64_t calls)
{
    /* All ranks start together; otherwise the time that the others wait for a late rank would be
     * included. */
    comm_barrier(world);
    double from = seconds_now();
    for (int64_t c = 0; c < calls; c++)
        call(world, p, verb, bytes);
    device_synchronize(&p->dev);
    return (seconds_now() - from) / (double)calls;
}

/* Returns the median seconds of one call. Small calls are timed in groups of 10 or 100, unless they
 * are slow. */
static double call_seconds(Comm *world, Mine *p, int verb, int64_t bytes, int repetitions)
{
    const double takes_long = 0.01;
    double seconds[BENCH_MOST_REPETITIONS];
    /* Enough calls in a row for an exact time. A single call of the largest size is long enough. */
    int64_t calls = bytes < 1 << 20 ? 100 : bytes < LARGEST_CALL ? 10 : 1;
    time_calls(world, p, verb, bytes, 1); /* warms up */
    if (control_max(world, time_calls(world, p, verb, bytes, 1) > takes_long) != 0) calls = 1;
    for (int i = 0; i < repetitions; i++)
        seconds[i] = time_calls(world, p, verb, bytes, calls);
    return bench_median(seconds, repetitions);
}

/* Returns the memory bandwidth of all ranks together in bytes per second, measured by x = x + y,
 * which reads two streams and writes one. As with the measured calls, data that fit in the caches
 * are already there. */
static double memory_rate(Comm *world, Mine *p, int repetitions)
{
    double seconds[BENCH_MOST_REPETITIONS];
    int64_t n = p->bytes / (int64_t)sizeof(float);
    Tensor x = tensor_1d(p->x, F32, n), y = tensor_1d(p->y, F32, n);
    /* The first round is not counted; it only touches the pages. */
    for (int i = -1; i < repetitions; i++) {
        comm_barrier(world);
        double from = seconds_now();
        op_add(&p->dev, x, x, y);
        device_synchronize(&p->dev);
        comm_barrier(world);
        if (i >= 0) seconds[i] = seconds_now() - from;
    }
    return 3.0 * (double)p->bytes * world->size / bench_median(seconds, repetitions);
}

static int rank_main(Comm *world, void *context)
{
    CallsMeasured *r = context;
    Mine p;
    Machines machines = machines_of(world);
    DeviceOptions options = {.local_ranks = machines_share_cores(world),
                             .index = machines.local_rank,
                             .blas = BLAS_BUILTIN};
    char err[512];
    if (!device_open(&p.dev, r->wanted->device, &options, err, sizeof err))
        control_fail(world, EXIT_UNAVAILABLE, "%s", err);
    if (world->rank == 0) device_warn(&p.dev);
    Gpus gpus = gpus_agree(world, &p.dev);
    int sizes = (int)r->wanted->sizes;
    p.bytes = call_bytes(sizes - 1);
    p.x = device_alloc(&p.dev, 2 * (size_t)p.bytes, "the tensors of the calls");
    p.y = p.x + p.bytes / (int64_t)sizeof(float);
    op_fill(&p.dev, tensor_1d(p.x, F32, 2 * p.bytes / (int64_t)sizeof(float)), 0);
    int repetitions = (int)r->wanted->repetitions;
    Progress progress = progress_begin_quiet();
    progress_print(&progress, "measuring the memory");
    double memory = memory_rate(world, &p, repetitions);
    Comm all = comm_split(world, "all", 0, world->rank); /* closed before the device */
    /* If each rank has its own GPU, the same calls go through NCCL, as in a training run. */
    if (gpus == GPUS_EACH)
        nccl_connect(&all, &p.dev, (NcclUse){NCCL_IN_RING, 0}, (double)r->wanted->timeout);
    for (int verb = 0; verb < CALL_VERBS; verb++)
        for (int s = 0; s < sizes; s++) {
            progress_count(&progress, verb * sizes + s, CALL_VERBS * sizes, "measuring %s of %s",
                           comm_verb_name[verb], figure_bytes((double)call_bytes(s)).text);
            double seconds = call_seconds(&all, &p, verb, call_bytes(s), repetitions);
            if (world->rank == 0) r->seconds[verb][s] = seconds;
        }
    progress_end(&progress);
    if (world->rank == 0) {
        r->memory = memory;
        device_describe(&p.dev, r->device, sizeof r->device);
        r->gpus = gpus;
        snprintf(r->transport, sizeof r->transport, "%s", all.ops->name);
        /* The version is part of the result, as different versions of NCCL differ in speed. */
        if (gpus == GPUS_EACH) nccl_version(r->transport, sizeof r->transport);
    }
    /* Waits for all ranks before it releases memory: another rank may still be reading this rank's
     * memory, and a release may wait for the work of all devices (see session_meet in
     * session.h). */
    device_synchronize(&p.dev);
    comm_barrier(world);
    comm_close(&all);
    device_release(&p.dev, p.x, 2 * (size_t)p.bytes);
    device_close(&p.dev);
    return EXIT_OK;
}

int calls_measure(const CallsWanted *wanted, CallsMeasured *out)
{
    gpus_prepare_driver(wanted->ranks);
    bool processes = gpus_prepare(device_survey(wanted->device), (int)wanted->ranks, wanted->kind);
    *out = (CallsMeasured){.wanted = wanted, .processes = processes};
    const LaunchOptions launch = {.timeout = (double)wanted->timeout,
                                  .processes = processes,
                                  .result = out,
                                  .result_bytes = sizeof *out};
    return launch_ranks((int)wanted->ranks, &launch, rank_main, out);
}
