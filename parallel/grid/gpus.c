/* gpus.c -- assigns GPUs to ranks and checks the assignment. See gpus.h. */
#include "parallel/grid/gpus.h"

#include "model/core/check.h"
#include "model/core/hash.h"
#include "model/core/machine.h"
#include "parallel/comm/nccl/nccl.h"
#include "parallel/grid/control.h"
#include "parallel/grid/machines.h"
#include "parallel/grid/started_by.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char gpus_shared[] = "share the GPU, and reach each other through its memory";

/* Returns whether a launcher has started this process as one of several ranks. */
static bool is_joined(void)
{
    StartedBy s;
    char ignored[512];
    return started_by_read(&s, &process_environment, ignored, sizeof ignored) && s.size > 1;
}

bool gpus_each(DeviceSurvey seen, int64_t ranks)
{
    bool counted = seen.choice != NULL && seen.choice->count != NULL;
    return ranks > 1 && counted && (seen.count >= ranks || (seen.count > 0 && is_joined()));
}

void gpus_prepare_driver(int64_t ranks)
{
    /* A rank has six streams, and NCCL adds a few for each communicator. With the default of eight
     * hardware queues several streams share a queue, so computation may wait there behind
     * communication that it does not need yet. */
    if (ranks > 1) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

bool gpus_prepare(DeviceSurvey seen, int ranks, LaunchKind kind)
{
    bool each = gpus_each(seen, ranks);
    if (launch_joined()) return true;
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

/* A name that identifies a GPU among the GPUs of all ranks. NCCL identifies GPUs by the same two
 * properties. */
typedef struct {
    char host[256]; /* the value of NCCL_HOSTID; without it, an identification of the machine */
    char bus[32];   /* the GPU's bus id; "": unknown */
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

/* Returns a hash of the GPU's name; 0: its bus id is not known. Without NCCL_HOSTID, NCCL
 * identifies a machine by its host name and the id of its last boot. The rendezvous of ranks that a
 * launcher has started has numbered the machines by the same two values, so the number is used for
 * these ranks. Ranks that this program has started are all on one machine, so for them the id of
 * the boot is enough. */
static uint64_t gpu_name(const Comm *world, const Device *dev)
{
    GpuName name = {.host = ""};
    Machines machines = machines_of(world);
    const char *given = getenv("NCCL_HOSTID");
    FILE *boot = given || machines.joined ? NULL : fopen("/proc/sys/kernel/random/boot_id", "re");
    device_bus_id(dev, name.bus, sizeof name.bus);
    if (machines.joined) snprintf(name.host, sizeof name.host, "machine %d", machines.own);
    if (given) snprintf(name.host, sizeof name.host, "%s", given);
    if (boot && fgets(name.host, sizeof name.host, boot) == NULL) name.host[0] = '\0';
    if (boot) fclose(boot);
    uint64_t hash = hash_bytes(hash_bytes(0, name.host, (int64_t)strlen(name.host)), name.bus,
                               (int64_t)strlen(name.bus));
    return name.bus[0] == '\0' ? 0 : hash == 0 ? 1 : hash;
}

/* Two ranks, a and b, with the same GPU; a < 0: no two ranks have the same GPU. */
typedef struct {
    int a, b;
    char bus[32];
} GpuTwice;

typedef struct {
    uint64_t name;
    int rank;
} RankGpu;

static int by_name(const void *a, const void *b)
{
    const RankGpu *x = a, *y = b;
    if (x->name != y->name) return x->name < y->name ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Returns the first two of n ranks that have the same GPU. */
static GpuTwice first_twice(RankGpu *of, int n)
{
    GpuTwice twice = {.a = -1};
    qsort(of, (size_t)n, sizeof *of, by_name);
    for (int i = 1; i < n; i++)
        if (of[i].name != 0 && of[i].name == of[i - 1].name &&
            (twice.a < 0 || of[i - 1].rank < twice.a))
            twice = (GpuTwice){.a = of[i - 1].rank, .b = of[i].rank};
    return twice;
}

/* Finds two ranks that have the same GPU; the result is the same on all ranks. Compares names of
 * GPUs, because two device numbers may denote the same GPU: CUDA_VISIBLE_DEVICES may list a GPU
 * twice. */
static GpuTwice find_twice(Comm *world, const Device *dev)
{
    /* With several machines, the ranks of each machine compare names only among themselves, because
     * in a large world not all ranks can exchange names. If NCCL_HOSTID is set, all ranks must
     * compare, because it may be the same on two machines. */
    bool apart =
        machines_of(world).count > 1 && control_max(world, getenv("NCCL_HOSTID") != NULL) == 0;
    Comm split, *here = world;
    if (apart) {
        split = machines_split(world);
        here = &split;
    }
    RankGpu own = {.rank = world->rank}, *all = must_calloc((size_t)here->size, sizeof *all);
    own.name = gpu_name(world, dev);
    comm_all_gather(here, NULL, tensor_1d(all, U8, (int64_t)sizeof own * here->size),
                    tensor_1d(&own, U8, (int64_t)sizeof own));
    GpuTwice twice = first_twice(all, here->size);
    free(all);
    if (apart) comm_close(&split);
    int64_t first = control_max(world, twice.a >= 0 ? world->size - twice.a : 0);
    if (first == 0) return twice;
    device_bus_id(dev, twice.bus, sizeof twice.bus);
    comm_broadcast(world, NULL, tensor_1d(&twice, U8, (int64_t)sizeof twice),
                   world->size - (int)first);
    return twice;
}

/* Returns whether ranks may share a GPU because the user has allowed NCCL to do so. */
static bool may_share(void)
{
    const char *several = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    return several && strcmp(several, "1") == 0;
}

/* For ranks that a launcher has started, which may see different GPUs. Unless the user allows NCCL
 * to share GPUs (may_share), ends the program if two ranks have the same GPU or, where bus ids are
 * not known, if a rank sees fewer GPUs than its machine has ranks. `gpus`: how many GPUs this rank
 * sees. If a rank sees only one GPU, the numbers are not compared, because the launcher may have
 * given each rank its own GPU. */
static void require_own_joined(Comm *world, const Device *dev, int64_t gpus)
{
    static const char advice[] = "start as many ranks on a machine as it has GPUs, give each its "
                                 "own (srun --gpus-per-task=1), or set device \"cpu\"";
    char place[300], bus[32];
    GpuTwice twice = find_twice(world, dev);
    int64_t there[2] = {gpus, machines_of(world).local_ranks};
    /* If the bus id is known, find_twice has already found whether two ranks have the same GPU. */
    bool unnamed = *device_bus_id(dev, bus, sizeof bus) == '\0';
    bool few = unnamed && there[0] > 1 && there[0] < there[1];
    int64_t first = control_max(world, few ? world->size - world->rank : 0);
    int rank = first ? world->size - (int)first : 0;
    comm_broadcast(world, NULL, tensor_1d(there, I64, 2), rank);
    if (first && !may_share())
        control_fail(world, EXIT_CONFIG, "%lld ranks%s cannot be shared out to %lld GPUs; %s",
                     (long long)there[1], machines_place(world, rank, place, sizeof place),
                     (long long)there[0], advice);
    if (twice.a >= 0 && !may_share())
        control_fail(world, EXIT_CONFIG, "ranks %d and %d%s have the same GPU, %s; %s", twice.a,
                     twice.b, machines_place(world, twice.a, place, sizeof place), twice.bus,
                     advice);
}

/* For ranks that this program has started: ends the program if two ranks have the same GPU (unless
 * the user allows NCCL to share GPUs, may_share), or if the ranks are threads and there are fewer
 * GPUs than ranks. `gpus`: the smallest number of GPUs that any rank sees. */
static void require_own(Comm *world, const Device *dev, bool processes, int64_t gpus)
{
    bool free_choice = may_share(), few = gpus < world->size;
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

int64_t gpus_number(const Device *dev)
{
    char bus[32];
    device_bus_id(dev, bus, sizeof bus);
    if (bus[0] == '\0') return dev->index;
    return -1 - (int64_t)(hash_bytes(0, bus, (int64_t)strlen(bus)) >> 1);
}

Gpus gpus_agree(Comm *world, const Device *dev)
{
    char err[1024] = "";
    if (world->size == 1) return GPUS_NONE;
    bool joined = machines_of(world).joined;
    bool processes = joined || strcmp(launch_kind(world), "processes") == 0;
    int64_t there = dev->backend->place == PLACE_DEVICE ? device_count(dev) : 0;
    /* If any rank has no GPU, all return GPUS_NONE. If some ranks have one and others have fallen
     * back to their CPUs, control_require_alike reports that later. */
    int64_t least = -control_max(world, -there);
    if (least == 0) return GPUS_NONE;
    if (least == 1 && !processes) return GPUS_ONE;
    if (joined)
        require_own_joined(world, dev, there);
    else
        require_own(world, dev, processes, least);
    /* One rank may fail to load NCCL although the others succeed; all ranks must decide the same.
     */
    bool open = nccl_open(err, sizeof err);
    if (!control_agree(world, open, err, sizeof err))
        control_fail(world, EXIT_UNAVAILABLE, "%s", err);
    return GPUS_EACH;
}
