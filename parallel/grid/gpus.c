/* gpus.c -- see gpus.h. */
#include "parallel/grid/gpus.h"

#include "model/core/check.h"
#include "model/core/machine.h"
#include "parallel/comm/nccl/nccl.h"
#include "parallel/grid/control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char gpus_shared[] = "share the GPU, and reach each other through its memory";

bool gpus_each(DeviceSurvey seen, int64_t ranks)
{
    return ranks > 1 && seen.choice != NULL && seen.choice->count != NULL && seen.count >= ranks;
}

void gpus_prepare_driver(int64_t ranks)
{
    /* A rank has five streams, and NCCL adds a few for each communicator. With the default of eight
     * hardware queues some of them share one, where computation may wait for communication that is
     * not needed yet. */
    if (ranks > 1) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

bool gpus_prepare(DeviceSurvey seen, int ranks, LaunchKind kind)
{
    bool each = gpus_each(seen, ranks);
    if (kind.processes && kind.threads)
        fail(EXIT_USAGE, "--processes and --no-processes contradict each other");
    if (each && kind.threads) {
        /* A rank opens tens of sockets and device files, and all ranks are threads of this
         * process. The usual soft limit is 1024. */
        raise_limit_of_open_files();
        nccl_set_environment();
    }
    return ranks > 1 && !kind.threads && (kind.processes || each);
}

/* The name of a GPU among all ranks, with which NCCL tells GPUs apart, too. */
typedef struct {
    char host[256]; /* NCCL_HOSTID, or the id of the machine's last boot */
    char bus[32];   /* "": unknown */
} GpuName;

void gpus_prepare_process(int rank)
{
    const char *given = getenv("NCCL_HOSTID");
    char name[32];
    nccl_set_environment();
    if (given == NULL || strcmp(given, "each") != 0) return;
    snprintf(name, sizeof name, "rank-%d", rank);
    setenv("NCCL_HOSTID", name, 1);
}

static GpuName gpu_name(const Device *dev)
{
    GpuName name = {.host = ""};
    const char *given = getenv("NCCL_HOSTID");
    FILE *boot = given ? NULL : fopen("/proc/sys/kernel/random/boot_id", "re");
    device_bus_id(dev, name.bus, sizeof name.bus);
    if (given) snprintf(name.host, sizeof name.host, "%s", given);
    if (boot && fgets(name.host, sizeof name.host, boot) == NULL) name.host[0] = '\0';
    if (boot) fclose(boot);
    return name;
}

/* Two ranks with the same GPU; a < 0: there are none. */
typedef struct {
    int a, b;
    char bus[32];
} GpuTwice;

/* Two device numbers may be the same GPU, because CUDA_VISIBLE_DEVICES may list it twice. */
static GpuTwice find_twice(Comm *world, const Device *dev)
{
    GpuName own = gpu_name(dev), *all = must_calloc((size_t)world->size, sizeof *all);
    GpuTwice twice = {.a = -1};
    comm_all_gather(world, NULL, tensor_1d(all, U8, (int64_t)sizeof own * world->size),
                    tensor_1d(&own, U8, (int64_t)sizeof own));
    for (int a = 0; a < world->size && twice.a < 0; a++)
        for (int b = a + 1; b < world->size && twice.a < 0; b++)
            if (all[a].bus[0] && strcmp(all[a].bus, all[b].bus) == 0 &&
                strcmp(all[a].host, all[b].host) == 0)
                twice = (GpuTwice){.a = a, .b = b};
    if (twice.a >= 0) memcpy(twice.bus, all[twice.a].bus, sizeof twice.bus);
    free(all);
    return twice;
}

/* Ends the program if there are fewer GPUs than ranks, unless the ranks are processes that NCCL
 * lets share them, or if two ranks have the same GPU. */
static void require_own(Comm *world, const Device *dev, bool processes, int64_t gpus)
{
    const char *several = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    bool free_choice = several && strcmp(several, "1") == 0, few = gpus < world->size;
    GpuTwice twice = find_twice(world, dev);
    if (twice.a >= 0 && processes && gpus == 1 && !free_choice)
        control_fail(world, EXIT_CONFIG,
                     "ranks %d and %d are processes with the same GPU, %s, where a process cannot "
                     "reach the memory of another; leave out --processes, write --ranks 1, or set "
                     "device \"cpu\" (NCCL_HOSTID=each lets NCCL try it, slowly)",
                     twice.a, twice.b, twice.bus);
    if (few && (!processes || (twice.a >= 0 && !free_choice)))
        control_fail(world, EXIT_CONFIG,
                     "%d ranks cannot be shared out to %lld GPUs: a rank has a GPU of its own, or "
                     "all share a single one; write --ranks %lld or less, or name one GPU in "
                     "CUDA_VISIBLE_DEVICES",
                     world->size, (long long)gpus, (long long)gpus);
    if (twice.a >= 0 && !free_choice)
        control_fail(world, EXIT_CONFIG,
                     "ranks %d and %d have the same GPU, %s; name each GPU once in "
                     "CUDA_VISIBLE_DEVICES, or write fewer --ranks (NCCL 2.30 or newer lets "
                     "ranks share GPUs if NCCL_MULTI_RANK_GPU_ENABLE=1)",
                     twice.a, twice.b, twice.bus);
}

Gpus gpus_agree(Comm *world, const Device *dev)
{
    char err[1024] = "";
    if (world->size == 1) return GPUS_NONE;
    bool processes = strcmp(launch_kind(world), "processes") == 0;
    int64_t there = dev->backend->place == PLACE_DEVICE ? device_count(dev) : 0;
    /* If a rank has fallen back to its CPU, control_require_alike will report it. */
    int64_t least = -control_max(world, -there);
    if (least == 0) return GPUS_NONE;
    if (least == 1 && !processes) return GPUS_ONE;
    require_own(world, dev, processes, least);
    /* One rank may fail to load NCCL although the others succeed; all ranks must decide the same.
     */
    bool open = nccl_open(err, sizeof err);
    if (!control_agree(world, open, err, sizeof err))
        control_fail(world, EXIT_UNAVAILABLE, "%s", err);
    return GPUS_EACH;
}
