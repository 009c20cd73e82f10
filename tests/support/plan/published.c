/* published.c -- see published.h. */
#include "tests/support/plan/published.h"

#include "configs/context.h"
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "parallel/plan/cost.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const fitted_name[FITTED] = {"product_sustained", "product_edge", "memory_efficiency",
                                         "launch"};
/* The first two start in the middle of their bounds, the others with what norms reach by
 * themselves. */
const Fitted fitted_start = {{0.8, 128, 0.8, 2.5e-6}};

double fitted_least(int k)
{
    return hardware_limits(fitted_name[k], true).least;
}

double fitted_most(int k)
{
    return hardware_limits(fitted_name[k], true).most;
}

/* ---- recording ------------------------------------------------------------------------------- */

static const Config *config_of(const PublishedRun *r)
{
    char text[2048];
    snprintf(text, sizeof text,
             "{\"model\": {\"num_layers\": %d, \"hidden_size\": %d, \"num_attention_heads\": %d,"
             " \"intermediate_size\": %d, \"vocab_size\": %d},"
             " \"data\": {\"text\": \"x\", \"seq_length\": %d}, \"train_batch_size\": %d,"
             " \"train_micro_batch_size_per_gpu\": %d, \"bf16\": {\"enabled\": true},"
             " \"communication_data_type\": \"bf16\", \"pipeline\": {\"partition\": \"uniform\"},"
             " \"parallel\": {\"tensor\": %d, \"pipeline\": %d, \"pipeline_chunks\": %d,"
             " \"sequence_parallel\": %s},"
             " \"zero_optimization\": {\"stage\": %d, \"overlap_comm\": true,"
             " \"stage3_max_live_parameters\": 4000000000},"
             " \"activation_checkpointing\": {\"policy\": \"%s\"}}",
             r->layers, r->width, r->heads, r->ffn, r->vocabulary, r->length, r->batch, r->micro,
             r->tp, r->pp, r->chunks, r->sequence ? "true" : "false", r->zero,
             r->recompute ? "full" : "none");
    ConfigReport report;
    const ConfigContext context = {.world = (int64_t)r->tp * r->pp * r->dp};
    const Config *c = config_parse(&context, r->name, text, strlen(text), 0, NULL, &report);
    CHECK(c, "%s: %s", r->name, report.error[0]);
    config_report_free(&report);
    char err[512];
    c = config_settle(c, &(ConfigFacts){.vocab_size = r->vocabulary}, err, sizeof err);
    CHECK(c, "%s: %s", r->name, err);
    return c;
}

/* Frees the memory of steps that are not replayed: large runs have millions of nodes. */
static void drop_second_steps(StagePlan *plan, int stages)
{
    for (int s = 0; s < stages; s++)
        for (int i = 0; i < GRAPH_STREAMS; i++) {
            size_t bytes = (size_t)(plan[s].step.n[i] + 1) * sizeof *plan[s].two.node[i];
            plan[s].step.node[i] = plan[s].two.node[i] = must_realloc(plan[s].two.node[i], bytes);
        }
}

RecordedRun published_record(const PublishedRun *run)
{
    RecordedRun r = {.run = run};
    char err[1024];
    const Config *config = config_of(run);
    ExitCode code;
    CHECK(hardware_load(&r.hardware, run->machine, &code, err, sizeof err), "%s", err);
    CHECK(plan_make(&r.plan, config, &r.hardware, err, sizeof err), "%s: %s", run->name, err);
    r.plan.config = NULL;
    config_free(config);
    r.graph = must_calloc((size_t)run->pp, sizeof *r.graph);
    if (run->zero > 0) return r;
    drop_second_steps(r.plan.stage, run->pp);
    if (r.plan.fewer) drop_second_steps(r.plan.fewer, run->pp);
    return r;
}

void published_free(RecordedRun *r)
{
    plan_free(&r->plan);
    free(r->graph);
    *r = (RecordedRun){0};
}

/* ---- costs ----------------------------------------------------------------------------------- */

typedef struct {
    const RecordedRun *recorded;
    Hardware hardware;
    CostTraits traits;
} Pricing;

/* Kernels that move so many bytes. */
static double moved(const Pricing *p, double bytes, int kernels)
{
    const Hardware *h = &p->hardware;
    return kernels * h->launch + bytes / (h->memory_bandwidth * h->memory_efficiency);
}

static double sum_over_tensor(const Pricing *p, CommVerb verb, int64_t bytes, const Graph *g)
{
    for (int i = 0; i < g->groups; i++)
        if (strcmp(g->group[i].name, "tp") == 0)
            return cost_collective(&p->hardware, &p->traits, verb, bytes, &g->group[i]);
    return 0;
}

/* What a program moves per layer beyond our graph; the layer's attention stands for it. */
static double other_kernels(const Pricing *p, const GraphNode *n)
{
    const PublishedRun *r = p->recorded->run;
    const Program *q = r->program;
    bool forward = n->code == OP_attention_forward;
    double cut = 2.0 * (double)(n->m * n->n * n->k), whole = r->sequence ? cut : cut * r->tp;
    return moved(p,
                 whole * (forward ? q->whole_forward : q->whole_backward) +
                     cut * (forward ? q->cut_forward : q->cut_backward),
                 q->kernels * (forward ? 1 : 2));
}

/* The last product of a block in forward and the sum after it, which some programs repeat; in
 * backward its gradient stands for it. */
static double repeated(const Pricing *p, const Graph *g, const GraphNode *n)
{
    const PublishedRun *r = p->recorded->run;
    bool last = n->code == OP_linear_backward_input && n->n == r->ffn / r->tp && n->k == r->width;
    if (!r->program->recomputes_all || !r->recompute || !last) return 0;
    return cost_product(&p->hardware, &p->traits, n->dtype, n->m, n->k, n->n, 0) +
           sum_over_tensor(p, COMM_ALL_REDUCE, 2 * n->m * n->k, g);
}

static double op_cost(const Pricing *p, const Graph *g, const GraphNode *n)
{
    const Program *q = p->recorded->run->program;
    double seconds = cost_of_node(&p->hardware, &p->traits, g, n);
    double own = seconds - p->hardware.launch;
    switch (n->code) {
    case OP_attention_forward:
    case OP_attention_backward: return seconds + other_kernels(p, n);
    case OP_linear_backward_input: return seconds + repeated(p, g, n);
    /* Of our own loss, 4 bytes for each logit; cut among ranks, 2, 2 and 4. */
    case OP_loss: return seconds + own * (q->loss_bytes / 4.0 - 1);
    case OP_loss_max:
    case OP_loss_terms:
    case OP_loss_finish: return seconds + own * (q->loss_bytes / 8.0 - 1);
    case OP_adamw:
    case OP_sq_norm: return seconds + own * (q->update - 1);
    default: return seconds;
    }
}

/* Gradients that a program sums after all its passes: all that the stage sums during them, at once.
 */
static double sums_at_end(const Pricing *p, const Graph *g)
{
    int64_t bytes = 0;
    const GraphGroup *group = NULL;
    for (int64_t i = 0; i < g->n[GRAPH_COMM]; i++) {
        const GraphNode *n = &g->node[GRAPH_COMM][i];
        if (n->kind != NODE_COLLECTIVE || strcmp(g->group[n->group].name, "shard") != 0) continue;
        group = &g->group[n->group];
        bytes += n->bytes;
    }
    if (group == NULL) return 0;
    return cost_collective(&p->hardware, &p->traits, COMM_ALL_REDUCE, bytes, group);
}

/* Messages of which each tensor-parallel rank sends a part, which the receivers gather. */
static double scattered(const Pricing *p, const Graph *g, const GraphNode *n)
{
    int tp = p->recorded->run->tp;
    Graph part = *g;
    GraphMessage message[8];
    double gathers = 0;
    for (int i = 0; i < n->messages; i++) {
        message[i] = g->message[n->message + i];
        if (!message[i].send) gathers += sum_over_tensor(p, COMM_ALL_GATHER, message[i].bytes, g);
        message[i].bytes /= tp;
    }
    GraphNode node = *n;
    node.message = 0;
    part.message = message;
    return cost_of_node(&p->hardware, &p->traits, &part, &node) + gathers;
}

static double cost_of(void *context, int stage, const GraphNode *n)
{
    const Pricing *p = context;
    const PublishedRun *r = p->recorded->run;
    const Graph *g = &p->recorded->graph[stage];
    bool at_end = !r->program->overlaps;
    if (n->stream == GRAPH_COMM && at_end) return 0;
    if (n->kind == NODE_OP && n->code == OP_step_decide && at_end)
        return op_cost(p, g, n) + sums_at_end(p, g);
    if (n->kind == NODE_OP) return op_cost(p, g, n);
    if (n->kind == NODE_MESSAGES && r->program->scatters && r->tp > 1) return scattered(p, g, n);
    double seconds = cost_of_node(&p->hardware, &p->traits, g, n);
    bool tensor = n->kind == NODE_COLLECTIVE && strcmp(g->group[n->group].name, "tp") == 0;
    /* Sums of the loss are small and are not hidden. */
    bool wide = tensor && n->bytes >= 2 * (int64_t)r->micro * r->length * r->width;
    return wide && r->program->hides_tensor ? seconds / r->tp : seconds;
}

/* Returns the seconds of a step that follows another one. */
static double step_seconds(Pricing *p, const StagePlan *stage)
{
    const RecordedRun *r = p->recorded;
    for (int i = 0; i < r->run->pp; i++)
        r->graph[i] = stage[i].step;
    StepTime one = replay_step(r->graph, r->run->pp, cost_of, p);
    double seconds = one.seconds;
    if (r->run->zero > 0) { /* else nothing of a step overlaps with the next */
        for (int i = 0; i < r->run->pp; i++)
            r->graph[i] = stage[i].two;
        StepTime two = replay_step(r->graph, r->run->pp, cost_of, p);
        seconds = two.seconds - one.seconds;
        step_time_free(&two);
    }
    step_time_free(&one);
    return seconds;
}

double published_predict(const RecordedRun *recorded, const Fitted *fitted)
{
    const Plan *plan = &recorded->plan;
    Pricing p = {recorded, recorded->hardware, COST_OWN};
    p.traits.materialised = recorded->run->program->materialised;
    p.hardware.product.sustained = fitted->value[0];
    p.hardware.product.edge = fitted->value[1];
    p.hardware.memory_efficiency = fitted->value[2];
    p.hardware.launch = fitted->value[3];
    double seconds = step_seconds(&p, plan->stage);
    if (plan->fewer == NULL) return seconds;
    return seconds + (double)plan->periods * (seconds - step_seconds(&p, plan->fewer));
}
