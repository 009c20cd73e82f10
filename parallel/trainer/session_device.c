/* session_device.c -- chooses and opens the device of a session, and its number of threads. See
 * session.h. */
#include "model/core/check.h"
#include "model/core/device_cpu.h"
#include "parallel/grid/control.h"
#include "parallel/grid/machines.h"
#include "parallel/trainer/session.h"

#include <stdio.h>
#include <string.h>

/* Returns the name of the device to open. Only the CPU computes in f64, so with fp64 "auto" means
 * the CPU. */
static const char *device_name(const Config *config)
{
    static const char *const name[] = {
        [DEVICE_AUTO] = "auto", [DEVICE_CPU] = "cpu", [DEVICE_CUDA] = "cuda"};
    bool cpu = config->fp64.enabled && config->device == DEVICE_AUTO;
    return cpu ? "cpu" : name[config->device];
}

bool session_on_cuda(const Config *config)
{
    const char *name = device_name(config);
    if (strcmp(name, "cpu") == 0) return false;
    gpus_prepare_driver(config->world);
    if (strcmp(name, "cuda") == 0) return true;
    const Backend *choice = device_survey(name).choice;
    return choice != NULL && strcmp(choice->name, "cuda") == 0;
}

static bool own_gpus(const Config *config)
{
    return session_on_cuda(config) && gpus_each(device_survey("cuda"), config->world);
}

DeviceFacts session_facts(const Config *config)
{
    if (!session_on_cuda(config)) return (DeviceFacts){0};
    const char *name = device_name(config);
    DeviceSurvey seen = device_survey(name);
    /* If each rank has its own GPU and there are more ranks than GPUs on this machine, the other
     * ranks are on other machines. Then only the GPUs of this machine are examined. */
    bool fewer = gpus_each(seen, config->world) && seen.count < config->world;
    return device_survey_facts(name, fewer ? seen.count : config->world);
}

DeviceFacts session_least_facts(const Config *config, Comm *world)
{
    DeviceFacts own = session_facts(config);
    return (DeviceFacts){.capability = (int)-control_max(world, -own.capability),
                         .bytes = -control_max(world, -own.bytes),
                         .lacks_hopper = control_max(world, own.lacks_hopper) > 0};
}

const Config *session_settle(const Config *config, int64_t vocab_size)
{
    char err[2048];
    ConfigFacts facts = {.device = session_facts, .vocab_size = vocab_size};
    const Config *settled = config_settle(config, &facts, err, sizeof err);
    if (settled == NULL) fail(EXIT_CONFIG, "%s", err);
    return settled;
}

ConfigContext session_context(int64_t world)
{
    return (ConfigContext){.on_cuda = session_on_cuda,
                           .own_gpus = own_gpus,
                           .world = world,
                           .launched = launch_joined()};
}

/* Returns the lowest level among the ranks' CPUs: ranks with different kernels would round
 * differently. Ends the program (EXIT_CONFIG) if the config asks for a level that a rank's CPU
 * lacks. */
static CpuLevel common_level(const Config *config, Comm *world)
{
    char err[512] = "", place[300];
    CpuLevel asked = config->cpu.level, best = cpu_level_best();
    bool good = asked <= best || session_on_cuda(config); /* CPU unused on GPU ranks */
    if (!good)
        error_set(err, sizeof err,
                  "rank %d%s: its CPU lacks %s, the best it has is %s; write cpu.level \"auto\"",
                  world->rank, machines_place(world, world->rank, place, sizeof place),
                  cpu_level_text(asked), cpu_level_text(best));
    if (!control_agree(world, good, err, sizeof err)) control_fail(world, EXIT_CONFIG, "%s", err);
    CpuLevel lowest = (CpuLevel)-control_max(world, -(int64_t)best);
    return asked == CPU_LEVEL_AUTO ? lowest : asked;
}

/* Returns how many threads each rank has if the config does not say: the smallest share of cores
 * among all ranks. The number of threads decides how some sums are divided, so it must be the same
 * on all. */
static int common_threads(Comm *world)
{
    int threads = pool_allowed_cores() / machines_share_cores(world);
    return (int)-control_max(world, -(int64_t)(threads > 0 ? threads : 1));
}

static DeviceOptions device_options(const Config *config, Comm *world)
{
    Machines machines = machines_of(world);
    DeviceOptions options = {.threads = (int)config->cpu.threads,
                             .local_ranks = machines.local_ranks,
                             .index = machines.local_rank,
                             .level = config->cpu.level,
                             .blas = config->cpu.blas,
                             .tf32 = config->cuda.tf32,
                             .hopper_attention = config->cuda.attention == ATTENTION_HOPPER};
    if (!machines.joined) return options;
    options.level = common_level(config, world);
    if (options.threads == 0) options.threads = common_threads(world);
    /* A rank that is a process has its own OpenBLAS and its own GPU, which it shares with no other
     * rank. */
    if (strcmp(launch_kind(world), "processes") == 0) options.local_ranks = 1;
    return options;
}

bool session_open_device(Device *dev, const Config *config, Comm *world, char *err, size_t n)
{
    DeviceOptions options = device_options(config, world);
    if (device_open(dev, device_name(config), &options, err, n)) return true;
    size_t used = strlen(err);
    if (config->device == DEVICE_CUDA)
        snprintf(err + used, n - used, "; to go on without it write device \"cpu\" or \"auto\"");
    return false;
}

LaunchOptions session_launch(const Config *config, int ranks, LaunchKind kind)
{
    DeviceSurvey seen = {0};
    if (ranks > 1 && !kind.processes && session_on_cuda(config)) seen = device_survey("cuda");
    return (LaunchOptions){.timeout = config->parallel.timeout,
                           .size = config_grid(config, ranks),
                           .processes = gpus_prepare(seen, ranks, kind)};
}
