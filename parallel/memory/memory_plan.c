/* memory_plan.c -- adds up the memory that a rank will need, and prints the plan. See
 * memory_plan.h. */
#include "parallel/memory/inside.h"

#include "model/core/figures.h"
#include "model/core/log.h"
#include "model/core/machine.h"
#include "parallel/comm/nccl/nccl.h"
#include "parallel/grid/control.h"
#include "parallel/grid/machines.h"
#include "parallel/memory/saved_bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what a rank will hold ------------------------------------------------------------------- */

/* Returns the bytes of host memory, page-locked or not, that training needs: batches and records in
 * transit, the staging buffer of checkpoints, and the lists of a step's actions and of the units
 * (flat buffers of parameters) that they use. */
static size_t host_bytes(const StepPlan *step, int64_t rows)
{
    return memory_plus(feed_host_bytes(rows), TRAINER_HISTORY * sizeof(TrainerRecord) +
                                                  CHECKPOINT_STAGING_BYTES + step_plan_bytes(step));
}

MemoryPlan memory_plan(const Trainer *trainer, const DataSet *data)
{
    const Config *config = trainer->config;
    const Session *s = &trainer->session;
    const GptShape *shape = &s->layers.shape;
    int64_t B = config->train_micro_batch_size_per_gpu, T = config->data.seq_length;
    /* Each of these functions runs the code that will lay out the memory, with an arena that only
     * measures. Separate formulas would sooner or later disagree with what is allocated. */
    ZeroBytes zero = zero_bytes(s->store);
    GptBytes gpt = gpt_bytes(&s->layers, s->room.slots, B, T, GPT_TRAIN);
    size_t exchanged = s->grid.size.pp == 1
                           ? 0
                           : pipeline_bytes(s->room.buffers, shape->dtype,
                                            shape_stream_rows(shape, B * T), shape->C);
    MemoryPlan plan = {
        .weights = zero.weights,
        .gradients = zero.gradients,
        .buffers = memory_plus(exchanged,
                               memory_plus(zero.gathered, memory_plus(zero.transient, zero.wire))),
        .optimizer = trainer->optimizer_bytes.device,
        .activations = gpt.activations,
        .scratch = gpt.scratch,
        .slots = trainer->optimizer_bytes.device_slots};
    plan.other =
        sizeof(TrainerState) + trainer->lr_bytes + feed_bytes(B * T, s->room.batches) + gpt.angles;
    /* Samples are drawn while training has all its memory, so their cache of keys and values is
     * added. */
    if (trainer_samples(config, data))
        plan.other = memory_plus(plan.other, decoder_bytes(&s->layers, shape->P));
    GridNccl nccl = grid_nccl(config);
    plan.reserve = session_connects(s) ? grid_reserve(&s->grid, &nccl) : 0;
    /* A part that is missing from this list would not count when the plan is compared with the free
     * memory. Tests compare the total with what the device has allocated. */
    const size_t parts[] = {plan.weights,     plan.gradients, plan.buffers, plan.optimizer,
                            plan.activations, plan.scratch,   plan.other,   plan.reserve};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        plan.total = memory_plus(plan.total, parts[i]);
    plan.offloaded = plan.offloaded_of_device = trainer->optimizer_bytes.host;
    plan.host = memory_plus(memory_plus(host_bytes(&s->step, B * T), zero.host), plan.offloaded);
    size_t saved = saved_bytes_of(config, &s->table);
    plan.checkpoint = saved > INT64_MAX ? INT64_MAX : (int64_t)saved;
    if (snapshot_wanted(config))
        plan.snapshot = snapshot_bytes_of(config, &s->table, (int)grid_ranks(s->grid.size),
                                          s->world ? s->world->rank : 0);
    plan.ranks = plan.of = 1;
    return plan;
}

void *memory_gather_here(Comm *world, const void *mine, size_t bytes, int *ranks)
{
    Comm split, *here = world; /* the ranks of this machine */
    if (machines_of(world).count > 1) {
        split = machines_split(world);
        here = &split;
    }
    char *all = must_calloc((size_t)here->size, bytes), *own = must_calloc(1, bytes);
    memcpy(own, mine, bytes);
    comm_all_gather(here, NULL, tensor_1d(all, U8, here->size * (int64_t)bytes),
                    tensor_1d(own, U8, (int64_t)bytes));
    *ranks = here->size;
    free(own);
    if (here == &split) comm_close(here);
    return all;
}

MemoryPlan memory_plan_of_ranks(Comm *world, const MemoryPlan *own, int64_t device)
{
    typedef struct {
        MemoryPlan plan;
        int64_t device;
    } Share;
    /* Ranks on the same device share the device's memory, so their plans are added up. All ranks of
     * a machine share the host's memory. A checkpoint belongs to all ranks and is not added up. */
    const Share mine = {.plan = *own, .device = device};
    MemoryPlan sum = {.checkpoint = own->checkpoint,
                      .of = world->size,
                      .rank = world->rank,
                      .on_host = own->on_host};
    Machines machines = machines_of(world);
    if (machines.count > 1)
        snprintf(sum.machine, sizeof sum.machine, "%s", machines_host(world, machines.own));
    int ranks;
    Share *all = memory_gather_here(world, &mine, sizeof mine, &ranks);
    for (int r = 0; r < ranks; r++) {
        const MemoryPlan *p = &all[r].plan;
        sum.host = memory_plus(sum.host, p->host);
        sum.offloaded = memory_plus(sum.offloaded, p->offloaded);
        sum.snapshot = memory_plus(sum.snapshot, p->snapshot);
        if (all[r].device != device) continue;
        sum.weights = memory_plus(sum.weights, p->weights);
        sum.gradients = memory_plus(sum.gradients, p->gradients);
        sum.buffers = memory_plus(sum.buffers, p->buffers);
        sum.optimizer = memory_plus(sum.optimizer, p->optimizer);
        sum.slots = memory_plus(sum.slots, p->slots);
        sum.offloaded_of_device = memory_plus(sum.offloaded_of_device, p->offloaded_of_device);
        sum.activations = memory_plus(sum.activations, p->activations);
        sum.scratch = memory_plus(sum.scratch, p->scratch);
        sum.other = memory_plus(sum.other, p->other);
        sum.reserve = memory_plus(sum.reserve, p->reserve);
        sum.total = memory_plus(sum.total, p->total);
        /* A plan may itself be a sum over ranks, so `ranks` is added, not 1. */
        sum.ranks += p->ranks;
    }
    free(all);
    return sum;
}

double memory_offloaded_share(const MemoryPlan *p)
{
    double host = (double)p->offloaded_of_device;
    return host > 0 ? host / (host + (double)p->slots) : 0;
}

void memory_add_host(MemoryPlan *p)
{
    p->total = memory_plus(p->total, p->host);
    p->other = memory_plus(p->other, p->host - p->offloaded);
    p->on_host = true;
}

/* ---- whether there is room ------------------------------------------------------------------- */

/* Device memory that must stay free besides the plan: for kernel code, which is loaded at first
 * use, and for rounding allocations up to pages. */
#define DEVICE_SLACK ((size_t)256 << 20)

size_t memory_device_room(const MemoryRoom *room)
{
    size_t slack = room->device ? DEVICE_SLACK : 0;
    return room->available > slack ? room->available - slack : 0;
}

MemoryRoom memory_room(Device *device, size_t host)
{
    MemoryRoom room = {.index = device->index, .available = host};
    room.device = device_memory(device, &room.available, &room.total);
    room.host = room.device ? memory_available() : host;
    room.limited = memory_is_limited();
    return room;
}

MemoryMark memory_mark(Device *device)
{
    size_t total;
    MemoryMark mark = {.held = device->held};
    device_memory(device, &mark.available, &total);
    return mark;
}

/* Prints the plan's parts in units of `unit` bytes to `text`, and returns `text`. */
static char *parts_text(const MemoryPlan *p, double unit, char *text, size_t n)
{
    char buffers[32] = "", reserve[32] = "", snapshot[32] = "", states[48] = "";
    if (p->offloaded_of_device > 0)
        snprintf(states, sizeof states, " + %.1f on the host",
                 (double)p->offloaded_of_device / unit);
    if (p->buffers > 0)
        snprintf(buffers, sizeof buffers, "  buffers %.1f", (double)p->buffers / unit);
    if (p->reserve > 0)
        snprintf(reserve, sizeof reserve, "  reserve %.1f", (double)p->reserve / unit);
    if (p->on_host && p->snapshot > 0)
        snprintf(snapshot, sizeof snapshot, "  snapshot %.1f", (double)p->snapshot / unit);
    snprintf(text, n,
             "weights %.1f  gradients %.1f%s  optimizer %.1f%s  activations %.1f  scratch %.1f  "
             "other %.1f%s%s",
             (double)p->weights / unit, (double)p->gradients / unit, buffers,
             (double)p->optimizer / unit, states, (double)p->activations / unit,
             (double)p->scratch / unit, (double)p->other / unit, snapshot, reserve);
    return text;
}

char *memory_whose(const MemoryPlan *p, char *text, size_t n)
{
    char on[80] = "";
    *text = '\0';
    if (*p->machine) snprintf(on, sizeof on, " on %s", p->machine);
    if (p->ranks > 1)
        snprintf(text, n, *on ? " for the %d ranks%s" : " for all %d ranks%s", p->ranks, on);
    else if (p->of > 1)
        snprintf(text, n, p->on_host ? " for rank %d%s" : " on rank %d's GPU%s", p->rank, on);
    return text;
}

void memory_tightest(Comm *world, MemoryPlan *plan, MemoryRoom *room)
{
    int64_t most = INT64_MAX / 2;
    double left = (double)memory_device_room(room) - (double)plan->total;
    int64_t bytes = left > (double)most ? most : left < -(double)most ? -most : (int64_t)left;
    if (machines_of(world).count == 1) return;
    int64_t least = -control_max(world, -bytes);
    int root =
        world->size - (int)control_max(world, bytes == least ? world->size - world->rank : 0);
    comm_broadcast(world, NULL, tensor_1d(plan, U8, (int64_t)sizeof *plan), root);
    comm_broadcast(world, NULL, tensor_1d(room, U8, (int64_t)sizeof *room), root);
}

void memory_print(const MemoryPlan *p, const MemoryRoom *room)
{
    char where[64] = "", parts[256], who[128];
    Figure total = figure_bytes((double)p->total);
    double unit = figure_bytes_unit((double)p->total);
    if (room->device)
        snprintf(where, sizeof where, " of %s %s", figure_bytes((double)room->total).text,
                 p->ranks == p->of ? "on the GPU" : "there");
    log_field("memory", "plan %s%s: %s; available %s%s", total.text,
              memory_whose(p, who, sizeof who), parts_text(p, unit, parts, sizeof parts),
              figure_bytes((double)room->available).text, where);
}

/* Returns the bytes as a signed number, which ranks can send to each other and compare. */
static int64_t clamped(size_t bytes)
{
    return bytes > INT64_MAX ? INT64_MAX : (int64_t)bytes;
}

int memory_largest_of_stages(Comm *world, const MemoryPlan *own, GridPlace size,
                             MemoryPlan *largest)
{
    /* Stages differ in embedding, head and the number of micro-batches that they hold. The largest
     * plan decides whether the run fits, so that plan is printed. In a large world, not all ranks
     * can send their plans to all others, so each stage's plan is sent by only one rank: the first
     * one whose plan is the stage's largest. */
    int64_t *bytes = must_calloc((size_t)size.pp, sizeof *bytes),
            *first = must_calloc((size_t)size.pp, sizeof *first), total = clamped(own->total);
    int most = 0, stage = grid_place(size, world->rank).pp;
    bytes[stage] = total;
    comm_all_reduce(world, NULL, tensor_1d(bytes, I64, size.pp), REDUCE_MAX);
    if (bytes[stage] == total) first[stage] = world->size - world->rank;
    comm_all_reduce(world, NULL, tensor_1d(first, I64, size.pp), REDUCE_MAX);
    for (int s = 0; s < size.pp; s++) {
        largest[s] = *own;
        comm_broadcast(world, NULL, tensor_1d(&largest[s], U8, (int64_t)sizeof largest[s]),
                       world->size - (int)first[s]);
    }
    for (int s = 1; s < size.pp; s++)
        if (largest[s].total > largest[most].total) most = s;
    free(bytes);
    free(first);
    return most;
}

void memory_print_stages(const MemoryPlan *largest, int stages, int most)
{
    enum { SHOWN = 8 };
    for (int s = 0; s < stages; s++) {
        char parts[256];
        double unit = figure_bytes_unit((double)largest[s].total);
        if (stages > SHOWN && s != most) continue;
        log_field("", "a rank of stage %d %s: %s", s, figure_bytes((double)largest[s].total).text,
                  parts_text(&largest[s], unit, parts, sizeof parts));
    }
}

void memory_measure_reserve(Comm *world, const Config *config, MemoryPlan *plan, MemoryMark before,
                            MemoryMark after)
{
    typedef struct {
        size_t planned, taken;
    } Reserve;
    if (plan->reserve == 0) return;
    /* The free memory that there would be if the program had made no allocations since `before`. It
     * may be more than `before` if another process has freed memory. */
    size_t left = after.available + (after.held - before.held);
    Reserve mine = {plan->reserve, before.available > left ? before.available - left : 0};
    /* Each rank's plan gets its own measured value. Only one message is printed, for the first rank
     * with the largest value, which would run out of memory first. */
    int64_t taken = clamped(mine.taken), largest = control_max(world, taken);
    int most =
        world->size - (int)control_max(world, taken == largest ? world->size - world->rank : 0);
    Reserve worst = mine;
    comm_broadcast(world, NULL, tensor_1d(&worst, U8, (int64_t)sizeof worst), most);
    plan->total = memory_plus(plan->total - plan->reserve, mine.taken);
    plan->reserve = mine.taken;
    if (config->memory_breakdown)
        log_field("memory",
                  "reserve: NCCL and the code of kernels take %s of rank %d's GPU, the most of "
                  "any, plan %s",
                  figure_bytes((double)worst.taken).text, most,
                  figure_bytes((double)worst.planned).text);
    /* Only a warning, because this run already has its memory. */
    if (worst.taken > memory_plus(worst.planned, DEVICE_SLACK))
        log_warning("NCCL and the code of kernels take %s of the memory of rank %d's GPU, and the "
                    "plan had %s for NCCL and %s for code: a larger run may not fit although its "
                    "plan does (NCCL_MAX_CTAS, NCCL_BUFFSIZE make NCCL's part smaller)",
                    figure_bytes((double)worst.taken).text, most,
                    figure_bytes((double)worst.planned).text,
                    figure_bytes((double)DEVICE_SLACK).text);
}

void memory_print_use(const Config *config, const MemoryPlan *plan, const char *when)
{
    if (!config->memory_breakdown) return;
    size_t resident = kernel_number("/proc/self/status", "VmRSS:"); /* in kB */
    size_t peak = kernel_number("/proc/self/status", "VmHWM:");
    if (resident == SIZE_MAX || peak == SIZE_MAX) return;
    char who[128];
    /* These are the figures of this process. If ranks are threads, all ranks are in it. */
    char process[32] = "";
    if (launch_parent() != 0 || launch_joined())
        snprintf(process, sizeof process, " in rank %d's process", log_rank());
    const char *gpu = plan->ranks == plan->of && !plan->on_host ? " on the GPU" : "";
    /* The resident memory includes page-locked memory. */
    const char *locked =
        plan->offloaded > 0 && !plan->on_host ? ", the optimizer's states among it" : "";
    log_field("memory", "%s: resident %s, peak %s%s%s%s, plan %s%s%s", when,
              figure_bytes(1024.0 * (double)resident).text,
              figure_bytes(1024.0 * (double)peak).text, plan->on_host ? "" : " on the host",
              process, locked, figure_bytes((double)plan->total).text, gpu,
              memory_whose(plan, who, sizeof who));
}
