/* cmd_bench_parallel.c -- `./train bench parallel`: compares a step on one rank with all threads
 * with the same step on several ranks that share the threads, for several kinds of parallelism.
 *
 * Each round measures each kind ("way") once, so other load on the machine slows all of them alike.
 * To measure a way, the benchmark opens a trainer, makes one step that touches its memory, and
 * times a second one. */
#include "parallel/commands/cmd_bench.h"
#include "parallel/grid/control.h"
#include "parallel/grid/launch.h"
#include "parallel/run/ranks_option.h"
#include "parallel/trainer/trainer.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/json_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROUNDS = 101, MOST_OWN_SETS = 16, USUAL_RANKS = 2 };

/* The ways to train. axis: the only axis of the grid with several ranks. */
typedef enum { ALONE, DATA, TENSOR, PIPELINE } Axis;
static const struct {
    const char *name, *key; /* in the table; in JSON */
    Axis axis;
    int stage; /* ZeRO stage */
    bool sequence;
} ways[] = {
    {"one rank", "one", ALONE, 0, false},        {"DDP", "ddp", DATA, 0, false},
    {"ZeRO-1", "zero1", DATA, 1, false},         {"ZeRO-3", "zero3", DATA, 3, false},
    {"tensor", "tensor", TENSOR, 0, false},      {"tensor + SP", "tensor_sp", TENSOR, 0, true},
    {"pipeline", "pipeline", PIPELINE, 0, false}};
enum { WAYS = sizeof ways / sizeof *ways, DDP = 1 };

typedef struct {
    const char *config; /* NULL: GPT-2 124M */
    ArgList set;
    int64_t ranks, rounds, batch, length;
    LaunchKind kind;
    bool json;
} Arguments;

/* The measurement of one way in one round. */
typedef struct {
    const Config *config;
    DataSet data;
    double seconds, communication; /* of the timed step; of its communication calls, on rank 0 */
    char device[256];
} Measured;

static const char gpt2_124m[] =
    "{\"model\": {\"num_layers\": 12, \"hidden_size\": 768, \"num_attention_heads\": 12, "
    "\"vocab_size\": 50257}, \"bf16\": {\"enabled\": false}, \"data\": {\"text\": \"random "
    "tokens\"}, \"train_batch_size\": 8}";

static int64_t ranks_on(const Arguments *a, int way, Axis axis)
{
    return ways[way].axis == axis ? a->ranks : 1;
}

/* Returns the micro-batches of a step. With a pipeline it is up to four per stage, so the stages
 * are rarely idle, but always a number that divides the batch. */
static int64_t micro_batches(const Arguments *a, int way)
{
    if (ways[way].axis != PIPELINE) return 1;
    int64_t n = 4 * a->ranks;
    while (a->batch % n != 0)
        n -= a->ranks;
    return n;
}

/* Loads the config for one way to train. Returns NULL if the model cannot be trained that way. */
static const Config *load_config(const Arguments *a, int way)
{
    int64_t ranks = ways[way].axis == ALONE ? 1 : a->ranks, micros = micro_batches(a, way);
    ConfigReport report = {0};
    char own[MOST_OWN_SETS][96];
    const char **sets = must_calloc((size_t)a->set.count + 2 * MOST_OWN_SETS, sizeof *sets);
    int n = 0;
    for (; n < a->set.count; n++)
        sets[n] = a->set.item[n];
    const struct {
        const char *key;
        long long value;
    } fixed[] = {{"train_batch_size", a->batch},
                 {"train_micro_batch_size_per_gpu", a->batch / micros / ranks_on(a, way, DATA)},
                 {"gradient_accumulation_steps", micros},
                 {"data.seq_length", a->length},
                 {"parallel.data", ranks_on(a, way, DATA)},
                 {"parallel.tensor", ranks_on(a, way, TENSOR)},
                 {"parallel.pipeline", ranks_on(a, way, PIPELINE)},
                 {"zero_optimization.stage", ways[way].stage}};
    char cleared[MOST_OWN_SETS][96];
    const char *key;
    /* First unset all keys of the config that describe a grid; then set those of this way. */
    for (int i = 0; (key = config_grid_key(i)) != NULL; i++) {
        CHECK(i < MOST_OWN_SETS, "%d keys make a grid", i);
        snprintf(cleared[i], sizeof cleared[i], "%s=null", key);
        sets[n++] = cleared[i];
    }
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        snprintf(own[i], sizeof own[i], "%s=%lld", fixed[i].key, fixed[i].value);
        sets[n++] = own[i];
    }
    sets[n++] =
        ways[way].sequence ? "parallel.sequence_parallel=true" : "parallel.sequence_parallel=false";
    ConfigContext context = session_context(ranks);
    context.own_sets = n - a->set.count;
    const Config *c = a->config ? config_load(a->config, n, sets, &context, &report)
                                : config_parse(&context, "GPT-2 124M", gpt2_124m, strlen(gpt2_124m),
                                               n, sets, &report);
    free(sets);
    /* The config may be refused because its heads or layers are not divisible by the ranks. The
     * other ways do not divide them, so there the config itself has an error. */
    if (c == NULL && ways[way].axis > DATA) {
        config_report_free(&report);
        return NULL;
    }
    if (c == NULL) {
        config_report_print(&report, false, stderr);
        exit(config_report_code(&report));
    }
    config_report_free(&report);
    return session_settle(c, c->model.vocab_size == 0 ? c->data.tokenizer_vocab_size : 0);
}

static void step(Trainer *t)
{
    StepRecord record[TRAINER_HISTORY];
    trainer_step(t);
    trainer_read_all(t, record);
}

static double comm_seconds(const Session *session)
{
    CommSeconds s = session_comm_seconds(session);
    return s.tensor + s.collectives + s.exchanges + s.stages;
}

static int measure_rank(Comm *world, void *context)
{
    Measured *m = context;
    Trainer t;
    char err[1024];
    if (!trainer_open(&t, m->config, world, err, sizeof err))
        control_fail(world, EXIT_UNAVAILABLE, "%s", err);
    if (!trainer_allocate(&t, m->config, &m->data, err, sizeof err)) fail(EXIT_DAMAGED, "%s", err);
    step(&t); /* touches the memory for the first time */
    comm_barrier(world);
    double start = seconds_now(), communication = comm_seconds(&t.session);
    step(&t);
    comm_barrier(world); /* the step ends when the slowest rank has finished */
    if (world->rank == 0) {
        m->seconds = seconds_now() - start;
        m->communication = comm_seconds(&t.session) - communication;
        device_describe(&t.session.dev, m->device, sizeof m->device);
    }
    trainer_close(&t);
    return EXIT_OK;
}

/* For each way: the seconds of a step and of its communication calls in each round, and the medians
 * of both (`step` and `calls`). */
typedef struct {
    bool possible[WAYS];
    double seconds[WAYS][MOST_ROUNDS], communication[WAYS][MOST_ROUNDS];
    double step[WAYS], calls[WAYS];
    char device[WAYS][256], model[160];
    DType dtype;
} Result;

/* Stores the dtype and a description of the model in the result. */
static void name_model(const Config *c, Result *r)
{
    r->dtype = config_dtype(c);
    snprintf(r->model, sizeof r->model, "%lld block%s of hidden size %lld, vocabulary %lld",
             (long long)c->model.num_layers, c->model.num_layers == 1 ? "" : "s",
             (long long)c->model.hidden_size, (long long)c->model.vocab_size);
}

static void measure_round(const Arguments *a, int round, Result *r, Progress *progress)
{
    for (int way = 0; way < WAYS; way++) {
        progress_count(progress, (int64_t)round * WAYS + way, a->rounds * WAYS,
                       "measuring %s, round %d of %lld", ways[way].name, round + 1,
                       (long long)a->rounds);
        Measured m = {.config = load_config(a, way)};
        r->possible[way] = m.config != NULL;
        if (m.config == NULL) continue;
        GridPlace size = config_grid(m.config, 0);
        int ranks = (int)grid_ranks(size);
        data_open_random(&m.data, m.config->model.vocab_size);
        /* A process that has used CUDA cannot start processes that use it. So if the ways with
         * several ranks run them as processes, the way with one rank must also run it as a
         * process. */
        LaunchOptions launch = session_launch(m.config, (int)a->ranks, a->kind);
        launch.size = size;
        launch.result = &m;
        launch.result_bytes = sizeof m;
        int code = launch_ranks(ranks, &launch, measure_rank, &m);
        if (code != EXIT_OK) exit(launch_leave(code));
        r->seconds[way][round] = m.seconds;
        r->communication[way][round] = m.communication;
        snprintf(r->device[way], sizeof r->device[way], "%s", m.device);
        name_model(m.config, r);
        data_close(&m.data);
        config_free(m.config);
    }
}

static void print_json(const Arguments *a, const Result *r)
{
    printf("{\"ranks\":%lld,\"rounds\":%lld,\"device\":", (long long)a->ranks,
           (long long)a->rounds);
    json_print_string(stdout, r->device[0]);
    printf(",\"dtype\":\"%s\"", dtype_name(r->dtype));
    for (int i = 0; i < WAYS; i++)
        if (r->possible[i])
            printf(",\"%s_ms\":%.6g,\"%s_communication_ms\":%.6g,\"%s_ratio\":%.6g", ways[i].key,
                   1e3 * r->step[i], ways[i].key, 1e3 * r->calls[i], ways[i].key,
                   r->step[0] / r->step[i]);
    puts("}");
}

static void print_result(const Arguments *a, const Result *r)
{
    if (a->json) {
        print_json(a, r);
        return;
    }
    printf("%s, %s: steps of %lld x %lld random tokens in %s, medians of %lld round%s\n",
           a->config ? a->config : "GPT-2", r->model, (long long)a->batch, (long long)a->length,
           dtype_name(r->dtype), (long long)a->rounds, a->rounds == 1 ? "" : "s");
    printf("%-12s %10s %14s %12s   %s\n", "way", "ms a step", "communication", "of one rank",
           "each rank's device");
    for (int i = 0; i < WAYS; i++)
        if (r->possible[i])
            printf("%-12s %10.1f %14.1f %10.1f %%   %s\n", ways[i].name, 1e3 * r->step[i],
                   1e3 * r->calls[i], 100 * r->step[0] / r->step[i], r->device[i]);
        else
            printf("%-12s %10s   (%lld ranks do not divide the model so)\n", ways[i].name, "-",
                   (long long)a->ranks);
}

/* Connects ranks that a launcher has started, once for all ways to train. */
static void join(const Arguments *a)
{
    if (!launch_joined()) return;
    const Config *config = load_config(a, DDP); /* any model can be trained with data parallelism */
    launch_join(config);
    config_free(config);
}

static int bench_parallel(const void *values)
{
    Arguments given = *(const Arguments *)values;
    const Arguments *a = &given;
    given.ranks = launch_count(given.ranks, USUAL_RANKS, given.kind);
    if (a->batch % a->ranks != 0)
        return error_print(EXIT_USAGE, "--batch %lld: write a multiple of the %lld ranks",
                           (long long)a->batch, (long long)a->ranks);
    join(a);
    Result *r = must_calloc(1, sizeof *r);
    Progress progress = progress_begin_quiet();
    for (int round = 0; round < a->rounds; round++)
        measure_round(a, round, r, &progress);
    progress_end(&progress);
    for (int i = 0; i < WAYS; i++) {
        r->step[i] = bench_median(r->seconds[i], (int)a->rounds);
        r->calls[i] = bench_median(r->communication[i], (int)a->rounds);
    }
    if (launch_leads()) print_result(a, r);
    free(r);
    return EXIT_OK;
}

static const ArgOption options[] = {
    {.name = "--ranks",
     .also = RANKS_ALSO,
     .value = "N",
     .help = "that share the cores, except for one rank's; default 2",
     .kind = ARG_INTEGER,
     .at = offsetof(Arguments, ranks),
     .least = 2,
     .most = LAUNCH_MAX_RANKS,
     .beyond = RANKS_BEYOND},
    PROCESSES_OPTION(Arguments),
    {.name = "--rounds",
     .value = "N",
     .help = "of which the medians are shown; default 3",
     .kind = ARG_INTEGER,
     .at = offsetof(Arguments, rounds),
     .least = 1,
     .most = MOST_ROUNDS},
    {.name = "--batch",
     .value = "N",
     .help = "sequences of a step, of all ranks; default 8",
     .kind = ARG_INTEGER,
     .at = offsetof(Arguments, batch),
     .least = 2,
     .most = 1 << 20},
    {.name = "--length",
     .value = "N",
     .help = "tokens of a sequence; default 256",
     .kind = ARG_INTEGER,
     .at = offsetof(Arguments, length),
     .least = 1,
     .most = 1 << 20},
    {.name = "--set",
     .value = "key=value",
     .help = "override one key of the config; may be repeated",
     .kind = ARG_SETTINGS,
     .at = offsetof(Arguments, set)},
    {.name = "--json",
     .help = "print one JSON line instead of a table",
     .kind = ARG_FLAG,
     .at = offsetof(Arguments, json)},
};

const ArgCommand cmd_bench_parallel = {
    .name = "parallel",
    .call = "./train bench parallel",
    .usage = "[CONFIG.json] [options]",
    .summary = "a step of several ranks beside that of one with all threads",
    .about = "Trains on random tokens by one rank with all threads and by ranks that share\n"
             "them, in turn: data-parallel with DDP (ZeRO 0), ZeRO 1 and ZeRO 3, all of them\n"
             "tensor-parallel without and with sequence parallelism, and as stages of a\n"
             "pipeline. Shows what part of the one rank's speed each has. Without a config:\n"
             "GPT-2 124M in f32.",
    .options = options,
    .n_options = ARG_ROWS(options),
    .words = {.least = 0, .most = 1, .at = offsetof(Arguments, config), .plural = "configs"},
    .size = sizeof(Arguments),
    .defaults = &(const Arguments){.rounds = 3, .batch = 8, .length = 256},
    .run = bench_parallel,
};
