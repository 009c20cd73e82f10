/* gpus.c -- see gpus.h. */
#include "parallel/grid/gpus.h"

#include "parallel/comm/nccl/nccl.h"
#include "parallel/grid/control.h"
#include "parallel/grid/launch.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

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

/* All ranks of a machine may be threads of this process: eight of them open several hundred sockets
 * and device files, and the usual soft limit is 1024. */
static void raise_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit); /* if that fails, NCCL reports a file that it cannot open */
}

void gpus_prepare(DeviceSurvey seen, int ranks)
{
    char err[1024];
    if (!gpus_each(seen, ranks)) return;
    raise_file_limit();
    nccl_open(err, sizeof err);
}

/* Ends the program if two ranks have the same GPU. */
static void require_own(Comm *world, const Device *dev)
{
    enum { BUS_ID = 32 };
    const char *several = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    char(*all)[BUS_ID] = must_calloc((size_t)world->size, sizeof *all), own[BUS_ID] = "";
    device_bus_id(dev, own, sizeof own);
    comm_all_gather(world, NULL, tensor_1d(all, U8, (int64_t)BUS_ID * world->size),
                    tensor_1d(own, U8, BUS_ID));
    /* Two device numbers may be the same GPU, because CUDA_VISIBLE_DEVICES may list it twice. */
    bool free_choice = several && strcmp(several, "1") == 0;
    for (int a = 0; a < world->size && !free_choice; a++)
        for (int b = a + 1; b < world->size; b++)
            if (all[a][0] && strcmp(all[a], all[b]) == 0)
                control_fail(
                    world, EXIT_CONFIG,
                    "ranks %d and %d have the same GPU, %s; name each GPU once in "
                    "CUDA_VISIBLE_DEVICES, or write fewer --ranks (NCCL 2.30 or newer lets "
                    "ranks share GPUs if NCCL_MULTI_RANK_GPU_ENABLE=1)",
                    a, b, all[a]);
    free(all);
}

Gpus gpus_agree(Comm *world, const Device *dev)
{
    char err[1024] = "";
    if (world->size == 1) return GPUS_NONE;
    int64_t there = dev->backend->place == PLACE_DEVICE ? device_count(dev) : 0;
    /* If a rank has fallen back to its CPU, control_require_alike will report it. */
    int64_t least = -control_max(world, -there);
    if (least == 0) return GPUS_NONE;
    if (least == 1 && launch_parent() != 0)
        control_fail(
            world, EXIT_CONFIG,
            "%d ranks that are processes cannot share the only GPU: a process cannot reach "
            "the GPU memory of another; leave out --processes, write --ranks 1, or set "
            "device \"cpu\"",
            world->size);
    if (least == 1) return GPUS_ONE;
    if (least < world->size)
        control_fail(world, EXIT_CONFIG,
                     "%d ranks cannot be shared out to %lld GPUs: a rank has a GPU of its own, or "
                     "all share a single one; write --ranks %lld or less, or name one GPU in "
                     "CUDA_VISIBLE_DEVICES",
                     world->size, (long long)least, (long long)least);
    /* One rank may fail to load NCCL although the others succeed; all ranks must decide the same.
     */
    if (launch_parent() != 0) raise_file_limit(); /* threads: gpus_prepare has done it */
    bool open = nccl_open(err, sizeof err);
    if (!control_agree(world, open, err, sizeof err))
        control_fail(world, EXIT_UNAVAILABLE, "%s", err);
    require_own(world, dev);
    return GPUS_EACH;
}
