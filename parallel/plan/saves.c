/* saves.c -- computes how long training waits for saves in a run; see plan.h. */
#include "parallel/plan/plan.h"

#include "model/core/check.h"
#include "parallel/memory/saved_bytes.h"

#include <math.h>

/* Returns how often a run saves: after every save_interval steps and at its end. Additional saves
 * of a best checkpoint depend on the losses and are not counted. */
static int64_t count_saves(const Config *config)
{
    int64_t every = config->checkpoint.save_interval;
    return every > 0 ? (config->train_steps + every - 1) / every : 1;
}

/* Returns the seconds that the disk needs to write a checkpoint. A few nodes alone cannot use the
 * full bandwidth of a large storage system. */
static double write_seconds(const Plan *plan)
{
    const Hardware *h = &plan->hardware;
    double of_nodes = (double)plan->nodes * h->node_disk_bandwidth;
    return (double)plan->stage[0].checkpoint_bytes / fmin(of_nodes, h->disk_bandwidth);
}

/* Returns the share of its files that a writer receives from other ranks. Tensor and pipeline
 * parallelism divide the model, and ZeRO divides what is saved among the data-parallel ranks,
 * too. (Stages 1 and 2 divide only the optimizer states, so this share is a little too large for
 * them.) */
static double received_share(const Plan *plan)
{
    double parts = plan->grid.tp * plan->grid.pp;
    if (plan->config->zero_optimization.stage > 0) parts = (double)plan->ranks;
    return 1 - 1 / parts;
}

void plan_count_saves(Plan *plan)
{
    plan->saves = count_saves(plan->config);
    plan->write_seconds = write_seconds(plan);
    const Hardware rank = hardware_of_rank(&plan->hardware, plan->ranks);
    /* The writers receive at the same time, so the writer that receives the most determines the
     * time. */
    double bytes = (double)saved_bytes_of_writer(plan->config, plan->ranks),
           received = received_share(plan) * bytes;
    bool between = plan->nodes > 1;
    /* A writer receives a part, writes it, and continues with the next part, so the times add
     * up. */
    plan->save_seconds = plan->write_seconds + cost_received(&rank, received, between);
    if (plan->snapshot > 0) plan->snapshot_seconds = cost_snapshot(&rank, bytes, received, between);
}

double plan_pending_seconds(const Plan *plan, double step, int64_t steps)
{
    return plan->snapshot > 0 ? fmax(0, plan->write_seconds - (double)steps * step) : 0;
}

PlanSaves plan_saves(const Plan *plan, double step)
{
    const Config *c = plan->config;
    int64_t every = c->checkpoint.save_interval, async = plan->saves - 1,
            last = c->train_steps - async * every;
    if (plan->snapshot == 0)
        return (PlanSaves){.written = (double)plan->saves * plan->save_seconds};
    CHECK(async > 0, "snapshots, but %lld saves", (long long)plan->saves);
    return (PlanSaves){.snapshots = (double)async * plan->snapshot_seconds,
                       .written = (double)(async - 1) * plan_pending_seconds(plan, step, every) +
                                  plan_pending_seconds(plan, step, last) + plan->save_seconds};
}

double plan_run_seconds(const Plan *plan, double step)
{
    PlanSaves saves = plan_saves(plan, step);
    return (double)plan->config->train_steps * step + saves.snapshots + saves.written;
}
