/* cmd_bench_step.c -- `./train bench step`: compares a whole training step with its matrix products
 * alone, on the config's device.
 *
 * Each round measures a step, the same step with events around each op, a replay of its list of
 * matrix products, and a memory loop like AdamW's. They take turns, so other load on the machine
 * slows all of them alike, and the results are the ratios of their medians. Times are device times
 * between two events. The step has one micro-batch of random tokens, whatever the config says. */
#include "parallel/commands/cmd_bench.h"

#include "model/core/json_write.h"
#include "model/core/log.h"
#include "model/core/terminal.h"
#include "parallel/trainer/trainer.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_STEPS = 1000, MAX_PRODUCTS = 100000, MAX_MARKS = 16384 };

typedef struct {
    const char *config;
    ArgList set;
    int64_t steps;
    bool json;
} Arguments;

/* The rows that every round measures, in seconds. From ROW_OP on there is one row per op. */
enum { ROW_STEP, ROW_FORWARD, ROW_BACKWARD, ROW_UPDATE, ROW_PRODUCTS, ROW_LOOP, ROW_OP };
enum { ROWS = ROW_OP + OP_COUNT };

/* The medians of all rounds. */
typedef struct {
    double seconds[ROWS];
    double optimizer, attention;
    double product_flops;
    double update_bytes; /* bytes that an update moves per element */
    double held;         /* bytes of device memory that training allocates */
} Result;

static Profile *profile_create(void)
{
    Profile *p = must_calloc(1, sizeof *p);
    p->max_products = MAX_PRODUCTS;
    p->product = must_calloc(MAX_PRODUCTS, sizeof *p->product);
    p->max_marks = MAX_MARKS;
    p->mark = must_calloc(MAX_MARKS, sizeof *p->mark);
    return p;
}

static double product_flops(const Profile *list)
{
    double flops = 0;
    for (int64_t i = 0; i < list->n_products; i++)
        flops += 2.0 * (double)list->product[i].n * (double)list->product[i].inputs *
                 (double)list->product[i].outputs;
    return flops;
}

/* Makes one step and returns its seconds. If `profile` is not NULL, also stores the seconds of each
 * op there. */
static double timed_step(Trainer *t, Stopwatch *watch, Profile *profile)
{
    Device *dev = &t->session.dev;
    StepRecord record[TRAINER_HISTORY];
    if (profile) {
        memset(profile->seconds, 0, sizeof profile->seconds);
        profile->n_products = 0;
    }
    /* A profile records two events around every op, which takes time. So the step that is reported
     * has no profile. */
    dev->profile = profile;
    /* On the CPU the optimizer's ops are recorded in the same profile. */
    if (dev->backend->place == PLACE_HOST) t->optimizer.update.profile = profile;
    t->optimizer.timed = profile != NULL;
    stopwatch_start(dev, watch);
    trainer_step(t);
    /* Waits for the updates of optimizer states in host memory, because they belong to this step.
     * In a training run the next step would begin meanwhile. */
    optimizer_await(&t->optimizer);
    double seconds = stopwatch_stop(dev, watch);
    dev->profile = t->optimizer.update.profile = NULL;
    trainer_read_all(t, record); /* makes room for the next step's record */
    if (profile) profile_collect(dev, profile);
    /* On a GPU the optimizer's ops run on another stream and are not in the profile. */
    if (profile && dev->backend->place == PLACE_DEVICE)
        profile->seconds[t->optimizer.rule->op] += optimizer_seconds(&t->optimizer);
    return seconds;
}

/* Measures one round into x: a step and its phases, its ops, its products, and the memory loop. */
static void measure_round(Trainer *t, Profile *profile, Replay *replay, MemoryLoop *loop,
                          double x[ROWS])
{
    Device *dev = &t->session.dev;
    Stopwatch watch = {0};
    t->phases.seconds = (PhaseSeconds){0};
    x[ROW_STEP] = timed_step(t, &watch, NULL);
    x[ROW_FORWARD] = t->phases.seconds.forward;
    x[ROW_BACKWARD] = t->phases.seconds.backward;
    x[ROW_UPDATE] = t->phases.seconds.optimizer;
    timed_step(t, &watch, profile);
    memcpy(x + ROW_OP, profile->seconds, sizeof profile->seconds);
    stopwatch_start(dev, &watch);
    replay_run(replay, profile);
    x[ROW_PRODUCTS] = stopwatch_stop(dev, &watch);
    stopwatch_start(dev, &watch);
    memory_loop_run(dev, loop);
    x[ROW_LOOP] = stopwatch_stop(dev, &watch);
    stopwatch_close(dev, &watch);
}

/* Returns the median of every row over `n` rounds. `update` is the optimizer's op. */
static Result medians(double (*round)[ROWS], int n, OpId update)
{
    Result r = {0};
    double *x = must_calloc((size_t)n, sizeof *x);
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < n; i++)
            x[i] = round[i][row];
        r.seconds[row] = bench_median(x, n);
    }
    free(x);
    const double *op = r.seconds + ROW_OP;
    r.optimizer = op[update];
    r.attention = op[OP_attention_forward] + op[OP_attention_backward];
    return r;
}

/* Returns the bytes that the optimizer must read and write to update n elements. */
static double update_bytes(const Trainer *t, int64_t n)
{
    const GptShape *s = &t->session.layers.shape;
    const OptimizerRule *rule = t->optimizer.rule;
    OpCase update = {rule->op, .n = n,
                     .option = tensor_present(t->optimizer.shard[0].slot[SLOT_MASTER]),
                     .moments = t->optimizer.shard[0].slot[SLOT_FIRST].dtype == BF16,
                     .value = optimizer_rule_slots(rule, t->config)};
    return op_case_bytes(&update, s->dtype, s->grad_dtype);
}

static Result measure(Trainer *t, int steps, Progress *progress)
{
    Device *dev = &t->session.dev;
    Profile *profile = profile_create();
    Replay replay;
    Stopwatch watch = {0};
    double(*round)[ROWS] = must_calloc((size_t)steps, sizeof *round);
    progress_print(progress, "warming up");
    timed_step(t, &watch, profile); /* warms up: touches pages, lets libraries make their plans */
    stopwatch_close(dev, &watch);
    double held = (double)dev->held; /* before the benchmark's own buffers */
    int64_t n = param_table_count(&t->session.table);
    replay = replay_open(dev, t->session.layers.shape.dtype, profile, n);
    double bytes = update_bytes(t, n);
    MemoryLoop loop = memory_loop_open(dev, (int64_t)(bytes / MEMORY_LOOP_BYTES));
    measure_round(t, profile, &replay, &loop, round[0]); /* warms up; overwritten below */
    progress_again(progress);
    for (int i = 0; i < steps; i++) {
        progress_count(progress, i, steps, "measuring step %d of %d", i + 1, steps);
        measure_round(t, profile, &replay, &loop, round[i]);
    }
    progress_end(progress);
    Result r = medians(round, steps, t->optimizer.rule->op);
    r.product_flops = product_flops(profile);
    r.update_bytes = bytes / (double)n;
    r.held = held;
    profile_close(dev, profile);
    free(profile->mark);
    free(profile->product);
    free(profile);
    free(round);
    replay_close(&replay);
    return r; /* the loop's memory is freed when the process ends */
}

/* The tokens and operations of a step, and the rates of its parts in operations per second. */
typedef struct {
    double tokens, flops, flops12; /* flops: causal attention (MFU6); flops12: unmasked (MFU12) */
    double products, attention;    /* operations per second */
    char device[256];
} Rates;

static Rates rates_of(const Trainer *t, const Result *r)
{
    const Config *c = t->config;
    const GptShape *s = &t->session.layers.shape;
    Rates rates = {.tokens = (double)(c->train_micro_batch_size_per_gpu * c->data.seq_length)};
    /* The operations of attention over the pairs of a query and a key that the causal mask allows.
     * MFU12 also counts the masked pairs, which doubles the number. */
    double square = 6.0 * (double)(s->L * s->H * s->D * c->data.seq_length) * rates.tokens;
    rates.flops = gpt_flops_per_token(&t->session.layers.whole, c->data.seq_length) * rates.tokens;
    rates.flops12 = rates.flops + square;
    rates.products = r->product_flops / r->seconds[ROW_PRODUCTS];
    rates.attention = square / r->attention;
    device_describe(&t->session.dev, rates.device, sizeof rates.device);
    return rates;
}

static void print_json(const Result *r, const Rates *rates, const Arguments *a)
{
    const double *x = r->seconds, step = x[ROW_STEP];
    double ops = 0;
    printf("{\"ms\":%.6g,\"tokens_per_s\":%.6g,\"gflops\":%.6g,\"gflops12\":%.6g,", 1e3 * step,
           rates->tokens / step, rates->flops / step / 1e9, rates->flops12 / step / 1e9);
    printf("\"products_ms\":%.6g,\"products_gflops\":%.6g,", 1e3 * x[ROW_PRODUCTS],
           rates->products / 1e9);
    printf("\"forward_ms\":%.6g,\"backward_ms\":%.6g,\"update_ms\":%.6g,", 1e3 * x[ROW_FORWARD],
           1e3 * x[ROW_BACKWARD], 1e3 * x[ROW_UPDATE]);
    printf("\"share\":%.6g,\"attention_share\":%.6g,", r->product_flops / step / rates->products,
           rates->attention / rates->products);
    printf("\"optimizer_ms\":%.6g,\"loop_ms\":%.6g,", 1e3 * r->optimizer, 1e3 * x[ROW_LOOP]);
    for (int o = 0; o < OP_COUNT; o++) {
        ops += x[ROW_OP + o];
        if (x[ROW_OP + o] > 0) printf("\"op_%s_ms\":%.6g,", op_name[o], 1e3 * x[ROW_OP + o]);
    }
    printf("\"ops_ms\":%.6g,\"memory_mib\":%.6g,\"steps\":%lld,\"device\":", 1e3 * ops,
           r->held / 1048576, (long long)a->steps);
    json_print_string(stdout, rates->device);
    puts("}");
}

static void print_result(const Trainer *t, const Result *r, const Arguments *a)
{
    const Config *c = t->config;
    const double *x = r->seconds, step = x[ROW_STEP];
    Rates rates = rates_of(t, r);
    if (a->json) {
        print_json(r, &rates, a);
        return;
    }
    printf("device      %s\n", rates.device);
    printf("step        %.1f ms   %.1f tokens/s   %.1f GFLOP/s   (one micro-batch of %lld x %lld "
           "random tokens, %s, "
           "median of %lld)\n",
           1e3 * step, rates.tokens / step, rates.flops / step / 1e9,
           (long long)c->train_micro_batch_size_per_gpu, (long long)c->data.seq_length,
           dtype_name(t->session.layers.shape.dtype), (long long)a->steps);
    printf("phases      forward %.1f ms   backward %.1f ms   update %.1f ms\n",
           1e3 * x[ROW_FORWARD], 1e3 * x[ROW_BACKWARD], 1e3 * x[ROW_UPDATE]);
    printf(
        "products    %.1f ms   %.1f GFLOP/s   the step's own list of matrix products, replayed\n",
        1e3 * x[ROW_PRODUCTS], rates.products / 1e9);
    /* The ratio uses a rate measured in the same run, not one from a data sheet. So the quality of
     * the library and other load on the machine cancel out. */
    printf(
        "ratio       %.1f %%   the step's products at the whole step's time, of the list's rate\n",
        100 * r->product_flops / step / rates.products);
    printf(
        "attention   %.1f ms   %.1f GFLOP/s   %.1f %% of the list's rate (causal counted once)\n",
        1e3 * r->attention, rates.attention / 1e9, 100 * rates.attention / rates.products);
    terminal_print(
        stdout, 12,
        "optimizer   %.1f ms   %.1f %% of a loop that moves as many bytes, %.0f an element (%.1f "
        "ms)",
        1e3 * r->optimizer, 100 * x[ROW_LOOP] / r->optimizer, r->update_bytes, 1e3 * x[ROW_LOOP]);
    /* The times of ops come from a separate step with a profile, so they need not add up to the
     * time of the step above. */
    for (int o = 0; o < OP_COUNT; o++)
        if (x[ROW_OP + o] > 0)
            printf("  %-24s%9.2f ms  %5.1f %%\n", op_name[o], 1e3 * x[ROW_OP + o],
                   100 * x[ROW_OP + o] / step);
}

/* Loads the config. If its vocabulary is not known, uses the size of the tokenizer that a run would
 * train. */
static const Config *bench_config(const Arguments *a)
{
    ConfigReport report = {0};
    ConfigContext context = session_context(1);
    context.alone = true;
    const Config *c = config_load(a->config, a->set.count, a->set.item, &context, &report);
    if (c == NULL) {
        config_report_print(&report, false, stderr);
        exit(config_report_code(&report));
    }
    config_report_free(&report);
    /* The data are not opened, so assume that the tokenizer will have the requested size. */
    return session_settle(c, c->model.vocab_size == 0 ? c->data.tokenizer_vocab_size : 0);
}

static int bench_step(const void *values)
{
    const Arguments *a = values;
    DataSet data;
    Trainer t;
    char err[1024];
    const Config *c = bench_config(a);
    const Config micro = config_of_one_micro_batch(c, false);
    Progress progress = progress_begin_quiet();
    progress_print(&progress, "allocating memory and initializing the weights");
    data_open_random(&data, c->model.vocab_size);
    if (!trainer_open(&t, &micro, NULL, err, sizeof err)) fail(EXIT_UNAVAILABLE, "%s", err);
    if (!trainer_allocate(&t, &micro, &data, err, sizeof err)) fail(EXIT_DAMAGED, "%s", err);
    Result r = measure(&t, (int)a->steps, &progress);
    print_result(&t, &r, a);
    trainer_close(&t);
    data_close(&data);
    config_free(c);
    return EXIT_OK;
}

static const ArgOption options[] = {
    {.name = "--set",
     .value = "key=value",
     .help = "override one key of the config; may be repeated",
     .kind = ARG_SETTINGS,
     .at = offsetof(Arguments, set)},
    {.name = "--steps",
     .value = "N",
     .help = "of which the medians are shown; default 7",
     .kind = ARG_INTEGER,
     .at = offsetof(Arguments, steps),
     .least = 1,
     .most = MAX_STEPS},
    {.name = "--json",
     .help = "print one JSON line instead of a table",
     .kind = ARG_FLAG,
     .at = offsetof(Arguments, json)},
};

const ArgCommand cmd_bench_step = {
    .name = "step",
    .call = "./train bench step",
    .usage = "CONFIG.json [--set key=value]... [--steps N] [--json]",
    .summary = "one training step of the config's model on random tokens, beside its own\n"
               "list of matrix products; on one rank, whatever grid the config asks for",
    .options = options,
    .n_options = ARG_ROWS(options),
    .words = {.least = 1,
              .most = 1,
              .at = offsetof(Arguments, config),
              .missing = "which config? ./train bench step configs/gpt2_124m.json",
              .plural = "configs"},
    .size = sizeof(Arguments),
    .defaults = &(const Arguments){.steps = 7},
    .run = bench_step,
};
