/* fits.c -- checks whether a plan fits into the memory of the device and of the host, and says what
 * to change in the config if it does not. See memory_plan.h. */
#include "parallel/memory/inside.h"

#include "model/core/figures.h"
#include "model/core/log.h"
#include "model/core/machine.h"
#include "model/core/min_max.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- the host -------------------------------------------------------------------------------- */

size_t memory_host_room(const MemoryPlan *p, const MemoryRoom *room)
{
    const size_t most = (size_t)2000 * 1000 * 1000;
    size_t slack = room->host / 20;
    if (p->offloaded == 0 || room->host == SIZE_MAX) return room->host;
    return room->host - (slack < most ? slack : most);
}

/* Returns whether `bytes` bytes fit into the `available` bytes of host memory; if not, sets err.
 * `bytes`: the host memory of a plan without its optimizer states, or only the list of a step's
 * actions. */
static bool lists_fit(size_t bytes, size_t available, const char *machine, const Config *c,
                      char *err, size_t n)
{
    char lower[80] = "free some of it";
    if (bytes <= available) return true;
    /* Of these bytes, only the list of a step's actions can be large, if it has many
     * micro-batches. */
    if (c->gradient_accumulation_steps > 1)
        snprintf(lower, sizeof lower, "lower gradient_accumulation_steps (now %lld)",
                 (long long)c->gradient_accumulation_steps);
    return error_set(err, n, "the plan needs %s of %s's memory and %s are available; %s",
                     figure_bytes((double)bytes).text, *machine ? machine : "the host",
                     figure_bytes((double)available).text, lower);
}

void memory_check_step(const Config *c)
{
    char err[512];
    if (!lists_fit(step_plan_most_bytes(c, c->gradient_accumulation_steps), memory_available(), "",
                   c, err, sizeof err))
        fail(EXIT_NO_MEMORY, "%s", err);
}

/* ---- where the optimizer states are ---------------------------------------------------------- */

MemoryRatios memory_ratios(const Trainer *trainer)
{
    MemoryRatios ratios;
    Config config = *trainer->config;
    config.zero_optimization.offload_optimizer.device = OFFLOAD_CPU;
    for (int k = 0; k <= 100; k++) {
        config.zero_optimization.offload_optimizer.ratio = k / 100.0;
        ratios.at[k] = optimizer_bytes(&config, trainer->session.params);
    }
    return ratios;
}

MemoryRatios memory_ratios_of_ranks(Comm *world, const MemoryRatios *own, int64_t device)
{
    typedef struct {
        MemoryRatios ratios;
        int64_t device;
    } Share;
    const Share mine = {*own, device};
    MemoryRatios sum = {0};
    int ranks;
    Share *all = memory_gather_here(world, &mine, sizeof mine, &ranks);
    for (int r = 0; r < ranks; r++)
        for (int k = 0; k <= 100; k++) {
            const OptimizerBytes *at = &all[r].ratios.at[k];
            sum.at[k].host = memory_plus(sum.at[k].host, at->host);
            if (all[r].device == device)
                sum.at[k].device = memory_plus(sum.at[k].device, at->device);
        }
    free(all);
    return sum;
}

/* Values of offload_optimizer.ratio, in hundredths. If there is none, the smallest one is 101 and
 * the largest one is -1. */
typedef struct {
    int first, last; /* the smallest and the largest ratio with which both memories have room */
    int of_device;   /* the smallest ratio with which the device has room */
    int of_host;     /* the largest ratio with which the host has room */
} Choice;

static double device_needs(const MemoryPlan *p, const MemoryRatios *ratios, int k)
{
    return (double)p->total - (double)p->optimizer + (double)ratios->at[k].device;
}

/* Returns the bytes that the host needs if k hundredths of the states are there. Snapshots are not
 * counted: if there is no room for both snapshots and states, saves are synchronous. */
static double host_needs(const MemoryPlan *p, const MemoryRatios *ratios, int k)
{
    return (double)p->host - (double)p->snapshot - (double)p->offloaded +
           (double)ratios->at[k].host;
}

/* Returns how many bytes of the host a plan with page-locked memory may use. */
static double locked_room(const MemoryPlan *p, const MemoryRoom *room)
{
    MemoryPlan with = *p;
    with.offloaded = 1;
    return (double)memory_host_room(&with, room);
}

static Choice choose(const MemoryPlan *p, const MemoryRoom *room, const MemoryRatios *ratios)
{
    double device = (double)memory_device_room(room), host = locked_room(p, room);
    Choice c = {.first = 101, .last = -1, .of_device = 101, .of_host = -1};
    for (int k = 0; k <= 100; k++) {
        bool on_device = device_needs(p, ratios, k) <= device,
             on_host = host_needs(p, ratios, k) <= host;
        if (on_host) c.of_host = k;
        if (on_device && c.of_device > 100) c.of_device = k;
        if (on_device && on_host) c.last = k;
        if (on_device && on_host && c.first > 100) c.first = k;
    }
    return c;
}

/* Returns a message for the case that no ratio fits both memories: it says how much the host lacks
 * with the smallest ratio that fits the GPU (or 1), and how much the GPU lacks with the largest
 * ratio that fits the host (or 0). The caller frees it. */
static char *shortfalls(const MemoryPlan *p, const MemoryRoom *room, const MemoryRatios *ratios,
                        Choice choice)
{
    int high = choice.of_device > 100 ? 100 : choice.of_device,
        low = choice.of_host < 0 ? 0 : choice.of_host;
    double host = host_needs(p, ratios, high) - locked_room(p, room),
           device = device_needs(p, ratios, low) - (double)memory_device_room(room);
    return text_format("no zero_optimization.offload_optimizer.ratio fits: with %g the host lacks "
                       "%s, with %g the GPU lacks %s",
                       high / 100.0, figure_bytes(host > 0 ? host : 0).text, low / 100.0,
                       figure_bytes(device > 0 ? device : 0).text);
}

/* Returns a hint that makes the optimizer states smaller, as the end of a sentence, or "" if there
 * is none; the caller frees it. */
static char *smaller_states(const Config *c)
{
    long long ranks = (long long)c->parallel.data;
    if (c->zero_optimization.stage > 0 || ranks < 2) return must_strdup("");
    return text_format("; each of %lld data-parallel ranks keeps all states, with "
                       "zero_optimization.stage 1 each keeps a part of 1/%lld",
                       ranks, ranks);
}

/* Returns what moments in bf16 would change, as the next part of a sentence, or "" if the config
 * cannot have them or has them already. They are suggested as a remedy only if the smaller states
 * fit. */
static const char *smaller_moments(const MemoryPlan *p, const MemoryRoom *room, const Config *c)
{
    if (!c->bf16.enabled || c->optimizer.type == OPTIMIZER_SGD || c->bf16.bf16_optimizer_states)
        return "";
    /* per parameter, f32 masters take 4 bytes, f32 moments 8, bf16 moments 4 */
    bool masters = !c->bf16.bf16_master_weights_and_grads;
    double less = (double)p->offloaded / (masters ? 3 : 2),
           needs = (double)p->host - (double)p->snapshot - less;
    if (needs <= (double)memory_host_room(p, room) && p->total <= memory_device_room(room))
        return ", or write bf16.bf16_optimizer_states true";
    return masters ? "; bf16.bf16_optimizer_states true makes the states a third smaller"
                   : "; bf16.bf16_optimizer_states true makes the states half as large";
}

/* Refuses a plan that needs more page-locked memory than the host has. */
static bool refuse_states(const MemoryPlan *p, const MemoryRoom *room, const Config *c,
                          const MemoryRatios *ratios, char *err, size_t n)
{
    char *states = smaller_states(c), *help;
    Choice choice = {.last = -1};
    if (ratios != NULL) choice = choose(p, room, ratios);
    if (ratios == NULL)
        help = must_strdup("lower zero_optimization.offload_optimizer.ratio");
    else if (choice.last < 0)
        help = shortfalls(p, room, ratios, choice);
    else
        help = text_format("lower zero_optimization.offload_optimizer.ratio to %g",
                           choice.last / 100.0);
    error_set(err, n,
              "the plan needs %s of %s's memory, %s of it page-locked for the optimizer's states, "
              "and %s are available for that%s; %s%s%s",
              figure_bytes((double)p->host).text, *p->machine ? p->machine : "the host",
              figure_bytes((double)p->offloaded).text,
              figure_bytes((double)memory_host_room(p, room)).text,
              room->limited ? " (its control group's limit)" : "", help,
              smaller_moments(p, room, c), states);
    free(help);
    free(states);
    return false;
}

/* Returns a hint that says how to put k hundredths of the states on the host; the caller frees
 * it. */
static char *write_ratio(const MemoryPlan *p, const MemoryRoom *room, const Config *c,
                         const MemoryRatios *ratios, int k)
{
    static const char section[] = "zero_optimization.offload_optimizer";
    bool on = c->zero_optimization.offload_optimizer.device == OFFLOAD_CPU;
    char what[160];
    if (on)
        snprintf(what, sizeof what, "%s.ratio %g", section, k / 100.0);
    else if (k == 100)
        snprintf(what, sizeof what, "%s.device \"cpu\"", section);
    else
        snprintf(what, sizeof what, "%s {\"device\": \"cpu\", \"ratio\": %g}", section, k / 100.0);
    return text_format("write %s: %s of the %s available on %s", what,
                       figure_bytes((double)ratios->at[k].host).text,
                       figure_bytes((double)room->host).text,
                       *p->machine ? p->machine : "the host");
}

/* ---- the device ------------------------------------------------------------------------------ */

/* Returns which keys of the batch, or of recomputation, would make the plan smaller; the caller
 * frees it. No key that is already at its minimum is named: a batch of one row cannot be made
 * smaller, and with full recomputation no policy needs less memory. */
static char *smaller_batch(const Config *c)
{
    int64_t rows = c->train_micro_batch_size_per_gpu;
    bool full = c->activation_checkpointing.policy == RECOMPUTE_FULL;
    bool selective = c->activation_checkpointing.policy == RECOMPUTE_SELECTIVE;
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

static char *smaller_model(const char *what, double bytes)
{
    return text_format("choose a smaller model: its %s alone take %s", what,
                       figure_bytes(bytes).text);
}

/* Returns a message that says what would make the plan fit into a device if no optimizer states can
 * move to the host; the caller frees it. The keys of the batch are named only if weights, gradients
 * and optimizer states fit. */
static char *smaller_plan(const MemoryPlan *p, const Config *c, size_t room)
{
    double fixed = (double)p->weights + (double)p->gradients + (double)p->optimizer;
    if (p->on_host) fixed += (double)p->offloaded;
    if (room == 0)
        return must_strdup("no model fits beside what the device takes for itself: free some of "
                           "its memory, or choose another device");
    if (fixed <= (double)room) return smaller_batch(c);
    char *model = smaller_model("weights, gradients and optimizer", fixed),
         *states = smaller_states(c), *help = text_format("%s%s", model, states);
    free(model);
    free(states);
    return help;
}

/* Returns a message that says what would make the plan fit into a device if optimizer states can
 * move to the host; the caller frees it. */
static char *smaller_plan_beside(const MemoryPlan *p, const MemoryRoom *room, const Config *c,
                                 const MemoryRatios *ratios)
{
    size_t most = memory_device_room(room);
    double kept = (double)p->weights + (double)p->gradients, fixed = kept + (double)p->optimizer;
    bool states = fixed > (double)most;
    Choice choice = choose(p, room, ratios);
    if (kept > (double)most) return smaller_model("weights and gradients", kept);
    char *first = NULL, *second = NULL, *help;
    if (choice.last >= 0 && ratios->at[choice.first].device < p->optimizer) {
        second = write_ratio(p, room, c, ratios, choice.first);
        first = states ? smaller_states(c) : smaller_batch(c);
        help =
            states ? text_format("%s%s", second, first) : text_format("%s, or %s", first, second);
    } else if (states && choice.of_device <= 100) {
        first = smaller_plan(p, c, most);
        second = shortfalls(p, room, ratios, choice);
        help = text_format("%s; %s", first, second);
    } else if (states && host_needs(p, ratios, 100) <= locked_room(p, room) &&
               device_needs(p, ratios, 100) < (double)p->total) {
        first = write_ratio(p, room, c, ratios, 100);
        second = smaller_batch(c);
        help = text_format("%s; and %s", first, second);
    } else {
        help = smaller_plan(p, c, most);
    }
    free(first);
    free(second);
    return help;
}

static bool refuse_device(const MemoryPlan *p, const MemoryRoom *room, const Config *c,
                          const MemoryRatios *ratios, char *err, size_t n)
{
    size_t most = memory_device_room(room);
    char fewer[40] = "", where[64] = "", nccl[160] = "", who[128];
    if (p->ranks > 1)
        snprintf(fewer, sizeof fewer, ", or fewer %s", *p->machine ? "ranks a machine" : "--ranks");
    if (room->device) snprintf(where, sizeof where, " of GPU %d's memory", room->index);
    /* Fewer channels make NCCL slower, so this is suggested only if it would be enough. */
    int fewest = grid_fewer_channels(c);
    if (p->reserve > 0 && p->total - p->reserve <= most && fewest > 0)
        snprintf(nccl, sizeof nccl,
                 ", or set NCCL_MAX_CTAS=%d in the environment: NCCL has %s of it", fewest,
                 figure_bytes((double)p->reserve).text);
    char *help = ratios != NULL && room->device && most > 0
                     ? smaller_plan_beside(p, room, c, ratios)
                     : smaller_plan(p, c, most);
    error_set(err, n, "the plan needs %s%s and %s%s are available for it; %s%s%s",
              figure_bytes((double)p->total).text,
              p->ranks > 1 || *p->machine ? memory_whose(p, who, sizeof who) : "",
              figure_bytes((double)most).text, where, help, fewer, nccl);
    free(help);
    return false;
}

bool memory_fits(const MemoryPlan *p, const MemoryRoom *room, const Config *c,
                 const MemoryRatios *ratios, char *err, size_t n)
{
    size_t lists = p->host - p->offloaded;
    if (!lists_fit(lists, room->host, p->machine, c, err, n)) return false;
    /* If device memory is host memory (on_host), `total` includes `host`. */
    if (!p->on_host && p->host > memory_host_room(p, room))
        return refuse_states(p, room, c, ratios, err, n);
    return p->total <= memory_device_room(room) || refuse_device(p, room, c, ratios, err, n);
}
