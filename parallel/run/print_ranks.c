/* print_ranks.c -- prints the grid of ranks and its pipeline schedule, and checks the schedule. */
#include "parallel/run/print_ranks.h"

#include "model/core/log.h"
#include "model/core/min_max.h"
#include "parallel/comm/nccl/nccl.h"
#include "parallel/grid/control.h"
#include "parallel/grid/launch.h"
#include "parallel/grid/machines.h"
#include "parallel/pipeline/schedule_order.h"

#include <stdio.h>
#include <stdlib.h>

void run_check_schedules(const Config *config)
{
    char err[1024];
    ScheduleSpec spec = step_spec(config);
    if (spec.stages == 1) return;
    CHECK(schedule_check(&spec, err, sizeof err), "the schedule of a step: %s", err);
    spec.evaluate = true;
    /* Evaluations differ only in their number of micro-batches. All small numbers and the largest
     * are checked, but only some in between: with 126 stages, all of them would take four seconds.
     */
    int64_t group = evaluate_group((GridPlace){.pp = spec.stages});
    for (int64_t n = 1; n <= group; n += n < group ? min_i64(1 + n / 16, group - n) : 1) {
        spec.micros = n;
        CHECK(schedule_check(&spec, err, sizeof err), "the schedule of an evaluation: %s", err);
    }
}

char *run_schedule_text(const Config *config, char *text, size_t n)
{
    const ScheduleSpec spec = step_spec(config);
    char chunks[32] = "";
    if (spec.chunks > 1) snprintf(chunks, sizeof chunks, " x %d", spec.chunks);
    snprintf(text, n, "%s%s, %lld micro-batch%s, bubble %.0f %%",
             config_word(config, "parallel.schedule"), chunks, (long long)spec.micros,
             spec.micros == 1 ? "" : "es", 100 * schedule_bubble_share(&spec));
    return text;
}

/* Prints how to shorten the idle time of the stages, if it is long. */
static void print_bubble_advice(const Config *config)
{
    static const double long_share = 0.3;
    const ScheduleSpec spec = step_spec(config);
    double share = schedule_bubble_share(&spec);
    if (share <= long_share) return;
    log_field("",
              "stages wait %.0f %% of the time; gradient_accumulation_steps %lld would halve it",
              100 * share, (long long)schedule_micros_for_half_bubble(&spec));
}

/* Warns about shard groups that span machines, and so send data between them in every micro-batch.
 */
static void warn_of_groups(const Run *run)
{
    GridPlace size = run->trainer.session.grid.size;
    int shard = config_shard(run->config, size.dp);
    if (shard == size.dp || !grid_shard_is_spread(run->world, size, shard)) return;
    log_warning("%s: groups of %d ranks are on several machines; a size that divides the "
                "data-parallel ranks of a machine keeps their sums and gathers within it",
                config_origin(run->config, "parallel.shard"), shard);
}

/* Writes on how many machines the ranks are, such as " on 2 machines, 8 each", or "" for one
 * machine; returns `text`. */
static char *machines_text(const Comm *world, char *text, size_t n)
{
    int count = machines_of(world).count, least = world->size, most = 0;
    *text = '\0';
    if (count == 1) return text;
    for (int m = 0; m < count; m++) {
        int ranks = machines_ranks(world, m);
        if (ranks < least) least = ranks;
        if (ranks > most) most = ranks;
    }
    if (least == most)
        snprintf(text, n, " on %d machines, %d each", count, most);
    else
        snprintf(text, n, " on %d machines, %d to %d each", count, least, most);
    return text;
}

/* Prints the names of the machines, if there are several. */
static void print_hosts(const Comm *world)
{
    enum { MOST = 64 };
    int count = machines_of(world).count, shown = count < MOST ? count : MOST;
    char *text;
    size_t size;
    if (count == 1) return;
    FILE *to = text_stream(&text, &size);
    for (int m = 0; m < shown; m++)
        fprintf(to, "%s%s", m ? ", " : "", machines_host(world, m));
    if (shown < count) fprintf(to, " and %d more", count - shown);
    fclose(to);
    log_field("hosts", "%s", text);
    free(text);
}

void run_print_ranks(Run *run)
{
    char text[256], schedule[96], transport[32] = "", machines[64], groups[32];
    const Config *config = run->config;
    const Device *dev = &run->trainer.session.dev;
    int ranks = run->world->size, threads = pool_threads(dev->pool), cores = pool_allowed_cores();
    if (ranks == 1) return;
    int sharing = machines_share_cores(run->world);
    /* Ranks with different kernels would round differently, so their replicas would diverge. */
    control_require_alike(run->world, "computes on", device_describe(dev, text, sizeof text),
                          "set device, cpu.level, cpu.blas and cpu.threads so that all are alike");
    grid_size_text(run->trainer.session.grid.size, text, sizeof text);
    bool rows = config->parallel.sequence_parallel && config->parallel.tensor > 1,
         stages =
             config->parallel.pipeline > 1 && run->lead; /* only rank 0 simulates the schedule */
    if (session_connects(&run->trainer.session)) nccl_version(transport, sizeof transport);
    log_field("ranks", "%d = %s (%s%s, %s%s%d thread%s each), ZeRO %lld%s%s%s%s", ranks, text,
              launch_kind(run->world), machines_text(run->world, machines, sizeof machines),
              transport, transport[0] ? ", " : "", threads, threads == 1 ? "" : "s",
              (long long)config->zero_optimization.stage,
              grid_shard_text(config, run->trainer.session.grid.size.dp, groups, sizeof groups),
              rows ? ", sequence parallel" : "", stages ? ", " : "",
              stages ? run_schedule_text(config, schedule, sizeof schedule) : "");
    print_hosts(run->world);
    warn_of_groups(run);
    if (stages) print_bubble_advice(config);
    if (run->trainer.session.gpus == GPUS_ONE) log_field("", "ranks %s", gpus_shared);
    /* Ranks on GPUs mostly wait for them, so too few cores slow down only CPU ranks. */
    if (sharing > cores && dev->backend->place == PLACE_HOST)
        log_field("", "%d ranks on %d core%s take turns: slower than one rank with all of them",
                  sharing, cores, cores == 1 ? "" : "s");
}
