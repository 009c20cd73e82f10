/* cmd_bench_comm.c -- `./train bench comm`: measures the collectives and messages between ranks.
 *
 * Each call is compared with the time that memory bandwidth allows: the bytes that the call must
 * read and write, at the rate of a long in-place addition on all ranks at once in the same run. If
 * NCCL carries the calls over GPU links, memory bandwidth is no limit and the table omits it. */
#include "model/core/check.h"
#include "model/core/figures.h"
#include "model/core/json_write.h"
#include "parallel/commands/cmd_bench_calls.h"
#include "parallel/run/ranks_option.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    CallsWanted wanted; /* except its `kind`, which is the next field */
    LaunchKind kind;
    ArgList set;
    bool json;
} Arguments;

enum { USUAL_RANKS = 2 };

/* Returns how many bytes all n ranks together must read and write in a call, divided by the size of
 * its tensor. */
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

/* Prints the row of one call. `shared`: the ranks communicate through shared memory, not NCCL. */
static void print_row(const CallsMeasured *r, bool json, bool shared, int verb, int size)
{
    const char *name = verb == BOTH_WAYS ? "send + receive"
                       : verb == ONE_WAY ? "send"
                                         : comm_verb_name[verb];
    double bytes = (double)call_bytes(size), seconds = r->seconds[verb][size];
    double rate = 1e-9 * bytes / seconds;
    /* The share of memory bandwidth that the call reaches; 1 if it is as fast as moving each byte
     * once. */
    double share = streams_of(verb, (int)r->wanted->ranks) * bytes / r->memory / seconds;
    if (json) {
        printf("%s{\"verb\":\"%s\",\"bytes\":%.0f,\"us\":%.6g,\"gb_per_s\":%.6g,"
               "\"share\":%.6g}",
               verb + size ? "," : "", name, bytes, 1e6 * seconds, rate, share);
        return;
    }
    printf("%-16s %10s %12.1f %9.3f", name, figure_bytes(bytes).text, 1e6 * seconds, rate);
    if (shared) printf(" %10.1f", 100 * share);
    putchar('\n');
}

static void print_result(const CallsMeasured *r, bool json)
{
    int n = (int)r->wanted->ranks;
    bool shared = r->gpus != GPUS_EACH;
    if (json) {
        printf("{\"ranks\":%d,\"memory_gb_per_s\":%.6g,\"device\":", n, 1e-9 * r->memory);
        json_print_string(stdout, r->device);
        fputs(",\"transport\":", stdout);
        json_print_string(stdout, r->transport);
        printf(",\"calls\":[");
    } else {
        printf("%s%s %d ranks as %s%s%s, f32, in place, medians of %lld\n", r->device,
               r->gpus == GPUS_ONE ? ", shared by" : " each,", n,
               r->processes ? "processes" : "threads of one process", shared ? "" : ", ",
               shared ? "" : r->transport, (long long)r->wanted->repetitions);
        if (shared) printf("memory, all ranks at once: %.2f GB/s\n", 1e-9 * r->memory);
        printf("%-16s %10s %12s %9s%s\n", "verb", "size", "us", "GB/s",
               shared ? "   % memory" : "");
    }
    for (int verb = 0; verb < CALL_VERBS; verb++)
        for (int s = 0; s < r->wanted->sizes; s++)
            print_row(r, json, shared, verb, s);
    if (json)
        puts("]}");
    else if (shared)
        puts("Above 100 %: of calls whose sizes fit the caches, which are faster than memory.");
}

/* Connects the ranks that a launcher has started. The command itself needs no config, but such
 * ranks find each other by the settings of one. */
static void join(const Arguments *a)
{
    static const char any[] = "{\"model\": {\"vocab_size\": 256}, \"data\": {\"text\": \"none\"}}";
    ConfigContext context = {.world = a->wanted.ranks};
    ConfigReport report = {0};
    if (!launch_joined()) return;
    char *timeout = text_format("parallel.timeout=%lld", (long long)a->wanted.timeout);
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
    given.wanted.kind = given.kind;
    given.wanted.ranks = launch_count(given.wanted.ranks, USUAL_RANKS, given.kind);
    join(a);
    CallsMeasured r;
    int code = calls_measure(&a->wanted, &r);
    if (code == EXIT_OK && launch_leads()) print_result(&r, a->json);
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
     .at = offsetof(Arguments, wanted.ranks),
     .least = 2,
     .most = LAUNCH_MAX_RANKS,
     .beyond = RANKS_BEYOND},
    PROCESSES_OPTION(Arguments),
    {.name = "--repetitions",
     .value = "N",
     .help = "of which the median is shown; default 9",
     .kind = ARG_INTEGER,
     .at = offsetof(Arguments, wanted.repetitions),
     .least = 1,
     .most = BENCH_MOST_REPETITIONS},
    {.name = "--sizes",
     .value = "N",
     .help = "of 1 KiB, 16 KiB, 256 KiB, 4 MiB and 64 MiB, the smallest\n"
             "N; default 5",
     .kind = ARG_INTEGER,
     .at = offsetof(Arguments, wanted.sizes),
     .least = 1,
     .most = CALL_SIZES},
    {.name = "--timeout",
     .value = "S",
     .help = "seconds that a rank waits for the others (messages call\n"
             "it parallel.timeout); default 600",
     .kind = ARG_INTEGER,
     .at = offsetof(Arguments, wanted.timeout),
     .least = 1,
     .most = 1000000000},
    {.name = "--device",
     .value = "NAME",
     .help = "auto (default), cuda or cpu",
     .kind = ARG_OWN,
     .at = offsetof(Arguments, wanted.device),
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
    .defaults =
        &(const Arguments){
            .wanted = {.repetitions = 9, .timeout = 600, .sizes = CALL_SIZES, .device = "auto"}},
    .run = bench_comm,
};
