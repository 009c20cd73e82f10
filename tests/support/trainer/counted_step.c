/* counted_step.c -- see counted_step.h. */
#include "tests/support/trainer/counted_step.h"

#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "parallel/plan/counted_stage.h"
#include "tests/support/grid/thread_ranks.h"

#include <string.h>

void counted_step_open(CountedStep *c, Trainer *t, const DataSet *data)
{
    c->memory = memory_plan(t, data);
    recorder_attach(&c->recorder, &t->session.dev);
}

static void compare_memory(const Comm *world, const char *who, const MemoryPlan *run,
                           const MemoryPlan *planned)
{
    const struct {
        const char *name;
        size_t run, planned;
    } of[] = {
        {"weights", run->weights, planned->weights},
        {"gradients", run->gradients, planned->gradients},
        {"buffers", run->buffers, planned->buffers},
        {"optimizer", run->optimizer, planned->optimizer},
        {"activations", run->activations, planned->activations},
        {"scratch", run->scratch, planned->scratch},
        {"other", run->other, planned->other},
        {"total", run->total - run->reserve, planned->total - planned->reserve},
        {"host", run->host, planned->host},
        {"checkpoint", (size_t)run->checkpoint, (size_t)planned->checkpoint},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (of[i].run != of[i].planned)
            rank_wrong(world, "%s: %s %zu bytes, planned %zu", who, of[i].name, of[i].run,
                       of[i].planned);
}

/* Returns whether ranks with another dp coordinate may make other calls in this group. */
static bool depends_on_shard(const Grid *grid, const Comm *comm)
{
    return comm == &grid->tp || comm == &grid->kv || comm == &grid->tie;
}

/* `before`: what each group had counted before the step. The plan is one of rank `of` of dp. */
static void compare_wire(const Comm *world, const char *who, const Grid *grid,
                         const CommCounts *before, const StagePlan *planned, int of)
{
    const Comm *comm[GRID_COMMS];
    grid_comms(grid, comm);
    for (int g = 0; g < GRID_COMMS; g++) {
        if (grid->at.dp != of && depends_on_shard(grid, comm[g])) continue;
        if (strcmp(comm[g]->name, planned->group[g]) != 0 ||
            comm[g]->size != planned->group_size[g])
            rank_wrong(world, "%s: group %s of %d, planned %s of %d", who, comm[g]->name,
                       comm[g]->size, planned->group[g], planned->group_size[g]);
        for (int v = 0; v < COMM_VERBS; v++)
            for (int d = 0; d < DTYPE_COUNT; d++) {
                const CommCount *to = &comm_counts(comm[g])->of[v][d], *from = &before[g].of[v][d],
                                *plan = &planned->wire[g].of[v][d];
                if (to->calls - from->calls != plan->calls ||
                    to->elements - from->elements != plan->elements ||
                    to->bytes - from->bytes != plan->bytes)
                    rank_wrong(world, "%s: %s over %s: %lld %s in %lld calls, planned %lld in %lld",
                               who, comm_verb_name[v], comm[g]->name,
                               (long long)(to->elements - from->elements), dtype_name((DType)d),
                               (long long)(to->calls - from->calls), (long long)plan->elements,
                               (long long)plan->calls);
            }
    }
}

/* Adds the collectives and messages of a graph to the counts of the groups that they belong to. */
static void add_recorded(const Graph *graph, const StagePlan *planned, CommCounts *wire)
{
    for (int s = 0; s < GRAPH_STREAMS; s++)
        for (const GraphNode *node = graph->node[s]; node < graph->node[s] + graph->n[s]; node++) {
            int g = 0;
            if (node->group < 0) continue;
            while (strcmp(planned->group[g], graph->group[node->group].name) != 0)
                CHECK(++g < GRID_COMMS, "a graph with group %s", graph->group[node->group].name);
            if (node->kind == NODE_COLLECTIVE) {
                CommCount *count = &wire[g].of[node->code][node->dtype];
                count->calls++;
                count->bytes += node->bytes;
            }
            for (int i = 0; i < node->messages; i++) {
                const GraphMessage *m = &graph->message[node->message + i];
                CommCount *count = &wire[g].of[m->send ? COMM_SEND : COMM_RECEIVE][m->dtype];
                count->calls++;
                count->bytes += m->bytes;
            }
        }
}

/* The graph has each call that is counted, and no other. Groups of one rank send nothing. */
static void compare_recorded(const Comm *world, const StagePlan *planned)
{
    CommCounts wire[GRID_COMMS] = {0};
    add_recorded(&planned->step, planned, wire);
    for (int g = 0; g < GRID_COMMS; g++)
        for (int v = 0; v < COMM_VERBS && planned->group_size[g] > 1; v++)
            for (int d = 0; d < DTYPE_COUNT; d++) {
                const CommCount *graph = &wire[g].of[v][d], *plan = &planned->wire[g].of[v][d];
                if (graph->calls != plan->calls || graph->bytes != plan->bytes)
                    rank_wrong(
                        world,
                        "%s over %s: %lld calls and %lld bytes in the graph, %lld and %lld counted",
                        comm_verb_name[v], planned->group[g], (long long)graph->calls,
                        (long long)graph->bytes, (long long)plan->calls, (long long)plan->bytes);
            }
}

/* Returns the first rank of the rank's stage. */
static int first_of_stage(const Grid *grid)
{
    return grid->at.pp * grid->size.dp * grid->size.cp * grid->size.tp;
}

void counted_step_check(CountedStep *c, Comm *world, Trainer *t)
{
    const GraphNames names = {.op = op_name, .verb = comm_verb_name};
    const Session *s = &t->session;
    const CountedFacts facts = {.place = s->dev.backend->place};
    const Comm *comm[GRID_COMMS];
    CommCounts before[GRID_COMMS];
    Graph graph = {0};
    StagePlan own, first;
    char why[600];
    grid_comms(&s->grid, comm);
    for (int g = 0; g < GRID_COMMS; g++)
        before[g] = *comm_counts(comm[g]);
    recorder_start(&c->recorder, &graph);
    trainer_step(t);
    recorder_stop(&c->recorder);
    plan_rank(t->config, &facts, world->rank, &own);
    plan_rank(t->config, &facts, first_of_stage(&s->grid), &first);
    compare_memory(world, "this rank", &c->memory, &own.memory);
    compare_memory(world, "the stage's first", &c->memory, &first.memory);
    compare_wire(world, "this rank", &s->grid, before, &own, s->grid.at.dp);
    compare_wire(world, "the stage's first", &s->grid, before, &first, 0);
    if (!graph_equal(&graph, &own.step, names, why, sizeof why))
        rank_wrong(world, "run and plan: %s", why);
    compare_recorded(world, &own);
    plan_rank_free(&own);
    plan_rank_free(&first);
    graph_free(&graph);
}
