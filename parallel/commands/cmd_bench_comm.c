/* cmd_bench_comm.c -- `./train bench comm`: measures the collectives and messages between ranks.
 *
 * Each call is compared with the time that memory bandwidth allows: the bytes that the call must
 * read and write, at the rate of a long in-place addition on all ranks at once in the same run. If
 * NCCL carries the calls over GPU links, memory bandwidth is no limit and the table omits it. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/figures.h"
#include "model/core/json_write.h"
#include "model/kernels/ops.h"
#include "parallel/comm/nccl/nccl.h"
#include "parallel/commands/cmd_bench.h"
#include "parallel/grid/control.h"
#include "parallel/grid/gpus.h"
#include "parallel/grid/launch.h"
#include "parallel/grid/machines.h"
#include "parallel/run/ranks_option.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int64_t ranks, repetitions, timeout;
    ArgList set;
    const char *device;
    LaunchKind kind;
    bool json;
} Arguments;

enum { USUAL_RANKS = 2, SIZES = 5, SMALLEST = 1 << 10, LARGEST = 64 << 20 };

/* The calls that are measured. The collectives have the numbers of their CommVerb. BOTH_WAYS: every
 * rank sends to the next and receives from the previous rank, in one group. ONE_WAY: every even
 * rank sends to the next rank. */
enum { BOTH_WAYS = COMM_SEND, ONE_WAY, VERBS };

/* The measurements of rank 0. */
typedef struct {
    const Arguments *a;
    char device[160];
    char transport[32]; /* NCCL with its version, or "local": through shared memory */
    Gpus gpus;
    bool processes;               /* the ranks are processes, not threads */
    double memory;                /* bytes per second of all ranks together */
    double seconds[VERBS][SIZES]; /* median seconds of one call */
} Result;

/* The device and the buffers of one rank. */
typedef struct {
    Device dev;
    float *x; /* LARGEST bytes */
    float *y; /* LARGEST bytes; receives messages */
} Mine;

static int64_t bytes_of(int size)
{
    return (int64_t)SMALLEST << (4 * size);
}

/* Returns how many times the tensor's size all n ranks together must read and write in a call. */
static double streams_of(int verb, int n)
{
    switch (verb) {
    case COMM_ALL_REDUCE: return 2.0 * n;
    case COMM_REDUCE_SCATTER: return n + 1.0;
    case BOTH_WAYS: return 2.0 * n;
    case ONE_WAY: return n - n % 2;
    default: return 2.0 * (n - 1);
    }
}

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
    /* All ranks start together; otherwise the others' wait for a late rank would be measured. */
    comm_barrier(world);
    double from = seconds_now();
    for (int64_t c = 0; c < calls; c++)
        call(world, p, verb, bytes);
    device_synchronize(&p->dev);
    return (seconds_now() - from) / (double)calls;
}

/* Returns the median seconds of one call. Calls on small tensors are timed many at a time, unless
 * they are slow. */
static double call_seconds(Comm *world, Mine *p, int verb, int64_t bytes, int repetitions)
{
    const double takes_long = 0.01;
    double seconds[BENCH_MOST_REPETITIONS];
    /* Enough calls for an exact time; a single one if it is long enough by itself. */
    int64_t calls = bytes < 1 << 20 ? 100 : bytes < LARGEST ? 10 : 1;
    time_calls(world, p, verb, bytes, 1); /* warms up */
    if (control_max(world, time_calls(world, p, verb, bytes, 1) > takes_long) != 0) calls = 1;
    for (int i = 0; i < repetitions; i++)
        seconds[i] = time_calls(world, p, verb, bytes, calls);
    return bench_median(seconds, repetitions);
}

/* Returns the memory bandwidth of all ranks together in bytes per second, measured by x = x + y,
 * which reads two streams and writes one. As with the measured calls, what fits in the caches is
 * already there. */
static double memory_rate(Comm *world, Mine *p, int repetitions)
{
    double seconds[BENCH_MOST_REPETITIONS];
    int64_t n = LARGEST / (int64_t)sizeof(float);
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
    return 3.0 * LARGEST * world->size / bench_median(seconds, repetitions);
}

static int rank_main(Comm *world, void *context)
{
    Result *r = context;
    Mine p;
    Machines machines = machines_of(world);
    DeviceOptions options = {.local_ranks = machines_share_cores(world),
                             .index = machines.local_rank,
                             .blas = BLAS_BUILTIN};
    char err[512];
    if (!device_open(&p.dev, r->a->device, &options, err, sizeof err))
        control_fail(world, EXIT_UNAVAILABLE, "%s", err);
    if (world->rank == 0) device_warn(&p.dev);
    Gpus gpus = gpus_agree(world, &p.dev);
    p.x = device_alloc(&p.dev, 2 * (size_t)LARGEST, "the tensors of the calls");
    p.y = p.x + LARGEST / sizeof(float);
    op_fill(&p.dev, tensor_1d(p.x, F32, 2 * LARGEST / (int64_t)sizeof(float)), 0);
    int repetitions = (int)r->a->repetitions;
    Progress progress = progress_begin_quiet();
    progress_print(&progress, "measuring the memory");
    double memory = memory_rate(world, &p, repetitions);
    Comm all = comm_split(world, "all", 0, world->rank); /* closed before the device */
    /* If each rank has its own GPU, the same calls go through NCCL, as in a training run. */
    if (gpus == GPUS_EACH)
        nccl_connect(&all, &p.dev, (NcclUse){NCCL_IN_RING, 0}, (double)r->a->timeout);
    for (int verb = 0; verb < VERBS; verb++)
        for (int s = 0; s < SIZES; s++) {
            progress_count(&progress, verb * SIZES + s, VERBS * SIZES, "measuring %s of %s",
                           comm_verb_name[verb], figure_bytes((double)bytes_of(s)).text);
            double seconds = call_seconds(&all, &p, verb, bytes_of(s), repetitions);
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
    /* Other ranks may still be reading this rank's memory, and releasing it may wait for the work
     * of all devices (session_meet). */
    device_synchronize(&p.dev);
    comm_barrier(world);
    comm_close(&all);
    device_release(&p.dev, p.x, 2 * (size_t)LARGEST);
    device_close(&p.dev);
    return EXIT_OK;
}

/* Prints the row of one call. `shared`: the ranks communicate through shared memory, not NCCL. */
static void print_row(const Result *r, bool shared, int verb, int size)
{
    const char *name = verb == BOTH_WAYS ? "send + receive"
                       : verb == ONE_WAY ? "send"
                                         : comm_verb_name[verb];
    double bytes = (double)bytes_of(size), seconds = r->seconds[verb][size];
    double rate = 1e-9 * bytes / seconds;
    /* The share of memory bandwidth that the call reaches; 1 if it moves each byte only once. */
    double share = streams_of(verb, (int)r->a->ranks) * bytes / r->memory / seconds;
    if (r->a->json) {
        printf("%s{\"verb\":\"%s\",\"bytes\":%.0f,\"us\":%.6g,\"gb_per_s\":%.6g,"
               "\"share\":%.6g}",
               verb + size ? "," : "", name, bytes, 1e6 * seconds, rate, share);
        return;
    }
    printf("%-16s %10s %12.1f %9.3f", name, figure_bytes(bytes).text, 1e6 * seconds, rate);
    if (shared) printf(" %10.1f", 100 * share);
    putchar('\n');
}

static void print_result(const Result *r)
{
    int n = (int)r->a->ranks;
    bool shared = r->gpus != GPUS_EACH;
    if (r->a->json) {
        printf("{\"ranks\":%d,\"memory_gb_per_s\":%.6g,\"device\":", n, 1e-9 * r->memory);
        json_print_string(stdout, r->device);
        fputs(",\"transport\":", stdout);
        json_print_string(stdout, r->transport);
        printf(",\"calls\":[");
    } else {
        printf("%s%s %d ranks as %s%s%s, f32, in place, medians of %lld\n", r->device,
               r->gpus == GPUS_ONE ? ", shared by" : " each,", n,
               r->processes ? "processes" : "threads of one process", shared ? "" : ", ",
               shared ? "" : r->transport, (long long)r->a->repetitions);
        if (shared) printf("memory, all ranks at once: %.2f GB/s\n", 1e-9 * r->memory);
        printf("%-16s %10s %12s %9s%s\n", "verb", "size", "us", "GB/s",
               shared ? "   % memory" : "");
    }
    for (int verb = 0; verb < VERBS; verb++)
        for (int s = 0; s < SIZES; s++)
            print_row(r, shared, verb, s);
    if (r->a->json)
        puts("]}");
    else if (shared)
        puts("Above 100 %: of calls whose sizes fit the caches, which are faster than memory.");
}

/* Ranks that a launcher has started find each other as a config says, which has no other purpose
 * here. */
static void join(const Arguments *a)
{
    static const char any[] = "{\"model\": {\"vocab_size\": 256}, \"data\": {\"text\": \"none\"}}";
    ConfigContext context = {.world = a->ranks};
    ConfigReport report = {0};
    if (!launch_joined()) return;
    char *timeout = text_format("parallel.timeout=%lld", (long long)a->timeout);
    const char **sets = must_calloc((size_t)a->set.count + 1, sizeof *sets);
    for (int i = 0; i < a->set.count; i++)
        sets[i] = a->set.item[i];
    sets[a->set.count] = timeout;
    const Config *config =
        config_parse(&context, "bench comm", any, strlen(any), a->set.count + 1, sets, &report);
    if (config == NULL) {
        config_report_print(&report, false, stderr);
        exit(config_report_code(&report));
    }
    launch_join(config);
    config_free(config);
    config_report_free(&report);
    free(sets);
    free(timeout);
}

static int bench_comm(const void *values)
{
    Arguments given = *(const Arguments *)values;
    const Arguments *a = &given;
    given.ranks = launch_count(given.ranks, USUAL_RANKS, given.kind);
    join(a);
    gpus_prepare_driver(a->ranks);
    bool processes = gpus_prepare(device_survey(a->device), (int)a->ranks, a->kind);
    Result r = {.a = a, .processes = processes};
    const LaunchOptions launch = {.timeout = (double)a->timeout,
                                  .processes = processes,
                                  .result = &r,
                                  .result_bytes = sizeof r};
    int code = launch_ranks((int)a->ranks, &launch, rank_main, &r);
    if (code == EXIT_OK && launch_leads()) print_result(&r);
    return code;
}

static bool parse_device(const char *text, void *field, char *err, size_t n)
{
    *(const char **)field = text;
    return strcmp(text, "auto") == 0 || strcmp(text, "cuda") == 0 || strcmp(text, "cpu") == 0 ||
           error_set(err, n, "--device %s: write auto, cuda or cpu", text);
}

static const ArgOption options[] = {
    {.name = "--ranks",
     .also = RANKS_ALSO,
     .value = "N",
     .help = "that take part; default 2",
     .kind = ARG_INTEGER,
     .at = offsetof(Arguments, ranks),
     .least = 2,
     .most = LAUNCH_MAX_RANKS,
     .beyond = RANKS_BEYOND},
    PROCESSES_OPTION(Arguments),
    {.name = "--repetitions",
     .value = "N",
     .help = "of which the median is shown; default 9",
     .kind = ARG_INTEGER,
     .at = offsetof(Arguments, repetitions),
     .least = 1,
     .most = BENCH_MOST_REPETITIONS},
    {.name = "--timeout",
     .value = "S",
     .help = "seconds that a rank waits for the others (messages call\n"
             "it parallel.timeout); default 600",
     .kind = ARG_INTEGER,
     .at = offsetof(Arguments, timeout),
     .least = 1,
     .most = 1000000000},
    {.name = "--device",
     .value = "NAME",
     .help = "auto (default), cuda or cpu",
     .kind = ARG_OWN,
     .at = offsetof(Arguments, device),
     .parse = parse_device},
    {.name = "--set",
     .value = "key=value",
     .help = "a key of the config by which ranks find each other that a\n"
             "launcher has started: parallel.rendezvous, parallel.interface\n"
             "or parallel.secret_file; may be repeated",
     .kind = ARG_SETTINGS,
     .at = offsetof(Arguments, set)},
    {.name = "--json",
     .help = "print one JSON line instead of a table",
     .kind = ARG_FLAG,
     .at = offsetof(Arguments, json)},
};

const ArgCommand cmd_bench_comm = {
    .name = "comm",
    .call = "./train bench comm",
    .usage = "[options]",
    .summary = "the calls between ranks, beside what memory allows where they share it",
    .options = options,
    .n_options = ARG_ROWS(options),
    .size = sizeof(Arguments),
    .defaults = &(const Arguments){.repetitions = 9, .timeout = 600, .device = "auto"},
    .run = bench_comm,
};
