/* print.c -- prints a plan for people; see plan.h. */
#include "parallel/plan/plan.h"

#include "model/core/check.h"
#include "model/core/figures.h"
#include "model/core/terminal.h"
#include "model/core/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INDENT = 12, SHOWN_STAGES = 32 };

static void line(const char *label, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void line(const char *label, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    utf8_format(text, sizeof text, fmt, args);
    va_end(args);
    terminal_field(stdout, label, text, INDENT);
}

static Figure hours_text(double hours)
{
    Figure f = figure_short(hours);
    if (hours < 100) snprintf(f.text, sizeof f.text, "%.3g", hours);
    return f;
}

/* ---- what is planned ------------------------------------------------------------------------- */

/* Prints the line about the machine. A node has a fixed number of GPUs, but any number of ranks can
 * run on one CPU. So for CPUs the line says why there are several nodes. */
static void print_machine(const Plan *plan, const char *machine)
{
    char several[160] = "";
    if (plan->nodes > 1 && !plan->hardware.cuda)
        snprintf(several, sizeof several,
                 ", because a node takes %s; if one machine is to have them all, say so in a "
                 "machine file (devices_per_node)",
                 figure_of(plan->ranks_of_node, "rank").text);
    line("machine", "%s: %s; %s%s", machine, plan->hardware.name,
         figure_of(plan->nodes, "node").text, several);
}

static void print_model(const Plan *plan)
{
    const Config *c = plan->config;
    const char *assumed = plan_vocabulary(c);
    line("model", "%s parameters in %s: %s, %s of %s tokens, vocabulary %s%s%s",
         figure_short((double)plan->parameters).text, dtype_name(config_dtype(c)),
         figure_of(c->model.num_layers, "layer").text,
         figure_of(c->train_batch_size, "sequence").text,
         figure_count((double)c->data.seq_length).text,
         figure_count((double)c->model.vocab_size).text, assumed ? " " : "",
         assumed ? assumed : "");
}

static void print_grid(const Plan *plan)
{
    const Config *c = plan->config;
    char grid[96], schedule[96] = "", chunks[32] = "", groups[32];
    grid_size_text(plan->grid, grid, sizeof grid);
    if (c->parallel.pipeline_chunks > 1)
        snprintf(chunks, sizeof chunks, " x %lld", (long long)c->parallel.pipeline_chunks);
    if (plan->grid.pp > 1)
        snprintf(schedule, sizeof schedule, ", %s%s", config_word(c, "parallel.schedule"), chunks);
    int64_t micros = c->gradient_accumulation_steps;
    line("grid",
         "%s%s%s, ZeRO %lld%s%s%s; a step has %s micro-batch%s of %lld x %s tokens; "
         "recomputation %s",
         figure_of(plan->ranks, "rank").text, *grid ? " = " : "", grid,
         (long long)c->zero_optimization.stage,
         grid_shard_text(c, plan->grid.dp, groups, sizeof groups),
         c->parallel.sequence_parallel && plan->grid.tp > 1 ? ", sequence parallel" : "", schedule,
         figure_count((double)micros).text, micros == 1 ? "" : "es",
         (long long)c->train_micro_batch_size_per_gpu,
         figure_count((double)c->data.seq_length).text,
         config_word(c, "activation_checkpointing.policy"));
}

/* Returns whether some group of `shard` data-parallel ranks spans several nodes, which smaller
 * groups would avoid. */
static bool groups_are_spread(const Plan *plan, int shard)
{
    if (plan->nodes == 1) return false;
    int *node = must_calloc((size_t)plan->ranks, sizeof *node);
    for (int r = 0; r < plan->ranks; r++)
        node[r] = r / plan->ranks_of_node;
    bool spread = grid_shard_is_spread_over(node, plan->grid, shard);
    free(node);
    return spread;
}

/* Warns, as the run does, about shard groups that send between nodes in every micro-batch. */
static void print_groups(const Plan *plan)
{
    int shard = config_shard(plan->config, plan->grid.dp);
    if (shard == plan->grid.dp || !groups_are_spread(plan, shard)) return;
    line("",
         "warning: parallel.shard: groups of %d ranks are on several nodes; a size that divides "
         "the data-parallel ranks of a node keeps their sums and gathers within it",
         shard);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void print_room(const Plan *plan, const char *label, const PlanRoom *room, const char *whose)
{
    int64_t left = room->room - room->needed;
    char stage[32] = "", free_for[40] = "beside page-locked memory";
    if (plan->grid.pp > 1) snprintf(stage, sizeof stage, " of stage %d", room->stage);
    double margin = plan->config->memory_margin;
    bool locked =
        room == &plan->host && room->margin > (int64_t)(margin * (double)plan->hardware.host_bytes);
    if (!locked) snprintf(free_for, sizeof free_for, "memory_margin %g", margin);
    line(label, "%s by %s: %s%s needs %s of the %s that it may use (%s: %s stay free)",
         left >= 0 ? "FITS" : "MISSES", figure_bytes(left >= 0 ? (double)left : -(double)left).text,
         whose, stage, figure_bytes((double)room->needed).text,
         figure_bytes((double)room->room).text, free_for, figure_bytes((double)room->margin).text);
}

/* The columns of the table of stages. The table does not contain a node's sums and its host memory,
 * which are printed in the lines above it. */
enum { CLASSES = 9 };
static const char *const class_name[CLASSES] = {"weights", "grads", "buffers", "optim.", "activ.",
                                                "scratch", "other", "reserve", "total"};

static void print_stage(const MemoryPlan *m, int stage, double unit)
{
    /* If device memory is host memory, the total includes all states, so `states` does, too. */
    size_t states = m->optimizer + (m->on_host ? m->offloaded : 0);
    const size_t parts[CLASSES] = {m->weights, m->gradients, m->buffers, states,  m->activations,
                                   m->scratch, m->other,     m->reserve, m->total};
    printf("%5d", stage);
    for (int i = 0; i < CLASSES; i++)
        printf(" %7.2f", (double)parts[i] / unit);
    puts("");
}

/* Prints how much of the optimizer states is on the host; nothing on a CPU, where all memory is
 * host memory. */
static void print_states(const Plan *plan)
{
    const MemoryPlan *m = &plan->stage[plan->host.stage].memory;
    if (plan_offloaded_seconds(plan) == 0) return;
    line("",
         "%s of them are page-locked, %s a rank, for %.0f %% of its optimizer's states; each step "
         "moves them in and out in %s or more",
         figure_bytes((double)plan->host.offloaded).text, figure_bytes((double)m->offloaded).text,
         100 * plan_offloaded_share(plan), figure_seconds(plan_offloaded_seconds(plan)).text);
}

static void print_memory(const Plan *plan)
{
    int most = 0;
    for (int s = 0; s < plan->grid.pp; s++)
        if (plan->stage[s].memory.total > plan->stage[most].memory.total) most = s;
    double largest = (double)plan->stage[most].memory.total, unit = figure_bytes_unit(largest);
    const Figure one = figure_bytes(unit); /* "1.0 GiB" */
    print_room(plan, "memory", &plan->device, plan->hardware.cuda ? "a GPU" : "a node");
    if (plan->hardware.cuda) print_room(plan, "host", &plan->host, "a node");
    print_states(plan);
    if (plan->snapshot > 0)
        line("", "%s of a node's memory are for snapshots of saves (checkpoint.async)",
             figure_bytes((double)plan->snapshot).text);
    if (plan->snapshot_missing > 0)
        line(
            "",
            "no room for snapshots of saves (checkpoint.async): %s of a node's memory are missing; "
            "training waits while a checkpoint is written",
            figure_bytes((double)plan->snapshot_missing).text);
    if (plan->remedy) line("remedy", "%s", plan->remedy);
    printf("a rank of each stage, in %s%s:\nstage", strchr(one.text, ' ') + 1,
           plan->stage[0].memory.reserve > 0 ? "; reserve, which NCCL takes, is an estimate" : "");
    for (int i = 0; i < CLASSES; i++)
        printf(" %7s", class_name[i]);
    puts("");
    for (int s = 0; s < plan->grid.pp; s++)
        if (plan->grid.pp <= SHOWN_STAGES || s == most)
            print_stage(&plan->stage[s].memory, s, unit);
    if (plan->grid.pp > SHOWN_STAGES)
        line("", "this stage needs the most; --json lists all %d", plan->grid.pp);
}

/* ---- the wire -------------------------------------------------------------------------------- */

/* Prints a row for each group, operation and dtype: the tensors of a rank's calls in a step
 * (comm.h), for the stage where these have the most bytes. */
static void print_wire(const Plan *plan)
{
    const char *label = "wire";
    for (int g = 0; g < GRID_COMMS; g++)
        for (int i = 0; i < COMM_VERBS * DTYPE_COUNT; i++) {
            int verb = i / DTYPE_COUNT, dtype = i % DTYPE_COUNT, most = 0;
            for (int s = 0; s < plan->grid.pp; s++)
                if (plan->stage[s].wire[g].of[verb][dtype].bytes >
                    plan->stage[most].wire[g].of[verb][dtype].bytes)
                    most = s;
            const CommCount *count = &plan->stage[most].wire[g].of[verb][dtype];
            if (count->calls == 0 || plan->stage[most].group_size[g] == 1) continue;
            if (*label)
                line(label,
                     "tensors of a rank's calls in a step; of several stages, of the one with the "
                     "most bytes:");
            label = "";
            printf("%*s%-10s %-15s %-5s %9s in %s\n", INDENT, "", plan->stage[most].group[g],
                   comm_verb_name[verb], dtype_name((DType)dtype),
                   figure_bytes((double)count->bytes).text, figure_of(count->calls, "call").text);
        }
    if (*label) line(label, "nothing is sent");
}

/* ---- time ------------------------------------------------------------------------------------ */

static void print_part(const char *name, double seconds, double step)
{
    printf("%*s%-26s %11s %5.1f %%\n", INDENT, "", name, figure_seconds(seconds).text,
           100 * seconds / step);
}

static void print_parts(const Plan *plan)
{
    const StageTime *t = &plan->step;
    const struct {
        const char *name;
        double seconds;
    } part[] = {{"matrix products", t->products},
                {"attention", t->attention},
                {"memory-bound kernels", t->memory_bound},
                {"optimizer", t->optimizer},
                {"copies", t->copies},
                {"exposed communication, dp", t->exposed_dp},
                {"exposed communication, tp", t->exposed_tp},
                {"exposed communication, pp", t->exposed_pp},
                {"waits for host states", t->exposed_host},
                {"bubble", t->bubble}};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        if (part[i].seconds != 0) print_part(part[i].name, part[i].seconds, t->seconds);
    PlanSaves saves = plan_saves(plan, t->seconds);
    double steps = (double)plan->config->train_steps;
    if (saves.snapshots > 0) print_part("snapshots of saves", saves.snapshots / steps, t->seconds);
    print_part("saves, training waits", saves.written / steps, t->seconds);
}

/* Prints how long a checkpoint takes, and how long training waits for it. */
static void print_saves(const Plan *plan, double run)
{
    PlanSaves saves = plan_saves(plan, plan->step.seconds);
    int64_t every = plan->config->checkpoint.save_interval;
    double pending = plan_pending_seconds(plan, plan->step.seconds, every);
    char snapshot[128] = "";
    if (plan->snapshot > 0)
        snprintf(snapshot, sizeof snapshot,
                 "; training waits %s for each snapshot, and while the last is written",
                 figure_seconds(plan->snapshot_seconds).text);
    line("checkpoint", "%s, predicted %s each, %s%s: %.2g %% of the run",
         figure_bytes((double)plan->stage[0].checkpoint_bytes).text,
         figure_seconds(plan->save_seconds).text, figure_of(plan->saves, "save").text, snapshot,
         100 * (saves.snapshots + saves.written) / run);
    if (pending > 0)
        line("",
             "saves follow each other faster than the disk writes them: each waits %s for the one "
             "before it; raise checkpoint.save_interval",
             figure_seconds(pending).text);
}

static void print_run(const Plan *plan)
{
    const Config *c = plan->config;
    const PlanRange *range = &plan->range;
    double run = plan_run_seconds(plan, plan->step.seconds);
    const char *one = plan->hardware.cuda ? "GPU" : "node";
    int64_t devices = plan->hardware.cuda ? plan->ranks : plan->nodes;
    char of_each[64] = "";
    if (devices > 1)
        snprintf(of_each, sizeof of_each, " %s of each %s,",
                 figure_short(plan->tokens / plan->step.seconds / (double)devices).text, one);
    line("speed", "predicted %s tokens/s,%s %.1f %% of %s peak (MFU6)",
         figure_short(plan->tokens / plan->step.seconds).text, of_each, 100 * plan->mfu6,
         devices > 1           ? "its"
         : plan->hardware.cuda ? "the GPU's"
                               : "the node's");
    print_saves(plan, run);
    line("run",
         "predicted %s for %s (%s to %s), %s %s-hours; without evaluations, "
         "samples, saves of a best checkpoint and restarts",
         figure_seconds(run).text, figure_of(c->train_steps, "step").text,
         figure_seconds(plan_run_seconds(plan, range->fast)).text,
         figure_seconds(plan_run_seconds(plan, range->slow)).text,
         hours_text(run / 3600 * (double)devices).text, one);
    if (plan->ranks == 1) return;
    line("network", "%s half as fast: predicted %s a step, %.1f %% longer",
         plan->nodes > 1 ? "between the nodes" : "links inside the node",
         figure_seconds(range->half_network).text,
         100 * (range->half_network / plan->step.seconds - 1));
}

void plan_print(const Plan *plan, const char *machine)
{
    PlanTraits traits = plan_traits();
    line("plan", "%s: all times are predicted, nothing was measured or started",
         plan->config->path);
    print_machine(plan, machine);
    print_model(plan);
    print_grid(plan);
    print_groups(plan);
    print_memory(plan);
    print_wire(plan);
    line("step", "predicted %s; %s to %s if kernels are %.0f %% and links %.0f %% faster or slower",
         figure_seconds(plan->step.seconds).text, figure_seconds(plan->range.fast).text,
         figure_seconds(plan->range.slow).text, 100 * (1 - traits.slow.product),
         100 * (1 - traits.slow.between));
    print_parts(plan);
    if (plan->config->cuda.attention == ATTENTION_HOPPER)
        line("", "attention counted at the machine's one rate, as with cuda.attention portable: no "
                 "GPU has run the kernels for Hopper yet");
    print_run(plan);
}
