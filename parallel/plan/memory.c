/* memory.c -- what a run will take, told before anything is allocated: model, batch, memory,
 * disk. */
#include "model/core/figures.h"
#include "model/core/log.h"
#include "model/core/machine.h"
#include "parallel/run/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A text read oftener than this is learnt by heart rather than from. */
static const double many_passes = 10;

/* "less than 0.01", "0.25", "1", "2.1". */
static Figure passes_text(double passes)
{
    Figure f = figure_count(passes);
    if (passes < 1) snprintf(f.text, sizeof f.text, "%.2g", passes);
    return passes < 0.01 ? (Figure){"less than 0.01"} : f;
}

/* Of a text that is read too often: where ten passes end, or that one step is more than that. */
static void warn_of_passes(const Config *c, double step, double there, double passes)
{
    int64_t rows = c->train_micro_batch_size_per_gpu, times = c->gradient_accumulation_steps;
    double last = floor(many_passes * there / step);
    bool one_fits = step / (double)times <= many_passes * there; /* a micro-batch */
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

/* What a step and the run take of the data. */
static void tell_batch(const Config *c, const DataSet *data)
{
    double step = (double)c->train_batch_size * (double)c->data.seq_length;
    double all = step * (double)c->train_steps, there = (double)data->train.n_tokens;
    double passes = data->random ? 0 : all / there;
    log_field("batch", "%lld x %lld tokens x %lld accumulation = %s tokens a step",
              (long long)c->train_micro_batch_size_per_gpu, (long long)c->data.seq_length,
              (long long)c->gradient_accumulation_steps, figure_count(step).text);
    if (data->random)
        log_field("", "%s = %s tokens", figure_of(c->train_steps, "step").text,
                  figure_short(all).text);
    else
        log_field("", "%s = %s tokens = %s pass%s over %s tokens",
                  figure_of(c->train_steps, "step").text, figure_short(all).text,
                  passes_text(passes).text, passes == 1 ? "" : "es", figure_count(there).text);
    if (passes > many_passes) warn_of_passes(c, step, there, passes);
}

/* Numbers of the model. */
static void tell_model(const GptShape *s)
{
    GptLayers layers;
    ParamTable table = {0};
    gpt_layers_build(&layers, &table, s);
    log_field("model",
              "%s, %lld wide, %s (%lld kv) of %lld, mlp %lld, vocabulary %lld "
              "(padded %lld), %s: %s parameters",
              figure_of(s->L, "layer").text, (long long)s->C, figure_of(s->H, "head").text,
              (long long)s->G, (long long)s->D, (long long)s->F, (long long)s->V, (long long)s->Vp,
              dtype_name(s->dtype), figure_short((double)param_table_count(&table)).text);
    gpt_layers_free(&layers);
    param_table_free(&table);
}

/* How many checkpoints the run commits. */
static int64_t count_saves(const Config *c)
{
    int64_t interval = c->checkpoint.save_interval;
    return interval > 0 ? (c->train_steps - 1) / interval + 1 : 1;
}

static void tell_disk(const Run *run)
{
    int64_t keep = run->config->checkpoint.keep;
    log_field("disk", keep > 0 ? "%s a checkpoint, %lld kept" : "%s a checkpoint, all %lld kept",
              figure_bytes((double)run->plan.checkpoint).text,
              (long long)(keep > 0 ? keep : count_saves(run->config)));
}

void run_check_disk(const Run *run, const char *path)
{
    const Config *c = run->config;
    char ignored[512];
    int64_t saves = count_saves(c), keep = c->checkpoint.keep, *steps;
    int64_t at_once = keep > 0 && keep < saves ? keep + 1 : saves;
    int there = checkpoint_list(path, &steps, ignored, sizeof ignored);
    free(steps);
    char *folder = text_format("%s/checkpoints", path); /* a link to another disk, perhaps */
    int64_t available = fs_room(&fs_system, folder);
    free(folder);
    if (there > 0) at_once -= there < at_once ? there : at_once;
    double need = (double)run->plan.checkpoint * (double)at_once;
    if (available >= 0 && need > (double)available)
        log_warning(
            "checkpoints will need %s of disk and %s are free for %s; lower checkpoint.keep "
            "or choose another disk with --out",
            figure_bytes(need).text, figure_bytes((double)available).text, path);
}

void run_check_room(const Run *run, const Checkpoint *newest)
{
    const Config *c = run->config;
    char ignored[512], *folder = text_format("%s/checkpoints", run->folder.path);
    int64_t room = fs_room(run->trainer.io.fs, folder), *steps, older = 0;
    int n = checkpoint_list(run->folder.path, &steps, ignored, sizeof ignored);
    for (int i = 0; newest && c->checkpoint.keep > 0 && i < n; i++)
        older += steps[i] < checkpoint_manifest(newest)->state.steps; /* which may make room */
    free(steps);
    bool saves = newest == NULL || run->trainer.steps < c->train_steps;
    if (saves && room >= 0 && older == 0 && room < run->plan.checkpoint)
        fail(EXIT_INPUT_OUTPUT,
             "a checkpoint takes %s and %s are free for %s, so that nothing of this run could be "
             "saved; make room, or choose another disk with --out",
             figure_bytes((double)run->plan.checkpoint).text, figure_bytes((double)room).text,
             folder);
    free(folder);
}

/* What a device's memory must have beside the plan: kernels, which are loaded when they are first
 * used, and the ends of allocations' pages. */
#define DEVICE_SLACK ((size_t)256 << 20)

/* Where the plan's memory comes from, and how much there is. */
typedef struct {
    bool device; /* memory of its own; else the host's */
    size_t available, total;
} Room;

/* How much of it the plan may take. */
static size_t room_for_plan(const Room *room)
{
    size_t slack = room->device ? DEVICE_SLACK : 0;
    return room->available > slack ? room->available - slack : 0;
}

/* Opens the device to ask it: its context, product library and scratch are then taken off already.
 * Ends the program when there is no such device. */
static Room find_room(const Config *c)
{
    Room room = {.available = memory_available()};
    char err[2048];
    Device device;
    if (!session_open_device(&device, c, err, sizeof err)) fail(EXIT_UNAVAILABLE, "%s", err);
    room.device = device_memory(&device, &room.available, &room.total);
    device_close(&device);
    return room;
}

/* The plan's parts in the unit of their sum. */
static void tell_memory(const MemoryPlan *p, const Room *room)
{
    char where[64] = "";
    Figure total = figure_bytes((double)p->total);
    double unit = figure_bytes_unit((double)p->total);
    if (room->device)
        snprintf(where, sizeof where, " of %s on the GPU", figure_bytes((double)room->total).text);
    log_field("memory",
              "plan %s: weights %.1f  gradients %.1f  optimizer %.1f  activations %.1f  "
              "scratch %.1f  other %.1f; available %s%s",
              total.text, (double)p->weights / unit, (double)p->gradients / unit,
              (double)p->optimizer / unit, (double)p->activations / unit, (double)p->scratch / unit,
              (double)p->other / unit, figure_bytes((double)room->available).text, where);
}

/* On the CPU the host's share comes from the same memory. */
static void add_host(MemoryPlan *p)
{
    bool over = __builtin_add_overflow(p->total, p->host, &p->total);
    p->other += p->host;
    if (over) p->total = SIZE_MAX;
}

/* What a long step takes of the host's memory, on every device. */
static void check_host(const MemoryPlan *p, const Config *c)
{
    size_t available = memory_available();
    if (c->gradient_accumulation_steps > 1 && p->host > available)
        fail(EXIT_NO_MEMORY,
             "the plan needs %s of the host's memory and %s are available; lower "
             "gradient_accumulation_steps (now %lld)",
             figure_bytes((double)p->host).text, figure_bytes((double)available).text,
             (long long)c->gradient_accumulation_steps);
}

/* What makes a plan smaller that needs more than `room`: of what grows with a batch only where the
 * rest would fit, and only what is not at its smallest. The caller frees. */
static char *smaller_plan(const MemoryPlan *p, const Config *c, size_t room)
{
    double fixed = (double)p->weights + (double)p->gradients + (double)p->optimizer;
    int64_t rows = c->train_micro_batch_size_per_gpu;
    bool full = c->activation_checkpointing.policy == RECOMPUTE_FULL;
    bool selective = c->activation_checkpointing.policy == RECOMPUTE_SELECTIVE;
    if (room == 0)
        return must_strdup("no model fits beside what the device takes for itself: free some of "
                           "its memory, or choose another device");
    if (fixed > (double)room)
        return text_format(
            "choose a smaller model: its weights, gradients and optimizer alone take %s",
            figure_bytes(fixed).text);
    char *batch = rows > 1
                      ? text_format("train_micro_batch_size_per_gpu (now %lld), ", (long long)rows)
                      : must_strdup("");
    char *help = text_format("lower %sdata.seq_length (now %lld), or the model%s", batch,
                             (long long)c->data.seq_length,
                             full        ? ""
                             : selective ? ", or set activation_checkpointing.policy to \"full\""
                                         : ", or set activation_checkpointing.policy to "
                                           "\"selective\" or \"full\"");
    free(batch);
    return help;
}

void run_plan(Run *run)
{
    const Config *c = run->config;
    GptShape shape = gpt_shape(c);
    Room room = find_room(c);
    run->plan = memory_plan(c); /* before others count what it may refuse */
    if (!room.device) add_host(&run->plan);
    const MemoryPlan *p = &run->plan;
    tell_model(&shape);
    tell_batch(c, &run->data);
    tell_memory(p, &room);
    tell_disk(run);
    if (run->arguments.dry_run)
        run_check_disk(run, run->arguments.out ? run->arguments.out : "out");
    check_host(p, c);
    if (p->total > room_for_plan(&room))
        fail(EXIT_NO_MEMORY, "the plan needs %s and %s%s are available for it; %s",
             figure_bytes((double)p->total).text, figure_bytes((double)room_for_plan(&room)).text,
             room.device ? " of the GPU's memory" : "", smaller_plan(p, c, room_for_plan(&room)));
}

void run_tell_memory(const Run *run, const char *when)
{
    long long resident = 0, peak = 0;
    char line[256];
    FILE *f = run->config->memory_breakdown ? fopen("/proc/self/status", "r") : NULL;
    if (f == NULL) return;
    while (fgets(line, sizeof line, f) != NULL) {
        sscanf(line, "VmRSS: %lld", &resident); /* kB */
        sscanf(line, "VmHWM: %lld", &peak);
    }
    fclose(f);
    log_field("memory", "%s: resident %s, peak %s, plan %s", when,
              figure_bytes(1024.0 * (double)resident).text,
              figure_bytes(1024.0 * (double)peak).text, figure_bytes((double)run->plan.total).text);
}
