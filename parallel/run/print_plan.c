/* print_plan.c -- prints the model, the batch, the update of the weights, the memory and the disk
 * space of a run before it allocates anything, and refuses a run that does not fit in memory. */
#include "model/core/figures.h"
#include "model/core/log.h"
#include "model/core/machine.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "optim/step_constants.h"
#include "parallel/grid/control.h"
#include "parallel/grid/machines.h"
#include "parallel/run/best.h"
#include "parallel/run/disk.h"
#include "parallel/run/print_ranks.h"
#include "parallel/run/run_ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A model that makes more passes over its text than this memorizes it. */
static const double many_passes = 10;

/* Formats a number of passes over the data: "less than 0.01", "0.25", "1", "2.1". */
static Figure passes_text(double passes)
{
    Figure f = figure_count(passes);
    if (passes < 1) snprintf(f.text, sizeof f.text, "%.2g", passes);
    return passes < 0.01 ? (Figure){"less than 0.01"} : f;
}

/* Warns that the run reads its text too often. Prints at which step ten passes end or, if a single
 * step is more than ten passes, which batch key to lower. `step` and `there` are the tokens of a
 * step and of the data. */
static void warn_of_passes(const Config *c, double step, double there, double passes)
{
    int64_t rows = c->train_micro_batch_size_per_gpu, times = c->gradient_accumulation_steps;
    /* Fewer steps help, unless a single step is too many passes. Then less gradient accumulation
     * helps or, if even one micro-batch is too many, a smaller micro-batch. */
    double last = floor(many_passes * there / step);
    bool one_fits = step / (double)times <= many_passes * there; /* one micro-batch */
    char help[160];
    if (last >= 1)
        snprintf(help, sizeof help, "fewer train_steps (ten passes end with step %s)",
                 figure_count(last).text);
    else
        snprintf(help, sizeof help, "a smaller %s (now %lld: a step is %s passes)",
                 one_fits ? "gradient_accumulation_steps" : "train_micro_batch_size_per_gpu",
                 (long long)(one_fits ? times : rows), figure_count(step / there).text);
    log_warning("the run reads its %s tokens %s times and will learn them by heart; give it more "
                "text, or %s",
                figure_count(there).text, figure_count(passes).text, help);
}

/* Prints how many tokens a step and the whole run read, and how many passes over the data these
 * are. */
static void print_batch(const Config *c, const DataSet *data)
{
    double step = (double)step_tokens(c);
    double all = step * (double)c->train_steps, there = (double)data->train.n_tokens;
    double passes = data->random ? 0 : all / there;
    char ranks[40] = "";
    GridPlace grid = config_grid(c, 0);
    bool data_alone = grid_ranks(grid) == grid.dp;
    if (grid.dp > 1)
        snprintf(ranks, sizeof ranks, data_alone ? " x %d ranks" : " x dp %d", grid.dp);
    log_field("batch", "%lld x %lld tokens x %lld accumulation%s = %s tokens a step",
              (long long)c->train_micro_batch_size_per_gpu, (long long)c->data.seq_length,
              (long long)c->gradient_accumulation_steps, ranks, figure_count(step).text);
    if (data->random)
        log_field("", "%s = %s tokens", figure_of(c->train_steps, "step").text,
                  figure_short(all).text);
    else
        log_field("", "%s = %s tokens = %s pass%s over %s tokens",
                  figure_of(c->train_steps, "step").text, figure_short(all).text,
                  passes_text(passes).text, passes == 1 ? "" : "es", figure_count(there).text);
    if (passes > many_passes) warn_of_passes(c, step, there, passes);
}

/* Describes the learning rates of the run in text[0..n) and returns `text`: the highest, and the
 * last one if it is lower. In long runs only some steps are examined. */
static char *learning_rates_text(const Config *c, char *text, size_t n)
{
    enum { MOST_LOOKS = 100000 };
    int64_t stride = c->train_steps / MOST_LOOKS + 1;
    double last = lr_schedule(c, c->train_steps - 1), highest = last;
    for (int64_t update = 0; update < c->train_steps; update += stride)
        highest = fmax(highest, lr_schedule(c, update));
    if (last < highest)
        snprintf(text, n, "up to %.3g, %.3g at the end", highest, last);
    else
        snprintf(text, n, "%s%.3g", c->scheduler.type == SCHEDULER_CONSTANT ? "" : "up to ",
                 highest);
    return text;
}

/* Describes the 16-bit types of the training in text[0..n), beginning with a comma, and returns
 * `text`. It is empty if no type has 16 bits. */
static char *precision_text(const Config *c, char *text, size_t n)
{
    DType dtype = config_dtype(c);
    double scale = c->fp16.loss_scale, first = ldexp(1, (int)c->fp16.initial_scale_power);
    char loss_scale[64] = "";
    if (dtype == F16)
        snprintf(loss_scale, sizeof loss_scale, ", loss scale %s%s", scale > 0 ? "" : "from ",
                 figure_count(scale > 0 ? scale : first).text);
    *text = '\0';
    if (dtype == BF16 || dtype == F16)
        snprintf(text, n, ", %s weights with %s%s%s", dtype_name(dtype),
                 c->bf16.bf16_master_weights_and_grads ? "stochastic rounding"
                                                       : "f32 master weights",
                 optimizer_slot_dtype(c, dtype, SLOT_FIRST) == BF16 ? " and bf16 moments" : "",
                 loss_scale);
    return text;
}

/* Names the optimizer in text[0..n) and returns `text`. The momentum of SGD is part of the name,
 * since it is 0 by default. */
static char *optimizer_text(const Config *c, char *text, size_t n)
{
    bool momentum = c->optimizer.type == OPTIMIZER_SGD && c->optimizer.params.momentum > 0;
    snprintf(text, n, "%s", config_word(c, "optimizer.type"));
    if (momentum)
        snprintf(text, n, "%s with %smomentum %.3g", config_word(c, "optimizer.type"),
                 c->optimizer.params.nesterov ? "Nesterov " : "", c->optimizer.params.momentum);
    return text;
}

/* Describes the weight decay in text[0..n) and returns `text`. */
static char *decay_text(const Config *c, char *text, size_t n)
{
    double decay = c->optimizer.params.weight_decay;
    snprintf(text, n, "no weight decay");
    if (decay > 0)
        snprintf(text, n, "weight decay %.3g on %s%s", decay,
                 c->optimizer.weight_decay_on == DECAY_ON_ALL ? "all weights" : "matrices",
                 config_decay_is_decoupled(c) ? "" : " (added to the gradient)");
    return text;
}

/* Prints what determines the update of the weights. */
static void print_update(const Config *c)
{
    char optimizer[64], rates[96], decay[96], clip[64] = "no gradient clipping", precision[128];
    if (c->gradient_clipping > 0)
        snprintf(clip, sizeof clip, "gradients clipped to norm %.3g", c->gradient_clipping);
    log_field("update", "%s, learning rate %s (%s), %s, %s%s",
              optimizer_text(c, optimizer, sizeof optimizer),
              learning_rates_text(c, rates, sizeof rates), config_word(c, "scheduler.type"),
              decay_text(c, decay, sizeof decay), clip,
              precision_text(c, precision, sizeof precision));
}

static void print_model(const Session *session)
{
    const GptShape *s = &session->layers.whole;
    log_field("model",
              "%s, %lld wide, %s (%lld kv) of %lld, mlp %lld, vocabulary %lld "
              "(padded %lld), %s: %s parameters",
              figure_of(s->L, "layer").text, (long long)s->C, figure_of(s->H, "head").text,
              (long long)s->G, (long long)s->D, (long long)s->F, (long long)s->V, (long long)s->Vp,
              dtype_name(s->dtype), figure_short((double)param_table_count(&session->table)).text);
}

void run_plan(Run *run)
{
    const Config *c = run->config;
    char err[2048] = "";
    size_t host = memory_available();
    run->work.progress = progress_begin();
    if (run->lead) memory_check_step(c);
    if (run->lead) run_check_schedules(c);
    /* All ranks of a machine use a value from before any of them allocated memory. */
    machines_share(run->world, &host, sizeof host);
    bool good = trainer_open(&run->trainer, c, run->world, err, sizeof err);
    run_require(run, good, EXIT_UNAVAILABLE, err, sizeof err);
    const Device *dev = &run->trainer.session.dev;
    comm_barrier(run->world); /* all devices are open: the plans may use what is free now */
    MemoryRoom room = memory_room(&run->trainer.session.dev, host);
    /* Also refuses impossible sizes, before the sizes of all ranks are added up. */
    MemoryPlan own = memory_plan(&run->trainer, &run->data);
    if (!room.device) memory_add_host(&own);
    run->plan = memory_plan_of_ranks(run->world, &own, room.device ? gpus_number(dev) : 0);
    run->trainer.saves_async = memory_take_snapshot(run->world, &room, &own, &run->plan);
    print_model(&run->trainer.session);
    print_batch(c, &run->data);
    print_update(c);
    run_print_ranks(run);
    GridPlace size = run->trainer.session.grid.size;
    MemoryPlan *largest = must_calloc((size_t)size.pp, sizeof *largest);
    int most = size.pp > 1 ? memory_largest_of_stages(run->world, &own, size, largest) : 0;
    MemoryPlan tightest = run->plan;
    MemoryRoom tightest_room = room;
    memory_tightest(run->world, &tightest, &tightest_room);
    if (run->lead) {
        memory_print(&tightest, &tightest_room);
        if (room.device && run->plan.offloaded > 0)
            log_field("",
                      "%s of the host's memory, page-locked, for %.1f %% of the optimizer's states",
                      figure_bytes((double)run->plan.offloaded).text,
                      100 * memory_offloaded_share(&run->plan));
        if (room.device && run->plan.snapshot > 0)
            log_field("", "%s of the host's memory for snapshots of saves",
                      figure_bytes((double)run->plan.snapshot).text);
        if (size.pp > 1) memory_print_stages(largest, size.pp, most);
        bool best = best_takes_disk(c, &run->data);
        disk_print(c, best, run->plan.checkpoint);
        if (run->arguments.dry_run)
            disk_check(c, best, run->plan.checkpoint,
                       run->arguments.out ? run->arguments.out : "out");
    }
    free(largest);
    /* Each rank checks its device; the message is that of the lowest rank whose device is too
     * small. */
    good = memory_fits(&run->plan, &room, c, NULL, err, sizeof err);
    /* The message suggests a ratio of offloaded states. A ratio applies to all ranks, so each rank
     * says what it would hold with each ratio. */
    if (control_max(run->world, !good) != 0) {
        MemoryRatios ratios = memory_ratios(&run->trainer);
        ratios = memory_ratios_of_ranks(run->world, &ratios, room.device ? gpus_number(dev) : 0);
        memory_fits(&run->plan, &room, c, &ratios, err, sizeof err);
    }
    run_require(run, good, EXIT_NO_MEMORY, err, sizeof err);
}
