/* counted_stage.c -- see counted_stage.h. */
#include "parallel/plan/counted_stage.h"

#include "model/core/check.h"
#include "model/core/recorder.h"
#include "parallel/comm/counted.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the wire -------------------------------------------------------------------------------- */

/* Adds to `out`, multiplied by `sign`, the calls that the grid's groups have counted so far. */
static void add_counts(const Grid *grid, int sign, StagePlan *out)
{
    const Comm *comm[GRID_COMMS];
    grid_comms(grid, comm);
    for (int g = 0; g < GRID_COMMS; g++) {
        for (int v = 0; v < COMM_VERBS; v++)
            for (int d = 0; d < DTYPE_COUNT; d++) {
                const CommCount *from = &comm_counts(comm[g])->of[v][d];
                CommCount *to = &out->wire[g].of[v][d];
                to->calls += sign * from->calls;
                to->elements += sign * from->elements;
                to->bytes += sign * from->bytes;
            }
        snprintf(out->group[g], sizeof out->group[g], "%s", comm[g]->name);
        out->group_size[g] = comm[g]->size;
    }
}

/* ---- one rank -------------------------------------------------------------------------------- */

/* Runs the first two steps. Records the graphs of both, and counts the calls of the first. */
static void record(Trainer *t, Recorder *recorder, StagePlan *out)
{
    recorder_start(recorder, &out->two);
    add_counts(&t->session.grid, -1, out);
    trainer_step(t);
    add_counts(&t->session.grid, +1, out);
    Graph first = out->two;
    trainer_step(t);
    recorder_stop(recorder);
    /* The second step may have moved the nodes to a larger array, so their addresses are taken from
     * `two` again. */
    out->step = out->two;
    memcpy(out->step.n, first.n, sizeof first.n);
    out->step.issued = first.issued;
    out->step.n_messages = first.n_messages;
}

/* A trainer in a world that only counts its calls (comm_counted), and what it needs. */
typedef struct {
    Config config;
    Comm world;
    DataSet data;
    Trainer trainer;
} CountedTrainer;

static void open_counted(CountedTrainer *c, const Config *config, const CountedFacts *facts,
                         int rank)
{
    GridPlace size = config_grid(config, 0);
    c->config = *config;
    /* Phases cannot be timed here: that needs a real device. */
    c->config.wall_clock_breakdown = false;
    c->world = comm_counted(rank, (int)grid_ranks(size));
    data_open_random(&c->data, config->model.vocab_size);
    trainer_open_counted(&c->trainer, &c->config, &c->world, facts);
}

static void close_counted(CountedTrainer *c)
{
    trainer_close(&c->trainer);
    data_close(&c->data);
    comm_close(&c->world);
}

static void take_memory(const CountedTrainer *c, StagePlan *out)
{
    out->memory = memory_plan(&c->trainer, &c->data);
    out->checkpoint_bytes = out->memory.checkpoint;
}

void plan_rank(const Config *config, const CountedFacts *facts, int rank, StagePlan *out)
{
    Recorder recorder;
    CountedTrainer c;
    char err[512];
    open_counted(&c, config, facts, rank);
    recorder_attach(&recorder, &c.trainer.session.dev);
    *out = (StagePlan){.stage = c.trainer.session.grid.at.pp};
    take_memory(&c, out);
    if (!trainer_allocate(&c.trainer, &c.config, &c.data, err, sizeof err))
        fail(EXIT_BUG, "%s", err);
    record(&c.trainer, &recorder, out);
    close_counted(&c);
}

void plan_rank_free(StagePlan *plan)
{
    graph_free(&plan->two);
}

/* ---- all stages ------------------------------------------------------------------------------ */

static CountedFacts facts_of(const Hardware *hardware)
{
    return (CountedFacts){.facts = hardware->device,
                          .place = hardware->device.bytes > 0 ? PLACE_DEVICE : PLACE_HOST,
                          .workspace = (size_t)hardware->workspace_bytes};
}

bool plan_stages(const Config *config, const Hardware *hardware, StagePlan **out, int *stages,
                 char *err, size_t n)
{
    GridPlace size = config_grid(config, 0);
    int64_t in_stage = (int64_t)size.dp * size.cp * size.tp, ranks = in_stage * size.pp;
    CountedFacts facts = facts_of(hardware);
    if (ranks > COMM_MAX_RANKS)
        return error_set(err, n, "a grid of %lld ranks; at most %d are possible", (long long)ranks,
                         COMM_MAX_RANKS);
    *out = must_calloc((size_t)size.pp, sizeof **out);
    *stages = size.pp;
    for (int s = 0; s < size.pp; s++)
        plan_rank(config, &facts, (int)(s * in_stage), &(*out)[s]);
    return true;
}

void plan_stages_memory(const Config *config, const Hardware *hardware, StagePlan *plans)
{
    GridPlace size = config_grid(config, 0);
    CountedFacts facts = facts_of(hardware);
    for (int s = 0; s < size.pp; s++) {
        CountedTrainer c;
        open_counted(&c, config, &facts, (int)(s * grid_ranks(size) / size.pp));
        take_memory(&c, &plans[s]);
        close_counted(&c);
    }
}

void plan_stages_free(StagePlan *plans, int stages)
{
    for (int s = 0; s < stages; s++)
        plan_rank_free(&plans[s]);
    free(plans);
}
