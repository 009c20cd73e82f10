/* dry_run.c -- `--dry-run`: allocates everything as the run would, trains a micro-batch, and
 * estimates the speed of the whole run.
 *
 * On the CPU the ranks share the processors. So each rank trains only its share of a micro-batch,
 * and a dry run takes about as long for many ranks as for one. Every rank still makes every call of
 * a step. */
#include "model/core/figures.h"
#include "model/core/log.h"
#include "optim/step_constants.h"
#include "parallel/grid/control.h"
#include "parallel/grid/machines.h"
#include "parallel/run/init_from.h"
#include "parallel/run/open.h"

#include <math.h>
#include <stdlib.h>

Pace run_pace(const Run *run, int64_t accumulation)
{
    const Config *c = run->config;
    Pace pace = {.train_steps = c->train_steps,
                 .eval_interval = c->eval.interval,
                 .sample_interval = c->eval.sample_interval,
                 .save_interval = c->checkpoint.save_interval,
                 .eval_seconds = -1,
                 .sample_seconds = -1,
                 .save_seconds = -1};
    if (run->trainer.val == NULL) return pace;
    int64_t batches = loader_batches(run->trainer.val);
    for (int i = 0; i < run->trainer.n_sets; i++)
        batches += loader_batches(run->trainer.sets[i]);
    /* An evaluation has no backward pass, which takes twice as long as the forward pass. */
    pace.eval_steps = (double)batches / (double)accumulation / 3;
    return pace;
}

/* Returns the factor by which a pipeline stage is slower when all stages work at once than when it
 * works alone. It is above 1 if the ranks that share this rank's cores have more threads than there
 * are cores. */
static double crowding(const Trainer *t, int sharing)
{
    double threads = pool_threads(t->session.dev.pool), cores = pool_allowed_cores();
    double all = sharing * threads / cores, one = all / t->session.grid.size.pp;
    return fmax(all, 1) / fmax(one, 1);
}

/* Estimates how many seconds a full step of the run takes, from the only step that the trainer has
 * made since the last call. That step had one micro-batch or a rank's share of one. Resets the
 * trainer's clocks. */
static double take_seconds(Run *run)
{
    Trainer *t = &run->trainer;
    const Config *c = run->config;
    PhaseSeconds *s = &t->phases.seconds;
    bool immediate = t->session.dev.backend->place == PLACE_HOST;
    /* On a GPU the times of the phases already include the wait for data. */
    double data = immediate ? t->feed.seconds : 0;
    int stages = t->session.grid.size.pp;
    StepTimes one = phases_times(s, data);
    one.fill = (double)(stages - 1) / t->session.layers.n_chunks;
    if (immediate && stages > 1) one.micro_batch *= crowding(t, machines_share_cores(run->world));
    one.micro_batch *= (double)c->train_micro_batch_size_per_gpu /
                       (double)t->config->train_micro_batch_size_per_gpu;
    *s = (PhaseSeconds){0};
    t->feed.seconds = 0;
    double seconds =
        pace_step_seconds(&one, c->gradient_accumulation_steps, c->zero_optimization.stage);
    /* The slowest stage determines the time of a step. */
    return stages == 1 ? seconds : 1e-9 * (double)control_max(run->world, (int64_t)(1e9 * seconds));
}

/* Prints how fast a run would be. In the first step memory is touched for the first time, which
 * takes additional time. Therefore a second step is measured, unless the first took so long that
 * this hardly matters. */
static void print_speed(Run *run)
{
    enum { LONG_ENOUGH = 3 };
    StepRecord record[TRAINER_HISTORY];
    Trainer *t = &run->trainer;
    const Config *c = run->config;
    const PhaseSeconds *s = &t->phases.seconds;
    bool again = s->forward + s->backward + s->optimizer < LONG_ENOUGH && c->train_steps > 1;
    double seconds = take_seconds(run);
    /* Either all ranks make the second step or none. Each has its own clock, so they agree on it.
     */
    if (control_max(run->world, again) != 0) {
        trainer_step(t);
        trainer_read_all(t, record);
        seconds = take_seconds(run);
    }
    Pace pace = run_pace(run, c->gradient_accumulation_steps);
    double tokens = (double)step_tokens(c);
    log_field("speed", "about %s tokens/s; %s steps and their evaluations take about %s",
              figure_count(round(tokens / seconds)).text, figure_count((double)c->train_steps).text,
              figure_duration(pace_seconds_left(&pace, 0, seconds)).text);
}

/* If the ranks share the processors, makes each rank train only its share of a micro-batch. */
static void take_share(Run *run, const Config *share)
{
    char err[2048];
    Trainer *t = &run->trainer;
    if (t->session.dev.backend->place != PLACE_HOST) return;
    if (share->train_micro_batch_size_per_gpu == t->config->train_micro_batch_size_per_gpu) return;
    if (!trainer_shrink(t, share, err, sizeof err)) fail(EXIT_DAMAGED, "%s", err);
}

int run_dry(Run *run)
{
    StepRecord record[TRAINER_HISTORY];
    const Config *c = run->config;
    const Config micro = config_of_one_micro_batch(c, true), share = config_of_one_share(&micro);
    Progress *progress = &run->work.progress;
    if (run->lead) init_from_find(run);
    run_allocate_trainer(run, &micro);
    take_share(run, &share);
    int64_t rows = run->trainer.config->train_micro_batch_size_per_gpu;
    progress_again(progress);
    progress_hurry(progress);
    progress_print(progress, "dry run: a step of %lld x %lld tokens%s", (long long)rows,
                   (long long)c->data.seq_length, run->world->size > 1 ? " on every rank" : "");
    trainer_step(&run->trainer);
    trainer_read_all(&run->trainer, record);
    progress_end(progress);
    char part[96] = "";
    if (rows < c->train_micro_batch_size_per_gpu)
        snprintf(part, sizeof part, ", %lld of its %lld sequences on every rank", (long long)rows,
                 (long long)c->train_micro_batch_size_per_gpu);
    log_field("dry run: ",
              "one micro-batch of %s%s, loss %.4f (uniform guessing: %.4f); no run was started",
              run->data.title, part, record[0].loss, log((double)c->model.vocab_size));
    progress_print(progress, "dry run: a second step, without the cost of the first");
    print_speed(run);
    progress_end(progress);
    trainer_close(&run->trainer);
    free(run->init.path);
    if (run->no_data != EXIT_OK && run->lead)
        return error_print(run->no_data,
                           "all but the data is ready: they are %s, see the warning above",
                           run->no_data == EXIT_MISSING ? "missing" : "not usable");
    return EXIT_OK;
}
