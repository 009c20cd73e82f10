/* world.c -- see world.h. */
#include "parallel/run/world.h"

#include "model/core/log.h"
#include "parallel/comm/nccl/nccl.h"
#include "parallel/grid/control.h"
#include "parallel/grid/launch.h"
#include "parallel/pipeline/schedule_order.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- starting -------------------------------------------------------------------------------- */

typedef struct {
    Run *run; /* by rank */
    int (*rank)(Run *run);
    Run *opened;
} Ranks;

static int live(Comm *world, void *context)
{
    const Ranks *ranks = context;
    Run *run = world->rank == 0 ? ranks->opened : &ranks->run[world->rank];
    run->world = world;
    run->lead = world->rank == 0;
    run_speak_for_all(run);
    return ranks->rank(run);
}

int run_on_ranks(Run *run, int (*rank)(Run *run))
{
    int n = (int)run->arguments.ranks;
    LaunchOptions options = {.timeout = run->config->parallel.timeout,
                             .size = config_grid(run->config, n)};
    Ranks ranks = {.run = must_calloc((size_t)n, sizeof *ranks.run), .rank = rank, .opened = run};
    for (int i = 1; i < n; i++)
        ranks.run[i] = *run;
    session_prepare_ranks(run->config, n);
    int code = launch_ranks(n, &options, live, &ranks);
    free(ranks.run);
    data_close(&run->data);
    config_free(run->config);
    run_arguments_free(&run->arguments);
    return code;
}

/* ---- agreeing -------------------------------------------------------------------------------- */

void run_require(const Run *run, bool good, ExitCode code, char *err, size_t n)
{
    if (!control_agree(run->world, good, err, n)) control_fail(run->world, code, "%s", err);
}

void run_check_schedules(const Config *config)
{
    char err[1024];
    ScheduleSpec spec = step_spec(config);
    if (spec.stages == 1) return;
    CHECK(schedule_check(&spec, err, sizeof err), "the schedule of a step: %s", err);
    spec.evaluate = true;
    int64_t group = evaluate_group((GridPlace){.pp = spec.stages});
    for (spec.micros = 1; spec.micros <= group; spec.micros++)
        CHECK(schedule_check(&spec, err, sizeof err), "the schedule of an evaluation: %s", err);
}

void run_share_folder(Run *run)
{
    struct {
        RunState state;
        int attempt;
    } told = {run->folder.state, run->folder.attempt};
    control_share(run->world, &told, sizeof told);
    char *path = control_share_text(run->world, run->folder.path);
    if (run->lead) {
        free(path);
        return;
    }
    run->folder = (RunFolder){
        .path = path, .state = told.state, .lock = FOLDER_LOCK_NONE, .attempt = told.attempt};
}

/* ---- telling --------------------------------------------------------------------------------- */

char *run_schedule_text(const Config *config, char *text, size_t n)
{
    const ScheduleSpec spec = step_spec(config);
    char chunks[32] = "";
    if (spec.chunks > 1) snprintf(chunks, sizeof chunks, " x %d", spec.chunks);
    snprintf(text, n, "%s%s, %lld micro-batch%s, bubble %.0f %%",
             config_word(config, "parallel.schedule"), chunks, (long long)spec.micros,
             spec.micros == 1 ? "" : "es", 100 * timeline_bubble(&spec));
    return text;
}

void run_print_ranks(Run *run)
{
    char text[256], schedule[96], transport[32] = "";
    const Config *config = run->config;
    const Device *dev = &run->trainer.session.dev;
    int ranks = run->world->size, threads = pool_threads(dev->pool), cores = pool_allowed_cores();
    if (ranks == 1) return;
    control_require_alike(run->world, "computes on", device_describe(dev, text, sizeof text),
                          "set device, cpu.level, cpu.blas and cpu.threads so that all are alike");
    grid_size_text(run->trainer.session.grid.size, text, sizeof text);
    bool rows = config->parallel.sequence_parallel && config->parallel.tensor > 1,
         stages = config->parallel.pipeline > 1 && run->lead; /* one plays all stages' schedules */
    if (session_connects(&run->trainer.session)) nccl_version(transport, sizeof transport);
    log_field("ranks", "%d = %s (threads, %s%s%d thread%s each), ZeRO %lld%s%s%s", ranks, text,
              transport, transport[0] ? ", " : "", threads, threads == 1 ? "" : "s",
              (long long)config->zero_optimization.stage, rows ? ", sequence parallel" : "",
              stages ? ", " : "",
              stages ? run_schedule_text(config, schedule, sizeof schedule) : "");
    if (run->trainer.session.gpus == GPUS_ONE) log_field("", "ranks %s", gpus_shared);
    if (ranks > cores && dev->backend->place == PLACE_HOST)
        log_field("", "%d ranks on %d core%s take turns: slower than one rank with all of them",
                  ranks, cores, cores == 1 ? "" : "s");
}

void run_compare_ranks(const Run *run, SpeedRecord *s)
{
    int ranks = run->world->size;
    enum { WORK = EXPOSED_AXES, FIELDS };
    double own[FIELDS] = {[WORK] = s->forward + s->backward + s->optimizer};
    double(*all)[FIELDS] = must_calloc((size_t)ranks, sizeof *all);
    memcpy(own, s->exposed, sizeof s->exposed);
    comm_all_gather(run->world, NULL, tensor_1d(all, F64, (int64_t)ranks * FIELDS),
                    tensor_1d(own, F64, FIELDS));
    s->ranks = ranks;
    for (int r = 0; r < ranks; r++) {
        s->mean_work += all[r][WORK] / ranks;
        if (all[r][WORK] > all[s->slowest][WORK]) s->slowest = r;
        for (int a = 0; a < EXPOSED_AXES; a++)
            s->exposed[a] = fmax(s->exposed[a], all[r][a]);
    }
    s->most_work = all[s->slowest][WORK];
    free(all);
}

void run_take_place(const Run *run)
{
    char place[64];
    if (run->lead && run->world->size > 1)
        log_set_rank(0, grid_place_text(run->trainer.session.grid.size, 0, place, sizeof place));
}

void run_speak_for_all(const Run *run)
{
    if (run->lead) log_set_rank(0, NULL);
}

void run_open_log(Run *run)
{
    char err[1024] = "";
    if (!run->arguments.log_ranks) return;
    char *folder = text_format("%s/logs", run->folder.path);
    char *path = text_format("%s/rank_%03d.log", folder, run->world->rank);
    bool good = !run->lead || fs_make_folders(&fs_system, folder, err, sizeof err);
    run_require(run, good, EXIT_CANNOT_CREATE, err, sizeof err);
    run->log = fopen(path, "a");
    good =
        run->log != NULL || error_set(err, sizeof err, "cannot open %s: %s", path, strerror(errno));
    run_require(run, good, EXIT_CANNOT_CREATE, err, sizeof err);
    log_set_file(run->log);
    free(path);
    free(folder);
}

void run_close_log(Run *run)
{
    if (run->log == NULL) return;
    log_set_file(NULL);
    fclose(run->log);
    run->log = NULL;
}
