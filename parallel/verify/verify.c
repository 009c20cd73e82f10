/* verify.c -- builds both configs, runs both trainings and prints the result. See verify.h. */
#include "parallel/verify/verify.h"

#include "model/core/clock.h"
#include "model/core/min_max.h"
#include "parallel/comm/nccl/nccl.h"
#include "parallel/grid/control.h"
#include "parallel/grid/launch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEAD_SIZE = 8,
    BLOCKS = 2,
    MOST_VOCABULARY = 509,
    MOST_POSITIONS = 64,
    MOST_SETS = 80,
    SCALE_POWER = 10
};

/* ---- configs --------------------------------------------------------------------------------- */

/* The user's settings, then those of a config to be compared; the last setting of a key counts. */
typedef struct {
    const char **item;
    int n, given;
} Settings;

static Settings settings_begin(const VerifyOptions *o)
{
    Settings s = {.n = o->set.count, .given = o->set.count};
    s.item = must_calloc((size_t)o->set.count + MOST_SETS, sizeof *s.item);
    for (int i = 0; i < s.n; i++)
        s.item[i] = o->set.item[i];
    return s;
}

static void settings_free(Settings *s)
{
    for (int i = s->given; i < s->n; i++)
        free((char *)s->item[i]);
    free(s->item);
}

static void set_text(Settings *s, const char *key, const char *value)
{
    CHECK(s->n - s->given < MOST_SETS, "%d settings", s->n);
    s->item[s->n++] = text_format("%s=%s", key, value);
}

static void set_number(Settings *s, const char *key, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    set_text(s, key, text);
}

static int64_t round_to(int64_t value, int64_t unit)
{
    return value < unit ? unit : value / unit * unit;
}

/* Sets a small model of the config's kind: as many blocks as there are runs of layers, and sizes
 * that tensor-parallel ranks can divide. */
static void set_small_model(Settings *s, const Config *c)
{
    int64_t tp = c->parallel.tensor, runs = c->parallel.pipeline * c->parallel.pipeline_chunks;
    int64_t blocks = max_i64(BLOCKS, runs), vocabulary = c->model.vocab_size;
    int64_t hidden = HEAD_SIZE * c->model.num_attention_heads;
    double wide = (double)c->model.intermediate_size / (double)c->model.hidden_size;
    int64_t length = min_i64(c->data.seq_length, MOST_POSITIONS),
            mlp = (int64_t)(wide * (double)hidden);
    if (vocabulary == 0) vocabulary = c->data.tokenizer_vocab_size;
    if (c->parallel.sequence_parallel) length = round_to(length, tp);
    set_number(s, "model.num_layers", blocks);
    set_number(s, "model.hidden_size", hidden);
    set_number(s, "model.head_dim", HEAD_SIZE);
    set_number(s, "model.intermediate_size", round_to(mlp, tp));
    set_number(s, "model.vocab_size", min_i64(vocabulary, MOST_VOCABULARY));
    set_number(s, "data.seq_length", length);
    set_number(s, "model.max_position_embeddings", length);
    /* The config's own split is for another number of blocks. */
    set_text(s, "parallel.pipeline_split", "null");
    /* Without this, ZeRO would keep such small units whole. */
    set_number(s, "zero_optimization.stage3_param_persistence_threshold", 0);
}

/* Removes all keys of a grid, which leaves a single rank. */
static void set_one_rank(Settings *s)
{
    const char *key;
    for (int i = 0; (key = config_grid_key(i)) != NULL; i++)
        set_text(s, key, "null");
}

/* Disables everything that is kept or sent in 16 bits. */
static void set_no_16_bits(Settings *s)
{
    set_text(s, "fp16.enabled", "false");
    set_text(s, "bf16.enabled", "false");
    set_text(s, "bf16.bf16_master_weights_and_grads", "false");
    set_text(s, "data_types.grad_accum_dtype", "null");
    set_text(s, "communication_data_type", "null");
    set_text(s, "seq_parallel_communication_data_type", "null");
}

static void set_f64(Settings *s, const Config *c)
{
    set_text(s, "fp64.enabled", "true");
    set_no_16_bits(s);
    set_text(s, "device", "cpu");
    /* The error of an update is at most lr / eps, here ten times, that of its gradient. */
    double eps = fmax(1e-4, c->optimizer.params.lr / 10);
    if (c->optimizer.type == OPTIMIZER_SGD || c->optimizer.params.eps >= eps) return;
    char text[32];
    snprintf(text, sizeof text, "%g", eps);
    set_text(s, "optimizer.params.eps", text);
}

/* Loads the config for `world` ranks (0: any number). On failure returns NULL and sets *code;
 * prints the error messages if `aloud`. */
static const Config *load(const VerifyOptions *o, const Settings *s, int64_t world, bool aloud,
                          int *code)
{
    ConfigReport report = {0};
    const ConfigContext context = {.on_cuda = session_on_cuda, .world = world};
    const Config *config = config_load(o->config, s->n, s->item, &context, &report);
    if (config == NULL && aloud) config_report_print(&report, false, stderr);
    if (config == NULL) *code = config_report_code(&report);
    config_report_free(&report);
    return config;
}

/* The configs that are compared: the grid; a single rank with the same sequences in the same order;
 * and for 16 bits, a single rank in f32. */
typedef struct {
    const Config *given, *grid, *single, *exact;
} Configs;

/* Loads the config as given. Its batch need not fit the number of ranks, because a smaller batch
 * replaces it. */
static const Config *load_given(const VerifyOptions *o, const Settings *s, int *code)
{
    const Config *config = load(o, s, o->ranks, false, code);
    return config ? config : load(o, s, 0, true, code);
}

/* Returns the sequences per micro-batch: two, or as many as in the config if tensor-parallel ranks
 * cannot divide two. They always can in a small model. */
static int64_t micro_rows(const VerifyOptions *o, const Config *c)
{
    int64_t rows = min_i64(c->train_micro_batch_size_per_gpu, 2);
    bool shared = !c->parallel.sequence_parallel ||
                  rows * c->data.seq_length % c->parallel.tensor == 0 || !o->full;
    return shared ? rows : c->train_micro_batch_size_per_gpu;
}

static bool load_all(Configs *c, const VerifyOptions *o, int *code)
{
    /* The list of settings grows: the single rank gets every setting of the grid, so both sides
     * differ only in the number of ranks. */
    Settings s = settings_begin(o);
    *c = (Configs){.given = load_given(o, &s, code)};
    if (c->given) {
        const Config *g = c->given;
        /* If the ranks cannot form a whole grid, loading fails below; dp is then 1. */
        int64_t rows = micro_rows(o, g), dp = max_i64(config_grid(g, o->ranks).dp, 1);
        int64_t micros = min_i64(g->gradient_accumulation_steps, 2 * g->parallel.pipeline);
        bool f64 = o->dtype == VERIFY_F64 || g->fp64.enabled ||
                   (o->dtype == VERIFY_DEFAULT && !session_on_cuda(g));
        if (!o->full) set_small_model(&s, g);
        if (o->full && g->model.vocab_size == 0)
            set_number(&s, "model.vocab_size", g->data.tokenizer_vocab_size);
        if (f64) set_f64(&s, g);
        /* The scale would begin high and decrease by steps that overflow; there are only three. */
        if (!f64 && g->fp16.initial_scale_power > SCALE_POWER)
            set_number(&s, "fp16.initial_scale_power", SCALE_POWER);
        /* With "sum", a grid's gradient would be a multiple of a single rank's. */
        set_text(&s, "gradient_allreduce_op", "mean");
        /* TF32 rounds factors, which would turn a difference in the last bit into one of 2^-11. */
        set_text(&s, "cuda.tf32", "false");
        set_number(&s, "train_micro_batch_size_per_gpu", rows);
        set_number(&s, "gradient_accumulation_steps", micros);
        set_number(&s, "train_batch_size", rows * micros * dp);
        c->grid = load(o, &s, o->ranks, true, code);
        /* The single rank processes the micro-batches of all ranks one after another. */
        set_number(&s, "gradient_accumulation_steps", micros * dp);
        set_one_rank(&s);
        if (c->grid) c->single = load(o, &s, 1, true, code);
        set_no_16_bits(&s);
        if (c->single && dtype_size(config_dtype(c->single)) == 2)
            c->exact = load(o, &s, 1, true, code);
    }
    settings_free(&s);
    return c->single && (c->exact || dtype_size(config_dtype(c->single)) != 2);
}

static void free_all(Configs *c)
{
    config_free(c->exact);
    config_free(c->single);
    config_free(c->grid);
    config_free(c->given);
}

/* ---- both trainings -------------------------------------------------------------------------- */

typedef struct {
    const VerifyOptions *options;
    Configs configs;
    DataSet data;
    LocalWorld *patient; /* used to wait without a deadline; NULL: a single rank */
    Comparison comparison;
    char drifted[64]; /* first parameter whose replicas differ; "": none */
} Proof;

/* A trainer and its last step. */
typedef struct {
    Trainer trainer;
    Capture step;
} Side;

/* Ends the program: all ranks of `world` together, or a single rank (NULL). */
static void refuse(const Comm *world, const char *err)
{
    if (world) control_fail(world, EXIT_UNAVAILABLE, "%s", err);
    fail(EXIT_UNAVAILABLE, "%s", err);
}

/* Opens a trainer and, if `hooked`, calls the hook for tests. Does nothing without a config. */
static void open_side(Side *side, const Proof *p, const Config *config, Comm *world, bool hooked)
{
    char err[1024];
    *side = (Side){0};
    if (config == NULL) return;
    if (!trainer_open(&side->trainer, config, world, err, sizeof err)) refuse(world, err);
    if (hooked && p->options->opened) p->options->opened(&side->trainer, p->options->context);
    if (!trainer_allocate(&side->trainer, config, &p->data, err, sizeof err))
        fail(EXIT_DAMAGED, "%s", err);
    side->step = capture_create(&side->trainer.session.table);
}

static void step_side(Side *side)
{
    if (side->step.n == 0) return;
    trainer_step(&side->trainer);
    capture_step(&side->step, &side->trainer);
}

static void close_side(Side *side)
{
    if (side->step.n == 0) return;
    capture_free(&side->step);
    trainer_close(&side->trainer);
}

static void compare(Proof *p, const Side *grid, const Side *single, const Side *exact)
{
    const ParamTable *table = &grid->trainer.session.table;
    DType dtype = grid->trainer.session.layers.shape.dtype;
    const Config *config = p->configs.grid;
    CompareWire wire = compare_grid(config, session_connects(&grid->trainer.session));
    CompareBounds bounds = compare_bounds(dtype, config->optimizer.params.lr, single->step.step);
    bounds.wire = wire;
    if (dtype_size(dtype) == 2)
        compare_distances(&p->comparison, table, &grid->step, &single->step, &exact->step, &wire);
    else
        compare_captures(&p->comparison, table, dtype, &grid->step, &single->step, &bounds);
}

/* Prints how the ranks of the grid communicate; known once their devices are open. */
static void print_way(const Session *grid)
{
    char version[32];
    if (grid->gpus == GPUS_EACH)
        printf("ranks      %s, a GPU each\n", nccl_version(version, sizeof version));
    else if (grid->gpus == GPUS_ONE)
        printf("ranks      %s\n", gpus_shared);
    fflush(stdout);
}

/* Runs one rank of the grid; rank 0 also trains the single ranks. The grid's own work has
 * parallel.timeout as its deadline. Then all ranks wait for rank 0 to finish the single ranks,
 * however long that takes. They wait on the host, because NCCL's calls always have a deadline. */
static int verify_rank(Comm *world, void *context)
{
    Proof *p = context;
    bool lead = world->rank == 0;
    Comm patient = p->patient ? local_world_join(p->patient, world->rank) : comm_self("patient");
    Side grid, single, exact;
    open_side(&grid, p, p->configs.grid, world, true);
    if (lead) print_way(&grid.trainer.session);
    /* If a rank hangs, this barrier times out before any rank waits without a deadline. */
    comm_barrier(world);
    open_side(&single, p, lead ? p->configs.single : NULL, NULL, false);
    open_side(&exact, p, lead ? p->configs.exact : NULL, NULL, false);
    comm_barrier(&patient);
    for (int i = 0; i < VERIFY_STEPS; i++) {
        step_side(&grid);
        comm_barrier(world);
        step_side(&single);
        step_side(&exact);
        if (lead) compare(p, &grid, &single, &exact);
        comm_barrier(&patient);
    }
    /* Replicas can drift apart although each agrees with the single rank within the bounds. */
    const char *drifted = capture_drift(&grid.trainer);
    if (lead && drifted) snprintf(p->drifted, sizeof p->drifted, "%s", drifted);
    close_side(&exact);
    close_side(&single);
    close_side(&grid);
    comm_close(&patient);
    return EXIT_OK;
}

/* ---- words ----------------------------------------------------------------------------------- */

static void print_subject(const Proof *p)
{
    const Config *c = p->configs.grid, *given = p->configs.given;
    GridPlace size = config_grid(c, 0);
    char axes[64];
    grid_size_text(size, axes, sizeof axes);
    printf("grid       %lld rank%s = %s (threads), ZeRO %lld", (long long)p->options->ranks,
           p->options->ranks == 1 ? "" : "s", axes[0] ? axes : "dp 1",
           (long long)c->zero_optimization.stage);
    if (size.pp > 1) printf(", %s", config_word(c, "parallel.schedule"));
    printf("%s\n", c->parallel.sequence_parallel && size.tp > 1 ? ", sequence parallel" : "");
    printf("model      %lld of %lld blocks, hidden size %lld of %lld, vocabulary %lld, %s\n",
           (long long)c->model.num_layers, (long long)given->model.num_layers,
           (long long)c->model.hidden_size, (long long)given->model.hidden_size,
           (long long)c->model.vocab_size, dtype_name(config_dtype(c)));
    printf(
        "steps      %d of %lld sequences of %lld tokens; a rank has %lld micro-batch%s of %lld\n",
        VERIFY_STEPS, (long long)c->train_batch_size, (long long)c->data.seq_length,
        (long long)c->gradient_accumulation_steps, c->gradient_accumulation_steps == 1 ? "" : "es",
        (long long)c->train_micro_batch_size_per_gpu);
}

/* Reports that nothing was compared, which must not count as equal. */
static int print_nothing(const Proof *p)
{
    const Comparison *c = &p->comparison;
    const char *mend = config_dtype(p->configs.grid) == F16
                           ? "write a smaller fp16.loss_scale, or 0 for a dynamic one"
                           : "write a smaller optimizer.params.lr";
    if (c->skipped == 0)
        return error_print(EXIT_CONFIG, "nothing was compared: a single rank has no gradients "
                                        "but zeros in any step");
    return error_print(EXIT_CONFIG,
                       "nothing was compared in step %lld: the grid and a single rank skipped it, "
                       "because gradients are not finite; %s",
                       (long long)c->skipped, mend);
}

static int print_verdict(const Proof *p, double seconds)
{
    const Comparison *c = &p->comparison;
    DType dtype = config_dtype(p->configs.grid);
    if (c->differs)
        return error_print(EXIT_REPLICAS, "the grid is not a single rank: %s", c->difference);
    if (p->drifted[0])
        return error_print(EXIT_REPLICAS,
                           "after %d steps ranks have other weights than their replicas: %s",
                           VERIFY_STEPS, p->drifted);
    if (c->skipped || c->gradients == 0) return print_nothing(p);
    printf("equal      to a single rank; worst deviation %.2g", c->worst);
    if (dtype_size(dtype) > 2 && compare_grid(p->configs.grid, false).absolute > 0)
        printf(" (bound: %s's rounding)", dtype_name(config_communication_dtype(p->configs.grid)));
    else if (dtype_size(dtype) > 2)
        printf(" (bound %.0e)", compare_bounds(dtype, 0, 1).tolerance);
    printf("%s%s   %.1f s\n", c->where[0] ? ": " : "", c->where, seconds);
    return EXIT_OK;
}

int verify_config(const VerifyOptions *options)
{
    Proof p = {.options = options};
    double start = seconds_now();
    int code = EXIT_CONFIG;
    if (load_all(&p.configs, options, &code)) {
        const Config *grid = p.configs.grid;
        LaunchOptions launch = {.timeout = grid->parallel.timeout,
                                .size = config_grid(grid, grid->world)};
        if (grid->world > 1) p.patient = local_world_create((int)grid->world, 0);
        data_open_random(&p.data, grid->model.vocab_size);
        print_subject(&p);
        fflush(stdout);
        session_prepare_ranks(grid, (int)grid->world);
        launch_ranks((int)grid->world, &launch, verify_rank, &p);
        if (p.patient) local_world_destroy(p.patient);
        code = print_verdict(&p, seconds_now() - start);
        data_close(&p.data);
    }
    free_all(&p.configs);
    return code;
}
