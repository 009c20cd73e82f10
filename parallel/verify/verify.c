/* verify.c -- runs the training on the grid and on a single rank, and prints the result. See
 * verify.h. */
#include "parallel/verify/verify.h"

#include "model/core/clock.h"
#include "model/core/log.h"
#include "model/core/progress.h"
#include "model/core/terminal.h"
#include "parallel/comm/nccl/nccl.h"
#include "parallel/grid/control.h"
#include "parallel/grid/launch.h"
#include "parallel/verify/verify_configs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- both trainings -------------------------------------------------------------------------- */

typedef struct {
    const VerifyOptions *options;
    VerifyConfigs configs;
    DataSet data;
    Comparison comparison;
    char drifted[64]; /* first parameter whose replicas differ; "": none */
    Progress progress;
} Proof;

/* A trainer and the results of its last step. */
typedef struct {
    Trainer trainer;
    Capture step;
    Proof *proof;
    const char *name; /* its name in progress messages */
} Side;

/* Ends the program on all ranks of `world` together, or on a single rank (`world` is NULL). */
static void refuse(const Comm *world, const char *err)
{
    if (world) control_fail(world, EXIT_UNAVAILABLE, "%s", err);
    fail(EXIT_UNAVAILABLE, "%s", err);
}

/* Reports which micro-batch of which side is being trained; rank 0 prints it. */
static bool say_side(void *context, const Work *work)
{
    const Side *side = context;
    progress_print(&side->proof->progress, "step %lld of %d on %s: micro-batch %lld of %lld",
                   (long long)side->trainer.steps + 1, VERIFY_STEPS, side->name,
                   (long long)work->done + 1, (long long)work->all);
    return true;
}

/* Opens a trainer and, if `hooked`, calls the hook for tests. Does nothing without a config. */
static void open_side(Side *side, Proof *p, const char *name, const Config *config, Comm *world,
                      bool hooked)
{
    char err[1024];
    *side = (Side){.proof = p, .name = name};
    if (config == NULL) return;
    if (log_rank() == 0) progress_again(&p->progress);
    if (log_rank() == 0) progress_print(&p->progress, "preparing %s", name);
    if (!trainer_open(&side->trainer, config, world, err, sizeof err)) refuse(world, err);
    if (hooked && p->options->opened) p->options->opened(&side->trainer, p->options->context);
    if (!trainer_allocate(&side->trainer, config, &p->data, err, sizeof err))
        fail(EXIT_DAMAGED, "%s", err);
    side->step = capture_create(&side->trainer.session.table);
    if (log_rank() != 0) return;
    side->trainer.feed.watch = say_side;
    side->trainer.feed.watch_context = side;
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

/* Prints how the ranks of the grid communicate, which is known after their devices have been
 * opened. */
static void print_way(const Session *grid)
{
    char version[32];
    if (grid->gpus == GPUS_EACH)
        printf("ranks      %s, a GPU each\n", nccl_version(version, sizeof version));
    else if (grid->gpus == GPUS_ONE)
        printf("ranks      %s\n", gpus_shared);
    fflush(stdout);
}

/* Runs one rank of the grid. Rank 0 also runs the trainings on a single rank: one and, for 16 bits,
 * another in f32. The grid's own work has parallel.timeout as its deadline. Then all ranks wait for
 * rank 0 to finish the other trainings, however long that takes. They wait on the host, because
 * NCCL's calls always have a deadline. */
static int verify_rank(Comm *world, void *context)
{
    Proof *p = context;
    bool lead = world->rank == 0;
    Comm patient = comm_split(world, "patient", 0, world->rank);
    comm_wait_without_limit(&patient);
    Side grid, single, exact;
    open_side(&grid, p, world->size > 1 ? "the grid" : "the rank", p->configs.grid, world, true);
    if (lead) progress_end(&p->progress);
    if (lead) print_way(&grid.trainer.session);
    /* If a rank hangs, this barrier times out before any rank waits without a deadline. */
    comm_barrier(world);
    open_side(&single, p, "a single rank", lead ? p->configs.single : NULL, NULL, false);
    open_side(&exact, p, "a single rank in f32", lead ? p->configs.exact : NULL, NULL, false);
    comm_barrier(&patient);
    for (int i = 0; i < VERIFY_STEPS; i++) {
        step_side(&grid);
        comm_barrier(world);
        step_side(&single);
        step_side(&exact);
        if (lead) compare(p, &grid, &single, &exact);
        comm_barrier(&patient);
    }
    /* Replicas can differ from each other although each agrees with the single rank within the
     * bounds. */
    const char *drifted = capture_drift(&grid.trainer);
    if (lead) progress_end(&p->progress);
    if (lead && drifted) snprintf(p->drifted, sizeof p->drifted, "%s", drifted);
    close_side(&exact);
    close_side(&single);
    close_side(&grid);
    comm_close(&patient);
    return EXIT_OK;
}

/* ---- words ----------------------------------------------------------------------------------- */

enum { COLUMN = 11 }; /* where the text after a label begins */

static void print_subject(const Proof *p, const LaunchOptions *launch)
{
    const Config *c = p->configs.grid, *given = p->configs.given;
    GridPlace size = config_grid(c, 0);
    char axes[64], groups[32];
    grid_size_text(size, axes, sizeof axes);
    terminal_print(stdout, COLUMN, "grid       %lld rank%s = %s (%s), ZeRO %lld%s%s%s%s",
                   (long long)p->options->ranks, p->options->ranks == 1 ? "" : "s",
                   axes[0] ? axes : "dp 1", launch->processes ? "processes" : "threads",
                   (long long)c->zero_optimization.stage,
                   grid_shard_text(c, size.dp, groups, sizeof groups), size.pp > 1 ? ", " : "",
                   size.pp > 1 ? config_word(c, "parallel.schedule") : "",
                   c->parallel.sequence_parallel && size.tp > 1 ? ", sequence parallel" : "");
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

/* Reports that nothing was compared, which must not pass as success. */
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
    char bound[64] = "";
    if (dtype_size(dtype) > 2 && compare_grid(p->configs.grid, false).absolute > 0)
        snprintf(bound, sizeof bound, " (bound: %s's rounding)",
                 dtype_name(config_communication_dtype(p->configs.grid)));
    else if (dtype_size(dtype) > 2)
        snprintf(bound, sizeof bound, " (bound %.0e)", compare_bounds(dtype, 0, 1).tolerance);
    terminal_print(stdout, COLUMN,
                   "equal      to a single rank; worst deviation %.2g%s%s%s   %.1f s", c->worst,
                   bound, c->where[0] ? ": " : "", c->where, seconds);
    return EXIT_OK;
}

int verify_config(const VerifyOptions *options)
{
    Proof p = {.options = options, .progress = progress_begin()};
    double start = seconds_now();
    int code = EXIT_CONFIG;
    if (verify_configs_load(&p.configs, options, &code)) {
        const Config *grid = p.configs.grid;
        launch_join(grid);
        data_open_random(&p.data, grid->model.vocab_size);
        LaunchOptions launch = session_launch(grid, (int)grid->world, options->kind);
        print_subject(&p, &launch);
        fflush(stdout);
        launch.result = &p;
        launch.result_bytes = sizeof p;
        code = launch_ranks((int)grid->world, &launch, verify_rank, &p);
        if (code == EXIT_OK && launch_leads()) code = print_verdict(&p, seconds_now() - start);
        data_close(&p.data);
    }
    verify_configs_free(&p.configs);
    return code;
}
