/* plan.c -- computes a plan; see plan.h. */
#include "parallel/plan/plan.h"
#include "parallel/memory/saved_bytes.h"

#include "model/core/check.h"
#include "model/core/min_max.h"
#include "optim/step_constants.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- stages ---------------------------------------------------------------------------------- */

/* Returns a copy of the config in which a step has `micros` micro-batches. It shares the strings of
 * `config`, and must not be freed. */
static Config with_micros(const Config *config, int64_t micros)
{
    Config copy = *config;
    copy.train_batch_size = config->train_batch_size / config->gradient_accumulation_steps * micros;
    copy.gradient_accumulation_steps = micros;
    return copy;
}

/* Adds the calls of `periods` periods (the repeated groups of micro-batches, see Plan.periods) to
 * those of the step in `more`. The calls of one period are those by which `more` exceeds
 * `fewer`. */
static void extend_wire(StagePlan *more, const StagePlan *fewer, int64_t periods)
{
    for (int g = 0; g < GRID_COMMS; g++) {
        CommCount *to = more->wire[g].of[0];
        const CommCount *from = fewer->wire[g].of[0];
        for (int i = 0; i < COMM_VERBS * DTYPE_COUNT; i++) {
            to[i].calls += periods * (to[i].calls - from[i].calls);
            to[i].elements += periods * (to[i].elements - from[i].elements);
            to[i].bytes += periods * (to[i].bytes - from[i].bytes);
        }
    }
}

/* Returns how many of a step's micro-batches must be recorded so that every step that is longer by
 * a multiple of `period` has the same beginning and end. These are three groups of `period`
 * micro-batches, and the `left_over` micro-batches that fill no group. With several chunks, each of
 * these makes one group longer by itself (schedule_order.c). Then `left_over` longer groups are
 * recorded, in addition to the three others. */
static int64_t recorded_micros(const Config *config, int64_t period)
{
    int64_t left_over = config->gradient_accumulation_steps % period, groups = 3;
    if (config->parallel.pipeline_chunks > 1) groups = max_i64(groups, left_over + 3);
    return groups * period + left_over;
}

/* Plans the stages. Once a pipeline is full, a schedule repeats itself after as many micro-batches
 * as there are stages, so the middle of a long step need not be recorded. */
static bool plan_all_stages(Plan *plan, char *err, size_t n)
{
    const Config *c = plan->config;
    const Hardware *h = &plan->hardware;
    int64_t micros = c->gradient_accumulation_steps, period = max_i64(plan->grid.pp, 2);
    int64_t recorded = recorded_micros(c, period);
    int stages;
    if (micros <= recorded) return plan_stages(c, h, &plan->stage, &stages, err, n);
    const Config more = with_micros(c, recorded), fewer = with_micros(c, recorded - period);
    if (!plan_stages(&more, h, &plan->stage, &stages, err, n)) return false;
    if (!plan_stages(&fewer, h, &plan->fewer, &stages, err, n)) return false;
    plan_stages_memory(c, h, plan->stage);
    plan->periods = (micros - recorded) / period;
    for (int s = 0; s < stages; s++)
        extend_wire(&plan->stage[s], &plan->fewer[s], plan->periods);
    return true;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int64_t clamped(size_t bytes)
{
    return bytes > INT64_MAX ? INT64_MAX : (int64_t)bytes;
}

static int64_t plus(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

static PlanRoom room_of(const Config *config, int64_t bytes, int64_t workspace)
{
    PlanRoom room = {.margin = (int64_t)(config->memory_margin * (double)bytes)};
    room.room = max_i64(0, bytes - room.margin - workspace);
    return room;
}

/* Raises the margin of a host to the memory that a run keeps free on the host (memory_host_room),
 * if that is more. */
static void leave_as_the_run(PlanRoom *host, int64_t bytes)
{
    const MemoryRoom all = {.host = (size_t)bytes};
    const MemoryPlan locked = {.offloaded = (size_t)host->offloaded};
    int64_t most = clamped(memory_host_room(&locked, &all));
    host->margin = max_i64(host->margin, bytes - most);
    host->room = min_i64(host->room, most);
}

/* Returns the memory that the ranks of node `node` need together. `needed`: on CPUs all of their
 * memory, on GPUs only their host memory. `offloaded`: the part of `needed` that is optimizer
 * states on the host. */
static PlanRoom needed_of_node(const Plan *plan, int64_t node)
{
    int64_t in_stage = plan->ranks / plan->grid.pp, end = (node + 1) * plan->ranks_of_node;
    PlanRoom of = {0};
    for (int64_t r = node * plan->ranks_of_node; r < end && r < plan->ranks; r++) {
        const MemoryPlan *m = &plan->stage[r / in_stage].memory;
        of.needed = plus(of.needed, clamped(plan->hardware.cuda ? m->host : m->total));
        of.offloaded = plus(of.offloaded, clamped(m->offloaded));
    }
    return of;
}

/* Sets `room` to the needs of the node that needs the most. */
static void fit_nodes(const Plan *plan, PlanRoom *room)
{
    int64_t in_stage = plan->ranks / plan->grid.pp;
    for (int64_t node = 0; node < plan->nodes; node++) {
        const PlanRoom of = needed_of_node(plan, node);
        if (of.needed <= room->needed) continue;
        room->needed = of.needed;
        room->offloaded = of.offloaded;
        room->stage = (int)(node * plan->ranks_of_node / in_stage);
    }
}

static void fit_devices(const Plan *plan, PlanRoom *room)
{
    for (int s = 0; s < plan->grid.pp; s++) {
        int64_t needed = clamped(plan->stage[s].memory.total);
        if (needed <= room->needed) continue;
        room->needed = needed;
        room->stage = s;
    }
}

/* Adds the bytes of the snapshots of asynchronous saves to node->needed, if there is room for them.
 * Otherwise sets plan->snapshot_missing; saves are then synchronous. `node` is the node that needs
 * the most. */
static void fit_snapshot(Plan *plan, PlanRoom *node)
{
    int64_t bytes = snapshot_bytes_of_node(plan->config, plan->ranks, plan->ranks_of_node);
    int64_t missing = plus(node->needed, bytes) - node->room;
    if (missing > 0) {
        plan->snapshot_missing = bytes > 0 ? missing : 0;
        return;
    }
    plan->snapshot = bytes;
    node->needed += bytes;
}

static void fit(Plan *plan)
{
    const Hardware *h = &plan->hardware;
    PlanRoom node = room_of(plan->config, h->host_bytes, 0);
    if (h->cuda) {
        plan->device = room_of(plan->config, h->device.bytes, h->workspace_bytes);
        plan->host = node;
        fit_devices(plan, &plan->device);
        fit_nodes(plan, &plan->host);
        leave_as_the_run(&plan->host, h->host_bytes);
    } else {
        for (int s = 0; s < plan->grid.pp; s++)
            memory_add_host(&plan->stage[s].memory);
        plan->device = node;
        fit_nodes(plan, &plan->device);
    }
    fit_snapshot(plan, h->cuda ? &plan->host : &plan->device);
    plan->fits = plan->device.needed <= plan->device.room && plan->host.needed <= plan->host.room;
}

double plan_offloaded_share(const Plan *plan)
{
    return memory_offloaded_share(&plan->stage[plan->host.stage].memory);
}

double plan_offloaded_seconds(const Plan *plan)
{
    const MemoryPlan *m = &plan->stage[plan->host.stage].memory;
    return plan->hardware.cuda ? (double)m->offloaded / plan->hardware.host_bandwidth : 0;
}

/* ---- time ------------------------------------------------------------------------------------ */

typedef struct {
    Hardware rank; /* the hardware of one rank (hardware_of_rank) */
    CostTraits traits;
    const StagePlan *stage;
} Costs;

static double node_seconds(void *context, int stage, const GraphNode *node)
{
    const Costs *c = context;
    return cost_of_node(&c->rank, &c->traits, &c->stage[stage].two, node);
}

/* The graphs of all stages: `one` of the first step, `two` of the first two steps. */
typedef struct {
    Graph *one, *two;
    Costs costs;
} Steps;

static Steps open_steps(const Plan *plan, const StagePlan *stage, const CostTraits *traits)
{
    size_t stages = (size_t)plan->grid.pp;
    Steps steps;
    steps.costs = (Costs){
        .rank = hardware_of_rank(&plan->hardware, plan->ranks), .traits = *traits, .stage = stage};
    steps.costs.traits.tf32 = plan->config->cuda.tf32;
    steps.one = must_calloc(stages, sizeof *steps.one);
    steps.two = must_calloc(stages, sizeof *steps.two);
    for (size_t s = 0; s < stages; s++) {
        steps.one[s] = stage[s].step;
        steps.two[s] = stage[s].two;
    }
    return steps;
}

static void close_steps(Steps *steps)
{
    free(steps->one);
    free(steps->two);
}

/* Returns the time of one step among many, which is taken to be that of the second of two steps. */
static StepTime second_step(const Plan *plan, const StagePlan *stage, const CostTraits *traits)
{
    Steps s = open_steps(plan, stage, traits);
    StepTime step = replay_second_step(s.one, s.two, plan->grid.pp, node_seconds, &s.costs);
    close_steps(&s);
    return step;
}

static double second_seconds(const Plan *plan, const StagePlan *stage, const CostTraits *traits)
{
    Steps s = open_steps(plan, stage, traits);
    double seconds = replay_second_seconds(s.one, s.two, plan->grid.pp, node_seconds, &s.costs);
    close_steps(&s);
    return seconds;
}

static StepTime replay(const Plan *plan, const CostTraits *traits)
{
    StepTime step = second_step(plan, plan->stage, traits);
    if (plan->fewer == NULL) return step;
    StepTime fewer = second_step(plan, plan->fewer, traits);
    StepTime period = step_time_between(&fewer, &step);
    step_time_add(&step, &period, (double)plan->periods);
    step_time_free(&fewer);
    step_time_free(&period);
    return step;
}

double plan_seconds(const Plan *plan, const CostTraits *traits)
{
    double seconds = second_seconds(plan, plan->stage, traits);
    if (plan->fewer == NULL) return seconds;
    double fewer = second_seconds(plan, plan->fewer, traits);
    return seconds + (double)plan->periods * (seconds - fewer);
}

PlanTraits plan_traits(void)
{
    PlanTraits traits = {COST_OWN, COST_OWN};
    /* Published step times differ from predictions by about a tenth. Links are less certain: their
     * bandwidth depends on the other jobs of a network, and on how ranks are placed in it. */
    const double kernels = 0.1, links = 0.25;
    traits.slow.product = traits.slow.attention = traits.slow.memory = 1 - kernels;
    traits.fast.product = traits.fast.attention = traits.fast.memory = 1 + kernels;
    traits.slow.inside = traits.slow.between = traits.slow.host = 1 - links;
    traits.fast.inside = traits.fast.between = traits.fast.host = 1 + links;
    return traits;
}

void plan_vary(Plan *plan)
{
    PlanTraits traits = plan_traits();
    CostTraits half = COST_OWN;
    *(plan->nodes > 1 ? &half.between : &half.inside) = 0.5;
    plan->range = (PlanRange){.slow = plan_seconds(plan, &traits.slow),
                              .fast = plan_seconds(plan, &traits.fast),
                              .half_network = plan_seconds(plan, &half)};
}

/* Returns how the stage whose work ends last spends the step. If only a part of the step was
 * recorded, that is the stage whose work ends last in this part. In the whole step another stage
 * may end later, so `seconds` is set to the time of the whole step. */
static StageTime step_parts(const Plan *plan)
{
    StageTime step = plan->time.stage[plan->time.last];
    step.seconds = plan->time.seconds;
    return step;
}

/* ---- the plan -------------------------------------------------------------------------------- */

static int64_t count_parameters(const Config *config)
{
    GptShape whole = gpt_shape(config, (int)config->parallel.tensor);
    GptLayers layers;
    ParamTable table = {0};
    gpt_layers_build(&layers, &table, &whole, &LAYERS_WHOLE);
    int64_t count = param_table_count(&table);
    gpt_layers_free(&layers);
    param_table_free(&table);
    return count;
}

static void compute_rates(Plan *plan)
{
    const Config *c = plan->config;
    const Hardware *h = &plan->hardware;
    GptShape whole = gpt_shape(c, (int)c->parallel.tensor);
    double devices = h->cuda ? (double)plan->ranks : (double)plan->nodes;
    plan->parameters = count_parameters(c);
    plan->tokens = (double)step_tokens(c);
    plan->flops = gpt_flops_per_token(&whole, c->data.seq_length) * plan->tokens;
    plan_count_saves(plan);
    plan->time = replay(plan, &COST_OWN);
    plan->step = step_parts(plan);
    double peak = hardware_peak(h, config_dtype(c), c->cuda.tf32);
    plan->mfu6 = plan->flops / plan->step.seconds / (devices * peak);
}

static Plan begin_plan(const Config *config, const Hardware *hardware)
{
    Plan plan = {.config = config, .hardware = *hardware, .grid = config_grid(config, 0)};
    plan.ranks = grid_ranks(plan.grid);
    plan.ranks_of_node = min_i64(plan.ranks, hardware->devices_per_node);
    plan.nodes = (plan.ranks + plan.ranks_of_node - 1) / plan.ranks_of_node;
    memory_check_step(config);
    return plan;
}

bool plan_make(Plan *plan, const Config *config, const Hardware *hardware, char *err, size_t n)
{
    *plan = begin_plan(config, hardware);
    if (!plan_all_stages(plan, err, n)) return false;
    fit(plan);
    plan_find_remedy(plan);
    compute_rates(plan);
    return true;
}

static int64_t nodes_of(const StagePlan *stage, int stages)
{
    int64_t nodes = 0;
    for (int s = 0; stage != NULL && s < stages; s++)
        nodes += stage[s].two.issued;
    return nodes;
}

Plan plan_memory(const Config *config, const Hardware *hardware)
{
    Plan plan = begin_plan(config, hardware);
    plan.stage = must_calloc((size_t)plan.grid.pp, sizeof *plan.stage);
    plan_stages_memory(config, hardware, plan.stage);
    fit(&plan);
    plan_stages_free(plan.stage, plan.grid.pp);
    plan.stage = NULL;
    return plan;
}

double plan_seconds_if_fits(const Config *config, const Hardware *hardware, int64_t *nodes)
{
    char err[512];
    double seconds = INFINITY;
    Plan plan = plan_memory(config, hardware);
    if (!plan.fits) return seconds;
    CHECK(plan_all_stages(&plan, err, sizeof err), "%s", err);
    *nodes += nodes_of(plan.stage, plan.grid.pp) + nodes_of(plan.fewer, plan.grid.pp);
    seconds = plan_seconds(&plan, &COST_OWN);
    plan_free(&plan);
    return seconds;
}

void plan_free(Plan *plan)
{
    plan_stages_free(plan->stage, plan->grid.pp);
    if (plan->fewer) plan_stages_free(plan->fewer, plan->grid.pp);
    step_time_free(&plan->time);
    free(plan->remedy);
    *plan = (Plan){0};
}
