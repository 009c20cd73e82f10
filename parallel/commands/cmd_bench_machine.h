/* cmd_bench_machine.h -- the parts of `./train bench machine`. */
#ifndef PARALLEL_COMMANDS_CMD_BENCH_MACHINE_H
#define PARALLEL_COMMANDS_CMD_BENCH_MACHINE_H

#include "configs/machine_file/hardware.h"
#include "model/core/min_max.h"
#include "parallel/commands/bench_fit.h"
#include "parallel/commands/cmd_bench.h"
#include "parallel/grid/launch.h"

enum { MACHINE_WHOLE = 100 };

typedef struct {
    const char *device, *disk;
    int64_t ranks, repetitions, size; /* size: percent of the usual one */
    LaunchKind kind;
} MachineArguments;

/* What has been measured so far. */
typedef struct {
    const MachineArguments *a;
    Device dev;
    MemoryCopy blocks; /* copied to measure the bandwidth, and read to empty the caches */
    void *stats;       /* a double in device memory */
    DType dtype;       /* dtype of memory-bound ops and of attention: bf16 on a GPU, f32 on a CPU */
    Hardware hardware;
    const char *preset; /* on which the file is based */
    bool known;         /* the preset is that of this GPU, so its peaks are those of a data sheet */
    DeviceFacts facts;
    int devices;            /* of this node: GPUs, or the ranks that share its CPU */
    bool calls;             /* calls between ranks are measured */
    MeasuredCalls of_ranks; /* valid if `calls` */
    double launch;          /* the measured time of a launch, before hardware_limit */
    Progress progress;
    bool quiet; /* true: no progress is printed */
} MachineBench;

/* Returns `whole`, scaled down to the size that --size asks for, at least 16. */
static inline int64_t bench_scaled(const MachineBench *b, int64_t whole)
{
    return max_i64(whole * b->a->size / MACHINE_WHOLE, 16);
}

/* Measures kernels of the open device and its link to the host. Sets launch, product, the peaks,
 * attention_*, memory_* and host_bandwidth of b->hardware. */
void bench_machine_kernels(MachineBench *b);

#endif
