/* cmd_bench_step.c -- `./train bench step`: a whole training step beside the matrix products it is
 * made of, in one run, on the config's device.
 *
 * Step, the same step with marks around its ops, replay of its list of products, and a memory loop
 * like AdamW's take turns, so that a noisy machine slows all of them alike; the medians' ratios are
 * the result. Times are the device's own, between two events. One micro-batch of random tokens,
 * whatever the config says. */
#include "parallel/commands/cmd_bench.h"

#include "model/core/json_write.h"
#include "model/core/log.h"
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

/* Buffers on which the list of products is replayed: as many bytes of weights as the model has,
 * walked through. */
typedef struct {
    float *x, *y, *w;
    int64_t n_weights, at;
    Device *dev;
    DType dtype;
} Replay;

/* What every round measures, in seconds; the ops come last. */
enum { ROW_STEP, ROW_FORWARD, ROW_BACKWARD, ROW_UPDATE, ROW_PRODUCTS, ROW_LOOP, ROW_OP };
enum { ROWS = ROW_OP + OP_COUNT };

/* Medians of one measurement. */
typedef struct {
    double seconds[ROWS];
    double optimizer, attention;
    double product_flops;
    double update_bytes; /* an element */
    double held;         /* bytes of the device's memory that training has */
} Result;

/* The next O x I weights of the walk. */
static Tensor next_weight(Replay *r, int64_t outputs, int64_t inputs)
{
    /* As in a step, no weight is used twice in a row: it would come from the cache. */
    if (r->at + outputs * inputs > r->n_weights) r->at = 0;
    Tensor t =
        tensor_2d((char *)r->w + (size_t)r->at * dtype_size(r->dtype), r->dtype, outputs, inputs);
    r->at += outputs * inputs;
    return t;
}

static void replay_product(Replay *r, const Product *p)
{
    Tensor w = next_weight(r, p->outputs, p->inputs);
    Tensor x = tensor_2d(r->x, r->dtype, p->n, p->inputs),
           y = tensor_2d(r->y, r->dtype, p->n, p->outputs);
    if (p->op == OP_linear_forward)
        op_linear_forward(r->dev, y, x, w, NO_TENSOR, EPILOGUE_NONE, NO_TENSOR);
    else if (p->op == OP_linear_backward_input)
        op_linear_backward_input(r->dev, x, y, w, EPILOGUE_NONE, NO_TENSOR, p->accumulate);
    else
        op_linear_backward_weight(r->dev, w, NO_TENSOR, y, x, NO_TENSOR, p->accumulate);
}

/* Sizes the buffers by the list and fills them with ordinary numbers. */
static void replay_open(Replay *r, Device *dev, DType dtype, const Profile *list, int64_t n_weights)
{
    int64_t x = 0, y = 0;
    *r = (Replay){.dev = dev, .dtype = dtype, .n_weights = n_weights};
    /* One buffer serves all products of the list, so it has the size of the largest. */
    for (int64_t i = 0; i < list->n_products; i++) {
        const Product *p = &list->product[i];
        if (p->n * p->inputs > x) x = p->n * p->inputs;
        if (p->n * p->outputs > y) y = p->n * p->outputs;
        if (p->outputs * p->inputs > r->n_weights) r->n_weights = p->outputs * p->inputs;
    }
    r->x = device_alloc(dev, (size_t)x * dtype_size(dtype), "inputs");
    r->y = device_alloc(dev, (size_t)y * dtype_size(dtype), "outputs");
    r->w = device_alloc(dev, (size_t)r->n_weights * dtype_size(dtype), "weights");
    op_normal(dev, tensor_1d(r->x, dtype, x), 1, &(Segment){.stream = 1}, 1.0);
    op_normal(dev, tensor_1d(r->y, dtype, y), 1, &(Segment){.stream = 2}, 1e-3);
    op_normal(dev, tensor_1d(r->w, dtype, r->n_weights), 1, &(Segment){.stream = 3}, 0.02);
}

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

/* One step; with a profile its seconds per op. Returns the whole step's. */
static double timed_step(Trainer *t, Stopwatch *watch, Profile *profile)
{
    Device *dev = &t->session.dev;
    StepRecord record[TRAINER_HISTORY];
    if (profile) {
        memset(profile->seconds, 0, sizeof profile->seconds);
        profile->n_products = 0;
    }
    /* A profile puts two marks around every op, which take time: the step that counts has none. */
    dev->profile = profile;
    stopwatch_start(dev, watch);
    trainer_step(t);
    double seconds = stopwatch_stop(dev, watch);
    dev->profile = NULL;
    trainer_read_all(t, record); /* makes room for the next step's record */
    if (profile) profile_collect(dev, profile);
    return seconds;
}

/* One round: a step and its phases, its ops, its products, the loop. */
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
    for (int64_t p = 0; p < profile->n_products; p++)
        replay_product(replay, &profile->product[p]);
    x[ROW_PRODUCTS] = stopwatch_stop(dev, &watch);
    stopwatch_start(dev, &watch);
    memory_loop_run(dev, loop);
    x[ROW_LOOP] = stopwatch_stop(dev, &watch);
    stopwatch_close(dev, &watch);
}

/* The median of every row over `n` rounds; `update` is the optimizer's op. */
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

/* What the optimizer must read and write for n elements, in bytes. */
static double update_bytes(const Trainer *t, int64_t n)
{
    const GptShape *s = &t->session.layers.shape;
    const OptimizerRule *rule = t->optimizer.rule;
    OpCase update = {rule->op, .n = n,
                     .option = tensor_present(t->optimizer.shard[0].slot[SLOT_MASTER]),
                     .value = optimizer_rule_slots(rule, t->config)};
    return op_case_bytes(&update, s->dtype, s->grad_dtype);
}

static Result measure(Trainer *t, int steps)
{
    Device *dev = &t->session.dev;
    Profile *profile = profile_create();
    Replay replay;
    Stopwatch watch = {0};
    double(*round)[ROWS] = must_calloc((size_t)steps, sizeof *round);
    timed_step(t, &watch, profile); /* warm: pages, plans */
    stopwatch_close(dev, &watch);
    double held = (double)dev->held; /* before the benchmark's own buffers */
    int64_t n = param_table_count(&t->session.table);
    replay_open(&replay, dev, t->session.layers.shape.dtype, profile, n);
    double bytes = update_bytes(t, n);
    MemoryLoop loop = memory_loop_open(dev, (int64_t)(bytes / MEMORY_LOOP_BYTES));
    measure_round(t, profile, &replay, &loop, round[0]); /* only touches the pages */
    for (int i = 0; i < steps; i++)
        measure_round(t, profile, &replay, &loop, round[i]);
    Result r = medians(round, steps, t->optimizer.rule->op);
    r.product_flops = product_flops(profile);
    r.update_bytes = bytes / (double)n;
    r.held = held;
    profile_close(dev, profile);
    free(profile->mark);
    free(profile->product);
    free(profile);
    free(round);
    return r; /* the replay's memory goes with the process */
}

/* Operations of the step, and rates of what it is made of, a second. */
typedef struct {
    double tokens, flops, flops12; /* causal attention counted once (MFU6); as a square (MFU12) */
    double products, attention;
    char device[256];
} Rates;

static Rates rates_of(const Trainer *t, const Result *r)
{
    const Config *c = t->config;
    const GptShape *s = &t->session.layers.shape;
    Rates rates = {.tokens = (double)(c->train_micro_batch_size_per_gpu * c->data.seq_length)};
    /* Attention's products over the pairs of a query and a key that it may see; the masked pairs,
     * which MFU12 counts as well, are as many again. */
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
    /* Against a rate measured in the same run, not a data sheet's: how good the library is, and
     * what else the machine does, cancel out. */
    printf(
        "ratio       %.1f %%   the step's products at the whole step's time, of the list's rate\n",
        100 * r->product_flops / step / rates.products);
    printf(
        "attention   %.1f ms   %.1f GFLOP/s   %.1f %% of the list's rate (causal counted once)\n",
        1e3 * r->attention, rates.attention / 1e9, 100 * rates.attention / rates.products);
    printf(
        "optimizer   %.1f ms   %.1f %% of a loop that moves as many bytes, %.0f an element (%.1f "
        "ms)\n",
        1e3 * r->optimizer, 100 * x[ROW_LOOP] / r->optimizer, r->update_bytes, 1e3 * x[ROW_LOOP]);
    /* Of a step of their own, as marks around ops take time: they need not add up to the step. */
    for (int o = 0; o < OP_COUNT; o++)
        if (x[ROW_OP + o] > 0)
            printf("  %-24s%9.2f ms  %5.1f %%\n", op_name[o], 1e3 * x[ROW_OP + o],
                   100 * x[ROW_OP + o] / step);
}

/* The config with the vocabulary of the tokenizer that it would train. */
static const Config *bench_config(const Arguments *a)
{
    ConfigReport report = {0};
    const ConfigContext context = {.on_cuda = session_on_cuda, .world = 1, .alone = true};
    const Config *c = config_load(a->config, a->set.count, a->set.item, &context, &report);
    if (c == NULL) {
        config_report_print(&report, false, stderr);
        exit(config_report_code(&report));
    }
    config_report_free(&report);
    /* The data are not opened: a tokenizer that is still to be trained has the size that is asked
     * for. */
    ConfigFacts facts = {.vocab_size = c->data.tokenizer_vocab_size};
    return c->model.vocab_size > 0 ? c : config_settle(c, &facts, NULL, 0);
}

static int bench_step(const void *values)
{
    const Arguments *a = values;
    DataSet data;
    Trainer t;
    char err[1024];
    const Config *c = bench_config(a);
    const Config micro = config_of_one_micro_batch(c, false);
    data_open_random(&data, c->model.vocab_size);
    if (!trainer_open(&t, &micro, NULL, err, sizeof err)) fail(EXIT_UNAVAILABLE, "%s", err);
    if (!trainer_allocate(&t, &micro, &data, err, sizeof err)) fail(EXIT_DAMAGED, "%s", err);
    Result r = measure(&t, (int)a->steps);
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
