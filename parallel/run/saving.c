/* saving.c -- the saves of a run: when they are due, their warnings, and when older checkpoints are
 * removed. See saving.h. */
#include "parallel/run/saving.h"

#include "model/core/clock.h"
#include "model/core/log.h"
#include "parallel/grid/control.h"
#include "parallel/run/between_steps.h"
#include "parallel/run/comparing.h"
#include "parallel/run/run_ranks.h"
#include "parallel/run/signals.h"
#include "parallel/run/step_report.h"
#include "parallel/trainer/decide.h"
#include "parallel/trainer/save.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* If the loss is more than this many times that of uniform guessing, the run has diverged: neither
 * an untrained model nor the noise of a batch explains it. */
enum { MUCH_WORSE = 4 };

/* Returns whether the training was healthy at the step of the record; otherwise writes the reason
 * to why[0..n). `known`: the record has its loss, not only totals. records.spiking must be of the
 * same step. */
static bool is_healthy(const Run *run, const StepRecord *r, bool known, char *why, size_t n)
{
    double uniform = log((double)run->config->model.vocab_size);
    if (r->skips_in_row > 0) return error_set(why, n, "updates are being skipped");
    if (run->records.spiking) return error_set(why, n, "the loss has just risen abruptly");
    if (!known) return true;
    if (!isfinite(r->loss)) return error_set(why, n, "the loss is not finite");
    if (r->loss > MUCH_WORSE * uniform)
        return error_set(why, n, "the loss is %.4g, far above that of uniform guessing (%.4g)",
                         r->loss, uniform);
    return true;
}

bool run_is_healthy(const Run *run, char *why, size_t n)
{
    return is_healthy(run, &run->records.last, run->records.last_known, why, n);
}

void run_note_saved_health(Run *run, const StepRecord *r)
{
    SavedHealth *h = &run->saving.health;
    if (r->step != h->step) return;
    h->known = true;
    h->good = is_healthy(run, r, true, h->why, sizeof h->why);
}

/* Stores the health of the current step, whose record may not have arrived yet. */
static void begin_health(Run *run)
{
    SavedHealth *h = &run->saving.health;
    *h = (SavedHealth){.step = run->trainer.steps};
    h->known = run->records.last.step == h->step;
    h->good = h->known && run_is_healthy(run, h->why, sizeof h->why);
}

/* Returns the end of a warning: when a failed save is tried again; "" if never. */
static const char *next_try(const Run *run)
{
    const Config *c = run->config;
    int64_t step = run->trainer.steps, interval = c->checkpoint.save_interval;
    /* The process ends after this save, so there is no next try. */
    if (run->saving.last_try || run_stop_seen(run)) return "";
    if (run_is_over(run)) return "; trying again before the run ends";
    bool again = interval > 0 && interval <= c->train_steps &&
                 step - step % interval <= c->train_steps - interval;
    return again ? "; trying again at the next interval" : "; trying again after the last step";
}

/* Warns that this save does not remove older checkpoints, and why. Warns only once until the
 * training is healthy again, and only if there is an older checkpoint to remove. */
static void warn_keeping(Run *run)
{
    const SavedHealth *h = &run->saving.health;
    char ignored[512];
    int64_t *steps, keep = run->config->checkpoint.keep, others = 0;
    if (!run->trainer.keep_all) run->saving.keeping_warned = false;
    if (!run->lead || !run->trainer.keep_all || run->saving.keeping_warned || keep <= 0) return;
    int n = checkpoint_list(run->folder.path, &steps, ignored, sizeof ignored);
    for (int i = 0; i < n; i++)
        others += steps[i] < h->step;
    free(steps);
    if (others < keep) return;
    log_warning("step %lld: %s, so no older checkpoint is removed", (long long)h->step, h->why);
    run->saving.keeping_warned = true;
}

/* If the training was unhealthy at the saved step, only the older checkpoints can be trusted, so
 * none is removed. Later steps do not matter: what is removed must not depend on how long the save
 * takes. */
static void look_at_health(Run *run)
{
    const SavedHealth *h = &run->saving.health;
    run->trainer.keep_all = !h->good;
    if (h->known) warn_keeping(run);
    /* A run that may go back keeps the checkpoint to which it would go back, until it has saved the
     * next regular one: a stop in between must not change where it goes (rollback.h). */
    run->trainer.keep_all |= run->config->health.policy == HEALTH_ROLLBACK && !run_is_over(run) &&
                             !run_is_due(h->step, run->config->checkpoint.save_interval);
}

/* Reports a committed save. `work`: how many seconds the save would take if training waited for it.
 */
static void saved(Run *run, const StepRecord *at, double seconds, double work, double stall)
{
    char *path = checkpoint_path(run->folder.path, at->step);
    run->saving.error = EXIT_OK;
    run->saving.saved_step = at->step;
    run->saving.seconds = fmax(run->saving.seconds, work);
    if (run->lead)
        metrics_saved(run->output.metrics, &(SaveRecord){.at = *at,
                                                         .seconds = seconds,
                                                         .stall = stall,
                                                         .path = path,
                                                         .compared = run->saving.compared,
                                                         .between = run->saving.between});
    run->saving.between = (Comparisons){0};
    free(path);
}

/* Warns that a step is not saved: once for each step, and again at the last try. */
static void not_saved(Run *run, int64_t step, const char *err)
{
    run->saving.error = error_exit_code(err, EXIT_INPUT_OUTPUT);
    if (run->saving.warned_step == step && !run->saving.last_try) return;
    run->saving.warned_step = step;
    log_warning("step %lld is not saved: %s%s", (long long)step, err, next_try(run));
    if (run->lead) metrics_note(run->output.metrics, "warn", step, err);
}

/* Determines the health of the state that is to be saved. */
static void before_saving(Run *run)
{
    run_read_records(run);
    begin_health(run);
    look_at_health(run);
}

/* Begins a save or a wait for one. Returns the number of its entry in the flight record, for
 * end_saving. */
static int64_t begin_saving(Run *run, int64_t step)
{
    run_pause_clock(run);
    int64_t noted = flight_work_begin(run->trainer.session.flight, FLIGHT_SAVE);
    run_begin_work(run, "finishing this save");
    progress_print(&run->work.progress, "saving step %lld", (long long)step);
    return noted;
}

static void end_saving(Run *run, int64_t noted)
{
    run_end_work(run);
    flight_work_end(run->trainer.session.flight, noted);
    run_resume_clock(run);
}

/* On rank 0 returns false and sets err if the folder was renamed, removed or replaced. Ends the
 * program if another run has locked the folder, which can happen after somebody removed the lock
 * file: two runs that save here would remove each other's checkpoints. */
static bool folder_is_ours(Run *run, char *err, size_t n)
{
    bool in_place = !run->lead || run_folder_in_place(&run->folder, err, n);
    bool ok = !run->lead || !in_place || run_folder_hold(&run->folder, err, n);
    run_require(run, ok, EXIT_CANNOT_CREATE, err, n);
    return in_place;
}

/* A save that has begun, after the comparison of replicas. */
typedef struct {
    double start;  /* seconds_now() when it began */
    int64_t noted; /* its entry in the flight record */
} Begun;

static Begun begin_compared(Run *run)
{
    Begun b = {.start = seconds_now()};
    b.noted = begin_saving(run, run->trainer.steps);
    run->stops.worked = true;
    run->saving.compared = run_compare_replicas(run);
    return b;
}

/* Writes and commits the save that has begun, and ends it. */
static void write_now(Run *run, Begun begun)
{
    char err[2048];
    int64_t step = run->trainer.steps;
    /* The metrics are written before the checkpoint: a resume truncates metrics.jsonl to the
     * checkpoint's step, but cannot restore lines that never reached the disk. */
    bool ok = folder_is_ours(run, err, sizeof err);
    int64_t flushing = flight_work_begin(run->trainer.session.flight, FLIGHT_DISK);
    ok = ok && (!run->lead || metrics_flush(run->output.metrics, err, sizeof err));
    flight_work_end(run->trainer.session.flight, flushing);
    ok = control_agree(run->world, ok, err, sizeof err) &&
         trainer_save(&run->trainer, run->folder.path, run->origin.config_text, run->origin.machine,
                      err, sizeof err);
    double seconds = seconds_now() - begun.start;
    StepRecord at = run->records.last;
    at.step = step;
    if (ok)
        saved(run, &at, seconds, seconds, seconds);
    else
        not_saved(run, step, err);
    end_saving(run, begun.noted);
}

/* Saves this step synchronously. */
static void save_now(Run *run)
{
    before_saving(run);
    write_now(run, begin_compared(run));
}

void run_save(Run *run)
{
    run_await_save(run);
    if (run->saving.saved_step != run->trainer.steps) save_now(run);
}

/* ---- asynchronous saves ---------------------------------------------------------------------- */

/* Writes the metrics to disk. Called by the thread that commits the save. */
static bool sync_metrics(void *context, char *err, size_t n)
{
    const Run *run = context;
    return metrics_flush(run->output.metrics, err, n);
}

/* Begins an asynchronous save, or saves now if it cannot begin. */
static void save_async(Run *run)
{
    char err[2048];
    bool alone = run->world->size == 1;
    run_await_save(run); /* there is memory for only one snapshot */
    /* A single rank does not wait for its device here; its records are read before the save is
     * committed. */
    if (alone)
        begin_health(run);
    else
        before_saving(run);
    Begun b = begin_compared(run);
    bool ours = folder_is_ours(run, err, sizeof err);
    CheckpointHook hook = {sync_metrics, run};
    bool begun = control_agree(run->world, ours, err, sizeof err) &&
                 trainer_save_begin(&run->trainer, run->folder.path, run->origin.config_text,
                                    run->origin.machine, hook);
    if (!begun && !alone) {
        write_now(run, b);
        return;
    }
    end_saving(run, b.noted);
    if (!begun) save_now(run); /* the clock runs again, as save_now first waits for queued steps */
}

/* Handles the result of a save that has ended. */
static void take_outcome(Run *run, AsyncState state, const AsyncResult *r)
{
    if (state == ASYNC_SAVED) {
        StepRecord at = decide_totals(&r->state);
        saved(run, &at, r->seconds, r->work, r->stall);
    }
    if (state == ASYNC_FAILED) not_saved(run, r->step, r->err);
    if (state != ASYNC_PENDING && state != ASYNC_NONE) run_prepare_answers(run, run->work.doing);
}

/* Returns whether the pending save is to be dropped, because the event that ends the run happened
 * at or before its step. Only a run with a single rank drops saves: it reads its records here,
 * while the save is pending. A run with several ranks reads them before a save begins. */
static bool is_to_be_dropped(Run *run)
{
    int64_t event = run->records.event.step;
    if (run->world->size > 1) return false;
    if (async_save_copied(run->trainer.async)) {
        if (event == 0) run_read_arrived(run);
        look_at_health(run);
        event = run->records.event.step;
    }
    return event > 0 && run_saving_step(run) >= event;
}

int64_t run_saving_step(const Run *run)
{
    return async_save_pending(run->trainer.async);
}

void run_advance_save(Run *run, bool meet)
{
    AsyncResult result;
    if (run_saving_step(run) < 0) return;
    bool drop = is_to_be_dropped(run);
    take_outcome(run, trainer_save_advance(&run->trainer, meet, drop, &result), &result);
}

void run_await_save(Run *run)
{
    AsyncResult result;
    if (run_saving_step(run) < 0) return;
    bool alone = run->world->size == 1;
    if (alone) device_synchronize(&run->trainer.session.dev);
    bool drop = is_to_be_dropped(run);
    int64_t noted = begin_saving(run, run_saving_step(run));
    AsyncState state = trainer_save_await(&run->trainer, drop, &result);
    end_saving(run, noted);
    take_outcome(run, state, &result);
}

void run_save_if_due(Run *run)
{
    run_advance_save(run, run_agrees_now(run));
    if (!run_is_due(run->trainer.steps, run->config->checkpoint.save_interval)) {
        run_compare_if_due(run);
        return;
    }
    /* The last save of a run is synchronous. */
    if (run_is_over(run) || run->trainer.async == NULL)
        run_save(run);
    else
        save_async(run);
}

void run_try_save(Run *run)
{
    char err[2048];
    int64_t first = run->trainer.steps, last = run->config->train_steps;
    int64_t interval = run->config->checkpoint.save_interval;
    if (run->saving.saved_step == first || first >= last) return;
    if (interval > 0 && first - first % interval < last - interval) return;
    int64_t noted = flight_work_begin(run->trainer.session.flight, FLIGHT_SAVE);
    run_begin_work(run, "finishing this save");
    progress_print(&run->work.progress, "trying a save");
    bool ok = trainer_try_save(&run->trainer, run->folder.path, run->origin.config_text,
                               run->origin.machine, err, sizeof err);
    run_end_work(run);
    flight_work_end(run->trainer.session.flight, noted);
    if (ok) return;
    control_fail(run->world, error_exit_code(err, EXIT_INPUT_OUTPUT),
                 "this run saves only at its end, and a trial at its start failed: %s", err);
}
