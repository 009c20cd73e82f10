/* cmd_bench_machine.c -- `./train bench machine`: measures this machine and prints a machine file
 * (configs/machine_file). The same code measures CPUs and GPUs; only the sizes differ.
 *
 * First it starts ranks and measures the calls between them. They may be processes that use GPUs,
 * which can be started only before this process opens one. Then it opens one device and measures
 * its kernels. What cannot be measured on one machine, such as the network, is taken from a preset,
 * which is then given as the source. */
#include "parallel/commands/cmd_bench_machine.h"
#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/files.h"
#include "model/core/machine.h"
#include "model/core/version.h"
#include "parallel/commands/bench_sources.h"
#include "parallel/commands/cmd_bench_calls.h"
#include "parallel/run/ranks_option.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- calls between ranks, and the disk ------------------------------------------------------- */

/* Measures the calls between --ranks ranks: by default one for each CPU core or for each GPU, and
 * at least two. */
static void measure_calls(MachineBench *b)
{
    DeviceSurvey seen = device_survey(b->a->device);
    bool host = seen.choice != NULL && seen.choice->place == PLACE_HOST;
    int64_t devices = host ? pool_allowed_cores() : seen.count;
    /* A small --size omits the largest calls, which take most of the time. */
    int sizes = b->a->size < 10 ? CALL_SIZES - 1 : CALL_SIZES;
    const CallsWanted wanted = {.ranks = b->a->ranks ? b->a->ranks : max_i64(devices, 2),
                                .repetitions = b->a->repetitions,
                                .timeout = 600,
                                .sizes = sizes,
                                .device = b->a->device,
                                .kind = b->a->kind};
    CallsMeasured m;
    b->devices = (int)(host ? wanted.ranks : max_i64(devices, 1));
    /* With a single GPU there are no links between GPUs to measure. */
    if (!host && devices < 2) return;
    int code = calls_measure(&wanted, &m);
    if (code != EXIT_OK) exit(code);
    b->calls = true;
    b->of_ranks = (MeasuredCalls){.ranks = (int)wanted.ranks,
                                  .small_reduce = m.seconds[COMM_ALL_REDUCE][0],
                                  .small_message = m.seconds[BOTH_WAYS][0],
                                  .bandwidth = fit_bandwidth(&m, host)};
}

/* Measures how fast a file is written and synced in the folder --disk, and removes it. */
static void measure_disk(MachineBench *b)
{
    char err[512];
    int64_t part = 4 << 20, parts = max_i64(64 * b->a->size / MACHINE_WHOLE, 1);
    char *path = text_format("%s/bench_machine.%d", b->a->disk, (int)getpid());
    void *data = must_calloc(1, (size_t)part);
    AtomicFile file;
    progress_print(&b->progress, "measuring the disk");
    memset(data, 1, (size_t)part);
    double from = seconds_now();
    bool good = atomic_file_open(&file, &fs_system, path, err, sizeof err);
    for (int64_t i = 0; good && i < parts; i++) {
        good = atomic_file_write(&file, data, (size_t)part, err, sizeof err);
        if (!good) atomic_file_abort(&file);
    }
    good = good && atomic_file_commit(&file, err, sizeof err);
    if (!good) fail(EXIT_INPUT_OUTPUT, "--disk %s: %s", b->a->disk, err);
    double written = (double)(part * parts) / (seconds_now() - from);
    b->hardware.node_disk_bandwidth = written;
    b->hardware.disk_bandwidth = fmax(b->hardware.disk_bandwidth, written);
    unlink(path);
    free(data);
    free(path);
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Sets the numbers to those of the preset of the open GPU, or of the most similar preset, and to
 * what the system reports about this machine. */
static void begin(MachineBench *b, const char *description)
{
    char gpu[64], err[512];
    ExitCode code;
    hardware_gpu_name(description, gpu);
    b->preset = hardware_preset_of(gpu);
    b->known = b->preset != NULL;
    if (!b->known)
        b->preset = b->facts.bytes == 0          ? "cpu"
                    : b->facts.capability >= 100 ? "b200"
                    : b->facts.capability >= 90  ? "h200"
                                                 : "a100";
    CHECK(hardware_load(&b->hardware, b->preset, &code, err, sizeof err), "%s", err);
    Hardware *h = &b->hardware;
    memcpy(h->gpu, gpu, sizeof h->gpu);
    snprintf(h->name, sizeof h->name, "%.63s", description);
    h->device = b->facts;
    size_t kibibytes = kernel_number("/proc/meminfo", "MemTotal:");
    if (kibibytes != SIZE_MAX) h->host_bytes = (int64_t)kibibytes * 1024;
    b->dtype = h->cuda ? BF16 : F32;
    fit_node(h, b->devices);
    if (b->calls) fit_calls(&b->of_ranks, h);
}

/* Prints the machine file. */
static void print_machine(MachineBench *b, const char *description, bool given_ranks)
{
    Hardware measured = b->hardware;
    char by[512];
    time_t now = time(NULL);
    struct tm day;
    measured.launch = b->launch;
    hardware_limit(&b->hardware);
    gmtime_r(&now, &day);
    snprintf(by, sizeof by, "./train bench machine, %s, on %04d-%02d-%02d: %s", program_version(),
             day.tm_year + 1900, day.tm_mon + 1, day.tm_mday, description);
    BenchSources sources = {.printed = &b->hardware,
                            .measured = &measured,
                            .preset = b->preset,
                            .by = by,
                            .known = b->known,
                            .calls = b->calls,
                            .f64 = b->dev.ops_f64 != NULL,
                            .given_ranks = given_ranks};
    hardware_print(stdout, &b->hardware, bench_source, &sources);
}

static int bench_machine(const void *values)
{
    MachineArguments given = *(const MachineArguments *)values;
    const MachineArguments *a = &given;
    MachineBench b = {.a = a};
    DeviceOptions options = {.local_ranks = 1};
    char err[512], text[256];
    given.ranks = launch_count(given.ranks, 0, given.kind);
    if (launch_joined())
        return error_print(EXIT_USAGE, "bench machine measures one machine, and starts the ranks "
                                       "itself: run it without a launcher");
    b.facts = device_survey_facts(a->device, 1);
    measure_calls(&b);
    if (!device_open(&b.dev, a->device, &options, err, sizeof err))
        fail(EXIT_UNAVAILABLE, "%s", err);
    device_warn(&b.dev);
    begin(&b, device_describe(&b.dev, text, sizeof text));
    b.progress = progress_begin_quiet();
    bench_machine_kernels(&b);
    measure_disk(&b);
    progress_end(&b.progress);
    print_machine(&b, text, ((const MachineArguments *)values)->ranks > 0);
    device_close(&b.dev);
    return EXIT_OK;
}

static bool parse_device(const char *text, void *field, char *err, size_t n)
{
    *(const char **)field = text;
    return strcmp(text, "auto") == 0 || strcmp(text, "cuda") == 0 || strcmp(text, "cpu") == 0 ||
           error_set(err, n, "--device %s: write auto, cuda or cpu", text);
}

static const ArgOption options[] = {
    {.name = "--device",
     .value = "NAME",
     .help = "auto (default), cuda or cpu",
     .kind = ARG_OWN,
     .at = offsetof(MachineArguments, device),
     .parse = parse_device},
    {.name = "--ranks",
     .also = RANKS_ALSO,
     .value = "N",
     .help = "whose calls are measured; default: the GPUs, or the cores\n"
             "of the CPU; of CPUs also the most ranks that a plan puts on\n"
             "a machine",
     .kind = ARG_INTEGER,
     .at = offsetof(MachineArguments, ranks),
     .least = 2,
     .most = LAUNCH_MAX_RANKS,
     .beyond = RANKS_BEYOND},
    PROCESSES_OPTION(MachineArguments),
    {.name = "--repetitions",
     .value = "N",
     .help = "of which the median is taken; default 5",
     .kind = ARG_INTEGER,
     .at = offsetof(MachineArguments, repetitions),
     .least = 1,
     .most = BENCH_MOST_REPETITIONS},
    {.name = "--size",
     .value = "N",
     .help = "percent of the usual sizes, for a quick look; default 100.\n"
             "Below 10 no call has more than 4 MiB",
     .kind = ARG_INTEGER,
     .at = offsetof(MachineArguments, size),
     .least = 1,
     .most = MACHINE_WHOLE},
    {.name = "--disk",
     .value = "DIR",
     .help = "the folder of checkpoints, to which 256 MiB are written;\n"
             "default: this one",
     .kind = ARG_NAME,
     .at = offsetof(MachineArguments, disk)},
};

const ArgCommand cmd_bench_machine = {
    .name = "machine",
    .call = "./train bench machine",
    .usage = "[options] > FILE",
    .summary = "this machine's speed, as a machine file for ./train plan",
    .about = "Measures matrix products by type, attention, memory, the time of a launch, the\n"
             "calls between ranks and the disk, and prints them as a machine file, which\n"
             "./train plan --machine FILE reads. The machine should be idle meanwhile.",
    .options = options,
    .n_options = ARG_ROWS(options),
    .size = sizeof(MachineArguments),
    .defaults =
        &(const MachineArguments){
            .device = "auto", .disk = ".", .repetitions = 5, .size = MACHINE_WHOLE},
    .run = bench_machine,
};
